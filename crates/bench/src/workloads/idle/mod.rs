//! Programs that sleep: one process that holds its memory, and one with forked children.
//!
//! Both fill a heap, print an empty line, wait for the end of their standard input, check their
//! memory and report. Between the empty line and the end of the input the harness observes their
//! processes ([`crate::harness::idle`]).

mod family;

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::heap::Heap;
use super::{ChildOptions, ChildReport, PhaseSeconds, Prepared, Settings, Timing, Workload};
use crate::harness::idle::Window;
use crate::harness::latency::Histogram;
use crate::harness::size::Memory;
use crate::machine::host::Host;
use family::Family;

const IDLE: &str = "idle";
const PREFORK: &str = "prefork";
/// Children for a scale of 1.
const CHILDREN: f64 = 40.0;
/// Each child changes one in this many pages.
const CHANGED_SHARE: usize = 20;
/// Both are also measured with this much memory: with it ramfold's agent never becomes active.
const AMPLE_MEMORY: Memory = Memory::Fraction(10.0);
/// How long the processes are left alone before they are observed, and how long they are observed,
/// for a scale of 1.
const SETTLE_SECONDS: f64 = 10.0;
const WINDOW_SECONDS: f64 = 10.0;

/// One process that sleeps.
pub(super) struct Idle;

/// A process and its forked children, which sleep.
pub(super) struct Prefork;

impl Workload for Idle {
    fn name(&self) -> &'static str {
        IDLE
    }

    fn about(&self) -> &'static str {
        "fill the heap and sleep (also with ten times its need)"
    }

    fn memories(&self, asked: &[Memory]) -> Vec<Memory> {
        with_ample(asked)
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        asleep(Prepared::synthetic(host, settings, IDLE, 1.0, Timing::Phase), settings)
    }

    fn run(&self, options: &ChildOptions) -> Result<ChildReport> {
        run_idle(options, io::stdin(), io::stdout())
    }
}

impl Workload for Prefork {
    fn name(&self) -> &'static str {
        PREFORK
    }

    fn about(&self) -> &'static str {
        "fill the heap, fork 40 children, and sleep (also with ten times the need)"
    }

    fn memories(&self, asked: &[Memory]) -> Vec<Memory> {
        with_ample(asked)
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let children = CHILDREN * settings.scale;
        let prepared = Prepared::synthetic(host, settings, PREFORK, children, Timing::Phase);
        // The page tables of 40 processes count against the limit, and not against the cap.
        // Besides, what they take over the cap is to be reported.
        asleep(Prepared { ends_over_cap: false, ..prepared }, settings)
    }

    fn run(&self, options: &ChildOptions) -> Result<ChildReport> {
        run_prefork(options, io::stdin(), io::stdout())
    }
}

fn with_ample(asked: &[Memory]) -> Vec<Memory> {
    [asked, &[AMPLE_MEMORY]].concat()
}

fn asleep(prepared: Prepared, settings: &Settings) -> Result<Prepared> {
    let of_scale = |seconds: f64| {
        Duration::try_from_secs_f64(seconds * settings.scale).context("--scale is too large")
    };
    let (settle, length) = (of_scale(SETTLE_SECONDS)?, of_scale(WINDOW_SECONDS)?);
    Ok(Prepared { idle: Some(Window { settle, length }), ..prepared })
}

/// The started process of [`IDLE`]: sleeps until `input` ends. The figure is the time of the first
/// pass over the heap after that.
fn run_idle(options: &ChildOptions, input: impl Read, output: impl Write) -> Result<ChildReport> {
    let (heap, fill) = fill(options)?;
    let lz4_percent = heap.lz4_percent();
    sleep(input, output)?;
    let start = Instant::now();
    let hash = heap.verify(0)?;
    let measured = start.elapsed().as_secs_f64();
    let seconds = PhaseSeconds { fill, measured, ..PhaseSeconds::default() };
    let accesses = heap.page_count() as u64;
    Ok(ChildReport { lz4_percent: Some(lz4_percent), ..options.report(seconds, accesses, hash) })
}

/// The started process of [`PREFORK`]: forks, and sleeps until `input` ends. The figure is the
/// time of all calls of fork.
fn run_prefork(
    options: &ChildOptions,
    input: impl Read,
    output: impl Write,
) -> Result<ChildReport> {
    let children = options.operations(CHILDREN as u64)?;
    let (mut heap, fill) = fill(options)?;
    let lz4_percent = heap.lz4_percent();
    let changed = heap.page_count() / CHANGED_SHARE;
    let mut family = Family::new()?;
    let mut times = Histogram::default();
    let mut measured = Duration::ZERO;
    for _ in 0..children {
        let took = family.fork(|child| {
            heap.change_first(changed)?;
            child.sleep()?;
            heap.verify_changed(changed)
        })?;
        measured += took;
        times.record(took.as_nanos() as u64);
    }
    sleep(input, output)?;
    let start = Instant::now();
    family.finish()?;
    let hash = heap.verify(0)?;
    let verify = start.elapsed().as_secs_f64();
    let seconds =
        PhaseSeconds { fill, measured: measured.as_secs_f64(), verify, ..PhaseSeconds::default() };
    Ok(ChildReport {
        lz4_percent: Some(lz4_percent),
        latency: times.latency().filter(|_| options.latency),
        latency_histogram: if options.latency { times.buckets() } else { Vec::new() },
        ..options.report(seconds, children, hash)
    })
}

fn fill(options: &ChildOptions) -> Result<(Heap, f64)> {
    let page_count = options.page_count()?;
    ensure!(page_count > 0, "{} bytes are not even one page", options.size_bytes);
    let source = options.page_source()?;
    let start = Instant::now();
    let heap = Heap::fill(page_count, &source, options.seed)?;
    Ok((heap, start.elapsed().as_secs_f64()))
}

/// Prints an empty line, and waits until the input ends.
fn sleep(mut input: impl Read, mut output: impl Write) -> Result<()> {
    // White space before a report in JSON is no part of it.
    writeln!(output).and_then(|()| output.flush()).context("cannot write to standard output")?;
    io::copy(&mut input, &mut io::sink()).context("cannot read standard input")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_program_says_so_and_checks_its_heap() {
        let options = ChildOptions::small(IDLE, 1);
        let mut said = Vec::new();
        let report = run_idle(&options, io::empty(), &mut said).unwrap();
        assert_eq!(said, b"\n");
        assert_eq!(report.access_count, 256);
        assert_eq!(report.hash, run_idle(&options, io::empty(), io::sink()).unwrap().hash);
        let nothing = ChildOptions { size_bytes: 1, ..options };
        assert!(run_idle(&nothing, io::empty(), io::sink()).is_err());
    }
}
