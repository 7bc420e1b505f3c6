//! The spill file beside fio.

pub(super) mod bed;
mod measurement;

use std::process::ExitCode;

use anyhow::Result;

use super::{Options, print};
use crate::harness::progress::Progress;
use crate::harness::table;
use measurement::{Amount, Figures, compare};

/// Objects read in a round.
const READS: usize = 4000;

pub(super) fn execute(options: &Options) -> Result<ExitCode> {
    let share = usize::from(options.share);
    let amount = Amount {
        bytes: options.size.0 / share as u64,
        reads: READS / share,
        segment_bytes: options.batch.0 as usize,
        rounds: options.rounds.into(),
    };
    let mut progress = Progress::new(5 * amount.rounds);
    let figures = compare(&options.folder, &amount, |what| progress.step(what));
    progress.clear();
    print(options.json, figures?, text)
}

fn text(figures: &Figures) -> String {
    let header = ["", "object B", "write MB/s", "read p50 us", "p90", "p99", "p99.9", "longest"];
    let mut table = table::of_numbers(&header, 1);
    for row in &figures.rows {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        let read = row.read;
        table.add_row([
            row.what.to_owned(),
            row.object_bytes.to_string(),
            format!("{:.0}", row.write_mb_per_s),
            us(read.p50_ns),
            us(read.p90_ns),
            us(read.p99_ns),
            us(read.p999_ns),
            us(read.max_ns),
        ]);
    }
    let mut text = table::text(&table);
    if let Some(reason) = &figures.without_fio {
        text += &format!("without fio: {reason}\n");
    }
    text
}
