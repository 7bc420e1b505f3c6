//! A program that was started.

use std::fmt;
use std::fs::File;
use std::io;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ramfold_session::{OwnedSession, Statistics};
use ramfold_sys::{Errno, cgroup};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::agent_library::Placed;
use crate::budget::{Budget, BudgetError};
use crate::error::{SignalError, WaitError};
use crate::launch::MEMORY_SHARE;
use crate::message::OnMessage;
use crate::reaping::{Children, wait_for_program};
use crate::signals::CaughtSignals;
use crate::threads::Threads;

/// How a program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this status.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
}

impl Ended {
    /// As shells have it: the exit status, or 128 + the number of the signal.
    pub fn shell_status(self) -> i32 {
        match self {
            Ended::Exited(status) => status,
            Ended::Signaled(signal) => 128 + signal,
        }
    }
}

/// What is known of why the kernel killed a program (SIGKILL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// Its memory went over the cap.
    OverCap {
        /// By so much at most.
        over_bytes: u64,
        /// The cap.
        memory_bytes: u64,
    },
    /// The control group around this process allows less than the cap.
    ControlGroup {
        /// The cap.
        memory_bytes: u64,
        /// What the control group allows.
        limit_bytes: u64,
        /// A cap that leaves room for what else counts against that limit.
        fitting_bytes: u64,
    },
}

/// What the processes of a run find by way of this one. Where some of them outlive the run it stays
/// until this process ends.
pub(crate) struct Lent {
    pub(crate) session: Arc<OwnedSession>,
    pub(crate) _spill_file: Option<File>,
    pub(crate) _library: Placed,
}

/// A program that was started by [`Launch::start`](crate::Launch::start).
///
/// All methods can be called from any thread, also while another waits. Dropping it kills the
/// program, if that has not ended, and waits for its end and for that of the run's threads. Other
/// processes that the program has started go on, under their agents.
pub struct Run {
    shared: Arc<Shared>,
    program: u32,
    /// Unlike its number it is the program's for ever.
    pidfd: Option<OwnedFd>,
    streams: Mutex<Streams>,
    signals: Mutex<Option<CaughtSignals>>,
    budget: Budget,
    supervisor: Option<JoinHandle<()>>,
    lent: Option<Lent>,
}

/// What the supervising thread knows too.
struct Shared {
    session: Arc<OwnedSession>,
    result: Mutex<Option<Result<Ended, WaitError>>>,
    has_ended: Condvar,
}

