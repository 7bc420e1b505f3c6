//! Rows of results, as a table and as curves.

use serde::Serialize;

use super::jobs::Job;
use super::measurement::{JobFigures, Plan};
use crate::experiments::files::shares::{self, Measured};
use crate::harness::statistics::{median_of, median_of_told};
use crate::harness::table;
use crate::peers::cache::Cache;
use ramfold_plot::{Panel, figure};

/// One job with one cache.
#[derive(Serialize)]
pub(super) struct Row {
    job: &'static str,
    peer: String,
    memory_bytes: u64,
    data_bytes: u64,
    /// Times the throughput of the first peer.
    ratio: f64,
    /// Medians of the runs.
    bytes_per_s: f64,
    disk_bytes: f64,
    user_seconds: f64,
    system_seconds: f64,
    seconds: f64,
    /// Of ramfold.
    compress_seconds: Option<f64>,
    decompress_seconds: Option<f64>,
    runs: Vec<JobFigures>,
}

/// All rows.
#[derive(Serialize)]
pub(super) struct Figures {
    pub(super) rows: Vec<Row>,
}

/// The rows of each job, one for each cache. `found` has the jobs of each run of each cache.
pub(super) fn rows(
    plan: &Plan<'_>,
    caches: &[Box<dyn Cache>],
    found: &[Vec<Vec<JobFigures>>],
) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (place, &job) in plan.jobs.iter().enumerate() {
        let first = rows.len();
        for (cache, found) in caches.iter().zip(found) {
            let runs = found.iter().map(|jobs| jobs[place].clone()).collect();
            let row = row(plan, job, cache.name(), runs, rows.get(first));
            rows.push(row);
        }
    }
    rows
}

fn row(plan: &Plan<'_>, job: Job, peer: &str, runs: Vec<JobFigures>, first: Option<&Row>) -> Row {
    let middle = |of: &dyn Fn(&JobFigures) -> f64| median_of(&runs, of).unwrap_or(0.0);
    let bytes_per_s = middle(&|found| found.bytes_per_s);
    Row {
        job: job.name(),
        peer: peer.to_owned(),
        memory_bytes: plan.setup.memory_bytes,
        data_bytes: plan.data_bytes,
        ratio: bytes_per_s / first.map_or(bytes_per_s, |row| row.bytes_per_s),
        bytes_per_s,
        disk_bytes: middle(&|found| found.disk_bytes as f64),
        user_seconds: middle(&|found| found.user_seconds),
        system_seconds: middle(&|found| found.system_seconds),
        seconds: middle(&|found| found.seconds),
        compress_seconds: median_of_told(&runs, |found| found.compress_seconds),
        decompress_seconds: median_of_told(&runs, |found| found.decompress_seconds),
        runs,
    }
}

/// Throughput and reads of the disk of each job. Its rows follow one another, one for each cache.
pub(super) fn plot(rows: &[Row], caches: &[Box<dyn Cache>]) -> String {
    let panels = rows.chunks(caches.len()).flat_map(|rows| {
        let panel = |what: &str, y, of: fn(&Row) -> f64| {
            let measured = rows
                .iter()
                .zip(caches)
                .map(|(row, cache)| Measured { cache: cache.as_ref(), value: of(row) });
            Panel {
                title: format!("{}: {what}", rows[0].job),
                x: shares::AXIS,
                y,
                logarithmic: false,
                curves: shares::curves(&measured.collect::<Vec<_>>()).unwrap_or_default(),
            }
        };
        [
            panel("throughput", "MB/s", |row| row.bytes_per_s / 1e6),
            panel("disk", "MB read", |row| row.disk_bytes / 1e6),
        ]
    });
    figure(panels.collect())
}

/// The table for people.
pub(super) fn text(figures: &Figures) -> String {
    let mut table = table::of_numbers(
        &[
            "job",
            "cache",
            "MB/s",
            "x first",
            "reads/s",
            "p50 us",
            "p99 us",
            "disk MB",
            "user s",
            "sys s",
            "compress s",
            "decompress s",
            "cached MiB",
        ],
        2,
    );
    for row in &figures.rows {
        let of_runs = |of: &dyn Fn(&JobFigures) -> Option<f64>| median_of_told(&row.runs, of);
        let cell = |value, digits| table::number(value, digits, "");
        let us = |ns: u64| ns as f64 / 1e3;
        table.add_row([
            row.job.to_owned(),
            row.peer.clone(),
            format!("{:.1}", row.bytes_per_s / 1e6),
            format!("{:.2}", row.ratio),
            cell(of_runs(&|found| Some(found.reads_per_s)), 0),
            cell(of_runs(&|found| found.latency.map(|latency| us(latency.p50_ns))), 1),
            cell(of_runs(&|found| found.latency.map(|latency| us(latency.p99_ns))), 0),
            format!("{:.0}", row.disk_bytes / 1e6),
            format!("{:.1}", row.user_seconds),
            format!("{:.1}", row.system_seconds),
            cell(row.compress_seconds, 1),
            cell(row.decompress_seconds, 1),
            table::mebibytes(of_runs(&|found| Some(found.cached_bytes? as f64)), 0, ""),
        ]);
    }
    table::text(&table)
}
