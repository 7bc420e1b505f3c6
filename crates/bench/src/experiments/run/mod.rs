//! `ramfold-bench run`: programs under every memory system, at equal total memory.
//!
//! [`comparison`] runs a workload under the peers in turn; [`trial`] is one run; [`calibrate`]
//! finds the limit at which a peer with a pool of its own costs what the others cost; [`samples`]
//! and [`row`] sum several runs up; [`report`] and [`mod@plot`] show the rows.

mod calibrate;
mod comparison;
mod plot;
mod report;
mod row;
mod samples;
mod trial;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::commands::Command;
use crate::harness::open_host;
use crate::harness::progress::Progress;
use crate::harness::report::{Skipped, print_from};
use crate::harness::size::{Bytes, Memory};
use crate::machine::environment::Environment;
use crate::machine::host::Host;
use crate::machine::interrupt::Interrupted;
use crate::machine::say;
use crate::peers;
use crate::workloads::{self, Settings, Workload, positive};
use calibrate::TOLERANCE_PERCENT;
use comparison::Comparison;
use plot::plot;
use report::{Figures, table};
use row::Row;

const MEMORY_USUAL: [Memory; 1] = [Memory::Fraction(0.5)];
const MEMORIES_PLOTTED: [Memory; 5] = [
    Memory::Fraction(0.2),
    Memory::Fraction(0.4),
    Memory::Fraction(0.6),
    Memory::Fraction(0.8),
    Memory::Fraction(1.0),
];

/// Run programs under ramfold and under the kernel's own memory systems, in
/// turn, at equal total memory, and compare the medians.
///
/// The peers swap, zram-lz4, zram-lzo-rle and zswap change settings of the
/// kernel and need root; everything set is undone at the end, also after ^C.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo ramfold bench run --workload random-rw,zipf-rw\n  \
    ramfold bench run --peer none,ramfold --workload gnu-sort --memory 40%\n  \
    ramfold bench run --peer ramfold,ramfold:wkv,ramfold:zstd-1 --workload gnu-sort\n  \
    sudo ramfold bench run --workload zipf-rw --latency --plot zipf.svg\n  \
    sudo ramfold bench run --workload fit --peer none,ramfold --runs 9 --json")]
pub(crate) struct Options {
    /// Workloads to run [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    workload: Vec<String>,
    /// Memory systems to run them under; ramfold:CODEC is ramfold with that codec,
    /// ramfold:pool=SIZE with that fixed split [default: all that work here]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    peer: Vec<String>,
    /// Total memory, one or several: a share of what the workload needs without a cap, or a size
    /// [default: 50%; with --plot 20%,40%,60%,80%,100%]
    #[arg(long, value_name = "FRACTION|SIZE,...", value_delimiter = ',')]
    memory: Vec<Memory>,
    /// Runs of each workload under each peer
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Heap of the synthetic workloads (gnu-sort: an eighth of it as text)
    #[arg(long, default_value = "256M")]
    size: Bytes,
    /// Factor on the number of accesses of the synthetic workloads; idle, prefork: also on the time
    /// that they are looked at
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = positive)]
    scale: f64,
    /// Faulting threads of the synthetic workloads
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Seed of contents and choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Fill heaps with the raw 4 KiB pages of a file (as `ramfold dump` writes them)
    #[arg(long, value_name = "FILE")]
    pages: Option<PathBuf>,
    /// Time every access of the synthetic workloads and show quantiles
    #[arg(long)]
    latency: bool,
    /// Script of python-demo [default: demo/demo.py, else an embedded one]
    #[arg(long, value_name = "FILE")]
    demo: Option<PathBuf>,
    /// The ramfold to measure [default: beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    ramfold: Option<PathBuf>,
    /// Folder for generated files and the swap file [root: /var/lib/ramfold-bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// How far the measured total of zram and zswap may be from the asked one when the limit is
    /// looked for, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = TOLERANCE_PERCENT,
          value_parser = positive)]
    tolerance: f64,
    /// Longest time for a single run
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = positive)]
    time_limit: f64,
    /// Go on after a run that failed or gave wrong output
    #[arg(long)]
    keep_going: bool,
    /// Draw time against memory, and with --latency how long accesses take, a curve for each peer
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Only list workloads and peers, and which of them work here
    #[arg(long)]
    list: bool,
}

impl Command for Options {
    const NAME: &'static str = "run";

