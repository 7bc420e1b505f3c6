//! The runs of one workload under one peer, and their medians.

use super::trial::Sample;
use crate::harness::idle::Idle;
use crate::harness::statistics::{median_of, median_of_told};
use crate::peers::Account;
use crate::workloads::{ChildReport, PhaseSeconds};

/// In the order of the runs.
pub(super) struct Samples(pub(super) Vec<Sample>);

impl Samples {
    pub(super) fn median(&self, of: fn(&Sample) -> f64) -> Option<f64> {
        median_of(&self.0, of)
    }

    /// The median of what the programs report.
    pub(super) fn median_reported(&self, of: fn(&ChildReport) -> f64) -> Option<f64> {
        median_of_told(&self.0, |sample| sample.report.as_ref().map(of))
    }

    pub(super) fn median_phase(&self, of: fn(&PhaseSeconds) -> f64) -> Option<f64> {
        median_of_told(&self.0, |sample| Some(of(&sample.report.as_ref()?.seconds)))
    }

    /// The median of pages: as the peer counts them, or else as the kernel does for the machine.
    pub(super) fn median_pages(
        &self,
        own: fn(&Account) -> Option<u64>,
        machine: fn(&Sample) -> u64,
    ) -> Option<u64> {
        let pages =
            |sample: &Sample| own(&sample.account).unwrap_or_else(|| machine(sample)) as f64;
        median_of(&self.0, pages).map(|count| count as u64)
    }

    pub(super) fn max(&self, of: fn(&Sample) -> u64) -> u64 {
        self.0.iter().map(of).max().unwrap_or(0)
    }

    pub(super) fn all_have_hash(&self, hash: &str) -> bool {
        !self.0.is_empty() && self.0.iter().all(|sample| sample.hash == hash)
    }

    /// The report of the run whose p99 is the median one (the upper of two).
    pub(super) fn median_timed(&self) -> Option<&ChildReport> {
        let reports = self.0.iter().filter_map(|sample| sample.report.as_ref());
        let mut timed: Vec<_> =
            reports.filter_map(|report| Some((report.latency?.p99_ns, report))).collect();
        timed.sort_by_key(|(p99_ns, _)| *p99_ns);
        Some(timed.get(timed.len() / 2)?.1)
    }

    pub(super) fn idle(&self) -> Vec<Idle> {
        self.0.iter().filter_map(|sample| sample.outcome.idle.clone()).collect()
    }

    /// What the last run that wrote to standard error wrote there.
    pub(super) fn last_messages(&self) -> Option<String> {
        let messages = self.0.iter().rev().map(|sample| sample.outcome.errors.trim());
        messages.filter(|text| !text.is_empty()).map(str::to_owned).next()
    }
}
