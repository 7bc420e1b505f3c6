//! Where a submitter finds what has become of its jobs.

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
    pub fn new() -> Mailbox {
        Mailbox::default()
    }

    /// Moves what is finished to the end of `done`; waits until that are at least `least` jobs, or no more are
    /// to come.
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

    /// For engines: so many jobs were taken. To be said before any of them can be finished.
    pub fn expect(&self, count: usize) {
        self.lock().awaited += count;
    }

    /// For engines: these are finished.
    pub fn deliver(&self, done: impl IntoIterator<Item = Done>) {
        let mut inbox = self.lock();
        let before = inbox.done.len();
        inbox.done.extend(done);
        let came = inbox.done.len() - before;
        assert!(came <= inbox.awaited, "{came} jobs delivered, {} expected", inbox.awaited);
        inbox.awaited -= came;
        // Not before it has what it sleeps for: waking costs more than a page.
        let wake = inbox.wanted > 0 && inbox.done.len() >= inbox.wanted;
        drop(inbox);
        if wake {
            self.arrived.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // What a thread that panicked left is whole: nothing panics halfway.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
