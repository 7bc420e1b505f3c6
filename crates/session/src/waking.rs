//! Who sleeps in the launcher until an agent has something for them.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use ramfold_sys::time;
use rustix::thread::{Timespec, futex};

use crate::layout::{Process, Session};

impl Session {
    /// Brings all pages back and takes none from now on, or ends that. Returns which.
    pub fn toggle_bringing_back(&self) -> bool {
        let brings_back = !self.brings_back.fetch_not(Ordering::Relaxed);
        self.wake_agents();
        brings_back
    }

    /// Makes the agents of all processes look at their accounts.
    pub fn wake_agents(&self) {
        self.used_processes().for_each(Process::wake_agent);
    }

    /// May the caller wake the agents of all processes? Not again before `rest_ns` are over.
    pub fn may_wake_all(&self, rest_ns: u64) -> bool {
        is_due(&self.all_woken_ns, rest_ns)
    }

    /// Asks for processors that do not fall asleep before this time (CLOCK_MONOTONIC).
    pub fn keep_awake(&self, until_ns: u64) {
        self.awake_until_ns.store(until_ns, Ordering::SeqCst);
        if self.keeper_sleeps.swap(0, Ordering::SeqCst) == 1 {
            let _ = futex::wake(&self.keeper_sleeps, futex::Flags::empty(), u32::MAX);
        }
    }

    /// Until when processors are to be kept awake (CLOCK_MONOTONIC, nanoseconds).
    pub fn awake_until_ns(&self) -> u64 {
        self.awake_until_ns.load(Ordering::SeqCst)
    }

    /// Sleeps until an agent asks for processors that are awake, or for no reason: the caller looks
    /// again.
    pub fn wait_to_keep_awake(&self, now_ns: u64) {
        self.keeper_sleeps.store(1, Ordering::SeqCst);
        if self.awake_until_ns() <= now_ns {
            let _ = futex::wait(&self.keeper_sleeps, futex::Flags::empty(), 1, None);
        }
        self.keeper_sleeps.store(0, Ordering::SeqCst);
    }

    /// An agent has become active, or has something to do after a quiet time.
    pub fn note_activity(&self) {
        self.activity.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.activity, futex::Flags::empty(), u32::MAX);
    }

    /// How often that was noted.
    pub fn activity(&self) -> u32 {
        self.activity.load(Ordering::Acquire)
    }

    /// Sleeps until it was noted more often than `seen`, for `patience` at most where there is one,
    /// or for no reason: the caller looks again.
    pub fn wait_for_activity(&self, seen: u32, patience: Option<Duration>) {
        let patience = patience.map(|patience| Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        });
        let _ = futex::wait(&self.activity, futex::Flags::empty(), seen, patience.as_ref());
    }
}

impl Process {
    /// Makes the agent of this process look at its account.
    pub fn wake_agent(&self) {
        self.wake.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.wake, futex::Flags::empty(), 1);
    }
}

/// Was what this time is of done so long ago that the caller may do it again?
pub(crate) fn is_due(done_ns: &AtomicU64, rest_ns: u64) -> bool {
    let (now, last) = (time::monotonic_ns(), done_ns.load(Ordering::Relaxed));
    now >= last + rest_ns
        && done_ns.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
