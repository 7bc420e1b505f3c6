//! Checks every byte of its memory while it does to that memory whatever programs do.
//!
//! The program knows of no pager. Under one it shows whether that pager keeps its promise: every
//! byte read is the byte last written.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod beside;
mod check;
mod child;
mod content;
mod current;
mod errno;
mod failure;
mod files;
mod handlers;
mod heap;
mod memory;
mod operations;
mod options;
mod permits;
mod probe;
mod region;
mod rng;
mod run;
mod sabotage;
mod snapshot;
mod table;
mod touch;
mod watchdog;
mod worker;
mod world;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use options::Command;

fn main() -> ExitCode {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let chosen = rng::mix(&[now.as_nanos() as u64, u64::from(std::process::id())]) >> 32;
    match options::parse(std::env::args_os().skip(1), chosen) {
        Ok(Command::Run(options)) => run::run(Box::leak(options)),
        Ok(Command::List) => {
            print!("{}", operations::list());
            ExitCode::SUCCESS
        }
        Ok(Command::Help) => {
            print!("{}", options::USAGE);
            ExitCode::SUCCESS
        }
        Ok(Command::Watchdog { pid, descriptor, hang_seconds }) => {
            watchdog::watch(pid, descriptor, hang_seconds)
        }
        Ok(Command::Probe { kind, seed }) => probe::run(&kind, seed),
        Err(message) => {
            eprintln!("ramfold-torture: {message}");
            ExitCode::from(failure::EXIT_USAGE as u8)
        }
    }
}
