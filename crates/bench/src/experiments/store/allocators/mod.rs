//! Allocators of objects on the same traces.

mod block_lists;
mod recorded;
mod replay;
mod resource_map;
mod trace;
mod zsmalloc;

use std::process::ExitCode;

use anyhow::{Context, Result};
use ramfold_codec::{Backend, Choice};
use serde::Serialize;

use super::{Options, print};
use crate::content::page_files::Pages;
use crate::experiments::codec::subjects::ours::Ours;
use crate::experiments::codec::subjects::{ROOM_BYTES, Subject};
use crate::harness::progress::Progress;
use crate::harness::table;
use replay::{Row, measure};
use trace::{Lengths, Trace};

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
}

pub(super) fn execute(options: &Options) -> Result<ExitCode> {
    let mut traces = Vec::new();
    if options.pages.is_empty() && options.object_trace.is_empty() {
        let lengths = Lengths::heap();
        traces.push(Trace::synthetic("heap", options.objects, &lengths, options.seed));
    }
    for path in &options.pages {
        let pages = Pages::read(path, None)?;
        let lengths = lengths_of(&pages)?;
        traces.push(Trace::synthetic(&pages.name, options.objects, &lengths, options.seed));
    }
    for path in &options.object_trace {
        traces.push(Trace::read(path)?);
    }
    let mut progress = Progress::new(4 * traces.len());
    let rows = measure(&traces, |what| progress.step(what));
    progress.clear();
    print(options.json, Figures { rows: rows? }, text)
}

/// How long the objects are that `auto` makes of pages; what it leaves alone is stored whole.
fn lengths_of(pages: &Pages) -> Result<Lengths> {
    let mut codec = Ours::named(Choice::Auto.name(), Backend::best())?.context("there is auto")?;
    let mut room = [0; ROOM_BYTES];
    let whole = ramfold_codec::PAGE_SIZE;
    let lengths = pages
        .distinct
        .iter()
        .map(|page| codec.compress(page, &mut room).map_or(whole, |written| written.len) as u16);
    Lengths::of(lengths.collect()).with_context(|| format!("{} has no pages", pages.name))
}

fn text(figures: &Figures) -> String {
    const HEADER: [&str; 8] = [
        "allocator",
        "after",
        "objects",
        "allocated/compressed",
        "metadata B/page",
        "put ns",
        "free ns",
        "compact ms",
    ];
    let decimals = |figure, count| table::number(figure, count, "-");
    let mut text = String::new();
    for rows in figures.rows.chunk_by(|a, b| a.trace == b.trace) {
        let mut table = table::of_numbers(&HEADER, 2);
        for row in rows {
            table.add_row([
                row.allocator.to_owned(),
                row.after.to_owned(),
                row.objects.to_string(),
                format!("{:.3}", row.allocated_per_compressed),
                format!("{:.1}", row.metadata_bytes_per_page),
                decimals(row.put_ns, 0),
                decimals(row.free_ns, 0),
                decimals(row.compact_ms, 1),
            ]);
        }
        if !text.is_empty() {
            text += "\n";
        }
        text += &format!("trace {}\n{}", rows[0].trace, table::text(&table));
    }
    text
}
