//! Advice on memory, from measurements and the model.
//!
//! | module | what it does |
//! |---|---|
//! | [`contents`] | how small pages become, by codec |
//! | [`observation`] | what was measured of a program, a process, a dump or files |
//! | [`page_trace`] | a trace of a program's page accesses, written while it runs |
//! | [`program`] | observes a program from its start on, with the agent in it |
//! | [`simulation`] | runs replacement policies over a trace, at several sizes at once |

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

pub mod contents;
pub mod observation;
pub mod page_trace;
pub mod program;
pub mod simulation;
