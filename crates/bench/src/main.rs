//! The `ramfold-bench` binary: routes to one file a subcommand.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ramfold_bench::commands::{
    codec, codec_count, enter_cgroup, memeater, mount, run, store, train, web, workload,
};
use ramfold_bench::interrupt::Interrupted;
use ramfold_bench::progress;

/// Measure ramfold and what a Linux machine has beside it, in the same run.
#[derive(Parser)]
#[command(name = "ramfold-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Options),
    Codec(codec::Options),
    Memeater(memeater::Options),
    Mount(mount::Options),
    Store(store::Options),
    Web(web::Options),
    #[command(hide = true)]
    CodecCount(codec_count::Options),
    #[command(hide = true)]
    Train(train::Options),
    #[command(hide = true)]
    Workload(workload::Options),
    #[command(hide = true)]
    Eat(memeater::EatOptions),
    #[command(hide = true)]
    EnterCgroup(enter_cgroup::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run::execute(options),
        Command::Codec(options) => codec::execute(options),
        Command::Memeater(options) => memeater::execute(options),
        Command::Mount(options) => mount::execute(options),
        Command::Eat(options) => memeater::eat(options),
        Command::Store(options) => store::execute(options),
        Command::Web(options) => web::execute(options),
        Command::CodecCount(options) => codec_count::execute(options),
        Command::Train(options) => train::execute(options),
        Command::Workload(options) => workload::execute(options),
        Command::EnterCgroup(options) => enter_cgroup::execute(options),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
                progress::say(&format!("ramfold-bench: {interrupted}"));
                return interrupted.exit_code();
            }
            progress::say(&format!("ramfold-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