    fn execute(self) -> Result<ExitCode> {
        // An unknown name is an error at once, not after another run has ended.
        let workloads = workloads::select(&self.workload)?;
        let host = open_host(self.scratch.as_deref())?;
        if self.list {
            return list(&host, self.ramfold);
        }
        let selection = peers::select(&host, self.ramfold.clone(), &self.peer)?;
        tell_what_is_missing(&host, &selection.skipped);
        let memories = self.memories()?;
        // There are totals that zram cannot meet: a plot is drawn of the others.
        let keep_going = self.keep_going || self.plot.is_some();
        let comparison = Comparison {
            host: &host,
            peers: &selection.peers,
            settings: &self.settings(),
            memories,
            runs: usize::from(self.runs),
            keep_going,
            tolerance: self.tolerance / 100.0,
            time_limit: Duration::try_from_secs_f64(self.time_limit)
                .context("--time-limit is too long")?,
        };
        let (rows, mut failed) = measure_all(&comparison, &workloads)?;
        failed |= rows.iter().any(|row| row.error.is_some() || !row.output_right);
        let skipped = selection.skipped.into_iter();
        let figures = Figures {
            rows,
            skipped: skipped.map(|(peer, reason)| Skipped { peer, reason }).collect(),
        };
        let environment = Environment::read(host.cgroup_description(), host.root);
        print_from(environment, self.json, &figures, |figures| table(figures) + "\n")?;
        if let Some(path) = &self.plot {
            fs::write(path, plot(&figures.rows))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

impl Options {
    /// The total memories to measure with.
    fn memories(&self) -> Result<&[Memory]> {
        let memories = match (&self.memory[..], &self.plot) {
            ([], None) => &MEMORY_USUAL[..],
            ([], Some(_)) => &MEMORIES_PLOTTED[..],
            (given, _) => given,
        };
        if self.plot.is_some() && memories.len() < 2 && !self.latency {
            bail!(
                "--plot draws time against memory, for which --memory must name several, or \
                 --latency"
            );
        }
        Ok(memories)
    }

    fn settings(&self) -> Settings {
        Settings {
            size_bytes: self.size.0,
            scale: self.scale,
            seed: self.seed,
            thread_count: usize::from(self.threads),
            latency: self.latency,
            pages: self.pages.clone(),
            demo: self.demo.clone(),
        }
    }
}

fn tell_what_is_missing(host: &Host, skipped: &[(String, String)]) {
    for (peer, reason) in skipped {
        say(&format!("ramfold-bench: without {peer}: {reason}"));
    }
    if let Err(reason) = &host.hierarchy {
        say(&format!(
            "ramfold-bench: no memory cgroup for the programs ({reason}): limits are not \
             enforced by the kernel, and memory is sampled"
        ));
    }
}

/// The rows of all workloads, and whether one of them could not be measured at all.
fn measure_all(
    comparison: &Comparison<'_>,
    workloads: &[Box<dyn Workload>],
) -> Result<(Vec<Row>, bool)> {
    let planned = workloads.iter().map(|workload| comparison.planned_count(workload.as_ref()));
    let mut progress = Progress::new(planned.sum());
    let (mut rows, mut failed) = (Vec::new(), false);
    for workload in workloads {
        match comparison.measure(workload.as_ref(), &mut progress) {
            Ok(more) => rows.extend(more),
            Err(error) if comparison.keep_going && !error.is::<Interrupted>() => {
                failed = true;
                progress.note(&format!("ramfold-bench: {error:#}"));
            }
            Err(error) => {
                progress.clear();
                return Err(error);
            }
        }
    }
    progress.clear();
    Ok((rows, failed))
}

fn list(host: &Host, ramfold: Option<PathBuf>) -> Result<ExitCode> {
    let mut text = String::from("workloads\n");
    for workload in workloads::all() {
        text += &format!("  {:14} {}\n", workload.name(), workload.about());
    }
    text += "peers\n";
    for peer in peers::all(ramfold) {
        text += &format!("  {:14} {}\n", peer.name(), peer.about());
        if let Some(reason) = peers::obstacle(host, peer.as_ref()) {
            text += &format!("  {:14} not here: {reason}\n", "");
        }
    }
    write!(io::stdout().lock(), "{text}").context("cannot print the list")?;
    Ok(ExitCode::SUCCESS)
}
