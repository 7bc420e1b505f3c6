//! The tables of the results.

use serde::Serialize;

use super::row::Row;
use crate::harness::report::Skipped;
use crate::harness::table::{self, mebibytes, number};

/// All rows, and the peers that are missing.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) rows: Vec<Row>,
    pub(super) skipped: Vec<Skipped>,
}

/// For what is not known.
const DASH: &str = "-";

const HEADER: [&str; 16] = [
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
];

/// The table for people, and lines on what does not fit a table.
pub(super) fn table(figures: &Figures) -> String {
    let mut table = table::of_numbers(&HEADER, 2);
    table::align_left(&mut table, HEADER.len() - 1);
    let mut previous = "";
    for row in &figures.rows {
        let workload = if row.workload == previous { "" } else { &row.workload };
        previous = &row.workload;
        table.add_row(cells(workload, row));
    }
    let mut text = table.trim_fmt();
    if let Some(table) = idle_table(&figures.rows) {
        text += &format!("\n\n{table}\n");
    }
    figures.rows.iter().for_each(|row| text += &notes(row));
    for skipped in &figures.skipped {
        text += &format!("\nskipped {}: {}", skipped.peer, skipped.reason);
    }
    text
}

fn cells(workload: &str, row: &Row) -> [String; HEADER.len()] {
    let summary = row.seconds_summary;
    let positive = |bytes: u64| Some(bytes).filter(|&bytes| bytes > 0).map(|bytes| bytes as f64);
    [
        workload.to_owned(),
        row.peer.clone(),
        row.memory.clone(),
        row.runs.to_string(),
        number(summary.map(|summary| summary.median), 3, DASH),
        number(summary.map(|summary| summary.min), 3, DASH),
        number(summary.map(|summary| summary.max), 3, DASH),
        number(row.ratio_to_zram, 2, DASH),
        number(row.ratio_to_none, 2, DASH),
        mebibytes(positive(row.total_memory_bytes), 1, DASH),
        mebibytes(row.limit_bytes.map(|bytes| bytes as f64), 1, DASH),
        mebibytes(positive(row.pool_bytes_peak), 1, DASH),
        row.swap_in_pages.map_or_else(|| DASH.to_owned(), |pages| pages.to_string()),
        number(row.cpu_seconds, 2, DASH),
        number(row.machine_cpu_seconds, 2, DASH),
        outcome(row).to_owned(),
    ]
}

fn outcome(row: &Row) -> &'static str {
    match (&row.error, row.output_right) {
        (Some(_), _) => "failed",
        (None, true) => "right",
        (None, false) => "WRONG",
    }
}

/// Lines on one row, each of which begins with a line feed.
fn notes(row: &Row) -> String {
    let name = format!("{} under {}", row.workload, row.peer);
    let mut text = String::new();
    if let Some(error) = &row.error {
        text += &format!("\n{name}: {error}");
    }
    if row.killed_runs > 0 {
        text +=
            &format!("\n{name}: the kernel killed {} run(s), which were repeated", row.killed_runs);
    }
    if let Some(latency) = &row.latency {
        text += &format!(
            "\n{name}: access p50 {} ns, p90 {}, p99 {}, p99.9 {}, max {}",
            latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns
        );
    }
    text
}

/// The table of programs that sleep, if there are any.
fn idle_table(rows: &[Row]) -> Option<String> {
    const HEADER: [&str; 10] = [
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
    ];
    let mut table = table::of_numbers(&HEADER, 2);
    for row in rows {
        let Some(idle) = &row.idle else { continue };
        table.add_row([
            row.workload.clone(),
            row.peer.clone(),
            row.memory.clone(),
            idle.processes.to_string(),
            idle.threads.to_string(),
            number(Some(idle.wakeups_per_s), 2, DASH),
            number(Some(idle.core_percent), 4, DASH),
            mebibytes(Some(idle.pss_anon_bytes as f64), 1, DASH),
            number(row.pss_anon_ratio_to_none, 2, DASH),
            number(row.ns_per_access.map(|ns| ns / 1000.0), 2, DASH),
        ]);
    }
    (table.row_count() > 0).then(|| table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::super::row::compare;
    use super::*;
    use crate::harness::idle::Idle;

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
        let mut rows = vec![
            Row::with_seconds("none", &[1.0]),
            Row::with_seconds("ramfold", &[1.0]),
            Row::with_seconds("swap", &[2.0]),
        ];
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
        let mut rows = vec![
            Row::with_seconds("none", &[1.0]),
            Row::with_seconds("ramfold", &[]),
            Row::with_seconds("swap", &[2.0]),
        ];
        rows[0].output_right = true;
        rows[1].error = Some("it broke".to_owned());
        compare(&mut rows);
        let figures = Figures {
            rows,
            skipped: vec![Skipped { peer: "zswap".to_owned(), reason: "not here".to_owned() }],
        };
        let text = table(&figures);
        for expected in ["right", "failed", "WRONG", "it broke", "skipped zswap: not here"] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(serde_json::to_string(&figures).unwrap().contains("\"ratio_to_none\":2.0"));
    }
}
