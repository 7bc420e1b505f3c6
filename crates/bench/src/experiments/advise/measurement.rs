//! A program with all memory, and under a memory system at each size, in turn.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::prediction::{Advice, Predicted};
use crate::harness::measure::{Launch, measure};
use crate::harness::progress::Progress;
use crate::harness::statistics::{median, median_of};
use crate::harness::turns::turns;
use crate::machine::cgroup::Swapping;
use crate::machine::host::Host;
use crate::machine::program::Program;
use crate::peers::{Budget, Peer};

/// A cap was held where the program passed it by no more than this part of it.
const OVER_CAP_MAX: f64 = 0.1;
/// The least limit of zram's control group, as a part of the memory.
const LEAST_LIMIT: f64 = 0.05;

/// What is measured, and how often.
pub(super) struct Bench<'a> {
    pub(super) host: &'a Host,
    /// `ramfold`, and zram where it is to be measured.
    pub(super) peers: &'a [Box<dyn Peer>],
    pub(super) shares: &'a [f64],
    pub(super) runs: usize,
    /// How often `ramfold advise` runs the program under a cap.
    pub(super) trials: u8,
    /// Compression pays where a run takes at most this many times as long as with all memory.
    pub(super) at_most: f64,
    /// The binary that predicts and runs.
    pub(super) ramfold: PathBuf,
    /// Where what was seen of programs is kept.
    pub(super) records: Option<&'a Path>,
    pub(super) time_limit: Duration,
}

/// A run that has ended.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    /// The same as a multiple of the run with all memory of the same round.
    pub(super) slowdown: f64,
    pub(super) pool_bytes: u64,
    pub(super) faults: Option<u64>,
    /// What the peer's limit and its pool beside it come to.
    pub(super) total_bytes: u64,
}

/// How the runs of a cell ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ending {
    /// All well.
    Held,
    /// It took more than the memory.
    OverMemory,
    /// It was ended by a signal, or by the kernel for want of memory.
    Killed,
    /// It took more time than `--time-limit`.
    TimeLimit,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Held => "",
            Ending::OverMemory => "took more than the memory",
            Ending::Killed => "was killed",
            Ending::TimeLimit => "took more than the time limit",
        })
    }
}

/// A program under a peer with one size of memory.
pub(super) struct Cell<'a> {
    pub(super) peer: &'a dyn Peer,
    pub(super) share: f64,
    pub(super) predicted: Predicted,
    pub(super) limit_bytes: u64,
    pub(super) samples: Vec<Sample>,
    pub(super) ending: Ending,
    pub(super) is_output_right: bool,
}

impl Cell<'_> {
    pub(super) fn middle(&self, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        median_of(&self.samples, of)
    }
}

/// What was measured of a program.
pub(super) struct Measured<'a> {
    pub(super) cells: Vec<Cell<'a>>,
    /// Seconds with all memory, of each round.
    pub(super) reference_s: Vec<f64>,
    /// Parts of the need that were predicted not to be held.
    pub(super) skipped: Vec<f64>,
}

impl Measured<'_> {
    pub(super) fn reference_median_s(&self) -> f64 {
        median(&self.reference_s).unwrap_or(0.0)
    }
}

impl<'a> Bench<'a> {
    /// Runs that the line on the terminal counts for a program.
    pub(super) fn planned_count(&self) -> usize {
        1 + self.runs * (1 + self.shares.len() * self.peers.len())
    }

