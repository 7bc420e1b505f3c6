//! Rows of results, and the table of them.

use serde::Serialize;

use super::measurement::{Plan, StepFigures};
use super::servers::ServerKind;
use crate::harness::statistics::{median_of, median_of_told};
use crate::harness::table;
use crate::peers::cache::Cache;

/// One step of the load, with one server over one cache.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    pub(super) server: &'static str,
    peer: String,
    pub(super) sessions: u32,
    directories: usize,
    memory_bytes: u64,
    /// Medians of the runs.
    pub(super) pages_per_s: f64,
    bytes_per_s: f64,
    disk_bytes: f64,
    pub(super) disk_bytes_per_s: f64,
    user_seconds: f64,
    system_seconds: f64,
    /// Times those of the first peer.
    pages_ratio: f64,
    disk_ratio: f64,
    runs: Vec<StepFigures>,
    #[serde(skip)]
    pub(super) cache: &'a dyn Cache,
}

/// All rows.
#[derive(Serialize)]
pub(super) struct Figures<'a> {
    pub(super) scale: u32,
    pub(super) rows: Vec<Row<'a>>,
}

/// The rows of one server, step by step, one for each cache. `found` has the steps of each run of
/// each cache.
pub(super) fn rows<'a>(
    server: ServerKind,
    plan: &Plan<'_>,
    caches: &'a [Box<dyn Cache>],
    found: &[Vec<Vec<StepFigures>>],
) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for (place, &sessions) in plan.sessions.iter().enumerate() {
        let first = rows.len();
        for (cache, found) in caches.iter().zip(found) {
            let runs = found.iter().map(|steps| steps[place].clone()).collect();
            let row = row(server, cache.as_ref(), sessions, plan, runs);
            rows.push(compared(row, rows.get(first)));
        }
    }
    rows
}

fn row<'a>(
    server: ServerKind,
    cache: &'a dyn Cache,
    sessions: u32,
    plan: &Plan<'_>,
    runs: Vec<StepFigures>,
) -> Row<'a> {
    let middle = |of: &dyn Fn(&StepFigures) -> f64| median_of(&runs, of).unwrap_or(0.0);
    Row {
        server: server.name(),
        peer: cache.name().to_owned(),
        sessions,
        directories: plan.site_of(sessions).directories(),
        memory_bytes: plan.setup.memory_bytes,
        pages_per_s: middle(&|found| found.pages_per_s),
        bytes_per_s: middle(&|found| found.bytes_per_s),
        disk_bytes: middle(&|found| found.disk_bytes as f64),
        disk_bytes_per_s: middle(&|found| found.disk_bytes as f64 / found.seconds),
        user_seconds: middle(&|found| found.user_seconds),
        system_seconds: middle(&|found| found.system_seconds),
        pages_ratio: 1.0,
        disk_ratio: 1.0,
        runs,
        cache,
    }
}

/// With its ratios to the row of the first cache.
fn compared<'a>(mut row: Row<'a>, first: Option<&Row<'_>>) -> Row<'a> {
    if let Some(first) = first {
        row.pages_ratio = row.pages_per_s / first.pages_per_s;
        row.disk_ratio = row.disk_bytes / first.disk_bytes;
    }
    row
}

/// The table for people.
pub(super) fn text(figures: &Figures<'_>) -> String {
    let mut table = table::of_numbers(
        &[
            "server",
            "cache",
            "sessions",
            "pages/s",
            "x first",
            "MB/s",
            "p50 ms",
            "p99 ms",
            "good %",
            "disk MB",
            "x first",
            "disk MB/s",
            "user s",
            "sys s",
        ],
        2,
    );
    for row in &figures.rows {
        let of_runs = |of: &dyn Fn(&StepFigures) -> Option<f64>, digits: usize| {
            table::number(median_of_told(&row.runs, of), digits, "")
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        table.add_row([
            row.server.to_owned(),
            row.peer.clone(),
            row.sessions.to_string(),
            format!("{:.0}", row.pages_per_s),
            format!("{:.2}", row.pages_ratio),
            format!("{:.1}", row.bytes_per_s / 1e6),
            of_runs(&|found| found.latency.map(|latency| ms(latency.p50_ns)), 1),
            of_runs(&|found| found.latency.map(|latency| ms(latency.p99_ns)), 0),
            of_runs(&|found| found.good.map(|share| share * 100.0), 1),
            format!("{:.0}", row.disk_bytes / 1e6),
            format!("{:.2}", row.disk_ratio),
            format!("{:.1}", row.disk_bytes_per_s / 1e6),
            format!("{:.1}", row.user_seconds),
            format!("{:.1}", row.system_seconds),
        ]);
    }
    table::text(&table)
}
