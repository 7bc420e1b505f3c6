//! Memory that is really there: committed and populated parts of a reservation.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ramfold_sys::mem::Reservation;
use ramfold_sys::{Errno, PAGE_SIZE};

/// Puts memory behind a committed part of `memory`, without changing what it holds.
///
/// # Safety
/// No other thread may write to the part meanwhile.
pub(crate) unsafe fn populate(
    memory: &Reservation,
    offset: usize,
    len: usize,
) -> Result<(), Errno> {
    loop {
        match memory.populate(offset, len) {
            Err(Errno::INTR) => continue,
            // Linux before 5.14 has no such advice.
            Err(Errno::INVAL) => break,
            result => return result,
        }
    }
    for page in (offset..offset + len).step_by(PAGE_SIZE) {
        // SAFETY: committed memory of the reservation (populate checked the bounds), to which
        // nobody else writes (the caller).
        unsafe {
            let at = memory.as_ptr().add(page);
            at.write_volatile(at.read_volatile());
        }
    }
    Ok(())
}

/// Types that may be made of zero bytes and shared at once: atomics and structs of them.
///
/// # Safety
/// All-zero bytes must be a valid value, sharing between threads must be sound, and dropping must
/// do nothing.
pub(crate) unsafe trait Zeroed: Sync {}

// SAFETY: an atomic integer of value 0.
unsafe impl Zeroed for AtomicU64 {}
// SAFETY: an atomic integer of value 0.
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: an atomic integer of value 0.
unsafe impl Zeroed for AtomicU8 {}

/// An array that starts empty, grows by zeroed elements up to a limit fixed at the start, and
/// never moves.
pub(crate) struct GrowingArray<T> {
    memory: Reservation,
    len: AtomicUsize,
    resident_bytes: AtomicUsize,
    element: PhantomData<T>,
}

impl<T: Zeroed> GrowingArray<T> {
    pub(crate) fn new(len_max: usize) -> Result<Self, Errno> {
        Ok(GrowingArray {
            memory: Reservation::new(len_max * size_of::<T>())?,
            len: AtomicUsize::new(0),
            resident_bytes: AtomicUsize::new(0),
            element: PhantomData,
        })
    }

    /// Grows to at least `len` elements; all the memory is there when it returns. Calls must not
    /// overlap: the owner holds a lock.
    pub(crate) fn grow(&self, len: usize) -> Result<(), Errno> {
        let resident = self.resident_bytes.load(Ordering::Relaxed);
        let needed = (len * size_of::<T>()).next_multiple_of(PAGE_SIZE);
        if needed > self.memory.len() {
            return Err(Errno::NOMEM);
        }
        if needed > resident {
            self.memory.commit(resident, needed - resident)?;
            // SAFETY: elements that the array does not have yet.
            unsafe { populate(&self.memory, resident, needed - resident)? };
            self.resident_bytes.store(needed, Ordering::Relaxed);
        }
        if len > self.len() {
            self.len.store(len, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: the element is in the array, checked here.
        (index < self.len()).then(|| unsafe { self.get_unchecked(index) })
    }

    /// # Safety
    /// `index` must be below [`Self::len`].
    #[inline]
    pub(crate) unsafe fn get_unchecked(&self, index: usize) -> &T {
        debug_assert!(index < self.len());
        // SAFETY: in bounds (the caller) of memory that was committed before the length was
        // published, page-aligned at its start, zero or written through shared references
        // (`Zeroed`), never released.
        unsafe { &*self.memory.as_ptr().cast::<T>().add(index) }
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.resident_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn range(&self) -> core::ops::Range<usize> {
        self.memory.guarded_range()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_zeroed_in_whole_pages_and_keeps_what_it_holds() {
        let array = GrowingArray::<AtomicU64>::new(10_000).unwrap();
        assert!(array.get(0).is_none());
        array.grow(3).unwrap();
        assert_eq!(array.resident_bytes(), PAGE_SIZE);
        array.get(2).unwrap().store(9, Ordering::Relaxed);
        assert!(array.get(3).is_none());
        array.grow(10_000).unwrap();
        assert_eq!(array.get(2).unwrap().load(Ordering::Relaxed), 9);
        assert_eq!(array.get(9_999).unwrap().load(Ordering::Relaxed), 0);
        assert_eq!(array.resident_bytes(), 80_000usize.next_multiple_of(PAGE_SIZE));
        // Shrinking is not a thing; growing beyond the reservation is an error.
        array.grow(1).unwrap();
        assert_eq!(array.len(), 10_000);
        assert_eq!(array.grow(20_000), Err(Errno::NOMEM));
    }
}
