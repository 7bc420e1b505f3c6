//! The `ramfold` command: one file a subcommand, this one only routes.

#![forbid(unsafe_code)]

mod agent_library;
mod commands;
mod file_pressure;
mod program;
mod size;
mod stats;

use clap::{Parser, Subcommand};

/// Exit status of ramfold's own failures, as `env`, `timeout` and `docker run` have it.
pub const EXIT_FAILED: i32 = 125;

/// Gives Linux programs more memory than the machine has, by keeping cold pages compressed in RAM.
#[derive(Parser)]
#[command(name = "ramfold", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::Arguments),
    Dump(commands::dump::Arguments),
    Doctor(commands::doctor::Arguments),
    Bench(commands::bench::Arguments),
}

fn main() {
    let result = match Arguments::parse().command {
        Command::Run(arguments) => commands::run::run(arguments),
        Command::Dump(arguments) => commands::dump::run(&arguments).map(|()| 0),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(arguments),
    };
    match result {
        Ok(status) => std::process::exit(status),
        Err(error) => {
            eprintln!("ramfold: {error:#}");
            std::process::exit(EXIT_FAILED);
        }
    }
}
