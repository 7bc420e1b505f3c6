//! A row of the results: one workload under one peer.

use serde::Serialize;

use super::comparison::{Cell, Reference};
use crate::harness::idle::{self, Idle};
use crate::harness::latency::{Bucket, Latency};
use crate::harness::statistics::{Summary, summarise};
use crate::machine::host::Host;
use crate::peers::{Budget, NONE, Statistics, ZRAM};

/// One workload under one peer. Quantities of several runs are medians unless
/// their name says otherwise.
#[derive(Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) workload: String,
    pub(super) peer: String,
    /// The asked total memory, as written.
    pub(super) memory: String,
    /// How many runs ended well.
    pub(super) runs: usize,
    /// How often the kernel killed the program for want of memory.
    pub(super) killed_runs: usize,
    /// Seconds of each run, in the order of the runs.
    pub(super) seconds: Vec<f64>,
    pub(super) seconds_summary: Option<Summary>,
    pub(super) seconds_median: Option<f64>,
    /// Seconds from start to end of the process, where the figure is a phase.
    pub(super) wall_seconds_median: Option<f64>,
    /// Phases of a synthetic workload outside of the figure.
    pub(super) fill_seconds_median: Option<f64>,
    pub(super) warm_up_seconds_median: Option<f64>,
    pub(super) verify_seconds_median: Option<f64>,
    pub(super) output_hash: Option<String>,
    /// The same output as without a cap.
    pub(super) output_right: bool,
    /// Peak of anonymous memory without a cap.
    pub(super) need_bytes: u64,
    /// What was asked as total; `None` without a cap.
    pub(super) asked_total_bytes: Option<u64>,
    /// What was measured: the cgroup's peak, plus the pool's where the cgroup
    /// does not pay for it. Largest of all runs.
    pub(super) total_memory_bytes: u64,
    /// The limit of the peer: of its cgroup, or --memory.
    pub(super) limit_bytes: Option<u64>,
    pub(super) cgroup_limit_bytes: Option<u64>,
    /// Largest of all runs; for ramfold, of the sizes at exit.
    pub(super) pool_bytes_peak: u64,
    /// What the pool is compressed with.
    pub(super) codec: Option<String>,
    pub(super) swap_in_pages: Option<u64>,
    pub(super) swap_out_pages: Option<u64>,
    /// User and system time of the program and what ran for it in its cgroup.
    pub(super) cpu_seconds: Option<f64>,
    /// Busy time of the whole machine meanwhile, other programs included.
    pub(super) machine_cpu_seconds: Option<f64>,
    /// Time over that of the better of the two zram peers.
    pub(super) ratio_to_zram: Option<f64>,
    /// Time over that without a cap.
    pub(super) ratio_to_none: Option<f64>,
    pub(super) ns_per_access: Option<f64>,
    /// Of the run with the median of the p99s.
    pub(super) latency: Option<Latency>,
    /// All accesses of that run by how long they took: the largest time of each bucket in
    /// nanoseconds, and how many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) latency_histogram: Vec<Bucket>,
    /// Of a program that sleeps: what its processes did meanwhile.
    pub(super) idle: Option<Idle>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) idle_runs: Vec<Idle>,
    /// Its anonymous memory over that without a cap.
    pub(super) pss_anon_ratio_to_none: Option<f64>,
    pub(super) lz4_percent: Option<f64>,
    /// Of the last run.
    pub(super) ramfold: Option<Statistics>,
    /// What the program or its memory system wrote to standard error.
    pub(super) messages: Option<String>,
    pub(super) error: Option<String>,
}

