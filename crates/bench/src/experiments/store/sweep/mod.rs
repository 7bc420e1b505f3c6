//! Thresholds and lengths of batches of the spill file.

mod measurement;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::{Options, print};
use crate::harness::progress::Progress;
use crate::harness::table;
use measurement::{Row, Sweep, sweep};

/// In percent of the pool.
const THRESHOLDS: [u64; 5] = [25, 50, 75, 90, 98];
const BATCHES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
const ACCESSES: usize = 200_000;

#[derive(Serialize)]
struct Figures {
    pool_bytes: u64,
    rows: Vec<Row>,
}

pub(super) fn execute(options: &Options) -> Result<ExitCode> {
    let share = usize::from(options.share);
    let amount = Sweep {
        pool_bytes: options.pool.0,
        accesses: ACCESSES / share,
        rounds: options.rounds.into(),
    };
    let mut progress = Progress::new(THRESHOLDS.len() * BATCHES.len() * amount.rounds);
    let rows = sweep(&options.folder, &THRESHOLDS, &BATCHES, &amount, |what| progress.step(what));
    progress.clear();
    print(options.json, Figures { pool_bytes: amount.pool_bytes, rows: rows? }, text)
}

fn text(figures: &Figures) -> String {
    let header = [
        "batch KiB",
        "% of pool",
        "threshold %",
        "us an access",
        "pool %",
        "reads %",
        "stalls",
        "written MiB",
    ];
    let mut table = table::of_numbers(&header, 0);
    for row in &figures.rows {
        table.add_row([
            (row.batch_bytes >> 10).to_string(),
            format!("{:.1}", row.batch_percent),
            row.threshold_percent.to_string(),
            format!("{:.2}", row.access_us),
            format!("{:.1}", row.pool_hits_percent),
            format!("{:.1}", row.reads_percent),
            format!("{:.0}", row.stalls),
            format!("{:.0}", row.written_mib),
        ]);
    }
    format!("pool of {} MiB\n{}", figures.pool_bytes >> 20, table::text(&table))
}
