//! Workloads times peers, interleaved.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::calibrate::{Cost, find_limit, warn_of_drift};
use crate::cgroup::Swapping;
use crate::host::Host;
use crate::idle::{self, Idle};
use crate::interrupt::{self, Interrupted};
use crate::measure::{Launch, OutOfMemory, Outcome, measure};
use crate::peers::{Account, Budget, NONE, Peer};
use crate::progress::Progress;
use crate::report::{Row, compare};
use crate::size::{Memory, Size};
use crate::statistics::median;
use crate::workloads::{ChildReport, PhaseSeconds, Prepared, Settings, Timing, Workload};

/// Compressed size that a calibration starts from where the program does not
/// tell its own: LZ4 of heap pages, with an allocator's overhead.
const USUAL_COMPRESSED_SIZE: f64 = 0.35;
/// zsmalloc's allocated over compressed bytes.
const POOL_OVERHEAD: f64 = 1.07;

/// How often a run that the kernel killed under swap is tried in all: near the
/// limit it does so by chance (see [`crate::measure`]).
const ATTEMPT_COUNT: usize = 3;

/// What is measured and how often.
pub struct Harness<'a> {
    pub host: &'a Host,
    pub peers: &'a [Box<dyn Peer>],
    pub settings: &'a Settings,
    /// Total memory, one after the other.
    pub memories: &'a [Memory],
    pub runs: usize,
    pub keep_going: bool,
    /// How far the total of a run with a pool outside of its cgroup may be from what is asked when
    /// the limit is looked for, as a share.
    pub tolerance: f64,
    pub time_limit: Duration,
}

/// One run under one peer.
struct Sample {
    seconds: f64,
    wall_seconds: f64,
    hash: String,
    report: Option<ChildReport>,
    outcome: Outcome,
    account: Account,
    cost: Cost,
}

/// A peer with a workload, and what its runs gave.
struct Cell<'a> {
    peer: &'a dyn Peer,
    limit_bytes: u64,
    ends_over_cap: bool,
    samples: Vec<Sample>,
    /// Runs repeated because the kernel had killed the program.
    killed_count: usize,
    error: Option<String>,
}

/// What the run without a cap told.
struct Reference {
    need_bytes: u64,
    hash: String,
    compressed_size: f64,
}

