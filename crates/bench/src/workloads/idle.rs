//! Programs that do nothing: one process that holds its memory, and a family of forked processes.
//!
//! Both fill a heap, print an empty line, wait for the end of their standard input, check what
//! they hold and report. The harness looks at their processes between the empty line and the end
//! of the input ([`crate::idle`]).

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::exit;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::heap::Heap;
use super::synthetic::prepared;
use super::{ChildOptions, ChildReport, PhaseSeconds, Prepared, Quota, Settings, Timing, Workload};
use crate::host::Host;
use crate::idle::Window;
use crate::latency::Histogram;
use crate::pages::{PAGE_BYTES, PageSource};
use crate::size::Memory;

pub const IDLE: &str = "idle";
pub const PREFORK: &str = "prefork";
/// Children for a scale of 1.
const CHILDREN: f64 = 40.0;
/// Each child changes one page in so many.
const CHANGED_SHARE: usize = 20;
/// Both are also measured with this much memory: with it ramfold's agent never becomes active.
const AMPLE_MEMORY: Memory = Memory::Fraction(10.0);
/// How long the processes are left alone before they are looked at, and how long they are looked
/// at, for a scale of 1.
const SETTLE_SECONDS: f64 = 10.0;
const WINDOW_SECONDS: f64 = 10.0;

/// One process that sleeps.
pub struct Idle;

/// A process and its forked children, which sleep.
pub struct Prefork;

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
        asleep(prepared(host, settings, IDLE, 1.0, Timing::Phase), settings)
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
        let prepared = prepared(host, settings, PREFORK, children, Timing::Phase);
        // What so many processes take beside their memory, page tables above all, is no part of
        // the cap but of the limit; and what they take over the cap is to be seen.
        asleep(Prepared { ends_over_cap: false, ..prepared }, settings)
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
pub fn run_idle(
    options: &ChildOptions,
    input: impl Read,
    output: impl Write,
) -> Result<ChildReport> {
    let (heap, fill) = fill(options)?;
    let lz4_percent = heap.lz4_percent();
    sleep(input, output)?;
    let start = Instant::now();
    let hash = heap.verify(0)?;
    let measured = start.elapsed().as_secs_f64();
    let seconds = PhaseSeconds { fill, measured, ..PhaseSeconds::default() };
    let accesses = heap.page_count() as u64;
    Ok(ChildReport { lz4_percent: Some(lz4_percent), ..report(options, seconds, accesses, hash) })
}

