//! Workloads and peers in one harness: the program `ramfold-bench`.
//!
//! The rooms, from the bottom up. Each uses only those above it in this list (a test checks), and
//! the head of its `mod.rs` says how to add to it.
//!
//! - `content`: data, generated or read from files
//! - `machine`: what is asked of Linux and set on the machine, and how it is taken back
//! - `harness`: a program is run and measured, and figures are reported
//! - `peers`: the memory systems and caches that are compared
//! - `workloads`: the programs that are measured
//! - `experiments`: what can be measured, one folder for each subcommand
//!
//! `commands` is the list of all subcommands.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![deny(unsafe_code)]

mod commands;
mod content;
mod experiments;
mod harness;
mod machine;
mod peers;
mod workloads;

pub use commands::main;
pub use content::heap_pages::{Page, PageSource};
pub use content::random::Random;
