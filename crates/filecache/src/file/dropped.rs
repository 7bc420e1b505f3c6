//! The pages that the kernel was told to drop last: those that it asks for again soon were missed.

use std::sync::atomic::{AtomicU32, Ordering};

use ramfold_cache::PageName;
use ramfold_sys::PAGE_SIZE;

use super::page_times::PageTimes;

/// Pages count that were dropped after this part of what the upper level has.
const WINDOW_PART: u64 = 8;
/// Least window, in pages.
const WINDOW_PAGES_MIN: u64 = 64;

pub(super) struct Dropped {
    /// When each was dropped.
    times: PageTimes,
    /// Pages dropped so far.
    clock: AtomicU32,
    /// How many pages were dropped after those that count.
    window: AtomicU32,
}

impl Dropped {
    /// In this memory, for an upper level of so many bytes at first.
    pub(super) fn new(memory_bytes: u64, kernel_bytes: u64) -> Dropped {
        let pages = memory_bytes / PAGE_SIZE as u64 / WINDOW_PART;
        let dropped = Dropped {
            // Twice as many places as pages that count: most keep theirs as long as they do.
            times: PageTimes::new(2 * pages),
            clock: AtomicU32::new(1),
            window: AtomicU32::new(0),
        };
        dropped.set_window(kernel_bytes);
        dropped
    }

    /// What remembering takes.
    pub(super) fn bytes(&self) -> u64 {
        self.times.bytes()
    }

    pub(super) fn note(&self, page: PageName) {
        self.times.note(page, self.clock.fetch_add(1, Ordering::Relaxed));
    }

    /// Whether a page was dropped within the window; it is then forgotten.
    pub(super) fn take(&self, page: PageName) -> bool {
        let Some(time) = self.times.take(page) else { return false };
        let ago = self.clock.load(Ordering::Relaxed).wrapping_sub(time);
        ago <= self.window.load(Ordering::Relaxed)
    }

    /// Sets the window for an upper level of so many bytes, and returns what it was, in pages.
    pub(super) fn set_window(&self, kernel_bytes: u64) -> u64 {
        let pages = (kernel_bytes / PAGE_SIZE as u64 / WINDOW_PART).max(WINDOW_PAGES_MIN);
        u64::from(self.window.swap(u32::try_from(pages).unwrap_or(u32::MAX), Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 256 << 20;

    #[test]
    fn what_was_dropped_long_ago_does_not_count() {
        let dropped = Dropped::new(MEMORY, MEMORY / 5);
        dropped.set_window(800 * PAGE_SIZE as u64);
        let names: Vec<_> = (0..2000).map(|page| PageName::new(9, page)).collect();
        names.iter().for_each(|&name| dropped.note(name));
        let counted = names.iter().filter(|&&name| dropped.take(name)).count();
        assert!((60..=100).contains(&counted), "{counted}");
        // Each once, and none that was never dropped.
        assert!(!names.iter().any(|&name| dropped.take(name)));
        assert!(!(0..2000).any(|page| dropped.take(PageName::new(8, page))));
    }
}
