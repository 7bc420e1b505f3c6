//! What the user of a run should know.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::object_trace::TraceOutcome;
use crate::page_watch::WatchOutcome;
use crate::userfaultfd::UserfaultfdProblem;

/// A message for whoever started the program: its `Display` is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum Message {
    /// The program runs as it would without ramfold.
    RunsWithout(Reason),
    /// What an agent says.
    FromAgent(String),
    /// A process was killed because its agent was, which had parts of its memory.
    AgentKilled {
        /// The process that was killed.
        program: u32,
        /// The process of its agent.
        agent: u32,
    },
    /// What became of the object trace, after the program has ended.
    ObjectTrace {
        /// The file.
        path: PathBuf,
        /// How complete it is; or why it could not be written further.
        outcome: io::Result<TraceOutcome>,
    },
    /// How complete what was seen of watched pages is, after the program has ended. Not for the
    /// user, but for who watches.
    PageWatch(WatchOutcome),
}

/// Why a program runs without ramfold.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// Its loader does not take the agent in.
    Program {
        /// The program.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// Agents cannot work here.
    Userfaultfd(UserfaultfdProblem),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Program { path, why } => write!(f, "{}: {why}", path.display()),
            Reason::Userfaultfd(problem) => write!(f, "{problem}"),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::RunsWithout(reason) => write!(f, "runs without ramfold: {reason}"),
            Message::FromAgent(text) => f.write_str(text),
            Message::AgentKilled { program, agent } => write!(
                f,
                "ended the program (pid {program}): its agent (pid {agent}), which has parts of \
                 its memory, was killed"
            ),
            Message::PageWatch(WatchOutcome { one_in, lost, .. }) => {
                write!(f, "one block of pages in {one_in} was watched; {lost} events were lost")
            }
            Message::ObjectTrace { path, outcome } => {
                write!(f, "the object trace {} ", path.display())?;
                match outcome {
                    Ok(TraceOutcome::Whole) => f.write_str("is complete"),
                    Ok(TraceOutcome::Full { bytes }) => {
                        write!(f, "has only the first {} KiB of what was recorded", bytes >> 10)
                    }
                    Ok(TraceOutcome::Overrun) => f.write_str(
                        "ends before the program: it could not be written as fast as things \
                         happened",
                    ),
                    Ok(TraceOutcome::Empty) => {
                        f.write_str("is empty: no process compressed anything")
                    }
                    Err(error) => {
                        write!(f, "cannot be written: {error}; it has what came before")
                    }
                }
            }
        }
    }
}

/// Takes messages, on any of the run's threads.
pub(crate) type OnMessage = dyn Fn(Message) + Send + Sync;
