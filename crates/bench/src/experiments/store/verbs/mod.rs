//! Store and take, by one thread and by several.

mod measurement;

use std::process::ExitCode;

use anyhow::Result;

use super::{Options, print};
use crate::harness::progress::Progress;
use crate::harness::table;
use measurement::{Figures, measure};

pub(super) fn execute(options: &Options) -> Result<ExitCode> {
    let threads: Vec<usize> = options.threads.iter().map(|&threads| threads.into()).collect();
    let mut progress = Progress::new(7);
    let figures =
        measure(&threads, options.rounds.into(), options.share.into(), |what| progress.step(what));
    progress.clear();
    print(options.json, figures?, text)
}

fn text(figures: &Figures) -> String {
    let header = [
        "object B",
        "pages",
        "pool MiB",
        "threads",
        "use",
        "ns a page",
        "quartile",
        "x one thread",
    ];
    let mut pairs = table::of_numbers(&header, 0);
    for row in &figures.pairs {
        pairs.add_row([
            row.object_bytes.to_string(),
            row.pages.to_string(),
            format!("{:.1}", row.pool_bytes as f64 / (1 << 20) as f64),
            row.threads.to_string(),
            if row.own_pages { "their own" } else { "any" }.to_owned(),
            format!("{:.0}", row.ns_median),
            format!("{:.0}", row.ns_lower_quartile),
            format!("{:.2}", row.speedup),
        ]);
    }
    let mut index = table::of_numbers(&["keys in use", "pages", "metadata B/page"], 1);
    for row in &figures.index {
        let stride = row.stride;
        index.add_row([
            if stride == 1 { "all".to_owned() } else { format!("one of {stride}") },
            row.pages.to_string(),
            format!("{:.2}", row.metadata_bytes_per_page),
        ]);
    }
    let ranges = &figures.ranges;
    format!(
        "take and store of a page, no codec\n{}\nindex, seals included\n{}\n\
         {} pages: invalidating an empty TiB beside them {:.1} us, rekeying {:.0} ns a page, \
         invalidating all {:.0} ns a page\n",
        table::text(&pairs),
        table::text(&index),
        ranges.pages,
        ranges.invalidate_nothing_us,
        ranges.rekey_ns_per_page,
        ranges.invalidate_ns_per_page,
    )
}
