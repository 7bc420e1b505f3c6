//! Rows of results, as a table for people and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::idle::Idle;
use crate::latency::{Bucket, Latency};
use crate::machine::Environment;
use crate::peers::{NONE, Statistics, ZRAM_LZ4, ZRAM_LZO_RLE};
use crate::statistics::{Summary, summarise};

/// Everything a run of `ramfold-bench run` found.
#[derive(Debug, Serialize)]
pub struct Report {
    pub environment: Environment,
    pub rows: Vec<Row>,
    pub skipped: Vec<Skipped>,
}

/// A peer that could not run here.
#[derive(Debug, Serialize)]
pub struct Skipped {
    pub peer: String,
    pub reason: String,
}

/// One workload under one peer. Quantities of several runs are medians unless
/// their name says otherwise.
#[derive(Debug, Default, Serialize)]
pub struct Row {
    pub workload: String,
    pub peer: String,
    /// The asked total memory, as written.
    pub memory: String,
    /// How many runs ended well.
    pub runs: usize,
    /// How often the kernel killed the program for want of memory.
    pub killed_runs: usize,
    /// Seconds of each run, in the order of the runs.
    pub seconds: Vec<f64>,
    pub seconds_summary: Option<Summary>,
    pub seconds_median: Option<f64>,
    /// Seconds from start to end of the process, where the figure is a phase.
    pub wall_seconds_median: Option<f64>,
    /// Phases of a synthetic workload outside of the figure.
    pub fill_seconds_median: Option<f64>,
    pub warm_up_seconds_median: Option<f64>,
    pub verify_seconds_median: Option<f64>,
    pub output_hash: Option<String>,
    /// The same output as without a cap.
    pub output_right: bool,
    /// Peak of anonymous memory without a cap.
    pub need_bytes: u64,
    /// What was asked as total; `None` without a cap.
    pub asked_total_bytes: Option<u64>,
    /// What was measured: the cgroup's peak, plus the pool's where the cgroup
    /// does not pay for it. Largest of all runs.
    pub total_memory_bytes: u64,
    /// What the peer was told: cgroup limit or --memory.
    pub limit_bytes: Option<u64>,
    pub cgroup_limit_bytes: Option<u64>,
    /// Largest of all runs; for ramfold, of the sizes at exit.
    pub pool_bytes_peak: u64,
    /// What the pool is compressed with.
    pub codec: Option<String>,
    pub swap_in_pages: Option<u64>,
    pub swap_out_pages: Option<u64>,
    /// User and system time of the program and what ran for it in its cgroup.
    pub cpu_seconds: Option<f64>,
    /// Busy time of the whole machine meanwhile, other programs included.
    pub machine_cpu_seconds: Option<f64>,
    /// Time over that of the better of the two zram peers.
    pub ratio_to_zram: Option<f64>,
    /// Time over that without a cap.
    pub ratio_to_none: Option<f64>,
    pub ns_per_access: Option<f64>,
    /// Of the run with the median of the p99s.
    pub latency: Option<Latency>,
    /// All accesses of that run by how long they took: the largest time of each bucket in
    /// nanoseconds, and how many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency_histogram: Vec<Bucket>,
    /// Of a program that sleeps: what its processes did meanwhile.
    pub idle: Option<Idle>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub idle_runs: Vec<Idle>,
    /// Its anonymous memory over that without a cap.
    pub pss_anon_ratio_to_none: Option<f64>,
    pub lz4_percent: Option<f64>,
    /// Of the last run.
    pub ramfold: Option<Statistics>,
    /// What the program or its memory system wrote to standard error.
    pub messages: Option<String>,
    pub error: Option<String>,
}

/// Fills in what compares the rows of one workload.
pub fn compare(rows: &mut [Row]) {
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
    let zram = [ZRAM_LZ4, ZRAM_LZO_RLE].into_iter().filter_map(median).min_by(f64::total_cmp);
    for row in rows.iter_mut() {
        let ratio =
            |base: Option<f64>| Some(row.seconds_median? / base.filter(|&base| base > 0.0)?);
        (row.ratio_to_zram, row.ratio_to_none) = (ratio(zram), ratio(none));
        row.pss_anon_ratio_to_none = pss_anon(row).zip(pss_anon_none).map(|(own, none)| own / none);
    }
}

