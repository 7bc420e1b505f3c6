//! The threads that do requests which the thread that reads them does not do itself.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::connection::Connection;
use super::execution;
use super::job::Job;
use super::request::Command;
use super::statistics::count;
use crate::STACK_BYTES;

/// Requests of all connections that wait for a thread. How many there are is bounded by each
/// connection's jobs.
#[derive(Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Arc<Connection>, Box<Job>)>,
    idle: usize,
    has_ended: bool,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// When no thread can be started; the others end with [`Pool::end`].
    pub(super) fn start(self: &Arc<Pool>, threads: usize) -> io::Result<Vec<JoinHandle<()>>> {
        let start = |_| {
            let pool = Arc::clone(self);
            let thread = thread::Builder::new().name("nbd-work".into()).stack_size(STACK_BYTES);
            thread.spawn(move || pool.work())
        };
        (0..threads).map(start).collect()
    }

    pub(super) fn submit(&self, connection: &Arc<Connection>, job: Box<Job>) {
        let mut state = self.lock();
        count(&connection.shared.counters.handed_over);
        state.waiting.push_back((Arc::clone(connection), job));
        let is_idle = state.idle > 0;
        drop(state);
        if is_idle {
            self.ready.notify_one();
        }
    }

    /// The threads end when nothing waits any more.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.ready.notify_all();
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some((connection, job)) = state.waiting.pop_front() {
                drop(state);
                do_job(&connection, job);
                drop(connection);
                state = self.lock();
            } else if state.has_ended {
                return;
            } else {
                state.idle += 1;
                state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does what the job asks for, and sends the reply.
pub(super) fn do_job(connection: &Connection, mut job: Box<Job>) {
    let shared = &connection.shared;
    let started = Instant::now();
    // One at a time: advice must not keep all threads from what clients wait for.
    let turn = match job.command {
        Command::Cache => shared.caching.try_lock().ok(),
        _ => None,
    };
    let goes_on = || turn.is_some() && !connection.is_ending();
    if !execution::run(&*shared.device, &mut job, &goes_on) {
        count(&shared.counters.requests_failed);
    }
    drop(turn);
    if !job.is_large() {
        shared.pace.note(job.command, started.elapsed());
    }
    connection.sending().send(job);
}
