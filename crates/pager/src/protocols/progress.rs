//! Threads that wait for room: faults at the cap, and forks.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `freed` | who frees memory, raised before the cost is lowered and after it | who waits, before the cost is looked at; the monitor, before and after it asks the kernel | the cost that is seen is no older |
//! | `faults` | the handler | reclaim and the spill writer | nothing: a hint whether to hurry |
//! | `forks` | forking threads | the monitor | nothing: it reclaims to another mark, at its next look |
//!
//! A waiter asks [`Progress::seen`], looks whether there is room, and waits while nothing was freed
//! since. Every wait is bounded, because memory may also be freed unseen.

use super::sync::{AtomicBool, AtomicU32, Futex, Ordering};

/// Memory of zeros: nobody waits.
#[derive(Default)]
pub(crate) struct Progress {
    freed: Futex,
    faults: AtomicBool,
    forks: AtomicU32,
}

impl Progress {
    /// For [`Progress::wait`], and to tell whether memory was freed since.
    pub(crate) fn seen(&self) -> u32 {
        self.freed.seen()
    }

    /// Memory is freed, and the cost about to be lowered: whoever compares the cost before and
    /// after must not take the difference for the program's.
    pub(crate) fn begin_free(&self) {
        self.freed.note();
    }

    /// The cost was lowered: who waits looks again.
    pub(crate) fn end_free(&self) {
        self.freed.raise();
    }

    /// Waits until memory is freed, if none was since `seen`, for `ns` at most.
    pub(crate) fn wait(&self, seen: u32, ns: u64) {
        self.freed.wait(seen, ns);
    }

    /// The handler says whether a fault waits.
    pub(crate) fn set_fault_waits(&self, waits: bool) {
        self.faults.store(waits, Ordering::Relaxed);
    }

    /// Does a fault wait for memory to be freed?
    pub(crate) fn fault_waits(&self) -> bool {
        self.faults.load(Ordering::Relaxed)
    }

    /// A fork begins to wait for room.
    pub(crate) fn begin_fork(&self) {
        self.forks.fetch_add(1, Ordering::Relaxed);
    }

    /// A fork does not wait any more.
    pub(crate) fn end_fork(&self) {
        self.forks.fetch_sub(1, Ordering::Relaxed);
    }

    /// Does a fork wait for room?
    pub(crate) fn fork_waits(&self) -> bool {
        self.forks.load(Ordering::Relaxed) > 0
    }

    /// In a forked child, which has one thread: nobody waits.
    pub(crate) fn begin_child(&self) {
        self.faults.store(false, Ordering::Relaxed);
        self.forks.store(0, Ordering::Relaxed);
    }
}
