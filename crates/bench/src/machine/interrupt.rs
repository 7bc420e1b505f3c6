//! Stopping cleanly on SIGINT, SIGTERM, SIGHUP and SIGQUIT.
//!
//! A signal only ends the measured program and leaves a mark; the main thread
//! sees the mark, returns an error and undoes what was set on its way out, in
//! the same code as after any other error.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::processes;

static SIGNAL: AtomicI32 = AtomicI32::new(0);
static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

/// The measured program that runs now.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Leader of the program's process group.
    pub(crate) leader: Pid,
    /// cgroup.procs of its cgroups: they also hold what left the process group.
    pub(crate) procs_files: Vec<PathBuf>,
}

impl Running {
    /// Everything the program started: what is in its cgroup, or else its process group
    /// and their descendants.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        match self.procs_files.first() {
            Some(procs_file) => listed(procs_file),
            None => processes::family(self.leader),
        }
    }

    /// Kills everything the program started.
    pub(crate) fn kill(&self) {
        // ESRCH means that it has ended already, which is what is wanted.
        let _ = kill_process_group(self.leader, Signal::KILL);
        for procs_file in &self.procs_files {
            kill_listed(procs_file);
        }
    }
}

/// The processes listed in a cgroup.procs.
fn listed(procs_file: &PathBuf) -> Vec<Pid> {
    let text = fs::read_to_string(procs_file).unwrap_or_default();
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// Kills every process listed in a cgroup.procs, but this one.
pub(super) fn kill_listed(procs_file: &PathBuf) {
    let own = rustix::process::getpid();
    for pid in listed(procs_file).into_iter().filter(|&pid| pid != own) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The error a measurement ends with when a signal came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted(i32);

impl Interrupted {
    /// 128 + signal, as shells report it.
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(u8::try_from(128 + self.0).unwrap_or(u8::MAX))
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "interrupted by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Starts to listen. Signals that were ignored at the start (nohup) stay ignored.
pub(crate) fn install() -> Result<()> {
    let ignored = ramfold_sys::proc::ignored_signals().unwrap_or(0);
    let wanted = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
    let wanted = wanted.iter().filter(|&&signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(wanted).context("cannot listen to signals")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                SIGNAL.store(signal, Ordering::SeqCst);
                if let Some(running) = running().as_ref() {
                    running.kill();
                }
            }
        })
        .context("cannot start the signal thread")?;
    Ok(())
}

/// An error if a signal came.
pub(crate) fn check() -> Result<(), Interrupted> {
    match SIGNAL.load(Ordering::SeqCst) {
        0 => Ok(()),
        signal => Err(Interrupted(signal)),
    }
}

/// Declares the program that a signal has to end; `None` before it is reaped,
/// since its process id may be another's afterwards.
pub(crate) fn set_running(program: Option<Running>) {
    let mut running = running();
    *running = program;
    // The signal may have come between the start of the program and now.
    if let (Some(running), Err(_)) = (running.as_ref(), check()) {
        running.kill();
    }
}

/// Kills what is running; for the panic hook, which must not wait for a lock.
pub(crate) fn kill_running() {
    if let Ok(running) = RUNNING.try_lock()
        && let Some(running) = running.as_ref()
    {
        running.kill();
    }
}

fn running() -> MutexGuard<'static, Option<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
