//! When something last happened to a page: a table in which each page has one place. Of a page that
//! has lost its place to another page nothing is known.

use std::sync::atomic::{AtomicU64, Ordering};

use ramfold_cache::PageName;

/// Times are numbers of the user's, not 0.
pub(super) struct PageTimes {
    /// The tag of a page's name, and the time; 0: nothing.
    places: Box<[AtomicU64]>,
}

impl PageTimes {
    /// With room for about so many pages.
    pub(super) fn new(pages: u64) -> PageTimes {
        let places = pages.next_power_of_two().clamp(64, 1 << 28);
        PageTimes { places: (0..places).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.places) as u64
    }

    fn place(&self, page: PageName) -> &AtomicU64 {
        &self.places[page.place_among(self.places.len())]
    }

    pub(super) fn note(&self, page: PageName, time: u32) {
        let entry = u64::from(page.tag()) << 32 | u64::from(time);
        self.place(page).store(entry, Ordering::Relaxed);
    }

    /// The time of a page, where it is known.
    pub(super) fn get(&self, page: PageName) -> Option<u32> {
        let found = self.place(page).load(Ordering::Relaxed);
        (found != 0 && (found >> 32) as u32 == page.tag()).then_some(found as u32)
    }

    /// The same; it is then forgotten.
    pub(super) fn take(&self, page: PageName) -> Option<u32> {
        let found = self.get(page)?;
        self.place(page).store(0, Ordering::Relaxed);
        Some(found)
    }
}