/// The started process of [`PREFORK`]: forks, and sleeps until `input` ends. The figure is the
/// time of all calls of fork.
pub fn run_prefork(
    options: &ChildOptions,
    input: impl Read,
    output: impl Write,
) -> Result<ChildReport> {
    let children = match options.quota {
        Some(Quota::Accesses(count)) => count,
        Some(Quota::Seconds(_)) => bail!("{PREFORK} takes --operations, not --seconds"),
        None => CHILDREN as u64,
    };
    let (mut heap, fill) = fill(options)?;
    let lz4_percent = heap.lz4_percent();
    let changed = heap.page_count() / CHANGED_SHARE;
    let mut family = Family::new()?;
    let mut times = Histogram::default();
    let mut measured = Duration::ZERO;
    for _ in 0..children {
        let took = family.fork(|bed| {
            heap.change_first(changed)?;
            bed.sleep()?;
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
        ..report(options, seconds, children, hash)
    })
}

fn fill(options: &ChildOptions) -> Result<(Heap, f64)> {
    let page_count = usize::try_from(options.size_bytes / PAGE_BYTES as u64)?;
    ensure!(page_count > 0, "{} bytes are not even one page", options.size_bytes);
    let source = match &options.pages {
        Some(path) => PageSource::from_file(path, options.seed)?,
        None => PageSource::generated(options.seed),
    };
    let start = Instant::now();
    let heap = Heap::fill(page_count, &source, options.seed)?;
    Ok((heap, start.elapsed().as_secs_f64()))
}

fn report(
    options: &ChildOptions,
    seconds: PhaseSeconds,
    access_count: u64,
    hash: String,
) -> ChildReport {
    ChildReport {
        workload: options.name.clone(),
        heap_bytes: options.size_bytes,
        thread_count: 1,
        seed: options.seed,
        seconds,
        access_count,
        ns_per_access: seconds.measured * 1e9 / access_count as f64,
        latency: None,
        latency_histogram: Vec::new(),
        lz4_percent: None,
        hash,
    }
}

/// Says that nothing is going to be done, and does nothing until the input ends.
fn sleep(mut input: impl Read, mut output: impl Write) -> Result<()> {
    // White space before a report in JSON is no part of it.
    writeln!(output).and_then(|()| output.flush()).context("cannot write to standard output")?;
    io::copy(&mut input, &mut io::sink()).context("cannot read standard input")?;
    Ok(())
}

/// Forked children that sleep until their parent lets them go on, or ends.
struct Family {
    children: Vec<Pid>,
    /// Ends when the parent drops its writing end.
    end: (PipeReader, Option<PipeWriter>),
}

/// A child's way to its sleep.
struct Bed {
    asleep: PipeWriter,
    end: PipeReader,
}

impl Family {
    fn new() -> Result<Family> {
        let (reader, writer) = io::pipe().context("cannot make a pipe")?;
        Ok(Family { children: Vec::new(), end: (reader, Some(writer)) })
    }

    /// Forks a child, which does `work` and ends, and waits until it sleeps. How long the call of
    /// fork took.
    fn fork(&mut self, work: impl FnOnce(Bed) -> Result<()>) -> Result<Duration> {
        let (mut is_asleep, asleep) = io::pipe().context("cannot make a pipe")?;
        let end = self.end.0.try_clone().context("cannot copy a pipe")?;
        let start = Instant::now();
        let child = fork()?;
        let took = start.elapsed();
        let Some(child) = child else {
            self.end.1 = None;
            let ended = work(Bed { asleep, end });
            if let Err(error) = &ended {
                eprintln!("ramfold-bench: a forked process: {error:#}");
            }
            exit(i32::from(ended.is_err()));
        };
        self.children.push(child);
        drop(asleep);
        is_asleep.read_exact(&mut [0]).context("a forked process ended early")?;
        Ok(took)
    }

    /// Lets the children go on, and waits for their end.
    fn finish(mut self) -> Result<()> {
        self.end.1 = None;
        for child in self.children {
            let ended = waitpid(Some(child), WaitOptions::empty())
                .context("cannot wait for a forked process")?;
            let status = ended.and_then(|(_, status)| status.exit_status());
            ensure!(status == Some(0), "a forked process failed");
        }
        Ok(())
    }
}

impl Bed {
    /// Returns when the parent lets the child go on.
    fn sleep(mut self) -> Result<()> {
        self.asleep.write_all(&[0]).context("cannot write to the parent")?;
        io::copy(&mut self.end, &mut io::sink()).context("cannot wait for the parent")?;
        Ok(())
    }
}

/// The child's process id, or `None` in the child.
#[allow(unsafe_code, reason = "the C library's fork is called")]
fn fork() -> Result<Option<Pid>> {
    // SAFETY: this process has one thread, so nothing is locked or half done in the child.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error()).context("cannot fork");
    }
    Ok(Pid::from_raw(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_program_says_so_and_checks_its_heap() {
        let options = ChildOptions {
            name: IDLE.to_owned(),
            size_bytes: 1 << 20,
            quota: None,
            seed: 1,
            thread_count: 1,
            pages: None,
            latency: false,
        };
        let mut said = Vec::new();
        let report = run_idle(&options, io::empty(), &mut said).unwrap();
        assert_eq!(said, b"\n");
        assert_eq!(report.access_count, 256);
        assert_eq!(report.hash, run_idle(&options, io::empty(), io::sink()).unwrap().hash);
        let nothing = ChildOptions { size_bytes: 1, ..options };
        assert!(run_idle(&nothing, io::empty(), io::sink()).is_err());
    }
}
