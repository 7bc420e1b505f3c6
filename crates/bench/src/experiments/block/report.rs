//! Rows of results, as tables and as curves.

use ramfold_plot::{Panel, curves, figure};
use serde::Serialize;

use super::measurement::{DeviceFigures, JobFigures, Plan, Run};
use crate::harness::report::Skipped;
use crate::harness::statistics::{median_of, median_of_told};
use crate::harness::table;

/// One job on one device.
#[derive(Serialize)]
pub(super) struct JobRow {
    job: &'static str,
    connections: u32,
    peer: String,
    /// Times the throughput of the first device.
    ratio: f64,
    /// Medians of the runs.
    bytes_per_s: f64,
    requests_per_s: f64,
    latency_ns_p50: Option<f64>,
    latency_ns_p99: Option<f64>,
    cpu_us: Option<f64>,
    runs: Vec<JobFigures>,
}

/// What the content takes on one device.
#[derive(Serialize)]
pub(super) struct MemoryRow {
    peer: String,
    data_bytes: u64,
    memory_bytes: f64,
    /// The same after `--rest`.
    rested_bytes: Option<f64>,
    /// Of the content's size, at the end.
    share: f64,
}

/// All rows.
#[derive(Serialize)]
pub(super) struct Figures {
    pub(super) memory: Vec<MemoryRow>,
    pub(super) rows: Vec<JobRow>,
    pub(super) skipped: Vec<Skipped>,
}

/// The rows of each job, one for each device. `found` has the runs of each device.
pub(super) fn figures(
    plan: &Plan<'_>,
    names: &[&str],
    found: &[Vec<DeviceFigures>],
    skipped: Vec<Skipped>,
) -> Figures {
    let mut rows: Vec<JobRow> = Vec::new();
    for (place, &run) in plan.jobs.iter().enumerate() {
        let first = rows.len();
        for (&name, found) in names.iter().zip(found) {
            let runs = found.iter().map(|device| device.jobs[place].clone()).collect();
            let row = job_row(run, name, runs, rows.get(first));
            rows.push(row);
        }
    }
    let memory = names.iter().zip(found).map(|(&name, found)| {
        let memory_bytes = median_of(found, |device| device.memory_bytes as f64).unwrap_or(0.0);
        let rested_bytes = median_of_told(found, |device| Some(device.rested_bytes? as f64));
        let data_bytes = plan.data_bytes;
        let share = rested_bytes.unwrap_or(memory_bytes) / data_bytes as f64;
        MemoryRow { peer: name.to_owned(), data_bytes, memory_bytes, rested_bytes, share }
    });
    Figures { memory: memory.collect(), rows, skipped }
}

fn job_row(run: Run, peer: &str, runs: Vec<JobFigures>, first: Option<&JobRow>) -> JobRow {
    let middle = |of: &dyn Fn(&JobFigures) -> f64| median_of(&runs, of).unwrap_or(0.0);
    let bytes_per_s = middle(&|found| found.bytes_per_s);
    JobRow {
        job: run.job.name(),
        connections: run.connections,
        peer: peer.to_owned(),
        ratio: bytes_per_s / first.map_or(bytes_per_s, |row| row.bytes_per_s),
        bytes_per_s,
        requests_per_s: middle(&|found| found.requests_per_s),
        latency_ns_p50: median_of_told(&runs, |found| Some(found.latency?.p50_ns as f64)),
        latency_ns_p99: median_of_told(&runs, |found| Some(found.latency?.p99_ns as f64)),
        cpu_us: median_of_told(&runs, |found| found.cpu_us),
        runs,
    }
}

/// Throughput against the number of connections: a panel for each job with several, a curve for
/// each device.
pub(super) fn plot(figures: &Figures) -> String {
    let panels = figures.rows.chunk_by(|one, other| one.job == other.job).filter_map(|rows| {
        let is_one = rows.iter().all(|row| row.connections == rows[0].connections);
        let point = |row: &JobRow| (f64::from(row.connections), row.bytes_per_s / 1e6);
        (!is_one).then(|| Panel {
            title: rows[0].job.to_owned(),
            x: "connections",
            y: "MB/s",
            logarithmic: false,
            curves: curves(rows.iter().map(|row| (row.peer.clone(), point(row)))),
        })
    });
    figure(panels.collect())
}

/// The tables for people.
pub(super) fn text(figures: &Figures) -> String {
    let heads = ["device", "data MiB", "memory MiB", "after a rest", "share"];
    let mut memory = table::of_numbers(&heads, 1);
    for row in &figures.memory {
        memory.add_row([
            row.peer.clone(),
            table::mebibytes(Some(row.data_bytes as f64), 0, ""),
            table::mebibytes(Some(row.memory_bytes), 1, ""),
            table::mebibytes(row.rested_bytes, 1, ""),
            format!("{:.3}", row.share),
        ]);
    }
    let heads = [
        "job",
        "device",
        "connections",
        "requests/s",
        "MB/s",
        "x first",
        "p50 us",
        "p99 us",
        "cpu us",
    ];
    let mut jobs = table::of_numbers(&heads, 2);
    for row in &figures.rows {
        let us = |ns: Option<f64>| table::number(ns.map(|ns| ns / 1e3), 1, "");
        jobs.add_row([
            row.job.to_owned(),
            row.peer.clone(),
            row.connections.to_string(),
            format!("{:.0}", row.requests_per_s),
            format!("{:.1}", row.bytes_per_s / 1e6),
            format!("{:.2}", row.ratio),
            us(row.latency_ns_p50),
            us(row.latency_ns_p99),
            table::number(row.cpu_us, 1, ""),
        ]);
    }
    let skipped: Vec<String> = figures
        .skipped
        .iter()
        .map(|Skipped { peer, reason }| format!("{peer} is left out: {reason}\n"))
        .collect();
    format!("{}\n{}{}", table::text(&memory), table::text(&jobs), skipped.concat())
}
