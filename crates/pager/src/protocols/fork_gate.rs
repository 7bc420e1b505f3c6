//! Which way a fork goes: plain, as the C library makes it, or through the agent, where pages may
//! be missing that the child would find as zeros.
//!
//! The agent becomes active only while no plain fork is under way; a fork that begins later goes
//! through the agent.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `traps` | the monitor, SeqCst fence after it | forking threads, after theirs | it or `plain` is seen by the other side |
//! | `plain` | forking threads, SeqCst fence after it | the monitor, after its fence | as above |

use super::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// Memory of zeros is an open gate.
#[derive(Default)]
pub(crate) struct ForkGate {
    /// Forks must go through the agent: it is active, or about to be.
    traps: AtomicBool,
    /// Forks under way that began while that was not so.
    plain: AtomicU32,
}

impl ForkGate {
    /// A thread is about to fork. `true`: plainly, and it calls [`ForkGate::leave`] afterwards;
    /// `false`: through the agent. Where forks cannot go through the agent (`can_trap` is
    /// `false`) all are plain.
    pub(crate) fn enter(&self, can_trap: bool) -> bool {
        self.plain.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.traps.load(Ordering::Acquire) && can_trap {
            self.leave();
            return false;
        }
        true
    }

    /// In the parent, after a plain fork.
    pub(crate) fn leave(&self) {
        self.plain.fetch_sub(1, Ordering::Release);
    }

    /// For the monitor, before it becomes active: `true` when no plain fork is under way, nor can
    /// begin until [`ForkGate::open`]. Otherwise it asks again later: to wait here for a fork could
    /// wait for a thread that waits for the monitor.
    pub(crate) fn close(&self) -> bool {
        self.traps.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.plain.load(Ordering::Acquire) == 0
    }

    /// Forks need not go through the agent.
    pub(crate) fn open(&self) {
        self.traps.store(false, Ordering::Release);
    }

    /// In a forked child, which has one thread and no agent yet.
    pub(crate) fn begin_child(&self) {
        self.plain.store(0, Ordering::Relaxed);
    }
}
