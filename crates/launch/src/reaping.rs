//! Waiting for the program, and for agents that end before it.
//!
//! An agent's process is nobody's child: when it ends it goes to the nearest reaper of its
//! descendants (`PR_SET_CHILD_SUBREAPER`), or to init. So there are two ways to learn of its end:
//!
//! - A launcher that adopts orphans is that reaper. It waits for whatever child ends, and learns of
//!   an agent's end at once. This concerns the whole process: see [`Children`].
//! - Any other leaves the process as it is. It waits for its own program, and a thread looks at the
//!   agents now and then.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ramfold_session::Session;
use ramfold_sys::{Errno, process};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, child_subreaper, getpid, kill_process,
    set_child_subreaper, wait, waitpid,
};

use crate::error::StartError;
use crate::message::{Message, OnMessage};
use crate::run::Ended;

/// How long the end of agents is waited for, in which they give memory back.
const AGENTS_END: Duration = Duration::from_secs(10);
/// Between two looks for agents that have ended, where this process does not get them.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Which runs of this process wait for which of its children.
static WAITERS: Mutex<Waiters> = Mutex::new(Waiters { runs: 0, adopts: false });

struct Waiters {
    /// Runs whose programs have not been waited for.
    runs: usize,
    /// One of them waits for all children; it is the only one then.
    adopts: bool,
}

/// Which children of this process a run waits for.
pub(crate) enum Children {
    /// Its program.
    Program,
    /// All: this process is the reaper of its descendants as long as this lives.
    All {
        /// It was not their reaper before.
        is_new: bool,
    },
}

impl Children {
    /// Begins to wait, for all children if the run `adopts` orphans.
    ///
    /// # Errors
    /// [`StartError::NotAlone`] and [`StartError::Adopt`].
    pub(crate) fn begin(adopts: bool) -> Result<Children, StartError> {
        let mut waiters = waiters();
        if waiters.adopts || adopts && waiters.runs > 0 {
            return Err(StartError::NotAlone);
        }
        let children = if adopts {
            let is_new = child_subreaper().map_err(StartError::Adopt)?.is_none();
            set_child_subreaper(Some(getpid())).map_err(StartError::Adopt)?;
            Children::All { is_new }
        } else {
            Children::Program
        };
        waiters.runs += 1;
        waiters.adopts = adopts;
        Ok(children)
    }

    /// Does the run learn at once which process has ended, an agent's too?
    pub(crate) fn are_all(&self) -> bool {
        matches!(self, Children::All { .. })
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        let mut waiters = waiters();
        if let Children::All { is_new: true } = self {
            // What is left behind goes to the next reaper.
            let _ = set_child_subreaper(None);
        }
        waiters.runs -= 1;
        waiters.adopts = false;
    }
}

fn waiters() -> MutexGuard<'static, Waiters> {
    // Nothing panics while it is locked.
    WAITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the program and, where these are all children, for whatever else ends meanwhile; then
/// for agents whose programs have ended.
///
/// # Errors
/// What wait4(2) says.
pub(crate) fn wait_for_program(
    session: &Session,
    program: Pid,
    children: &Children,
    on_message: &OnMessage,
) -> Result<Ended, Errno> {
    let ended = match children {
        Children::All { .. } => wait_among_all(session, program, on_message)?,
        Children::Program => wait_for_one(program)?,
    };
    reap_agents(session, children);
    Ok(ended)
}

fn wait_for_one(program: Pid) -> Result<Ended, Errno> {
    loop {
        match waitpid(Some(program), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                if let Some(ended) = how_it_ended(status) {
                    return Ok(ended);
                }
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn wait_among_all(session: &Session, program: Pid, on_message: &OnMessage) -> Result<Ended, Errno> {
    loop {
        let (pid, status) = match wait(WaitOptions::empty()) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        let Some(ended) = how_it_ended(status) else { continue };
        if pid == program {
            return Ok(ended);
        }
        end_deserted(session, pid.as_raw_pid() as u32, on_message);
    }
}

fn how_it_ended(status: WaitStatus) -> Option<Ended> {
    let exited = status.exit_status().map(Ended::Exited);
    exited.or_else(|| status.terminating_signal().map(Ended::Signaled))
}

/// Waits for the agents of processes that have ended, each of which holds the memory of its process
/// until it has ended itself.
fn reap_agents(session: &Session, children: &Children) {
    let deadline = Instant::now() + AGENTS_END;
    while let Some(agent) = session.agents_without_program().next() {
        let Some(patience) = deadline.checked_duration_since(Instant::now()) else { break };
        process::wait_for_end(agent, patience);
        // It may be the child of a process that lives on.
        let _ = waitpid(Pid::from_raw(agent as i32), WaitOptions::NOHANG);
    }
    if children.are_all() {
        // What is left is alive, or nobody's child here.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
}

/// Looks for agents that have ended without a word until `ended`, at which
/// [`Session::note_activity`] is to be called.
pub(crate) fn guard(session: &Session, ended: &AtomicBool, on_message: &OnMessage) {
    let mut known = HashSet::new();
    loop {
        let activity = session.activity();
        if ended.load(Ordering::Acquire) {
            return;
        }
        for agent in session.lost_agents().filter(|&agent| known.insert(agent)) {
            end_deserted(session, agent, on_message);
        }
        session.wait_for_activity(activity, Some(LOOK_AGAIN));
    }
}

/// Without its agent a program cannot go on: parts of its memory may be missing.
fn end_deserted(session: &Session, agent: u32, on_message: &OnMessage) {
    let Some(program) = session.deserted_by(agent) else { return };
    // A program that has unmapped all memory, its agent's too, waits for that agent, and would
    // crash. (Its size in `statm` goes down only when the kernel has freed the pages.)
    let is_empty = match fs::read_to_string(format!("/proc/{program}/maps")) {
        Ok(maps) => maps.lines().all(|line| line.ends_with("[vsyscall]")),
        // It has ended. What may not be read is not empty.
        Err(error) => error.raw_os_error() == Some(Errno::SRCH.raw_os_error()),
    };
    let killed =
        Pid::from_raw(program as i32).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
    if killed && !is_empty {
        on_message(Message::AgentKilled { program, agent });
    }
}
