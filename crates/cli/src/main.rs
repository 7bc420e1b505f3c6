//! The `ramfold` command: one file a subcommand, this one only routes.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![deny(unsafe_code)]

mod commands;
mod duration;
mod mount_options;
mod mount_view;
mod picture;
mod progress_line;
mod say;
mod size;
mod table;

use clap::{CommandFactory, Parser, Subcommand};

/// Exit status of ramfold's own failures, as `env`, `timeout` and `docker run` have it.
pub(crate) const EXIT_FAILED: i32 = 125;

/// Gives Linux programs more memory than the machine has, by keeping cold pages compressed in RAM.
#[derive(Parser)]
#[command(name = "ramfold", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<commands::run::Arguments>),
    Mount(commands::mount::Arguments),
    Umount(commands::umount::Arguments),
    Block(commands::block::Arguments),
    Dump(commands::dump::Arguments),
    Advise(Box<commands::advise::Arguments>),
    Simulate(commands::simulate::Arguments),
    Doctor(commands::doctor::Arguments),
    Bench(commands::bench::Arguments),
    Manual(commands::manual::Arguments),
    #[command(name = commands::calibrate_workload::NAME, hide = true)]
    CalibrateWorkload(commands::calibrate_workload::Arguments),
}

fn main() {
    let arguments = Arguments::try_parse_from(mount_options::arguments()).unwrap_or_else(|error| {
        // Nobody is left to tell when the stream is closed.
        let _ = error.print();
        // Help that was asked for is no failure.
        std::process::exit(if error.use_stderr() { EXIT_FAILED } else { 0 });
    });
    let result = match arguments.command {
        Command::Run(arguments) => commands::run::run(*arguments),
        Command::Mount(arguments) => commands::mount::run(&arguments).map(|()| 0),
        Command::Umount(arguments) => commands::umount::run(&arguments).map(|()| 0),
        Command::Block(arguments) => commands::block::run(&arguments),
        Command::Dump(arguments) => commands::dump::run(&arguments).map(|()| 0),
        Command::Advise(arguments) => commands::advise::run(&arguments),
        Command::Simulate(arguments) => commands::simulate::run(&arguments).map(|()| 0),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(arguments),
        Command::Manual(arguments) => {
            commands::manual::run(Arguments::command(), &arguments).map(|()| 0)
        }
        Command::CalibrateWorkload(arguments) => {
            commands::calibrate_workload::run(&arguments).map(|()| 0)
        }
    };
    match result {
        Ok(status) => std::process::exit(status),
        Err(error) => {
            eprintln!("ramfold: {error:#}");
            std::process::exit(EXIT_FAILED);
        }
    }
}
