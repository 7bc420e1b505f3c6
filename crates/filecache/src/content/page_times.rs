//! When something last happened to a page of a file: a table in which each page has one place. Of what has lost its
//! place to another page nothing is known.

use std::sync::atomic::{AtomicU64, Ordering};

/// A page of a file, as a number that hardly any other has.
#[derive(Clone, Copy, Debug)]
pub struct PageName(u64);

impl PageName {
    pub fn new(file: u64, page: u64) -> PageName {
        let mixed = (file ^ page.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page;
        PageName((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    /// Which of so many places it has, a power of two.
    pub fn place_among(self, places: usize) -> usize {
        self.0 as usize & (places - 1)
    }
}

/// Times are numbers of the user's, not 0.
pub struct PageTimes {
    /// The upper half of a page's name, and the time; 0: nothing.
    places: Box<[AtomicU64]>,
}

impl PageTimes {
    /// With room for about so many pages.
    pub fn new(pages: u64) -> PageTimes {
        let places = pages.next_power_of_two().clamp(64, 1 << 28);
        PageTimes { places: (0..places).map(|_| AtomicU64::new(0)).collect() }
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.places) as u64
    }

    fn place(&self, page: PageName) -> &AtomicU64 {
        &self.places[page.place_among(self.places.len())]
    }

    pub fn note(&self, page: PageName, time: u32) {
        self.place(page).store(page.0 >> 32 << 32 | u64::from(time), Ordering::Relaxed);
    }

    /// The time of a page, where it is known.
    pub fn get(&self, page: PageName) -> Option<u32> {
        let found = self.place(page).load(Ordering::Relaxed);
        (found != 0 && found >> 32 == page.0 >> 32).then_some(found as u32)
    }

    /// The same; it is then known no more.
    pub fn take(&self, page: PageName) -> Option<u32> {
        let found = self.get(page)?;
        self.place(page).store(0, Ordering::Relaxed);
        Some(found)
    }
}
