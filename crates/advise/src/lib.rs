//! Advice on memory, from measurements and the model.
//!
//! | module | what it does |
//! |---|---|
//! | [`advice`] | what an observation and the costs say of each size of memory |
//! | [`contents`] | how small pages become, by codec |
//! | [`file_trace`] | a trace of the reads of a mount, written while it is served |
//! | [`history`] | what was predicted and what happened |
//! | [`machine`] | what things cost on this machine: measured once, and kept |
//! | [`measure`] | measures processes, control groups, dumps and files, without an agent |
//! | `meter` | how long a child process takes, and whether others were in its way |
//! | [`observation`] | what was measured of a program, a process, a dump or files |
//! | [`page_trace`] | a trace of a program's page accesses, written while it runs |
//! | [`program`] | observes a program from its start on, with the agent in it |
//! | [`progress`] | how far any of that is |
//! | [`simulation`] | runs replacement policies over a trace, at several sizes at once |
//! | [`trial`] | runs a program again under a cap, to see what was predicted |

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

pub mod advice;
pub mod contents;
pub mod file_trace;
pub mod history;
pub mod machine;
pub mod measure;
mod meter;
pub mod observation;
pub mod page_trace;
pub mod program;
pub mod progress;
pub mod simulation;
pub mod trial;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is behind these locks is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
