//! A forked child's first thread waits until the child's agent looks after its memory.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `is_finished` | the child's one thread, before it starts the agent; the child's monitor, Release, after all is registered | that thread, Acquire | the registration before the thread's first touch |
//!
//! The copy of the parent's memory says what was true in the parent.

use super::sync::Futex;

/// Memory of zeros: nothing was taken over yet.
#[derive(Default)]
pub(crate) struct TakeOver {
    is_finished: Futex,
}

impl TakeOver {
    /// For the thread, before it starts the agent.
    pub(crate) fn begin(&self) {
        self.is_finished.replace(0);
    }

    /// For the monitor: pages that are missing are brought back from now on.
    pub(crate) fn finish(&self) {
        self.is_finished.replace(1);
    }

    /// For the thread: is that so? If not, it waits until it is, for `ns` at most, and asks again.
    pub(crate) fn is_finished_within(&self, ns: u64) -> bool {
        if self.is_finished.seen() == 0 {
            self.is_finished.wait(0, ns);
        }
        self.is_finished.seen() == 1
    }
}
