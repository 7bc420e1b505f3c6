//! `ramfold-bench memeater`: how much a program can allocate.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::print;
use crate::host::Host;
use crate::memeater::{self, Row, WRONG_BYTES, compare};
use crate::peers::{self, Ramfold};
use crate::progress::{Progress, say};
use crate::size::Size;
use crate::table;

/// See how much a program can allocate in a control group's memory: it takes a mebibyte at a time and fills
/// it with pages as of a heap, until it gets no more (paper 004's memeater).
///
/// By itself; with zram, whose pool may take 7/8 of the memory; under ramfold without
/// a reserve, so that memory for compressed pages is asked for when there is none left; and under ramfold as
/// it is, which asks for it before. Its cap is the group's limit less 10 %.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo ramfold bench memeater\n  \
    sudo ramfold bench memeater --memory 32M,64M,256M --runs 5")]
pub struct Options {
    /// Memory of the control group, one or several sizes
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_values = ["32M", "64M"])]
    memory: Vec<Size>,
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

pub fn execute(options: Options) -> Result<ExitCode> {
    let host = Host::open(options.scratch.as_deref())?;
    let selection = peers::select(&host, Ramfold::new(options.ramfold), &options.peer)?;
    let mut progress =
        Progress::new(options.memory.len() * selection.peers.len() * usize::from(options.runs));
    let mut rows = Vec::new();
    for &Size(memory_bytes) in &options.memory {
        rows.extend(compare(
            &host,
            &selection.peers,
            memory_bytes,
            options.runs.into(),
            Duration::from_secs(options.time_limit.into()),
            |what| progress.step(what),
        )?);
    }
    progress.clear();
    print(options.json, Figures { rows }, text)
}

fn text(figures: &Figures) -> String {
    let mut table = table::of_numbers(
        &["peer", "memory MiB", "runs", "allocated MiB", "min", "max", "x first", "ms/MiB"],
        1,
    );
    for row in &figures.rows {
        let mebibytes = |bytes: f64| format!("{:.0}", bytes / (1 << 20) as f64);
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

/// The program that eats.
#[derive(Args)]
pub struct EatOptions {
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn eat(options: EatOptions) -> Result<ExitCode> {
    Ok(match memeater::eat(options.seed, io::stdout().lock())? {
        None => ExitCode::SUCCESS,
        Some(wrong) => {
            say(&format!("ramfold-bench: {wrong}"));
            ExitCode::from(WRONG_BYTES)
        }
    })
}
