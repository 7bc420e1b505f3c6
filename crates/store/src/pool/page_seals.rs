//! The seals of whole-page objects. A page stored raw fills its slot, so its seal lies in an array
//! beside the pool, 16 seals (64 bytes) for each span, of which only the pages that are needed have
//! memory.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use ramfold_sys::mem::Reservation;
use ramfold_sys::sync::{Mutex, MutexGuard};
use ramfold_sys::{Errno, PAGE_SIZE};

use super::classes::{CLASSES, PAGE_CLASS};
use super::memory::{GrowingArray, populate};
use super::slots::Slot;

const SEALS_PER_SPAN: usize = CLASSES[PAGE_CLASS].slots as usize;
const SPANS_PER_PAGE: usize = PAGE_SIZE / (SEALS_PER_SPAN * size_of::<AtomicU32>());

pub(crate) struct PageSeals {
    memory: Reservation,
    /// For each page of `memory` whether it is there.
    present: GrowingArray<AtomicU8>,
    resident_bytes: AtomicUsize,
    /// Held while a page is added: how many bytes have access rights.
    committed: Mutex<usize>,
}

impl PageSeals {
    pub(crate) fn new(span_count_max: usize) -> Result<Self, Errno> {
        let pages = span_count_max.div_ceil(SPANS_PER_PAGE);
        Ok(PageSeals {
            memory: Reservation::new(pages * PAGE_SIZE)?,
            present: GrowingArray::new(pages)?,
            resident_bytes: AtomicUsize::new(0),
            committed: Mutex::new(0),
        })
    }

    fn find(&self, slot: Slot) -> Option<&AtomicU32> {
        let span = slot.span as usize;
        let present = self.present.get(span / SPANS_PER_PAGE)?;
        if present.load(Ordering::Acquire) == 0 || usize::from(slot.number) >= SEALS_PER_SPAN {
            return None;
        }
        let index = span * SEALS_PER_SPAN + usize::from(slot.number);
        // SAFETY: the page that holds the seal is there, checked above; it is never released, and
        // written through atomics only.
        Some(unsafe { &*self.memory.as_ptr().cast::<AtomicU32>().add(index) })
    }

    /// Makes room for the seals of a span.
    #[cold]
    fn add_page(&self, span: u32) -> Result<(), Errno> {
        let page = span as usize / SPANS_PER_PAGE;
        let (offset, end) = (page * PAGE_SIZE, (page + 1) * PAGE_SIZE);
        if end > self.memory.len() {
            return Err(Errno::NOMEM);
        }
        let mut committed = self.committed.lock();
        self.present.grow(page + 1)?;
        let Some(present) = self.present.get(page) else {
            return Err(Errno::NOMEM);
        };
        if present.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        if end > *committed {
            // From the end of what is accessible, for every gap would be a mapping of its own.
            self.memory.commit(*committed, end - *committed)?;
            *committed = end;
        }
        // SAFETY: nobody uses the page before it is marked present.
        unsafe { populate(&self.memory, offset, PAGE_SIZE)? };
        present.store(1, Ordering::Release);
        self.resident_bytes.fetch_add(PAGE_SIZE, Ordering::Relaxed);
        Ok(())
    }

    /// Makes room for the seals of all spans.
    pub(crate) fn prepare(&self, span_count: u32) -> Result<(), Errno> {
        (0..span_count).step_by(SPANS_PER_PAGE).try_for_each(|span| self.add_page(span))
    }

    /// Sets the seal of a slot of [`PAGE_CLASS`].
    pub(crate) fn set(&self, slot: Slot, seal: u32) -> Result<(), Errno> {
        if self.find(slot).is_none() {
            self.add_page(slot.span)?;
        }
        match self.find(slot) {
            Some(place) => {
                place.store(seal, Ordering::Relaxed);
                Ok(())
            }
            None => Err(Errno::INVAL),
        }
    }

    /// The seal of a slot; `None` if none was ever set near it.
    pub(crate) fn get(&self, slot: Slot) -> Option<u32> {
        self.find(slot).map(|place| place.load(Ordering::Relaxed))
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.resident_bytes.load(Ordering::Relaxed) + self.present.resident_bytes()
    }

    pub(crate) fn ranges(&self) -> [core::ops::Range<usize>; 2] {
        [self.memory.guarded_range(), self.present.range()]
    }

    pub(crate) fn pause(&self) -> PausedSeals<'_> {
        PausedSeals { _committed: self.committed.lock() }
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`].
    pub(crate) unsafe fn reset_lock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.committed.reset_after_fork() };
    }
}

pub(crate) struct PausedSeals<'a> {
    _committed: MutexGuard<'a, usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_are_kept_apart_and_only_needed_pages_are_there() {
        let seals = PageSeals::new(1000).unwrap();
        let slots = [(0, 0), (0, 15), (63, 15), (64, 0), (999, 7)];
        for (i, &(span, number)) in slots.iter().enumerate() {
            seals.set(Slot { span, number }, 100 + i as u32).unwrap();
        }
        for (i, &(span, number)) in slots.iter().enumerate() {
            assert_eq!(seals.get(Slot { span, number }), Some(100 + i as u32));
        }
        assert_eq!(seals.get(Slot { span: 200, number: 0 }), None);
        assert_eq!(seals.get(Slot { span: 5000, number: 0 }), None);
        // Three pages of seals, one of marks.
        assert_eq!(seals.resident_bytes(), 4 * PAGE_SIZE);
        assert!(seals.set(Slot { span: 5000, number: 0 }, 1).is_err());
    }
}
