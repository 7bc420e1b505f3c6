//! What a page becomes when it leaves.

use ramfold_codec::PAGE_SIZE;

use crate::PageNumber;

/// What a page is compressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The store charges so many bytes for it; none where the page is one repeated word.
    Charged(u32),
    /// An object would save too little: the page stays.
    Stays,
}

/// Sizes of objects, and what is told of pages that come and go.
pub trait Objects {
    /// The page is compressed now.
    fn compress(&mut self, page: PageNumber) -> Fit;

    /// The page was taken: from here on an access to it is a fault.
    fn note_taken(&mut self, _page: PageNumber) {}

    /// The page is in memory again.
    fn note_back(&mut self, _page: PageNumber) {}
}

/// All objects are of one size, and all pages compress.
#[derive(Clone, Copy, Debug)]
pub struct Alike(pub u64);

impl Objects for Alike {
    fn compress(&mut self, _page: PageNumber) -> Fit {
        Fit::Charged(self.0.min(PAGE_SIZE as u64) as u32)
    }
}