/// The table for people.
pub fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "workload",
        "peer",
        "memory",
        "runs",
        "seconds",
        "min",
        "max",
        "x zram",
        "x none",
        "total MiB",
        "limit",
        "pool",
        "swap-ins",
        "cpu s",
        "machine s",
        "output",
    ]);
    for (index, column) in table.column_iter_mut().enumerate() {
        if (2..=14).contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut previous = "";
    for row in &report.rows {
        let workload = if row.workload == previous { "" } else { &row.workload };
        previous = &row.workload;
        let summary = row.seconds_summary;
        table.add_row([
            workload.to_owned(),
            row.peer.clone(),
            row.memory.clone(),
            row.runs.to_string(),
            decimals(summary.map(|summary| summary.median), 3),
            decimals(summary.map(|summary| summary.min), 3),
            decimals(summary.map(|summary| summary.max), 3),
            decimals(row.ratio_to_zram, 2),
            decimals(row.ratio_to_none, 2),
            mebibytes(Some(row.total_memory_bytes).filter(|&bytes| bytes > 0)),
            mebibytes(row.limit_bytes),
            mebibytes(Some(row.pool_bytes_peak).filter(|&bytes| bytes > 0)),
            row.swap_in_pages.map_or_else(dash, |pages| pages.to_string()),
            decimals(row.cpu_seconds, 2),
            decimals(row.machine_cpu_seconds, 2),
            outcome(row),
        ]);
    }
    let mut text = table.trim_fmt();
    if let Some(table) = idle_table(&report.rows) {
        text += &format!("\n\n{table}\n");
    }
    for row in &report.rows {
        if let Some(error) = &row.error {
            text += &format!("\n{} under {}: {error}", row.workload, row.peer);
        }
        if row.killed_runs > 0 {
            text += &format!(
                "\n{} under {}: the kernel killed {} run(s), which were repeated",
                row.workload, row.peer, row.killed_runs
            );
        }
        if let Some(latency) = &row.latency {
            text += &format!(
                "\n{} under {}: access p50 {} ns, p90 {}, p99 {}, p99.9 {}, max {}",
                row.workload,
                row.peer,
                latency.p50_ns,
                latency.p90_ns,
                latency.p99_ns,
                latency.p999_ns,
                latency.max_ns
            );
        }
    }
    for skipped in &report.skipped {
        text += &format!("\nskipped {}: {}", skipped.peer, skipped.reason);
    }
    text
}

/// The table of programs that sleep, if there are any.
fn idle_table(rows: &[Row]) -> Option<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "asleep",
        "peer",
        "memory",
        "processes",
        "threads",
        "wakeups/s",
        "% of a core",
        "anonymous MiB",
        "x none",
        "us each",
    ]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in rows {
        let Some(idle) = &row.idle else { continue };
        table.add_row([
            row.workload.clone(),
            row.peer.clone(),
            row.memory.clone(),
            idle.processes.to_string(),
            idle.threads.to_string(),
            decimals(Some(idle.wakeups_per_s), 2),
            decimals(Some(idle.core_percent), 4),
            mebibytes(Some(idle.pss_anon_bytes)),
            decimals(row.pss_anon_ratio_to_none, 2),
            decimals(row.ns_per_access.map(|ns| ns / 1000.0), 2),
        ]);
    }
    (table.row_count() > 0).then(|| table.trim_fmt())
}

fn outcome(row: &Row) -> String {
    match (&row.error, row.output_right) {
        (Some(_), _) => "failed",
        (None, true) => "right",
        (None, false) => "WRONG",
    }
    .to_owned()
}

fn dash() -> String {
    "-".to_owned()
}

fn decimals(value: Option<f64>, places: usize) -> String {
    value.map_or_else(dash, |value| format!("{value:.places$}"))
}

fn mebibytes(bytes: Option<u64>) -> String {
    decimals(bytes.map(|bytes| bytes as f64 / 1048576.0), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(peer: &str, seconds: &[f64]) -> Row {
        Row {
            workload: "random-rw".to_owned(),
            peer: peer.to_owned(),
            seconds: seconds.to_vec(),
            ..Row::default()
        }
    }

    #[test]
    fn ratios_are_to_the_better_zram_and_to_no_cap() {
        let mut rows = [
            row("none", &[1.0, 2.0, 1.0]),
            row("zram-lz4", &[8.0]),
            row("zram-lzo-rle", &[4.0]),
            row("ramfold", &[2.0]),
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

    #[test]
    fn programs_that_sleep_have_a_table_of_their_own() {
        let idle = |pss_anon_bytes| {
            Some(Idle {
                wakeups_per_s: 4.25,
                core_percent: 0.0625,
                pss_anon_bytes,
                ..Idle::default()
            })
        };
        let mut rows = vec![row("none", &[1.0]), row("ramfold", &[1.0]), row("swap", &[2.0])];
        assert_eq!(idle_table(&rows), None);
        (rows[0].idle, rows[1].idle) = (idle(4 << 20), idle(1 << 20));
        compare(&mut rows);
        assert_eq!(rows[1].pss_anon_ratio_to_none, Some(0.25));
        let text = idle_table(&rows).unwrap();
        for expected in ["ramfold", "4.25", "0.0625", "0.25"] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains("swap"), "{text}");
    }

    #[test]
    fn the_table_shows_failures_and_wrong_output() {
        let mut rows = vec![row("none", &[1.0]), row("ramfold", &[]), row("swap", &[2.0])];
        rows[0].output_right = true;
        rows[1].error = Some("it broke".to_owned());
        compare(&mut rows);
        let report = Report {
            environment: Environment::read("v1".to_owned(), true),
            rows,
            skipped: vec![Skipped { peer: "zswap".to_owned(), reason: "not here".to_owned() }],
        };
        let text = table(&report);
        for expected in ["right", "failed", "WRONG", "it broke", "skipped zswap: not here"] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(serde_json::to_string(&report).unwrap().contains("\"ratio_to_none\":2.0"));
    }
}
