//! The threads that look after a run. They end when they are told to, and when their owner is
//! dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use ramfold_session::{OwnedSession, Session};

/// Threads that work on a session until its program has ended.
pub(crate) struct Threads {
    session: Arc<OwnedSession>,
    ended: Arc<AtomicBool>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    /// None yet.
    pub(crate) fn new(session: Arc<OwnedSession>) -> Threads {
        Threads { session, ended: Arc::default(), running: Vec::new() }
    }

    /// Starts one. It is to return soon after the flag is set that it is given, and is woken then:
    /// if it is parked, waits for a message or for activity, or keeps processors awake.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(crate) fn start(
        &mut self,
        name: &str,
        work: impl FnOnce(&Session, &AtomicBool) + Send + 'static,
    ) -> io::Result<()> {
        let (session, ended) = (Arc::clone(&self.session), Arc::clone(&self.ended));
        let thread = thread::Builder::new().name(format!("ramfold-{name}"));
        self.running.push(thread.spawn(move || work(&session, &ended))?);
        Ok(())
    }

    /// Ends all. `false` if one of them panicked.
    pub(crate) fn end(&mut self) -> bool {
        self.ended.store(true, Ordering::Release);
        self.running.iter().for_each(|running| running.thread().unpark());
        self.session.note_activity();
        self.session.wake_messenger();
        self.session.keep_awake(u64::MAX);
        // All are waited for, whatever became of the first.
        self.running.drain(..).map(JoinHandle::join).fold(true, |well, end| well & end.is_ok())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}
