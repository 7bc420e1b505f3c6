//! The workloads that are this binary itself: how the harness starts them and
//! what the started process does.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::heap::Heap;
use super::idle::{self, IDLE, PREFORK};
use super::redis::{self, REDIS};
use super::{
    ChildReport, Pattern, PhaseSeconds, Prepared, Settings, Timing, Workload, fit, matrix,
};
use crate::host::Host;
use crate::latency::Histogram;
use crate::measure::Program;
use crate::pages::{PAGE_BYTES, PageSource};
use crate::size::Memory;

const FIT: &str = "fit";
/// Rounds of `fit` for a scale of 1: about four seconds with 256 MiB.
const FIT_ROUNDS: f64 = 2.0;
const MATRIX: &str = "matrix";
/// The three matrices take as much as --size / this.
const MATRIX_SIZE_SHARE: u64 = 8;
/// Multiplications for a scale of 1: some seconds with 256 MiB.
const MATRIX_ROUNDS: f64 = 8.0;
/// The share of its need that `fit` is given: it must never come near the cap.
const FIT_MEMORY: Memory = Memory::Fraction(1.5);

/// When the measured phase ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quota {
    Accesses(u64),
    Seconds(f64),
}

/// One access pattern over a heap.
pub struct HeapWorkload(pub Pattern);

/// A program that needs less than the cap.
pub struct FitWorkload;

/// Multiplication of matrices.
pub struct MatrixWorkload;

impl Workload for HeapWorkload {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn about(&self) -> &'static str {
        self.0.about()
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let page_count = settings.size_bytes / PAGE_BYTES as u64;
        let access_count = page_count as f64 * self.0.accesses_per_page() * settings.scale;
        Ok(prepared(host, settings, self.name(), access_count, Timing::Phase))
    }
}

impl Workload for FitWorkload {
    fn name(&self) -> &'static str {
        FIT
    }

    fn about(&self) -> &'static str {
        "sort, search, allocate and map with memory to spare (cap at 150 % of need)"
    }

    fn memories(&self, _asked: &[Memory]) -> Vec<Memory> {
        vec![FIT_MEMORY]
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let rounds = FIT_ROUNDS * settings.scale;
        // Start and end belong to what must cost nothing.
        Ok(prepared(host, settings, self.name(), rounds, Timing::Whole))
    }
}

impl Workload for MatrixWorkload {
    fn name(&self) -> &'static str {
        MATRIX
    }

    fn about(&self) -> &'static str {
        "multiplies matrices of whole numbers that take an eighth of --size"
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let rounds = MATRIX_ROUNDS * settings.scale;
        Ok(prepared(host, settings, self.name(), rounds, Timing::Whole))
    }
}

pub fn prepared(
    host: &Host,
    settings: &Settings,
    name: &str,
    operations: f64,
    timing: Timing,
) -> Prepared {
    let mut command: Vec<OsString> = vec![host.own_program.clone().into()];
    let operations = (operations.ceil() as u64).max(1);
    for (option, value) in [
        ("workload", name.to_owned()),
        ("--size", settings.size_bytes.to_string()),
        ("--operations", operations.to_string()),
        ("--seed", settings.seed.to_string()),
        ("--threads", settings.thread_count.to_string()),
    ] {
        command.extend([option.into(), value.into()]);
    }
    if settings.latency {
        command.push("--latency".into());
    }
    if let Some(pages) = &settings.pages {
        command.extend(["--pages".into(), pages.clone().into()]);
    }
    let program = Program { command, environment: Vec::new() };
    Prepared { program, reports: true, timing, idle: None, ends_over_cap: true }
}

/// The options of the started process.
#[derive(Clone, Debug)]
pub struct ChildOptions {
    pub name: String,
    pub size_bytes: u64,
    /// The measured phase; `None` for the workload's own number of accesses.
    pub quota: Option<Quota>,
    pub seed: u64,
    pub thread_count: usize,
    pub pages: Option<PathBuf>,
    pub latency: bool,
}

/// The started process: does the work and says what it did.
pub fn child(options: &ChildOptions) -> Result<ChildReport> {
    match options.name.as_str() {
        FIT | MATRIX => return run_rounds(options),
        REDIS => return redis::run(options),
        IDLE => return idle::run_idle(options, io::stdin(), io::stdout()),
        PREFORK => return idle::run_prefork(options, io::stdin(), io::stdout()),
        _ => {}
    }
    let pattern = Pattern::ALL
        .into_iter()
        .find(|pattern| pattern.name() == options.name)
        .with_context(|| format!("there is no synthetic workload '{}'", options.name))?;
    run_heap(pattern, options)
}

