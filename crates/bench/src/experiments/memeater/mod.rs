//! `ramfold-bench memeater`: how much a program can allocate, after paper 004's memeater (section
//! 6.2).
//!
//! [`eater`] is the program: it takes memory a mebibyte at a time and fills it, until it gets no
//! more. It is alone in a cgroup that no swap of the machine's helps, so "no more" means that the
//! kernel ends it. [`measurement`] runs it under each peer in turn.

mod eater;
mod measurement;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

pub(crate) use eater::Options as EaterOptions;

use crate::commands::Command;
use crate::harness::progress::Progress;
use crate::harness::report::print;
use crate::harness::size::Bytes;
use crate::harness::{open_host, table};
use crate::peers;
use measurement::{Row, compare};

/// See how much a program can allocate in a control group's memory: it takes a mebibyte at a time
/// and fills it with pages as of a heap, until it gets no more (paper 004's memeater).
///
/// By itself; with zram, whose pool may take 7/8 of the memory; under ramfold without a reserve, so
/// that memory for compressed pages is asked for when there is none left; and under ramfold as it
/// is, which asks for it before. Its cap is the group's limit less 10 %.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo ramfold bench memeater\n  \
    sudo ramfold bench memeater --memory 32M,64M,256M --runs 5")]
pub(crate) struct Options {
    /// Memory of the control group, one or several sizes
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_values = ["32M", "64M"])]
    memory: Vec<Bytes>,
    /// Memory systems; the first is what the others are compared with
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          default_values = ["none", "zram-lz4", "ramfold:reserve=0", "ramfold"])]
    peer: Vec<String>,
    /// Runs of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// The ramfold to measure [default: beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    ramfold: Option<PathBuf>,
    /// Folder for generated files [root: /var/lib/ramfold-bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Longest time for a single run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    time_limit: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
}

impl Command for Options {
    const NAME: &'static str = "memeater";

    fn execute(self) -> Result<ExitCode> {
        let host = open_host(self.scratch.as_deref())?;
        let selection = peers::select(&host, self.ramfold, &self.peer)?;
        let runs = usize::from(self.runs);
        let mut progress = Progress::new(self.memory.len() * selection.peers.len() * runs);
        let time_limit = Duration::from_secs(self.time_limit.into());
        let mut rows = Vec::new();
        for &Bytes(memory_bytes) in &self.memory {
            let tell = |what: &str| progress.step(what);
            let peers = &selection.peers;
            rows.extend(compare(&host, peers, memory_bytes, runs, time_limit, tell)?);
        }
        progress.clear();
        print(self.json, Figures { rows }, text)
    }
}

fn text(figures: &Figures) -> String {
    let mut table = table::of_numbers(
        &["peer", "memory MiB", "runs", "allocated MiB", "min", "max", "x first", "ms/MiB"],
        1,
    );
    for row in &figures.rows {
        let mebibytes = |bytes| table::mebibytes(Some(bytes), 0, "");
        table.add_row([
            row.peer.clone(),
            mebibytes(row.memory_bytes as f64),
            row.runs.to_string(),
            mebibytes(row.allocated_bytes),
            mebibytes(row.allocated_bytes_min as f64),
            mebibytes(row.allocated_bytes_max as f64),
            format!("{:.2}", row.ratio),
            format!("{:.2}", row.seconds_per_mebibyte * 1e3),
        ]);
    }
    table::text(&table)
}
