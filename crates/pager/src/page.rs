//! Addresses and page numbers of the program.

use core::ops::Range;

use ramfold_sys::PAGE_SIZE;

/// An address divided by the size of a page: the store's key.
pub(crate) type PageNumber = u64;

pub(crate) fn number_of(address: usize) -> PageNumber {
    (address / PAGE_SIZE) as u64
}

pub(crate) fn address_of(page: PageNumber) -> usize {
    page as usize * PAGE_SIZE
}

/// First page and number of pages of a range of addresses.
pub(crate) fn pages_of(range: &Range<usize>) -> (PageNumber, u64) {
    (number_of(range.start), (range.len() / PAGE_SIZE) as u64)
}