/// A workload whose operations are rounds of all of its work.
fn run_rounds(options: &ChildOptions) -> Result<ChildReport> {
    let is_fit = options.name == FIT;
    let rounds = match options.quota {
        Some(Quota::Accesses(count)) => count,
        Some(Quota::Seconds(_)) => bail!("{} takes --operations, not --seconds", options.name),
        None => (if is_fit { FIT_ROUNDS } else { MATRIX_ROUNDS }) as u64,
    };
    let start = Instant::now();
    let hash = if is_fit {
        fit::work(usize::try_from(options.size_bytes)?, rounds, options.seed)
    } else {
        let order = matrix::order(options.size_bytes / MATRIX_SIZE_SHARE);
        matrix::work(order, rounds, options.seed)
    };
    let measured = start.elapsed().as_secs_f64();
    Ok(ChildReport {
        workload: options.name.clone(),
        heap_bytes: options.size_bytes,
        thread_count: 1,
        seed: options.seed,
        seconds: PhaseSeconds { measured, ..PhaseSeconds::default() },
        access_count: rounds,
        ns_per_access: measured * 1e9 / rounds as f64,
        latency: None,
        latency_histogram: Vec::new(),
        lz4_percent: None,
        hash,
    })
}

fn run_heap(pattern: Pattern, options: &ChildOptions) -> Result<ChildReport> {
    let page_count = usize::try_from(options.size_bytes / PAGE_BYTES as u64)?;
    if page_count < options.thread_count || options.thread_count == 0 {
        bail!("{page_count} pages are too few for {} threads", options.thread_count);
    }
    if u32::try_from(page_count).is_err() {
        bail!("a heap of more than 16 TiB is not supported");
    }
    let source = match &options.pages {
        Some(path) => PageSource::from_file(path, options.seed)?,
        None => PageSource::generated(options.seed),
    };
    let quota = options
        .quota
        .unwrap_or(Quota::Accesses((pattern.accesses_per_page() * page_count as f64) as u64));
    let start = Instant::now();
    let mut heap = Heap::fill(page_count, &source, options.seed)?;
    let fill = start.elapsed().as_secs_f64();
    let lz4_percent = heap.lz4_percent();
    let warm_up =
        heap.walk(pattern, pattern.warm_up(page_count), options.thread_count, 1, false)?;
    let walk = heap.walk(pattern, quota, options.thread_count, 2, options.latency)?;
    let start = Instant::now();
    let hash = heap.verify(warm_up.write_count + walk.write_count)?;
    let measured = walk.elapsed.as_secs_f64();
    Ok(ChildReport {
        workload: options.name.clone(),
        heap_bytes: page_count as u64 * PAGE_BYTES as u64,
        thread_count: options.thread_count,
        seed: options.seed,
        seconds: PhaseSeconds {
            fill,
            warm_up: warm_up.elapsed.as_secs_f64(),
            measured,
            verify: start.elapsed().as_secs_f64(),
        },
        access_count: walk.access_count,
        ns_per_access: measured * 1e9 * options.thread_count as f64 / walk.access_count as f64,
        latency: walk.histogram.as_ref().and_then(Histogram::latency),
        latency_histogram: walk.histogram.as_ref().map(Histogram::buckets).unwrap_or_default(),
        lz4_percent: Some(lz4_percent),
        hash,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str) -> ChildOptions {
        ChildOptions {
            name: name.to_owned(),
            size_bytes: 1 << 20,
            quota: Some(Quota::Accesses(2)),
            seed: 1,
            thread_count: 1,
            pages: None,
            latency: true,
        }
    }

    #[test]
    fn every_synthetic_workload_runs_and_reports() {
        for name in Pattern::ALL.map(Pattern::name).into_iter().chain([FIT, MATRIX]) {
            let report = child(&options(name)).unwrap();
            assert_eq!(report.access_count, 2);
            assert_eq!(report.hash, child(&options(name)).unwrap().hash, "{name}");
            let text = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<ChildReport>(&text).unwrap(), report);
        }
    }

    #[test]
    fn impossible_options_are_errors() {
        assert!(child(&options("unheard-of")).is_err());
        assert!(child(&ChildOptions { thread_count: 0, ..options("random-rw") }).is_err());
        assert!(child(&ChildOptions { size_bytes: 1, ..options("random-rw") }).is_err());
        let missing = Some(PathBuf::from("/nonexistent/pages"));
        assert!(child(&ChildOptions { pages: missing, ..options("random-rw") }).is_err());
        assert!(child(&ChildOptions { quota: Some(Quota::Seconds(1.0)), ..options(FIT) }).is_err());
    }
}
