//! A thread of the agent that sleeps while it has nothing to do, and is woken when it has: the
//! monitor and the spill writer.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `sleeps` | the thread, SeqCst fence after it, before it looks for work once more | who has made work, after a SeqCst fence | one of the two sees what the other wrote |
//!
//! What the thread sleeps on is its own affair: it reads that word before it looks for work, and
//! whoever [`SleepFlag::take`]s the flag raises the word.

use super::sync::{AtomicBool, Ordering, fence};

/// Memory of zeros: the thread is awake.
#[derive(Default)]
pub(crate) struct SleepFlag {
    sleeps: AtomicBool,
}

impl SleepFlag {
    /// The thread is about to sleep: it looks for work once more, and then sleeps.
    pub(crate) fn begin(&self) {
        // Read and written in one step, so that it comes after every other thread's taking in an
        // order that all see.
        self.sleeps.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// The thread is awake.
    pub(crate) fn end(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Does the thread seem to sleep? A hint that costs nothing.
    pub(crate) fn is_seen(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// For who has made work: must the thread be woken? `true` for one of several.
    pub(crate) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.take_if_seen()
    }

    /// The same without the fence, for where it is asked again soon: the thread may be missed that
    /// has just begun to sleep.
    pub(crate) fn take_if_seen(&self) -> bool {
        self.is_seen() && self.sleeps.swap(false, Ordering::AcqRel)
    }
}
