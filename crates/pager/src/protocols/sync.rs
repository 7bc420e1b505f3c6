//! What the protocols are made of. `tests/protocols.rs` has the same of loom's.

pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use rustix::thread::{Timespec, futex};

/// A number that threads of one process wait on. Memory of zeros is a valid start.
#[derive(Default)]
pub(crate) struct Futex(AtomicU32);

impl Futex {
    /// The number now: what is published before a [`Futex::raise`] is seen after it.
    pub(crate) fn seen(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Raises the number, and wakes nobody.
    pub(crate) fn note(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Raises the number, and wakes all that wait.
    pub(crate) fn raise(&self) {
        self.note();
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, u32::MAX);
    }

    /// Makes it this number: what is published before is seen by who sees it. Wakes all that wait
    /// where it was another.
    pub(crate) fn replace(&self, number: u32) {
        if self.0.swap(number, Ordering::Release) != number {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, u32::MAX);
        }
    }

    /// Waits until the number is another than `seen`, for `ns` at most. May return early.
    pub(crate) fn wait(&self, seen: u32, ns: u64) {
        #[cfg(test)]
        if crate::kernel::model::sleep(ns) {
            return;
        }
        let patience =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        // Woken, timed out or interrupted: callers look again either way.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, seen, Some(&patience));
    }
}

/// A cell whose pointer is only used within a call, so that loom sees each access.
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(content: T) -> Self {
        UnsafeCell(core::cell::UnsafeCell::new(content))
    }

    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
