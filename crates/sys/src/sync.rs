//! A mutex made of one futex word. It needs no libc, no thread-local storage and no destructor,
//! so it works on threads that libc does not know and can live in memory shared by `fork`.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{Timespec, futex};

const UNLOCKED: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and somebody may be asleep on the word: the holder must wake one when it unlocks.
const CONTENDED: u32 = 2;

/// How often a locker looks again before it sleeps. Critical sections last from 100 ns to the
/// 10 to 20 us of a batch of MOVE; going to sleep and being woken on another core costs 25 to
/// 75 us. So it pays to wait for a whole batch (a look takes about 20 ns), but not for longer:
/// the holder may have lost its processor.
const SPINS: u32 = 1_000;

/// Mutual exclusion without poisoning: code that holds one of these must not panic.
#[repr(C)]
pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one reference at a time, so sharing the mutex only needs the value
// to be sendable.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: moving the mutex moves the value.
unsafe impl<T: Send> Send for Mutex<T> {}

/// Unlocks when dropped.
pub struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Mutex { state: AtomicU32::new(UNLOCKED), value: UnsafeCell::new(value) }
    }

    /// Locks, and waits for that as long as it takes.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self
            .state
            .compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_slowly();
        }
        MutexGuard { lock: self }
    }

    /// Locks unless the holder keeps the lock for longer than about `patience_ns`.
    pub fn lock_within(&self, patience_ns: u32) -> Option<MutexGuard<'_, T>> {
        for _ in 0..SPINS {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            core::hint::spin_loop();
        }
        // Taking the lock as contended costs one needless wake later and loses no waiter.
        if self.state.swap(CONTENDED, Ordering::Acquire) == UNLOCKED {
            return Some(MutexGuard { lock: self });
        }
        let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(patience_ns.min(999_999_999)) };
        let _ = futex::wait(&self.state, futex::Flags::PRIVATE, CONTENDED, Some(&patience));
        // No guard may be made where the lock was not taken: dropping it would unlock.
        if self.state.swap(CONTENDED, Ordering::Acquire) == UNLOCKED {
            Some(MutexGuard { lock: self })
        } else {
            None
        }
    }

    /// Locks unless it is locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.state
            .compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| MutexGuard { lock: self })
    }

    #[cold]
    fn lock_slowly(&self) {
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == UNLOCKED
                && self
                    .state
                    .compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != UNLOCKED {
            // An early return (a signal, a changed word) only means another look.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, CONTENDED, None);
        }
    }

    /// Unlocks without a guard.
    ///
    /// # Safety
    /// The calling thread must have locked the mutex and given the guard to `mem::forget`.
    pub unsafe fn unlock_forgotten(&self) {
        drop(MutexGuard { lock: self });
    }

    /// Makes the mutex unlocked whatever it was.
    ///
    /// # Safety
    /// No other thread may use the mutex, and no guard of it may be used again: this is for the
    /// only thread of a child process, after a `fork` that happened while the lock was held.
    pub unsafe fn reset_after_fork(&self) {
        self.state.store(UNLOCKED, Ordering::Release);
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.state.swap(UNLOCKED, Ordering::Release) == CONTENDED {
            let _ = futex::wake(&self.lock.state, futex::Flags::PRIVATE, 1);
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists and is borrowed mutably, so this is the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_under_contention() {
        let counter = Mutex::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *counter.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*counter.lock(), 160_000);
    }

    #[test]
    fn try_lock_fails_only_while_held() {
        let lock = Mutex::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.lock_within(1_000_000).is_none());
        assert!(lock.try_lock().is_none(), "giving up waiting must not unlock");
        drop(guard);
        assert!(lock.try_lock().is_some());
        assert!(lock.lock_within(1).is_some());
        assert!(lock.try_lock().is_some());
    }
}
