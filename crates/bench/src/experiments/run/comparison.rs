//! A workload under every peer at every total memory, in turn.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::calibrate::{find_limit, warn_of_drift};
use super::row::{Row, compare};
use super::samples::Samples;
use super::trial::{Trial, child_report};
use crate::harness::measure::{Launch, OutOfMemory, measure};
use crate::harness::progress::Progress;
use crate::harness::size::{Bytes, Memory};
use crate::harness::turns::turns;
use crate::machine::cgroup::Swapping;
use crate::machine::host::Host;
use crate::machine::interrupt::Interrupted;
use crate::peers::{Budget, Peer};
use crate::workloads::{Prepared, Settings, Workload};

/// Compressed size that a calibration starts from where the program does not
/// tell its own: LZ4 of heap pages, with an allocator's overhead.
const USUAL_COMPRESSED_SIZE: f64 = 0.35;
/// zsmalloc's allocated over compressed bytes.
const POOL_OVERHEAD: f64 = 1.07;

/// What is measured and how often.
pub(super) struct Comparison<'a> {
    pub(super) host: &'a Host,
    pub(super) peers: &'a [Box<dyn Peer>],
    pub(super) settings: &'a Settings,
    /// Total memory, one after the other.
    pub(super) memories: &'a [Memory],
    pub(super) runs: usize,
    pub(super) keep_going: bool,
    /// How far the total of a run with a pool outside of its cgroup may be from what is asked when
    /// the limit is looked for, as a share.
    pub(super) tolerance: f64,
    pub(super) time_limit: Duration,
}

/// A peer with a workload, and what its runs gave.
pub(super) struct Cell<'a> {
    pub(super) peer: &'a dyn Peer,
    pub(super) memory: Memory,
    /// What is asked as total.
    pub(super) total_bytes: u64,
    /// The limit of the peer.
    pub(super) limit_bytes: u64,
    pub(super) ends_over_cap: bool,
    pub(super) samples: Samples,
    /// Runs repeated because the kernel had killed the program.
    pub(super) killed_count: usize,
    pub(super) error: Option<String>,
}

/// What is known from the run without a cap.
pub(super) struct Reference {
    pub(super) need_bytes: u64,
    pub(super) hash: String,
    compressed_size: f64,
}

impl Comparison<'_> {
    /// Runs shown by a progress line for one workload; calibrations come on top.
    pub(super) fn planned_count(&self, workload: &dyn Workload) -> usize {
        1 + self.memories_for(workload).len() * self.peers.len() * self.runs
    }

    /// Some workloads have a total of their own.
    fn memories_for(&self, workload: &dyn Workload) -> Vec<Memory> {
        let mut memories = workload.memories(self.memories);
        memories.dedup();
        memories
    }

    /// Measures one workload under every peer at every total. An interruption is an error; other
    /// failures are too unless `keep_going`, when they are in the rows.
    pub(super) fn measure(
        &self,
        workload: &dyn Workload,
        progress: &mut Progress,
    ) -> Result<Vec<Row>> {
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
            bail!("{name}: {} of total memory is too little to measure with", Bytes(total_bytes));
        }
        let mut cells = Vec::new();
        for peer in self.peers.iter().map(AsRef::as_ref) {
            let mut cell = Cell {
                peer,
                memory,
                total_bytes,
                limit_bytes: total_bytes,
                ends_over_cap: prepared.ends_over_cap,
                samples: Samples(Vec::new()),
                killed_count: 0,
                error: None,
            };
            if peer.budget(self.host) == Budget::LimitAndPool {
                match self.calibrate(&cell, name, prepared, reference, progress) {
                    Ok(limit_bytes) => cell.limit_bytes = limit_bytes,
                    Err(error) => self.fail(&mut cell, name, error, progress)?,
                }
            }
            cells.push(cell);
        }
        for (run, index) in turns(self.runs, cells.len()) {
            let cell = &mut cells[index];
            if cell.error.is_none() {
                progress.show(&format!(
                    "{name} in {memory} under {}, run {} of {}",
                    cell.peer.name(),
                    run + 1,
                    self.runs
                ));
                self.run(cell, name, prepared, reference, progress)?;
            }
            progress.advance();
        }
        cells.iter().for_each(|cell| self.warn_of_drift(cell, name));
        let rows = cells.into_iter().map(|cell| Row::of(self.host, name, cell, reference));
        let mut rows: Vec<Row> = rows.collect();
        compare(&mut rows);
        Ok(rows)
    }

    /// One more run of a cell.
    fn run(
        &self,
        cell: &mut Cell<'_>,
        name: &str,
        prepared: &Prepared,
        reference: &Reference,
        progress: &Progress,
    ) -> Result<()> {
        let trial = self.trial(prepared, reference);
        let (result, killed_count) = trial.attempt(cell.peer, cell.limit_bytes);
        cell.killed_count += killed_count;
        match result {
            Ok(sample) => {
                if sample.hash != reference.hash && !self.keep_going {
                    bail!("{name} under {} gave other output", cell.peer.name());
                }
                cell.samples.0.push(sample);
                Ok(())
            }
            Err(error) => self.fail(cell, name, error, progress),
        }
    }

    fn trial<'a>(&'a self, prepared: &'a Prepared, reference: &Reference) -> Trial<'a> {
        let need_bytes = reference.need_bytes;
        Trial { host: self.host, prepared, need_bytes, time_limit: self.time_limit }
    }

    fn warn_of_drift(&self, cell: &Cell<'_>, workload: &str) {
        let pool_outside = cell.peer.budget(self.host) == Budget::LimitAndPool;
        if pool_outside && !cell.samples.0.is_empty() && cell.limit_bytes < cell.total_bytes {
            let what = format!("{workload} under {}", cell.peer.name());
            let cost = cell.samples.max(|sample| sample.cost.total_bytes());
            warn_of_drift(&what, cell.total_bytes, cost, self.tolerance);
        }
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

    /// The limit at which a peer with a pool of its own costs the total.
    fn calibrate(
        &self,
        cell: &Cell<'_>,
        name: &str,
        prepared: &Prepared,
        reference: &Reference,
        progress: &Progress,
    ) -> Result<u64> {
        let mut step = 0;
        // A program that sleeps does not do so here.
        let awake = Prepared { idle: None, ..prepared.clone() };
        let trial = self.trial(&awake, reference);
        let (need_bytes, size) = (reference.need_bytes, reference.compressed_size);
        find_limit(cell.total_bytes, need_bytes, size, self.tolerance, |limit_bytes| {
            step += 1;
            let peer = cell.peer.name();
            progress.show(&format!("{name} under {peer}: finding the limit, step {step}"));
            match trial.attempt(cell.peer, limit_bytes).0 {
                Ok(sample) => Ok(Some(sample.cost)),
                Err(error) if error.is::<OutOfMemory>() => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}
