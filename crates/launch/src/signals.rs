//! Passing on what this process is sent to the program of a run. This concerns the whole process.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::{Cause, Sent};

use crate::run::Run;

const CAUGHT: &[i32] = &[SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// What is asked of the launcher itself by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SIGUSR1: [`Run::toggle_bringing_back`].
    ToggleBringingBack,
    /// SIGUSR2: write the statistics.
    WriteStatistics,
}

/// Signals that were caught since a program was started, and wait to be passed on:
/// [`Launch::catch_signals`](crate::Launch::catch_signals).
pub struct CaughtSignals {
    signals: SignalsInfo<WithOrigin>,
    ignored: Vec<i32>,
}

impl CaughtSignals {
    /// Catches signals from now on.
    ///
    /// # Errors
    /// What sigaction(2) says.
    pub(crate) fn catch() -> io::Result<CaughtSignals> {
        // What was ignored before is asked first.
        let ignored = ignored_signals();
        Ok(CaughtSignals { signals: SignalsInfo::new(CAUGHT)?, ignored })
    }

    /// The numbers of those that this process ignored before, as when it was started by nohup(1) or
    /// as a shell's background job: the program is to begin by ignoring them too.
    pub(crate) fn ignored(&self) -> &[i32] {
        &self.ignored
    }

    /// Passes on what was and is sent to this process alone. What the terminal sends reaches the
    /// program by itself. SIGUSR1 and SIGUSR2 are not passed on, but handed to `on_request`.
    ///
    /// # Errors
    /// When there can be no thread for that.
    pub fn pass_on(
        self,
        run: Arc<Run>,
        mut on_request: impl FnMut(&Run, Request) + Send + 'static,
    ) -> io::Result<SignalRelay> {
        let mut signals = self.signals;
        let handle = signals.handle();
        let thread = thread::Builder::new().name("ramfold-signals".to_owned());
        let thread = thread.spawn(move || {
            for origin in signals.forever() {
                if run.try_wait().is_some() {
                    return;
                }
                match origin.signal {
                    SIGUSR1 => on_request(&run, Request::ToggleBringingBack),
                    SIGUSR2 => on_request(&run, Request::WriteStatistics),
                    // A program that has just ended needs it no more.
                    signal if is_sent_by_a_process(&origin) => drop(run.signal(signal)),
                    _ => {}
                }
            }
        })?;
        Ok(SignalRelay { handle, thread: Some(thread) })
    }
}

/// Passes signals on until it is dropped.
pub struct SignalRelay {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Drop for SignalRelay {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened, and the run does not depend on this thread.
            let _ = thread.join();
        }
    }
}

fn is_sent_by_a_process(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Sent(Sent::User | Sent::Queue | Sent::TKill))
}

fn ignored_signals() -> Vec<i32> {
    // Where that cannot be read none is taken for ignored.
    let mask = ramfold_sys::proc::ignored_signals().unwrap_or(0);
    CAUGHT.iter().copied().filter(|signal| mask & 1 << (signal - 1) != 0).collect()
}
