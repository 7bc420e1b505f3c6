//! `ramfold-bench curve`: how near the misses that `ramfold simulate` finds in a trace of watched
//! pages are to those of all accesses of the same run.
//!
//! [`pattern`] has orders of accesses of which each is hard to see in another way, [`traced`] is
//! the program that makes them and writes each down, and [`measurement`] runs it under
//! `ramfold run --trace` and has both traces simulated.

mod measurement;
mod pattern;
mod traced;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

pub(crate) use traced::Options as TracedOptions;

use crate::commands::Command;
use crate::harness::progress::Progress;
use crate::harness::report::print;
use crate::harness::size::Bytes;
use crate::harness::{open_host, table};
use crate::peers::Ramfold;
use crate::workloads::positive;
use measurement::{Bench, Row};
use pattern::Pattern;

/// Hold the misses that `ramfold simulate` finds in a trace of watched pages against those of all
/// accesses of the same run, which the program writes down itself.
///
/// The policy is LRU, at ten sizes from 10 to 100 % of the pages. An error is the difference of
/// misses as a part of all accesses, of which those to a page within a millisecond are one: points
/// of miss ratio.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    ramfold bench curve\n  \
    ramfold bench curve --pattern zipf,loop --slowdown 1%,10% --runs 5 --json")]
pub(crate) struct Options {
    /// Orders of accesses [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pattern: Vec<String>,
    /// What the program may lose by being watched, one or several values
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_values = ["1%"])]
    slowdown: Vec<String>,
    /// Memory of the program
    #[arg(long, value_name = "SIZE", default_value = "80M")]
    size: Bytes,
    /// For how long it goes on; an hour at most
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = positive)]
    seconds: f64,
    /// From one access to the next, at least
    #[arg(long, value_name = "MICROSECONDS", default_value = "20", value_parser = positive)]
    pause: f64,
    /// Runs of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Seed of the accesses; each run has another
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The ramfold to measure [default: beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    ramfold: Option<PathBuf>,
    /// Folder for generated files [root: /var/lib/ramfold-bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Only list the orders of accesses
    #[arg(long)]
    list: bool,
}

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
}

impl Command for Options {
    const NAME: &'static str = "curve";

    fn execute(self) -> Result<ExitCode> {
        if self.list {
            for pattern in Pattern::ALL {
                println!("{:10} {}", pattern.name(), pattern.about());
            }
            return Ok(ExitCode::SUCCESS);
        }
        let patterns = select(&self.pattern)?;
        let host = open_host(self.scratch.as_deref())?;
        let bench = Bench {
            host: &host,
            ramfold: Ramfold::new(self.ramfold).find(&host.own_program)?,
            size_bytes: self.size.0,
            seconds: self.seconds,
            pause_us: self.pause,
        };
        let runs = usize::from(self.runs);
        let mut progress = Progress::new(patterns.len() * self.slowdown.len() * runs);
        let mut rows = Vec::new();
        for slowdown in &self.slowdown {
            for &pattern in &patterns {
                let mut found = Vec::new();
                for nth in 0..runs {
                    progress.step(&format!("{}, {slowdown}, run {}", pattern.name(), nth + 1));
                    found.push(bench.measure(pattern, slowdown, self.seed + nth as u64)?);
                }
                rows.push(Row::of(pattern.name(), slowdown, found));
            }
        }
        progress.clear();
        print(self.json, Figures { rows }, text)
    }
}

fn select(names: &[String]) -> Result<Vec<Pattern>> {
    if names.is_empty() {
        return Ok(Pattern::ALL.to_vec());
    }
    let found = |name: &String| match Pattern::find(name) {
        Some(pattern) => Ok(pattern),
        None => bail!("there is no order '{name}' (ramfold bench curve --list names them)"),
    };
    names.iter().map(found).collect()
}

fn text(figures: &Figures) -> String {
    let header = ["pattern", "slowdown", "accesses", "error", "worst run", "worst size", "misses"];
    let mut table = table::of_numbers(&header, 2);
    let points = |points: f64| format!("{points:.1}");
    for row in &figures.rows {
        let misses = row.misses.map(|[low, high]| format!("{low:.2}-{high:.2}"));
        table.add_row([
            row.pattern.clone(),
            row.slowdown.clone(),
            format!("{:.0}", row.accesses),
            points(row.error),
            points(row.error_max),
            points(row.worst_size),
            misses.unwrap_or_default(),
        ]);
    }
    let of_all = figures.rows.iter().map(|row| row.error).sum::<f64>();
    let mean = of_all / figures.rows.len().max(1) as f64;
    format!(
        "{}\nerror: points of miss ratio, the mean over ten sizes, medians of runs; misses: those \
         found by those there were\nmean of all: {mean:.1} points\n",
        table::text(&table)
    )
}
