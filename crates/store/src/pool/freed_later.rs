//! Slots that are free but not in their lists yet: the first bytes of a free slot hold its list's link, and
//! to write that would make the kernel copy a page that a relative by fork has too. They wait here until
//! nothing is shared any more, and count as used meanwhile.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ramfold_sys::Errno;
use ramfold_sys::sync::{Mutex, MutexGuard};

use super::memory::GrowingArray;

/// Half a mebibyte of them.
const SLOTS_MAX: usize = 64 << 10;

/// Slots, by their places in the pool.
pub(crate) struct FreedLater {
    places: GrowingArray<AtomicU64>,
    count: AtomicUsize,
    changing: Mutex<()>,
}

impl FreedLater {
    pub(crate) fn new() -> Result<FreedLater, Errno> {
        Ok(FreedLater {
            places: GrowingArray::new(SLOTS_MAX)?,
            count: AtomicUsize::new(0),
            changing: Mutex::new(()),
        })
    }

    /// Notes a slot; `false` where there is no room for it.
    pub(crate) fn push(&self, place: u64) -> bool {
        let _changing = self.changing.lock();
        let count = self.count.load(Ordering::Relaxed);
        if count == SLOTS_MAX || self.places.grow(count + 1).is_err() {
            return false;
        }
        let Some(last) = self.places.get(count) else { return false };
        last.store(place, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// Takes the slot that was noted last.
    pub(crate) fn pop(&self) -> Option<u64> {
        let _changing = self.changing.lock();
        let left = self.count.load(Ordering::Relaxed).checked_sub(1)?;
        self.count.store(left, Ordering::Relaxed);
        Some(self.places.get(left)?.load(Ordering::Relaxed))
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.places.resident_bytes()
    }

    pub(crate) fn range(&self) -> core::ops::Range<usize> {
        self.places.range()
    }

    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`].
    pub(crate) unsafe fn reset_lock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.changing.reset_after_fork() };
    }
}

#[cfg(test)]
impl FreedLater {
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.count.load(Ordering::Relaxed))
            .map(|nth| self.places.get(nth).unwrap().load(Ordering::Relaxed))
    }
}
