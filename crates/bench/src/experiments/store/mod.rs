//! `ramfold-bench store`: the parts of the store by themselves, one folder for each.
//!
//! To add a part, add a folder with an `execute` that takes these [`Options`], an option that asks
//! for it, and a line in [`Options::execute`](Command::execute).

mod allocators;
mod engine;
mod spill;
mod sweep;
mod verbs;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgGroup, Args};
use ramfold_codec::Choice;

use crate::commands::Command;
use crate::harness::report::print;
use crate::harness::size::Bytes;
use engine::Kind;

/// Measure the parts of the store by themselves: its allocator beside others on the same objects,
/// its verbs, engines of compression, or the spill file.
///
/// The other allocators are paper 003's blocks of 128 bytes in lists, paper 004's resource map over
/// growing chunks, and one by the rules of the kernel's zsmalloc, which zram uses. Every object is
/// checked.
#[derive(Args)]
#[command(
    group = ArgGroup::new("part").args(["verbs", "engine", "spill", "spill_sweep"]),
    after_help = "Examples:\n  \
    ramfold bench store\n  \
    ramfold bench store --objects 20000 --json\n  \
    ramfold bench store --pages python.pages gcc.pages   # lengths that auto gives these pages\n  \
    ramfold bench store --object-trace gcc.objects       \
    # what happened in a run with --object-trace\n  \
    ramfold bench store --verbs --threads 1 2 64         # times of store and take\n  \
    ramfold bench store --engine sync async --codec zstd\n  \
    ramfold bench store --spill --folder /mnt/disk\n  \
    ramfold bench store --spill-sweep --rounds 3"
)]
pub(crate) struct Options {
    /// Measure store and take, without a codec, by one thread and by several at once; and what the
    /// index costs
    #[arg(long)]
    verbs: bool,
    /// Measure engines: pages compressed in bulk, and how long another thread waits for a page,
    /// when each does the work itself (sync) or threads of the engine do (async)
    #[arg(long, value_name = "KIND", num_args = 1..)]
    engine: Vec<Kind>,
    /// Measure the spill file: writing in batches, and reading one object at a time, beside the
    /// disk itself and fio, where that is installed
    #[arg(long)]
    spill: bool,
    /// Sweep paper 001's parameters: how full the pool may be before objects go to the file, and
    /// how much is written at once, for a program that uses pages in any order
    #[arg(long)]
    spill_sweep: bool,
    /// Memory of the pool in the sweep
    #[arg(long, value_name = "SIZE", default_value = "32M", requires = "spill_sweep")]
    pool: Bytes,
    /// Folder on the disk to spill to
    #[arg(long, value_name = "DIR", default_value = "/var/tmp", requires = "part")]
    folder: PathBuf,
    /// Bytes to spill
    #[arg(long, default_value = "256M", requires = "spill")]
    size: Bytes,
    /// Bytes of a batch
    #[arg(long, value_name = "SIZE", default_value = "1M", requires = "spill")]
    batch: Bytes,
    /// How the engines compress
    #[arg(long, value_name = "NAME", default_value_t, requires = "engine")]
    codec: Choice,
    /// Mean time between two pages that are asked for, in microseconds
    #[arg(long, value_name = "US", default_value_t = 200, requires = "engine")]
    every: u32,
    /// Most threads of an engine [default: one for each processor]
    #[arg(long, value_name = "N", requires = "engine",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Objects at a time, of the allocators
    #[arg(long, value_name = "N", default_value_t = 100_000, conflicts_with = "part",
          value_parser = clap::value_parser!(u32).range(100..=4_000_000))]
    objects: u32,
    /// Files of raw 4 KiB pages, as `ramfold dump` writes them: objects are as long as `auto` makes
    /// of these; engines compress them [default: lengths, or pages, as of a heap, drawn at random]
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "verbs")]
    pages: Vec<PathBuf>,
    /// Traces of the objects of real programs, as `ramfold run --object-trace` records them, for
    /// the allocators
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "part")]
    object_trace: Vec<PathBuf>,
    /// Where the random numbers begin
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "verbs")]
    seed: u64,
    /// Threads that use the store at once; each number is measured
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [1, 2, 64], requires = "verbs",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Rounds, in turn for whatever is compared
    #[arg(long, value_name = "N", default_value_t = 15, requires = "part",
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

impl Command for Options {
    const NAME: &'static str = "store";

    fn execute(self) -> Result<ExitCode> {
        if self.verbs {
            verbs::execute(&self)
        } else if !self.engine.is_empty() {
            engine::execute(&self)
        } else if self.spill {
            spill::execute(&self)
        } else if self.spill_sweep {
            sweep::execute(&self)
        } else {
            allocators::execute(&self)
        }
    }
}
