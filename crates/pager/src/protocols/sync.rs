//! What the protocols are made of. `tests/protocols.rs` has the same of loom's.

pub use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use rustix::thread::{Timespec, futex};

/// A number that threads of one process wait on. Memory of zeros is a valid start.
#[derive(Default)]
pub struct Futex(AtomicU32);

impl Futex {
    /// The number now: what is published before a [`Futex::raise`] is seen after it.
    pub fn seen(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Raises the number, and wakes nobody.
    pub fn note(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Raises the number, and wakes all that wait.
    pub fn raise(&self) {
        self.note();
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, u32::MAX);
    }

    /// Waits until the number is another than `seen`, for `ns` at most. May return early.
    pub fn wait(&self, seen: u32, ns: u64) {
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