impl Harness<'_> {
    /// Runs shown by a progress line for one workload; calibrations come on top.
    pub fn planned_count(&self, workload: &dyn Workload) -> usize {
        1 + self.memories_for(workload).len() * self.peers.len() * self.runs
    }

    /// Some workloads have a total of their own, whatever is asked.
    fn memories_for(&self, workload: &dyn Workload) -> Vec<Memory> {
        let mut memories = workload.memories(self.memories);
        memories.dedup();
        memories
    }

    /// Measures one workload under every peer at every total. An interruption is an error; other
    /// failures are too unless `keep_going`, when they are in the rows.
    pub fn measure(&self, workload: &dyn Workload, progress: &mut Progress) -> Result<Vec<Row>> {
        let name = workload.name();
        progress.show(&format!("{name}: preparing"));
        let prepared = workload
            .prepare(self.host, self.settings)
            .with_context(|| format!("workload {name}"))?;
        progress.show(&format!("{name}: measuring what it needs"));
        let reference =
            self.reference(&prepared).with_context(|| format!("{name} without a cap"))?;
        progress.advance();
        let mut rows = Vec::new();
        for memory in self.memories_for(workload) {
            rows.extend(self.measure_in(memory, name, &prepared, &reference, progress)?);
        }
        Ok(rows)
    }

    fn measure_in(
        &self,
        memory: Memory,
        name: &str,
        prepared: &Prepared,
        reference: &Reference,
        progress: &mut Progress,
    ) -> Result<Vec<Row>> {
        let total_bytes = memory.of(reference.need_bytes);
        if total_bytes < 1 << 20 {
            bail!("{name}: {} of total memory is too little to measure with", Size(total_bytes));
        }
        let mut cells = Vec::new();
        for peer in self.peers.iter().map(AsRef::as_ref) {
            let mut cell = Cell {
                peer,
                limit_bytes: total_bytes,
                ends_over_cap: prepared.ends_over_cap,
                samples: Vec::new(),
                killed_count: 0,
                error: None,
            };
            if peer.budget(self.host) == Budget::LimitAndPool {
                let found = self.calibrate(peer, name, prepared, reference, total_bytes, progress);
                match found {
                    Ok(limit_bytes) => cell.limit_bytes = limit_bytes,
                    Err(error) => self.fail(&mut cell, name, error, progress)?,
                }
            }
            cells.push(cell);
        }
        for run in 0..self.runs {
            for turn in 0..cells.len() {
                // Another peer begins each round, so that none always follows
                // the same one.
                let index = (turn + run) % cells.len();
                let cell = &mut cells[index];
                if cell.error.is_none() {
                    progress.show(&format!(
                        "{name} in {memory} under {}, run {} of {}",
                        cell.peer.name(),
                        run + 1,
                        self.runs
                    ));
                    let (result, killed_count) =
                        self.attempt(cell.peer, prepared, reference.need_bytes, cell.limit_bytes);
                    cell.killed_count += killed_count;
                    match result {
                        Ok(sample) => {
                            if sample.hash != reference.hash && !self.keep_going {
                                bail!("{name} under {} gave other output", cell.peer.name());
                            }
                            cell.samples.push(sample);
                        }
                        Err(error) => self.fail(cell, name, error, progress)?,
                    }
                }
                progress.advance();
            }
        }
        let mut rows: Vec<Row> =
            cells.into_iter().map(|cell| self.row(name, cell, reference, total_bytes)).collect();
        rows.iter_mut().for_each(|row| row.memory = memory.to_string());
        compare(&mut rows);
        Ok(rows)
    }

    /// Notes a failure in the cell, or returns it where it ends everything.
    fn fail(
        &self,
        cell: &mut Cell,
        workload: &str,
        error: anyhow::Error,
        progress: &Progress,
    ) -> Result<()> {
        if error.is::<Interrupted>() {
            return Err(error);
        }
        let error = error.context(format!("{workload} under {}", cell.peer.name()));
        if !self.keep_going {
            return Err(error);
        }
        progress.note(&format!("ramfold-bench: {error:#}"));
        cell.error = Some(format!("{:#}", error));
        Ok(())
    }

    /// One run without a cap: the need, the right output, and a warm-up.
    fn reference(&self, prepared: &Prepared) -> Result<Reference> {
        let cgroup = self.host.cgroup()?;
        if let Some(cgroup) = &cgroup {
            cgroup.configure(None, Swapping::Forbidden)?;
        }
        let outcome = measure(
            self.host,
            &Launch {
                program: &prepared.program,
                cgroup: cgroup.as_ref(),
                pool: None,
                pool_bytes_max: None,
                idle: None,
                time_limit: self.time_limit,
            },
        )?;
        outcome.check()?;
        let report = child_report(prepared, &outcome)?;
        if let Some(cgroup) = cgroup {
            cgroup.finish()?;
        }
        let lz4_percent = report.as_ref().and_then(|report| report.lz4_percent);
        Ok(Reference {
            need_bytes: outcome.anonymous_bytes_peak,
            compressed_size: lz4_percent
                .map_or(USUAL_COMPRESSED_SIZE, |percent| percent / 100.0 * POOL_OVERHEAD),
            hash: report.map_or(outcome.output_hash, |report| report.hash),
        })
    }

    fn calibrate(
        &self,
        peer: &dyn Peer,
        name: &str,
        prepared: &Prepared,
        reference: &Reference,
        total_bytes: u64,
        progress: &Progress,
    ) -> Result<u64> {
        let mut step = 0;
        let awake = Prepared { idle: None, ..prepared.clone() };
        let (need_bytes, size) = (reference.need_bytes, reference.compressed_size);
        find_limit(total_bytes, need_bytes, size, self.tolerance, |limit_bytes| {
            step += 1;
            progress.show(&format!("{name} under {}: finding the limit, step {step}", peer.name()));
            match self.attempt(peer, &awake, need_bytes, limit_bytes).0 {
                Ok(sample) => Ok(Some(sample.cost)),
                Err(error) if error.is::<OutOfMemory>() => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// One run under one peer; under kernel swap again if the kernel killed it.
    /// Also how often it did.
    fn attempt(
        &self,
        peer: &dyn Peer,
        prepared: &Prepared,
        need_bytes: u64,
        limit_bytes: u64,
    ) -> (Result<Sample>, usize) {
        let mut killed_count = 0;
        loop {
            let result = self.run(peer, prepared, need_bytes, limit_bytes);
            let killed = result.as_ref().is_err_and(|error| error.is::<OutOfMemory>());
            killed_count += usize::from(killed);
            let again = peer.swapping() == Swapping::Allowed && killed_count < ATTEMPT_COUNT;
            if !(killed && again) {
                return (result, killed_count);
            }
        }
    }

    fn run(
        &self,
        peer: &dyn Peer,
        prepared: &Prepared,
        need_bytes: u64,
        limit_bytes: u64,
    ) -> Result<Sample> {
        interrupt::check()?;
        let budget = peer.budget(self.host);
        let active = peer.set_up(self.host, need_bytes, limit_bytes)?;
        // Made after the peer and so removed before it, with all its processes:
        // swapoff would bring back every page of a program that still runs.
        let cgroup = self.host.cgroup()?;
        if let Some(cgroup) = &cgroup {
            let limit = budget.cgroup_limit(limit_bytes, prepared.ends_over_cap);
            cgroup.configure(limit, peer.swapping())?;
        }
        #[cfg(debug_assertions)]
        inject_failure()?;
        let outcome = measure(
            self.host,
            &Launch {
                program: &active.wrap(&prepared.program),
                cgroup: cgroup.as_ref(),
                pool: active.gauge(),
                pool_bytes_max: None,
                idle: prepared.idle,
                time_limit: self.time_limit,
            },
        )?;
        let account = active.account(&outcome)?;
        outcome.check()?;
        if prepared.idle.is_some() && outcome.idle.is_none() {
            bail!("the program ended before it slept as long as it was to be looked at");
        }
        if let Some(cgroup) = cgroup {
            cgroup.finish()?;
        }
        active.finish()?;
        let report = child_report(prepared, &outcome)?;
        let pool_outside = budget == Budget::LimitAndPool;
        Ok(Sample {
            seconds: match (prepared.timing, &report) {
                (Timing::Phase, Some(report)) => report.seconds.measured,
                _ => outcome.wall_seconds,
            },
            wall_seconds: outcome.wall_seconds,
            hash: report
                .as_ref()
                .map_or_else(|| outcome.output_hash.clone(), |report| report.hash.clone()),
            report,
            cost: Cost {
                cgroup_bytes_peak: outcome.usage_bytes_peak,
                pool_bytes_peak: if pool_outside { account.pool_bytes_peak } else { 0 },
            },
            outcome,
            account,
        })
    }

    fn row(&self, workload: &str, cell: Cell, reference: &Reference, total_bytes: u64) -> Row {
        let Cell { peer, limit_bytes, ends_over_cap, samples, killed_count, error } = cell;
        let of = |value: fn(&Sample) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
        let phase = |value: fn(&PhaseSeconds) -> f64| {
            let reports = samples.iter().filter_map(|sample| sample.report.as_ref());
            median(&reports.map(|report| value(&report.seconds)).collect::<Vec<_>>())
        };
        let budget = peer.budget(self.host);
        let capped = budget != Budget::Unlimited;
        let cost = samples.iter().map(|sample| sample.cost.total_bytes()).max().unwrap_or(0);
        if budget == Budget::LimitAndPool && !samples.is_empty() && limit_bytes < total_bytes {
            let what = format!("{workload} under {}", peer.name());
            warn_of_drift(&what, total_bytes, cost, self.tolerance);
        }
        let swaps = peer.name() != NONE;
        let pages = |own: fn(&Account) -> Option<u64>, machine: fn(&Sample) -> u64| {
            let counts: Vec<f64> = samples
                .iter()
                .map(|sample| own(&sample.account).unwrap_or_else(|| machine(sample)) as f64)
                .collect();
            median(&counts).map(|count| count as u64).filter(|_| swaps)
        };
        let timed = median_report(&samples);
        let idle_runs: Vec<Idle> =
            samples.iter().filter_map(|sample| sample.outcome.idle.clone()).collect();
        let messages = samples.iter().rev().map(|sample| sample.outcome.errors.trim());
        Row {
            workload: workload.to_owned(),
            peer: peer.name().to_owned(),
            runs: samples.len(),
            killed_runs: killed_count,
            seconds: samples.iter().map(|sample| sample.seconds).collect(),
            wall_seconds_median: of(|sample| sample.wall_seconds),
            fill_seconds_median: phase(|seconds| seconds.fill),
            warm_up_seconds_median: phase(|seconds| seconds.warm_up),
            verify_seconds_median: phase(|seconds| seconds.verify),
            output_hash: samples.last().map(|sample| sample.hash.clone()),
            output_right: !samples.is_empty()
                && samples.iter().all(|sample| sample.hash == reference.hash),
            need_bytes: reference.need_bytes,
            asked_total_bytes: capped.then_some(total_bytes),
            total_memory_bytes: cost,
            limit_bytes: capped.then_some(limit_bytes),
            cgroup_limit_bytes: self
                .host
                .hierarchy
                .is_ok()
                .then(|| budget.cgroup_limit(limit_bytes, ends_over_cap))
                .flatten(),
            pool_bytes_peak: samples
                .iter()
                .map(|sample| sample.account.pool_bytes_peak)
                .max()
                .unwrap_or(0),
            codec: samples.last().and_then(|sample| sample.account.codec.clone()),
            swap_in_pages: pages(
                |account| account.swap_in_pages,
                |sample| sample.outcome.machine.swap_in_pages,
            ),
            swap_out_pages: pages(
                |account| account.swap_out_pages,
                |sample| sample.outcome.machine.swap_out_pages,
            ),
            cpu_seconds: of(|sample| sample.outcome.cpu_seconds),
            machine_cpu_seconds: of(|sample| sample.outcome.machine.busy_seconds),
            ns_per_access: median(
                &samples
                    .iter()
                    .filter_map(|sample| Some(sample.report.as_ref()?.ns_per_access))
                    .collect::<Vec<_>>(),
            ),
            latency: timed.and_then(|report| report.latency),
            latency_histogram: timed
                .map(|report| report.latency_histogram.clone())
                .unwrap_or_default(),
            lz4_percent: samples.last().and_then(|sample| sample.report.as_ref()?.lz4_percent),
            ramfold: samples.last().and_then(|sample| sample.account.statistics.clone()),
            messages: messages.filter(|text| !text.is_empty()).map(str::to_owned).next(),
            error,
            idle: idle::median(&idle_runs),
            idle_runs,
            ..Row::default()
        }
    }
}

/// The report of the run whose p99 is the median one (the upper of two).
fn median_report(samples: &[Sample]) -> Option<&ChildReport> {
    let reports = samples.iter().filter_map(|sample| sample.report.as_ref());
    let mut timed: Vec<_> =
        reports.filter_map(|report| Some((report.latency?.p99_ns, report))).collect();
    timed.sort_by_key(|(p99_ns, _)| *p99_ns);
    Some(timed.get(timed.len() / 2)?.1)
}

fn child_report(prepared: &Prepared, outcome: &Outcome) -> Result<Option<ChildReport>> {
    if !prepared.reports {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&outcome.output);
    serde_json::from_slice(&outcome.output)
        .with_context(|| format!("the workload's report is damaged: '{}'", text.trim()))
        .map(Some)
}

/// Fails on purpose between set-up and run, so that a test can look at what is
/// left behind. Not in release builds.
#[cfg(debug_assertions)]
fn inject_failure() -> Result<()> {
    match std::env::var("RAMFOLD_BENCH_INJECT").as_deref() {
        Ok("panic") => panic!("a panic on purpose"),
        Ok("error") => bail!("an error on purpose"),
        _ => Ok(()),
    }
}
