//! Slots that are free but not yet in their lists. A free slot begins with the link of its list;
//! writing the link would make the kernel copy the page if a relative by fork shares it. So the
//! slots wait here until no page is shared, and count as used until then.

use core::sync::atomic::{AtomicU64, Ordering};

use ramfold_sys::Errno;
use ramfold_sys::sync::{Mutex, MutexGuard};

use super::memory::GrowingArray;

/// Half a mebibyte of them.
const SLOTS_MAX: usize = 64 << 10;

/// Slots, by their places in the pool.
pub(crate) struct FreedLater {
    places: GrowingArray<AtomicU64>,
    count: Mutex<usize>,
}

impl FreedLater {
    pub(crate) fn new() -> Result<FreedLater, Errno> {
        Ok(FreedLater { places: GrowingArray::new(SLOTS_MAX)?, count: Mutex::new(0) })
    }

    /// Notes a slot; `false` where there is no room for it.
    pub(crate) fn push(&self, place: u64) -> bool {
        let mut count = self.count.lock();
        if *count == SLOTS_MAX || self.places.grow(*count + 1).is_err() {
            return false;
        }
        let Some(last) = self.places.get(*count) else { return false };
        last.store(place, Ordering::Relaxed);
        *count += 1;
        true
    }

    /// Takes the slot that was noted last.
    pub(crate) fn pop(&self) -> Option<u64> {
        let mut count = self.count.lock();
        *count = count.checked_sub(1)?;
        Some(self.places.get(*count)?.load(Ordering::Relaxed))
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.places.resident_bytes()
    }

    pub(crate) fn range(&self) -> core::ops::Range<usize> {
        self.places.range()
    }

    pub(crate) fn pause(&self) -> MutexGuard<'_, usize> {
        self.count.lock()
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`].
    pub(crate) unsafe fn reset_lock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.count.reset_after_fork() };
    }
}

#[cfg(test)]
impl FreedLater {
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..*self.count.lock()).map(|nth| self.places.get(nth).unwrap().load(Ordering::Relaxed))
    }
}