/// The near ends of the program's pipes.
struct Streams {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

/// What a run begins with.
pub(crate) struct Parts {
    pub(crate) child: Child,
    pub(crate) lent: Lent,
    pub(crate) budget: Budget,
    pub(crate) children: Children,
    pub(crate) signals: Option<CaughtSignals>,
    pub(crate) threads: Threads,
    pub(crate) on_message: Arc<OnMessage>,
}

impl Run {
    /// Begins to wait for the program.
    ///
    /// # Errors
    /// When there can be no thread for that; the program was killed then.
    pub(crate) fn begin(parts: Parts) -> io::Result<Run> {
        let Parts { mut child, lent, budget, children, signals, threads, on_message } = parts;
        let program = child.id();
        let pid = pid_of(program);
        let streams = Streams {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
        };
        let shared = Arc::new(Shared {
            session: Arc::clone(&lent.session),
            result: Mutex::default(),
            has_ended: Condvar::new(),
        });
        // Where the kernel has none, signals go by the number.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        let supervisor = thread::Builder::new().name("ramfold-wait".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.supervise(pid, children, threads, &*on_message)
        });
        let supervisor = match supervisor {
            Ok(supervisor) => Some(supervisor),
            Err(error) => {
                end_child(&mut child);
                return Err(error);
            }
        };
        Ok(Run {
            shared,
            program,
            pidfd,
            streams: Mutex::new(streams),
            signals: Mutex::new(signals),
            budget,
            supervisor,
            lent: Some(lent),
        })
    }

    /// The number of the program's process.
    pub fn id(&self) -> u32 {
        self.program
    }

    /// The process of the agent that looks after the program; `None` as long as there is none.
    pub fn agent(&self) -> Option<u32> {
        self.shared.session.agent_of(self.program)
    }

    /// Waits for the end of the program, for that of its agents, which give memory back, and of the
    /// run's threads. When it returns, all messages were delivered. It can be called again.
    ///
    /// # Errors
    /// When it cannot be known how the program has ended.
    pub fn wait(&self) -> Result<Ended, WaitError> {
        let mut result = lock(&self.shared.result);
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            result = self.shared.has_ended.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// [`Run::wait`] for so long at most; `None` where the program has not ended by then.
    pub fn wait_timeout(&self, patience: Duration) -> Option<Result<Ended, WaitError>> {
        let result = lock(&self.shared.result);
        let waited =
            self.shared.has_ended.wait_timeout_while(result, patience, |result| result.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// [`Run::wait`] where the program has ended; `None` where it has not.
    pub fn try_wait(&self) -> Option<Result<Ended, WaitError>> {
        lock(&self.shared.result).clone()
    }

    /// All counters and gauges, as they are now. After the program's end they are the last.
    pub fn statistics(&self) -> Statistics {
        self.shared.session.statistics(self.program)
    }

    /// Sends a signal to the program, by its number.
    ///
    /// # Errors
    /// Where there is no such signal, the program has ended, or the kernel refuses.
    pub fn signal(&self, signal: i32) -> Result<(), SignalError> {
        let named = Signal::from_named_raw(signal).ok_or(SignalError::Unknown(signal))?;
        if self.try_wait().is_some() {
            return Err(SignalError::Ended);
        }
        let sent = match &self.pidfd {
            Some(pidfd) => pidfd_send_signal(pidfd, named),
            None => kill_process(pid_of(self.program), named),
        };
        sent.map_err(|source| match source {
            Errno::SRCH => SignalError::Ended,
            source => SignalError::Refused { signal, source },
        })
    }

    /// Changes the cap, in bytes, for all processes of the run. Where it is lower than before,
    /// agents begin to compress at once; how long they take shows in the statistics. Parts of the
    /// memory that were asked for in percent, and those that were not asked for, change with it.
    ///
    /// Some things stay as they were when an agent became active (when its process first came near
    /// the cap): its pool may take twice the cap of that time, or 256 MiB if that is more; its
    /// tables a quarter, or 64 MiB; its reserve and its queue of pages to be compressed are as long
    /// as they were. So a cap can be lowered at any time, and raised to twice what it was with full
    /// effect. An agent that found the cap smaller than what it takes itself (4 MiB) does not try
    /// again. That a cap cannot be held is said once in a run, also where it was changed since.
    ///
    /// # Errors
    /// Where [`Launch::pool`](crate::Launch::pool) or [`Launch::reserve`](crate::Launch::reserve)
    /// does not fit into so much memory. Nothing is changed then.
    pub fn set_memory(&self, memory_bytes: u64) -> Result<(), BudgetError> {
        let session = &self.shared.session;
        self.budget.parts(memory_bytes)?.store(session);
        session.wake_agents();
        // For who leaves room for files below the cap.
        session.note_activity();
        Ok(())
    }

    /// Brings all pages back and compresses none, whatever the cap, for a debugger or a core dump;
    /// or ends that. Returns which.
    pub fn toggle_bringing_back(&self) -> bool {
        self.shared.session.toggle_bringing_back()
    }

    /// What may have been the reason where the program was killed by SIGKILL. `None` where nothing
    /// is known of one.
    pub fn kill_reason(&self) -> Option<KillReason> {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let over_bytes = load(&self.shared.session.over_cap_bytes_max);
        let memory_bytes = load(&self.shared.session.memory_cap_bytes);
        if over_bytes > 0 {
            return Some(KillReason::OverCap { over_bytes, memory_bytes });
        }
        let limit_bytes = cgroup::memory_limit_bytes().filter(|&limit| limit < memory_bytes)?;
        let fitting_bytes = (limit_bytes as f64 * MEMORY_SHARE) as u64;
        Some(KillReason::ControlGroup { memory_bytes, limit_bytes, fitting_bytes })
    }

    /// The signals that [`Launch::catch_signals`](crate::Launch::catch_signals) catches, if they
    /// were not taken before: to be passed on.
    pub fn take_signals(&self) -> Option<CaughtSignals> {
        lock(&self.signals).take()
    }

    /// The near end of the program's standard input, where [`Launch::stdin`](crate::Launch::stdin)
    /// made it a pipe, and it was not taken before.
    pub fn take_stdin(&self) -> Option<ChildStdin> {
        lock(&self.streams).stdin.take()
    }

    /// The same of its standard output.
    pub fn take_stdout(&self) -> Option<ChildStdout> {
        lock(&self.streams).stdout.take()
    }

    /// The same of its standard error.
    pub fn take_stderr(&self) -> Option<ChildStderr> {
        lock(&self.streams).stderr.take()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.signal(Signal::KILL.as_raw());
        if let Some(supervisor) = self.supervisor.take() {
            // That it panicked is in the result.
            let _ = supervisor.join();
        }
        if self.shared.session.is_in_use() {
            std::mem::forget(self.lent.take());
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = self.try_wait();
        f.debug_struct("Run").field("id", &self.program).field("result", &result).finish()
    }
}

impl Shared {
    fn supervise(
        &self,
        program: Pid,
        children: Children,
        mut threads: Threads,
        on_message: &OnMessage,
    ) {
        // Whoever waits must not wait for ever, even where a message's taker panics.
        let mut outcome = Outcome { shared: self, result: Err(WaitError::Panicked) };
        let waited = wait_for_program(&self.session, program, &children, on_message);
        // The next run may adopt as soon as this one has ended.
        drop(children);
        outcome.result = match (waited, threads.end()) {
            (Err(errno), _) => Err(WaitError::Wait(errno)),
            (Ok(_), false) => Err(WaitError::Panicked),
            (Ok(ended), true) => Ok(ended),
        };
    }
}

/// Tells those who wait when it is dropped.
struct Outcome<'a> {
    shared: &'a Shared,
    result: Result<Ended, WaitError>,
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        *lock(&self.shared.result) = Some(self.result.clone());
        self.shared.has_ended.notify_all();
    }
}

/// Kills a child and waits for it.
pub(crate) fn end_child(child: &mut Child) {
    // It may have ended by itself, and nobody else waits for it.
    let _ = child.kill();
    let _ = child.wait();
}

fn pid_of(number: u32) -> Pid {
    Pid::from_raw(number as i32).expect("a process has a positive number")
}

/// What is behind these locks is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