    /// Runs a program with all memory and at each size that was predicted to be held, for several
    /// rounds.
    ///
    /// # Errors
    /// When it cannot be run with all memory, or a peer cannot be set up.
    pub(super) fn measure(
        &self,
        name: &str,
        program: &Program,
        advice: &Advice,
        progress: &mut Progress,
    ) -> Result<Measured<'a>> {
        let (mut cells, skipped) = self.cells(advice);
        let mut reference_s = Vec::new();
        let mut hash: Option<String> = None;
        for round in 0..self.runs {
            progress.step(&format!("{name}: with all memory, run {} of {}", round + 1, self.runs));
            let (seconds, output_hash) = self.run_free(program)?;
            reference_s.push(seconds);
            let is_same = hash.as_ref().is_none_or(|hash| *hash == output_hash);
            let hash: Option<&str> = is_same.then(|| &**hash.insert(output_hash));
            // Another cell begins each round.
            let order = turns(self.runs, cells.len()).filter(|(nth, _)| *nth == round);
            for (_, index) in order {
                let cell = &mut cells[index];
                let (peer, percent) = (cell.peer.name(), cell.share * 100.0);
                progress.step(&format!("{name}: {peer} at {percent:.0} %, run {}", round + 1));
                if cell.ending == Ending::Held {
                    self.run(cell, program, advice, seconds, hash)?;
                }
            }
        }
        Ok(Measured { cells, reference_s, skipped })
    }

    fn cells(&self, advice: &Advice) -> (Vec<Cell<'a>>, Vec<f64>) {
        let (mut cells, mut skipped) = (Vec::new(), Vec::new());
        for &share in self.shares {
            let Some(predicted) = advice.at(share) else {
                skipped.push(share);
                continue;
            };
            cells.extend(self.peers.iter().map(|peer| Cell {
                peer: peer.as_ref(),
                share,
                predicted: *predicted,
                limit_bytes: limit(peer.budget(self.host), predicted.memory_bytes, advice),
                samples: Vec::new(),
                ending: Ending::Held,
                is_output_right: true,
            }));
        }
        (cells, skipped)
    }

    /// With all memory: the seconds, and the hash of what it prints.
    fn run_free(&self, program: &Program) -> Result<(f64, String)> {
        let cgroup = self.host.cgroup()?;
        if let Some(cgroup) = &cgroup {
            cgroup.configure(None, Swapping::Forbidden)?;
        }
        let launch = Launch {
            program,
            cgroup: cgroup.as_ref(),
            pool: None,
            pool_bytes_max: None,
            idle: None,
            time_limit: self.time_limit,
        };
        let outcome = measure(self.host, &launch)?;
        outcome.check()?;
        cgroup.map_or(Ok(()), |cgroup| cgroup.finish())?;
        Ok((outcome.wall_seconds, outcome.output_hash))
    }

    fn run(
        &self,
        cell: &mut Cell<'_>,
        program: &Program,
        advice: &Advice,
        reference_s: f64,
        hash: Option<&str>,
    ) -> Result<()> {
        let budget = cell.peer.budget(self.host);
        let active = cell.peer.set_up(self.host, advice.need_bytes, cell.limit_bytes)?;
        let cgroup = self.host.cgroup()?;
        if let Some(cgroup) = &cgroup {
            // Whether ramfold holds the memory is seen, and not enforced.
            let limit = budget.cgroup_limit(cell.limit_bytes, false);
            cgroup.configure(limit, cell.peer.swapping())?;
        }
        let launch = Launch {
            program: &active.wrap(program),
            cgroup: cgroup.as_ref(),
            pool: active.gauge(),
            pool_bytes_max: None,
            idle: None,
            time_limit: self.time_limit,
        };
        let outcome = measure(self.host, &launch)?;
        let account = active.account(&outcome)?;
        if outcome.timed_out {
            cell.ending = Ending::TimeLimit;
        } else if !outcome.status.success() {
            cell.ending = Ending::Killed;
        }
        if let Some(cgroup) = cgroup {
            cgroup.finish()?;
        }
        active.finish()?;
        if cell.ending != Ending::Held {
            return Ok(());
        }
        let told = account.statistics.as_ref();
        let over = told.and_then(|told| told.over_cap_bytes_max).unwrap_or(0) as f64;
        if over > OVER_CAP_MAX * cell.limit_bytes as f64 {
            cell.ending = Ending::OverMemory;
        }
        cell.is_output_right &= hash.is_none_or(|hash| hash == outcome.output_hash);
        let outside = if budget == Budget::LimitAndPool { account.pool_bytes_peak } else { 0 };
        cell.samples.push(Sample {
            seconds: outcome.wall_seconds,
            slowdown: outcome.wall_seconds / reference_s,
            pool_bytes: account.pool_bytes_peak,
            faults: told.and_then(|told| told.faults),
            total_bytes: cell.limit_bytes + outside,
        });
        Ok(())
    }
}

/// The limit of a peer for this memory. Where its pool is outside of the limit, both together
/// come near to it where what is out becomes as small as the sample.
fn limit(budget: Budget, memory_bytes: u64, advice: &Advice) -> u64 {
    if budget != Budget::LimitAndPool {
        return memory_bytes;
    }
    let (memory, need) = (memory_bytes as f64, advice.need_bytes as f64);
    let small = advice.zram_share().clamp(0.02, 0.9);
    (((memory - small * need) / (1.0 - small)).max(LEAST_LIMIT * memory)) as u64
}
