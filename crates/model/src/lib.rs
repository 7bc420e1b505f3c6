//! What compression of cold memory brings, said beforehand.
//!
//! Nothing in this crate makes a system call or reads a clock: accesses, times and sizes come in as
//! arguments. So a recorded trace, a running process and a test are the same to it.
//!
//! | module | what it computes |
//! |---|---|
//! | [`reuse`] | reuse distances of a trace, exact or of sampled pages |
//! | [`footprint`] | pages touched in a window of time, from what is known of single pages |
//! | [`rounds`] | the same at single moments, and what it says of faults |
//! | [`curve`] | faults by resident memory, from any of these, with an interval |
//! | [`flynn`] | the same from two measurements, by Flynn's law |
//! | [`equations`] | equations (1) to (7) of paper 003, as printed and corrected |
//! | [`ratio`] | how small all of the pages become together, and the chance that they do not fit |
//! | [`simulate`] | policies over a trace: ramfold's own, the same code, and others |
//! | [`predict`] | run time, memory and risk by the size of memory, each with an interval |

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

use ramfold_policy::memory::watch;
pub use ramfold_policy::memory::watch::BLOCK_PAGES;

pub mod curve;
pub mod equations;
pub mod flynn;
pub mod footprint;
pub mod predict;
pub mod ratio;
pub mod reuse;
pub mod rounds;
pub mod simulate;

/// A page of the traced program: an address divided by the size of a page, or any other name that
/// is unique.
pub type PageNumber = u64;

/// Whether a page is among the one in `one_in` that are looked at: by a hash of its number, so the
/// same pages in each run. What is taken of a sample of one in 4 with 8 is one in 8 of all.
pub fn is_sampled(page: PageNumber, one_in: u64) -> bool {
    one_in <= 1 || hash(page).is_multiple_of(one_in)
}

/// Bits of a page's number within its process, where there are several: that of the process is in
/// the bits from here on.
pub const PROCESS_SHIFT: u32 = 44;

/// The page as it is numbered where there are several processes.
pub fn page_of_process(process: u64, page: PageNumber) -> PageNumber {
    process << PROCESS_SHIFT | page
}

/// Whether a block of pages is among the one in `one_in`, a power of two, that agents watch: by the
/// agents' own rule ([`ramfold_policy::memory::watch`]). Above [`PROCESS_SHIFT`], less those of
/// a block's pages, a block's number has that of its process.
pub fn is_block_sampled(block: u64, one_in: u32) -> bool {
    let within = (1 << (PROCESS_SHIFT - BLOCK_PAGES.ilog2())) - 1;
    watch::is_sampled(block & within, one_in.max(1).ilog2())
}

/// Spreads a page's number over all 64 bits.
pub(crate) fn hash(page: PageNumber) -> u64 {
    let mut bits = page.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}
