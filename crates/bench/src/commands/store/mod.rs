//! `ramfold-bench store`: the parts of the store by themselves.

mod allocators;
mod verbs;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use serde::Serialize;

use crate::machine::Environment;

/// Measure the parts of the store by themselves: its allocator beside others on the same objects, or its
/// verbs.
///
/// The other allocators are paper 003's blocks of 128 bytes in lists, paper 004's resource map over
/// growing chunks, and one by the rules of the kernel's zsmalloc, which zram uses. Every object is
/// checked.
#[derive(Args)]
#[command(
    group = ArgGroup::new("part").args(["verbs"]),
    after_help = "Examples:\n  \
    ramfold bench store\n  \
    ramfold bench store --objects 20000 --json\n  \
    ramfold bench store --pages python.pages gcc.pages   # lengths that auto gives these pages\n  \
    ramfold bench store --verbs --threads 1 2 64         # times of store and take"
)]
pub struct Options {
    /// Measure store and take, without a codec, by one thread and by several at once; and what the index
    /// costs
    #[arg(long)]
    verbs: bool,
    /// Objects at a time, of the allocators
    #[arg(long, value_name = "N", default_value_t = 100_000, conflicts_with = "part",
          value_parser = clap::value_parser!(u32).range(100..=4_000_000))]
    objects: u32,
    /// Files of raw 4 KiB pages, as `ramfold dump` writes them: objects are as long as `auto` makes of
    /// these [default: lengths as of heap pages, drawn at random]
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "part")]
    pages: Vec<PathBuf>,
    /// Where the random numbers begin
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "part")]
    seed: u64,
    /// Threads that use the store at once; each number is measured
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [1, 2, 64], requires = "verbs",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Rounds, in turn for each number of threads
    #[arg(long, value_name = "N", default_value_t = 15, requires = "verbs",
          value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Do so many times less, to see whether all works
    #[arg(long, value_name = "N", default_value_t = 1, hide = true,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    share: u16,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub fn execute(options: Options) -> Result<ExitCode> {
    if options.verbs { verbs::execute(&options) } else { allocators::execute(&options) }
}

/// What was found, and where.
#[derive(Serialize)]
struct Report<F> {
    environment: Environment,
    #[serde(flatten)]
    figures: F,
}

/// Prints figures as a table or as JSON.
fn print<F: Serialize>(
    json: bool,
    figures: F,
    text: impl FnOnce(&F) -> String,
) -> Result<ExitCode> {
    let text = if json {
        let report = Report { environment: Environment::read(String::new(), false), figures };
        serde_json::to_string_pretty(&report).context("cannot write the report as JSON")? + "\n"
    } else {
        text(&figures)
    };
    write!(io::stdout().lock(), "{text}").context("cannot print the report")?;
    Ok(ExitCode::SUCCESS)
}