impl Row {
    /// Sums up the runs of a cell; [`compare`] fills in what depends on other rows.
    pub(super) fn of(host: &Host, workload: &str, cell: Cell<'_>, reference: &Reference) -> Row {
        let budget = cell.peer.budget(host);
        let cgroup_limit = budget.cgroup_limit(cell.limit_bytes, cell.ends_over_cap);
        let capped = budget != Budget::Unlimited;
        let Cell { peer, memory, total_bytes, limit_bytes, samples, killed_count, error, .. } =
            cell;
        let swaps = peer.name() != NONE;
        let last = samples.0.last();
        let timed = samples.median_timed();
        let idle_runs = samples.idle();
        let (swap_in_pages, swap_out_pages) = (
            samples.median_pages(
                |account| account.swap_in_pages,
                |sample| sample.outcome.machine.swap_in_pages,
            ),
            samples.median_pages(
                |account| account.swap_out_pages,
                |sample| sample.outcome.machine.swap_out_pages,
            ),
        );
        Row {
            workload: workload.to_owned(),
            peer: peer.name().to_owned(),
            memory: memory.to_string(),
            runs: samples.0.len(),
            killed_runs: killed_count,
            seconds: samples.0.iter().map(|sample| sample.seconds).collect(),
            wall_seconds_median: samples.median(|sample| sample.outcome.wall_seconds),
            fill_seconds_median: samples.median_phase(|seconds| seconds.fill),
            warm_up_seconds_median: samples.median_phase(|seconds| seconds.warm_up),
            verify_seconds_median: samples.median_phase(|seconds| seconds.verify),
            output_hash: last.map(|sample| sample.hash.clone()),
            output_right: samples.all_have_hash(&reference.hash),
            need_bytes: reference.need_bytes,
            asked_total_bytes: capped.then_some(total_bytes),
            total_memory_bytes: samples.max(|sample| sample.cost.total_bytes()),
            limit_bytes: capped.then_some(limit_bytes),
            cgroup_limit_bytes: cgroup_limit.filter(|_| host.hierarchy.is_ok()),
            pool_bytes_peak: samples.max(|sample| sample.account.pool_bytes_peak),
            codec: last.and_then(|sample| sample.account.codec.clone()),
            swap_in_pages: swap_in_pages.filter(|_| swaps),
            swap_out_pages: swap_out_pages.filter(|_| swaps),
            cpu_seconds: samples.median(|sample| sample.outcome.cpu_seconds),
            machine_cpu_seconds: samples.median(|sample| sample.outcome.machine.busy_seconds),
            ns_per_access: samples.median_reported(|report| report.ns_per_access),
            latency: timed.and_then(|report| report.latency),
            latency_histogram: timed
                .map(|report| report.latency_histogram.clone())
                .unwrap_or_default(),
            lz4_percent: last.and_then(|sample| sample.report.as_ref()?.lz4_percent),
            ramfold: last.and_then(|sample| sample.account.statistics.clone()),
            messages: samples.last_messages(),
            error,
            idle: idle::median(&idle_runs),
            idle_runs,
            ..Row::default()
        }
    }
}

/// Fills in what compares the rows of one workload.
pub(super) fn compare(rows: &mut [Row]) {
    for row in rows.iter_mut() {
        row.seconds_summary = summarise(&row.seconds);
        row.seconds_median = row.seconds_summary.map(|summary| summary.median);
    }
    let median = |name: &str| {
        rows.iter().find(|row| row.peer == name && row.error.is_none())?.seconds_median
    };
    let pss_anon = |row: &Row| row.idle.as_ref().map(|idle| idle.pss_anon_bytes as f64);
    let pss_anon_none = rows.iter().find(|row| row.peer == NONE).and_then(pss_anon);
    let none = median(NONE);
    let zram = ZRAM.into_iter().filter_map(median).min_by(f64::total_cmp);
    for row in rows.iter_mut() {
        let ratio =
            |base: Option<f64>| Some(row.seconds_median? / base.filter(|&base| base > 0.0)?);
        (row.ratio_to_zram, row.ratio_to_none) = (ratio(zram), ratio(none));
        row.pss_anon_ratio_to_none = pss_anon(row).zip(pss_anon_none).map(|(own, none)| own / none);
    }
}

#[cfg(test)]
impl Row {
    /// A row with these times, for tests.
    pub(super) fn with_seconds(peer: &str, seconds: &[f64]) -> Row {
        Row {
            workload: "random-rw".to_owned(),
            peer: peer.to_owned(),
            seconds: seconds.to_vec(),
            ..Row::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_better_zram_and_to_no_cap() {
        let mut rows = [
            Row::with_seconds("none", &[1.0, 2.0, 1.0]),
            Row::with_seconds("zram-lz4", &[8.0]),
            Row::with_seconds("zram-lzo-rle", &[4.0]),
            Row::with_seconds("ramfold", &[2.0]),
        ];
        compare(&mut rows);
        assert_eq!(rows[3].ratio_to_zram, Some(0.5));
        assert_eq!(rows[3].ratio_to_none, Some(2.0));
        assert_eq!(rows[1].ratio_to_zram, Some(2.0));
        rows[2].error = Some("broken".to_owned());
        compare(&mut rows);
        assert_eq!(rows[3].ratio_to_zram, Some(0.25));
        compare(&mut rows[3..]);
        assert_eq!((rows[3].ratio_to_zram, rows[3].ratio_to_none), (None, None));
        assert_eq!(rows[3].seconds_median, Some(2.0));
    }
}
