//! Engines of compression side by side.

mod measurement;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use ramfold_codec::Page;
use serde::Serialize;

pub(super) use measurement::Kind;

use super::{Options, print};
use crate::content::heap_pages::PageSource;
use crate::content::page_files::Pages;
use crate::harness::progress::Progress;
use crate::harness::table;
use measurement::{Load, Row, measure};

/// Generated pages: more than fit the caches.
const PAGES: usize = 16_384;

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
}

pub(super) fn execute(options: &Options) -> Result<ExitCode> {
    let pages: Vec<Page> = if options.pages.is_empty() {
        let source = PageSource::generated(options.seed);
        let count = PAGES / usize::from(options.share);
        (0..count).map(|nth| Ok(source.page(nth)?.0)).collect::<Result<_>>()?
    } else {
        let mut pages = Vec::new();
        for path in &options.pages {
            pages.extend(Pages::read(path, None)?.distinct);
        }
        pages
    };
    let load = Load {
        codec: options.codec,
        every: Duration::from_micros(options.every.into()),
        length: Duration::from_millis(1000) / u32::from(options.share),
        rounds: options.rounds.into(),
        workers_max: options.workers.map(usize::from),
    };
    let mut progress = Progress::new(load.rounds * options.engine.len());
    let rows = measure(&options.engine, &load, &pages, |what| progress.step(what));
    progress.clear();
    print(options.json, Figures { rows: rows? }, text)
}

fn text(figures: &Figures) -> String {
    let mut table = table::of_numbers(
        &[
            "engine",
            "codec",
            "alone MB/s",
            "beside MB/s",
            "asked for",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "cpu us/page",
            "threads",
        ],
        2,
    );
    for row in &figures.rows {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        table.add_row([
            row.engine.to_owned(),
            row.codec.to_owned(),
            format!("{:.0}", row.alone_mb_per_s),
            format!("{:.0}", row.beside_mb_per_s),
            row.decompressed.to_string(),
            us(row.decompress.p50_ns),
            us(row.decompress.p99_ns),
            us(row.decompress.p999_ns),
            format!("{:.2}", row.cpu_us_per_page),
            row.workers.to_string(),
        ]);
    }
    format!(
        "pages compressed in bulk, alone and while another thread asks for objects; \
         and how long it waits\n{}",
        table::text(&table)
    )
}
