//! Where a submitter finds its finished jobs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::job::Done;

/// Finished jobs of one submitter, and how many are still to come.
#[derive(Default)]
pub struct Mailbox {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
}

#[derive(Default)]
struct Inbox {
    done: Vec<Done>,
    /// Taken by an engine and not delivered.
    awaited: usize,
    /// How many finished jobs the owner sleeps for.
    wanted: usize,
}

impl Mailbox {
    /// An empty mailbox.
    pub fn new() -> Mailbox {
        Mailbox::default()
    }

    /// Moves the finished jobs to the end of `done`. Waits until there are at least `least` of
    /// them, or no more are to come.
    pub fn collect(&self, done: &mut Vec<Done>, least: usize) {
        let mut inbox = self.lock();
        while inbox.done.len() < least && inbox.awaited > 0 {
            inbox.wanted = least.min(inbox.done.len() + inbox.awaited);
            inbox = self.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        inbox.wanted = 0;
        done.append(&mut inbox.done);
    }

    /// Jobs that were submitted and not collected.
    pub fn outstanding(&self) -> usize {
        let inbox = self.lock();
        inbox.awaited + inbox.done.len()
    }

    /// For engines: `count` jobs were taken. To be called before any of them can be finished.
    pub fn expect(&self, count: usize) {
        self.lock().awaited += count;
    }

    /// For engines: these jobs are finished.
    ///
    /// # Panics
    /// If there are more of them than [`Self::expect`] was told.
    pub fn deliver(&self, done: impl IntoIterator<Item = Done>) {
        let mut inbox = self.lock();
        let before = inbox.done.len();
        inbox.done.extend(done);
        let came = inbox.done.len() - before;
        assert!(came <= inbox.awaited, "{came} jobs delivered, {} expected", inbox.awaited);
        inbox.awaited -= came;
        // The owner is woken only when it has all that it sleeps for: waking costs more than a
        // page.
        let wake = inbox.wanted > 0 && inbox.done.len() >= inbox.wanted;
        drop(inbox);
        if wake {
            self.arrived.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing here panics halfway through a change, so what a thread that panicked left is
        // whole.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
