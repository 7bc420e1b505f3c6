//! Why a program could not be started, waited for, or sent a signal.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use ramfold_sys::Errno;

use crate::agent_library::LibraryError;
use crate::budget::BudgetError;
use crate::object_trace::TraceError;
use crate::spill::SpillError;

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no such program.
    #[error("{program:?} was not found{}", if *.in_path { " in PATH" } else { "" })]
    NotFound {
        /// As it was named.
        program: OsString,
        /// Was it looked for in the folders of `PATH`?
        in_path: bool,
    },
    /// There is a file of this name, which may not be executed.
    #[error("{} is not executable", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// The kernel refused to execute the program, or to make a process for it.
    #[error("cannot run {}", path.display())]
    NotRun {
        /// The program.
        path: PathBuf,
        /// What execve(2) or fork(2) says.
        source: io::Error,
    },
    /// The name of the program, an argument or a variable has a zero byte in it.
    #[error("cannot run {program:?}: a zero byte in {part:?}, where a text ends for the kernel")]
    ZeroByte {
        /// The program.
        program: OsString,
        /// What has the zero byte.
        part: OsString,
    },
    /// It is unknown how much RAM there is, of which the memory is to be a share.
    #[error("finding out how much RAM there is")]
    Memory(#[source] io::Error),
    /// The parts of the memory do not fit each other.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// There is no shared memory for the accounts.
    #[error("making the session")]
    Session(#[source] Errno),
    /// There can be no spill file as it was asked for.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The file for the object trace cannot be written.
    #[error("cannot write the object trace {}", path.display())]
    ObjectTrace {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: TraceError,
    },
    /// The agent's library cannot be put where the program's loader finds it.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// This process cannot become the reaper of its descendants.
    #[error("becoming the reaper of the program's processes")]
    Adopt(#[source] Errno),
    /// A run that adopts orphans waits for all children of this process, the programs of other runs
    /// too: so it must be the only one.
    #[error(
        "a run that adopts orphans must be the only one of its process, whose children it waits \
         for: wait for the end of the other run first, or start both without adopt_orphans"
    )]
    NotAlone,
    /// The signals of this process cannot be handled.
    #[error("handling signals")]
    Signals(#[source] io::Error),
    /// A thread that looks after the run cannot be started; the program was ended.
    #[error("starting a thread that looks after the program")]
    Thread(#[source] io::Error),
}

/// Why it is unknown how a program has ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// wait4(2) failed: this process ignores SIGCHLD, or something else in it has waited for the
    /// program.
    #[error("waiting for the program")]
    Wait(#[source] Errno),
    /// A thread that looks after the run has panicked, which is a mistake in ramfold.
    #[error("a thread of ramfold panicked")]
    Panicked,
}

/// Why a program was not sent a signal.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// There is no such signal.
    #[error("cannot send signal {0} to the program: there is no signal of this number")]
    Unknown(i32),
    /// The program has ended.
    #[error("cannot send a signal to the program: it has ended")]
    Ended,
    /// The kernel refused: the program runs as another user now.
    #[error("cannot send signal {signal} to the program")]
    Refused {
        /// The signal.
        signal: i32,
        /// What kill(2) says.
        source: Errno,
    },
}
