//! One run of a workload under a peer.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::calibrate::Cost;
use crate::harness::measure::{Launch, OutOfMemory, Outcome, measure};
use crate::machine::cgroup::Swapping;
use crate::machine::host::Host;
use crate::machine::interrupt;
use crate::peers::{Account, Budget, Peer};
use crate::workloads::{ChildReport, Prepared, Timing};

/// How often a run that the kernel killed under swap is tried in all: near the
/// limit it does so by chance (see [`crate::harness::measure`]).
const ATTEMPT_COUNT: usize = 3;

/// One run under one peer.
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) hash: String,
    pub(super) report: Option<ChildReport>,
    pub(super) outcome: Outcome,
    pub(super) account: Account,
    pub(super) cost: Cost,
}

/// What is run under each peer.
pub(super) struct Trial<'a> {
    pub(super) host: &'a Host,
    pub(super) prepared: &'a Prepared,
    /// Peak of anonymous memory without a cap.
    pub(super) need_bytes: u64,
    pub(super) time_limit: Duration,
}

impl Trial<'_> {
    /// One run under one peer; under kernel swap again if the kernel killed it.
    /// Also how often it did.
    pub(super) fn attempt(&self, peer: &dyn Peer, limit_bytes: u64) -> (Result<Sample>, usize) {
        let mut killed_count = 0;
        loop {
            let result = self.run(peer, limit_bytes);
            let killed = result.as_ref().is_err_and(|error| error.is::<OutOfMemory>());
            killed_count += usize::from(killed);
            let again = peer.swapping() == Swapping::Allowed && killed_count < ATTEMPT_COUNT;
            if !(killed && again) {
                return (result, killed_count);
            }
        }
    }

    fn run(&self, peer: &dyn Peer, limit_bytes: u64) -> Result<Sample> {
        interrupt::check()?;
        let prepared = self.prepared;
        let budget = peer.budget(self.host);
        let active = peer.set_up(self.host, self.need_bytes, limit_bytes)?;
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
}

/// What a synthetic workload printed.
pub(super) fn child_report(prepared: &Prepared, outcome: &Outcome) -> Result<Option<ChildReport>> {
    if !prepared.reports {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&outcome.output);
    serde_json::from_slice(&outcome.output)
        .with_context(|| format!("the workload's report is damaged: '{}'", text.trim()))
        .map(Some)
}

/// Fails on purpose between set-up and run, so that a test can check what is
/// left behind. Not in release builds.
#[cfg(debug_assertions)]
fn inject_failure() -> Result<()> {
    match std::env::var("RAMFOLD_BENCH_INJECT").as_deref() {
        Ok("panic") => panic!("a panic on purpose"),
        Ok("error") => bail!("an error on purpose"),
        _ => Ok(()),
    }
}
