//! Growth that announces itself.
//!
//! Memory that is mapped and not registered can be touched without the agent's knowing, at gigabytes
//! a second, and while the machine keeps the agent waiting. So the program may have only so much of it
//! as there is room for, its *allowance*: each call that makes writable memory (`crate::calls`) takes
//! from that, and where it is used up the calling thread waits until the agent has looked, and has
//! registered what is too much.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `allowance` | the monitor (sets it), callers and the handler (take) | all | nothing: a look that a caller waits for sees the mapping itself |
//! | `announced` | callers | the monitor (takes) | nothing: it only tells calls that are not seen |
//! | `asked` | callers, Release | the monitor, Acquire, before it looks | the mapping before the look |
//! | `answered` | the monitor, Release, after it has registered | callers, Acquire | the registration before the caller's first touch |

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use ramfold_sys::time;
use rustix::thread::{Timespec, futex};

/// An agent that does not answer for so long is not waited for: what it is kept by is worse than a cap
/// that is passed.
const PATIENCE_NS: u64 = 5_000_000_000;
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Zeroed memory is valid: nothing is allowed unasked.
#[repr(C)]
pub struct Announcements {
    allowance: AtomicI64,
    /// Bytes announced since the monitor looked.
    announced: AtomicU64,
    asked: AtomicU32,
    answered: AtomicU32,
}

impl Announcements {
    /// For a thread of the program: it has just made so much writable memory. `wake` wakes the monitor.
    pub fn grow(&self, bytes: usize, wake: impl Fn()) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.announced.fetch_add(bytes as u64, Ordering::Relaxed);
        let before = self.allowance.fetch_sub(bytes, Ordering::Relaxed);
        if bytes > 0 && before >= bytes {
            return;
        }
        let ticket = self.asked.fetch_add(1, Ordering::Release).wrapping_add(1);
        wake();
        let deadline = time::monotonic_ns() + PATIENCE_NS;
        loop {
            let answered = self.answered.load(Ordering::Acquire);
            if is_reached(answered, ticket) || time::monotonic_ns() > deadline {
                return;
            }
            let _ = futex::wait(&self.answered, futex::Flags::PRIVATE, answered, Some(&LOOK_AGAIN));
        }
    }

    /// Would so much be too much to be touched at once?
    pub fn exceeds(&self, bytes: usize) -> bool {
        i64::try_from(bytes).map_or(true, |bytes| self.allowance.load(Ordering::Relaxed) < bytes)
    }

    /// For the fault handler, which lets memory go that was registered: takes so much of what may be
    /// touched unasked, `share` of it at most.
    pub fn take(&self, share: i64, least: i64, most: i64) -> Option<i64> {
        let mut taken = 0;
        let took = self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |allowance| {
            taken = (allowance / share).min(most);
            (taken >= least).then(|| allowance - taken)
        });
        took.ok().map(|_| taken)
    }

    /// For the monitor, before it looks: what it will have answered.
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    pub fn is_waited_for(&self) -> bool {
        self.asked.load(Ordering::Acquire) != self.answered.load(Ordering::Relaxed)
    }

    /// What was announced since this was asked last.
    pub fn take_announced(&self) -> u64 {
        self.announced.swap(0, Ordering::Relaxed)
    }

    /// What may be touched unasked from now on.
    pub fn allow(&self, bytes: u64) {
        self.allowance.store(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// For the monitor, after it has looked.
    pub fn answer(&self, asked: u32) {
        if self.answered.swap(asked, Ordering::Release) != asked {
            let _ = futex::wake(&self.answered, futex::Flags::PRIVATE, u32::MAX);
        }
    }

    /// In a forked child, before it has an agent: nobody waits.
    pub fn begin_child(&self) {
        self.answered.store(self.asked.load(Ordering::Relaxed), Ordering::Relaxed);
        self.allow(0);
    }
}

/// Tickets are numbers that go round.
fn is_reached(answered: u32, ticket: u32) -> bool {
    answered.wrapping_sub(ticket) < u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn announcements() -> Announcements {
        // SAFETY: zeroed memory is valid.
        unsafe { core::mem::zeroed() }
    }

    #[test]
    fn what_is_allowed_is_not_waited_for_and_the_rest_is() {
        let announcements = announcements();
        announcements.allow(100);
        let woken = AtomicBool::new(false);
        let wake = || woken.store(true, Ordering::SeqCst);
        announcements.grow(60, wake);
        announcements.grow(40, wake);
        assert!(!woken.load(Ordering::SeqCst) && !announcements.is_waited_for());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                announcements.grow(1, wake);
                done.store(true, Ordering::SeqCst);
            });
            while !announcements.is_waited_for() {
                std::thread::yield_now();
            }
            // An answer to what was asked before is none to this.
            announcements.answer(0);
            assert!(!done.load(Ordering::SeqCst));
            let asked = announcements.asked();
            announcements.allow(7);
            announcements.answer(asked);
        });
        assert!(woken.load(Ordering::SeqCst) && done.load(Ordering::SeqCst));
        assert!(!announcements.exceeds(7) && announcements.exceeds(8));
    }

    #[test]
    fn a_part_is_taken_where_there_is_enough() {
        let announcements = announcements();
        announcements.allow(800);
        assert_eq!(announcements.take(8, 10, 1000), Some(100));
        assert_eq!(announcements.take(8, 10, 50), Some(50));
        assert_eq!(announcements.take(8, 100, 1000), None);
        assert!(!announcements.exceeds(650) && announcements.exceeds(651));
    }

    #[test]
    fn tickets_go_round() {
        assert!(is_reached(5, 5) && is_reached(6, 5) && !is_reached(4, 5));
        assert!(is_reached(2, u32::MAX - 1) && !is_reached(u32::MAX - 1, 2));
    }
}
