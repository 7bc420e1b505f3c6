//! Starts a program with ramfold's agent in it, and looks after it until it ends.
//!
//! ```no_run
//! use ramfold_launch::{Launch, Size};
//!
//! let run = Launch::new("python3")
//!     .args(["train.py"])
//!     .memory(Size::Bytes(2 << 30))
//!     .on_message(|message| eprintln!("ramfold: {message}"))
//!     .start()?;
//! let ended = run.wait()?;
//! println!("{ended:?}, {:?} faults", run.statistics().number("faults"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Launch`] has the program and its options, a [`Run`] is one that was started. A run owns its
//! threads and its program: when it is dropped, the program is killed and the threads have ended.
//! Nothing is printed: what the user should know comes as a [`Message`] or an error.
//!
//! # What concerns the whole process
//!
//! Any number of runs can be under way at the same time, in a process that does other things and
//! has other children. By itself a run waits for its own program alone, handles no signals, and
//! changes no attribute of the process. Three things are for the whole process, and only for those
//! who ask:
//!
//! - [`Launch::adopt_orphans`] makes this process the reaper of its descendants
//!   (`PR_SET_CHILD_SUBREAPER`) and waits for every child of it, whoever started that. Such a run
//!   is the only one of its process.
//! - [`Launch::catch_signals`] handles signals of this process, which are ignored after the run.
//! - Processes that the program has started may outlive the [`Run`]. They find their session by a
//!   file descriptor of this process, so the session's descriptors stay open then until this
//!   process ends.
//!
//! # Threads and fork
//!
//! The program is a child of the thread that calls [`Launch::start`], which matters to programs
//! that ask for a signal when that thread ends (`PR_SET_PDEATHSIG`).

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![deny(unsafe_code)]

mod agent_library;
mod awake;
mod budget;
mod child;
mod environment;
mod error;
mod file_pressure;
mod launch;
mod message;
mod object_trace;
pub mod output_file;
mod page_watch;
mod program;
mod reaping;
mod run;
mod signals;
mod size;
mod spill;
mod threads;
mod userfaultfd;

pub use agent_library::{CacheProblem, LibraryError, MemoryError};
pub use budget::BudgetError;
pub use environment::initial_environment;
pub use error::{SignalError, StartError, WaitError};
pub use launch::Launch;
pub use message::{Message, Reason};
pub use object_trace::{TraceError, TraceOutcome};
pub use page_watch::{PageContent, SeenPages, WatchOutcome};
pub use ramfold_codec::Choice;
pub use ramfold_pager::run_soon;
pub use ramfold_session::{
    Metric, MetricKind, PageEvent, Quantiles, Statistics, Unit, Value, Watched, metrics,
};
pub use ramfold_sys::size::{Size, SizeError};
pub use ramfold_sys::uffd::OpenError;
pub use run::{Ended, KillReason, Run};
pub use signals::{CaughtSignals, Request, SignalRelay};
pub use size::memory_bytes;
pub use spill::SpillError;
pub use userfaultfd::{UserfaultfdProblem, features_problem, userfaultfd_problem};
