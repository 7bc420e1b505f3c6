//! ramfold's page LZ, for pages that stay cold: copies and literals like any Lempel-Ziv codec's, in
//! prefix codes that are not sent along.
//!
//! zstd spends a tenth of a page's object on the description of its codes, and half of the time to
//! read the object on making tables of them. Here the tables are part of the format: a few sets,
//! made from pages of many programs, of which the encoder takes the one that is best for the page.
//!
//! | module | what it holds |
//! |---|---|
//! | `symbols` | lengths and distances as symbols and extra bits |
//! | `code` | prefix codes |
//! | `sets` | the sets of codes, and the tables made of them |
//! | `own` | a code for the literals of one page, where no set is good for them |
//! | `sequence` | literals and a copy |
//! | `search`, `fast` | which copies a page is written as |
//! | `listing` | the page as symbols, and how often each occurs |
//! | `encode`, `decode` | the object |
//!
//! `docs/codecs.md` has the layout to the byte.

mod code;
mod decode;
mod encode;
mod fast;
mod listing;
mod own;
mod search;
mod sequence;
mod sets;
mod symbols;

pub(crate) use decode::{DECOMPRESS_SCRATCH_BYTES, decompress};
pub(crate) use decode::{Decoder, SCALAR};
#[cfg(target_arch = "x86_64")]
pub(crate) use decode::{PIECE, Plan, Progress, decompress_with, follow};
pub(crate) use encode::{COMPRESS_SCRATCH_BYTES, compress};
#[cfg(target_arch = "x86_64")]
pub(crate) use sequence::Sequence;

/// What sets of codes are made with (`ramfold-bench train`).
pub mod training {
    pub use super::code::{DISTANCE_BITS, LITERAL_BITS, TOKEN_BITS};
    pub use super::listing::Counts;
    pub use super::search::{SCRATCH_BYTES, count};
    pub use super::sets::{Lengths, SETS};
}

use crate::PAGE_SIZE;
use crate::error::DecodeError;
use code::LITERAL_BITS;
use symbols::COPY_MIN;

/// How hard copies are searched for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effort {
    /// Those that save most.
    Full,
    /// The first that come.
    Fast,
}

/// From so many literals on they are in four streams, below in two.
const FOUR_STREAMS: usize = 128;

/// Words of literals that 57 bits hold at least.
const LITERALS_AT_ONCE: usize = 57 / LITERAL_BITS;

/// How many literals each of so many streams has, but for the last ones, when they have `count`.
const fn part(count: usize, streams: usize) -> usize {
    count.div_ceil(streams).next_multiple_of(LITERALS_AT_ONCE)
}

/// The longest object is that of a page without a copy.
const OBJECT_MAX: usize = Header::LONGEST + own::DESCRIPTION_MAX + PAGE_SIZE * LITERAL_BITS / 8 + 6;

/// What stands in front of an object: the set in bits 0-2, in bit 3 whether the literals have a
/// code of their own, whose description follows; the number of sequences in bits 4-14, that of
/// literals in bits 15-27; then the bytes of the streams of literals, two by two, the first in
/// eight bits if there are only two, else in twelve bits each; then in twelve bits those of tokens
/// and distances.
struct Header {
    set: usize,
    own: bool,
    sequences: usize,
    literals: usize,
    /// Bytes of the streams of literals, two by two, and of tokens and distances.
    pairs: [usize; 3],
}

impl Header {
    const LONGEST: usize = 8;

    fn streams(&self) -> usize {
        if self.literals < FOUR_STREAMS { 2 } else { 4 }
    }

    fn len(&self) -> usize {
        if self.streams() == 2 { 6 } else { 8 }
    }

    fn read(object: &[u8]) -> Result<Header, DecodeError> {
        let mut bytes = [0; 8];
        let given = object.len().min(Header::LONGEST);
        bytes[..given].copy_from_slice(&object[..given]);
        let bits = u64::from_le_bytes(bytes);
        let field = |from: u32, width: u32| (bits >> from) as usize & ((1 << width) - 1);
        let mut header = Header {
            set: field(0, 3),
            own: field(3, 1) == 1,
            sequences: field(4, 11),
            literals: field(15, 13),
            pairs: [field(28, 12), field(40, 12), field(52, 12)],
        };
        if header.streams() == 2 {
            header.pairs = [field(28, 8), 0, field(36, 12)];
        }
        if object.len() < header.len() {
            return Err(DecodeError::Truncated);
        }
        if header.literals + COPY_MIN * header.sequences > PAGE_SIZE {
            return Err(DecodeError::TooLong);
        }
        Ok(header)
    }

    /// The bytes of the header, of which the first [`len`](Header::len) count.
    fn bytes(&self) -> [u8; 8] {
        let [first, second, third] = self.pairs;
        let pairs = if self.streams() == 2 {
            first | third << 8
        } else {
            first | second << 12 | third << 24
        };
        let bits = self.set
            | usize::from(self.own) << 3
            | self.sequences << 4
            | self.literals << 15
            | pairs << 28;
        (bits as u64).to_le_bytes()
    }
}
