//! Replies on their way to a client.
//!
//! One thread sends at a time. A thread that finds no other sending begins, and also sends what
//! others leave meanwhile, so that replies which come together go out together. A thread of
//! the pool does not wait long for a client that reads slowly; it leaves the rest to the
//! connection's own thread ([`Sending::drain`]).

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::job::{Job, Jobs, gather};
use super::stream::{Patience, Stream};

/// So long a thread of the pool waits for a client to read.
const PATIENCE: Duration = Duration::from_millis(20);
/// Parts of replies that one system call sends.
const SLICES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    /// Nobody sends any more.
    freed: Condvar,
    /// There is something for the connection's own thread.
    stalled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Replies that nobody sends yet.
    waiting: VecDeque<Box<Job>>,
    /// Bytes of the first that are sent.
    sent: usize,
    /// Some thread sends.
    is_taken: bool,
    /// That is the connection's own.
    is_stalled: bool,
    /// A thread waits until nobody sends.
    is_awaited: bool,
    /// No more replies come.
    has_ended: bool,
}

/// A connection's outbox with what sending needs.
#[derive(Clone, Copy)]
pub(super) struct Sending<'a> {
    pub(super) outbox: &'a Outbox,
    pub(super) stream: &'a dyn Stream,
    pub(super) jobs: &'a Jobs,
    /// A thread is in [`Sending::drain`], to which others may leave what takes long.
    pub(super) has_drain: bool,
}

impl Sending<'_> {
    /// Sends the job's reply, with those that wait, or leaves it to the thread that sends.
    pub(super) fn send(self, job: Box<Job>) {
        let mut state = self.outbox.lock();
        state.waiting.push_back(job);
        if !state.is_taken {
            state.is_taken = true;
            self.send_waiting(state, self.has_drain.then_some(PATIENCE));
        }
    }

    /// Sends these bytes, when no other thread sends, and then what waits. Returns whether the
    /// connection still holds.
    pub(super) fn send_now(self, bytes: &[u8]) -> bool {
        self.send_alone(|stream| send_all(stream, bytes))
    }

    /// Lets the function send, when no other thread sends; then sends what waits.
    pub(super) fn send_alone(self, send: impl FnOnce(&dyn Stream) -> io::Result<()>) -> bool {
        let mut state = self.outbox.lock();
        while state.is_taken {
            state.is_awaited = true;
            state = self.outbox.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_taken = true;
        drop(state);
        let is_sent = send(self.stream).is_ok();
        if !is_sent {
            self.stream.end();
        }
        self.send_waiting(self.outbox.lock(), None);
        is_sent
    }

    /// Sends what is left behind, until [`Outbox::end`].
    pub(super) fn drain(self) {
        let mut state = self.outbox.lock();
        loop {
            if state.is_stalled {
                state.is_stalled = false;
                self.send_waiting(state, None);
                state = self.outbox.lock();
            } else if state.has_ended {
                return;
            } else {
                state = self.outbox.stalled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Sends until nothing waits. The caller has taken the outbox.
    fn send_waiting<'a>(self, mut state: MutexGuard<'a, State>, patience: Option<Duration>)
    where
        Self: 'a,
    {
        while !state.waiting.is_empty() {
            let mut jobs = std::mem::take(&mut state.waiting);
            let mut sent = std::mem::take(&mut state.sent);
            drop(state);
            let is_all_sent = self.send_jobs(&mut jobs, &mut sent, patience);
            state = self.outbox.lock();
            if !is_all_sent {
                jobs.append(&mut state.waiting);
                (state.waiting, state.sent) = (jobs, sent);
                // It stays taken, by the connection's own thread.
                state.is_stalled = true;
                self.outbox.stalled.notify_one();
                return;
            }
        }
        state.is_taken = false;
        if std::mem::take(&mut state.is_awaited) {
            self.outbox.freed.notify_all();
        }
    }

    /// Returns whether all are sent, or never will be.
    fn send_jobs(
        self,
        jobs: &mut VecDeque<Box<Job>>,
        sent: &mut usize,
        patience: Option<Duration>,
    ) -> bool {
        while let Some(first) = jobs.front() {
            let length: usize = first.reply_parts().map(<[u8]>::len).sum();
            if *sent >= length {
                *sent -= length;
                self.jobs.give_back(jobs.pop_front().expect("the first job is there"));
                continue;
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = gather(jobs.iter().map(|job| &**job), *sent, &mut slices);
            let patience = patience.map_or(Patience::Endless, Patience::of);
            match self.stream.send(&slices[..count], patience) {
                Ok(bytes) => *sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return false,
                Err(_) => {
                    // Nobody reads the replies; what runs and waits ends soon.
                    self.stream.end();
                    *sent = 0;
                    for job in jobs.drain(..) {
                        self.jobs.give_back(job);
                    }
                }
            }
        }
        true
    }
}

impl Outbox {
    /// [`Sending::drain`] returns.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.stalled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends all of these bytes.
pub(super) fn send_all(stream: &dyn Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = stream.send(&[IoSlice::new(bytes)], Patience::Endless)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}
