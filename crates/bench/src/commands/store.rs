//! `ramfold-bench store`: allocators of objects on the same traces.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use ramfold_codec::{Backend, Choice};
use serde::Serialize;

use crate::allocators::{Lengths, Row, Trace, measure};
use crate::codecs::files::Pages;
use crate::codecs::ours::Ours;
use crate::codecs::{ROOM_BYTES, Subject};
use crate::machine::Environment;
use crate::progress::Progress;

/// Measure the store's allocator beside others, on the same objects: memory for a compressed byte,
/// tables for a page, times.
///
/// The others are paper 003's blocks of 128 bytes in lists, paper 004's resource map over growing chunks,
/// and one by the rules of the kernel's zsmalloc, which zram uses. Every object is checked.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    ramfold bench store\n  \
    ramfold bench store --objects 20000 --json\n  \
    ramfold bench store --pages python.pages gcc.pages   # lengths that auto gives these pages")]
pub struct Options {
    /// Objects at a time
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(100..=4_000_000))]
    objects: u32,
    /// Files of raw 4 KiB pages, as `ramfold dump` writes them: objects are as long as `auto` makes of
    /// these [default: lengths as of heap pages, drawn at random]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pages: Vec<PathBuf>,
    /// Where the random numbers begin
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    environment: Environment,
    rows: Vec<Row>,
}

pub fn execute(options: Options) -> Result<ExitCode> {
    let mut traces = Vec::new();
    if options.pages.is_empty() {
        let lengths = Lengths::heap();
        traces.push(Trace::synthetic("heap", options.objects, &lengths, options.seed));
    }
    for path in &options.pages {
        let pages = Pages::read(path, None)?;
        let lengths = lengths_of(&pages)?;
        traces.push(Trace::synthetic(&pages.name, options.objects, &lengths, options.seed));
    }
    let mut progress = Progress::new(4 * traces.len());
    let rows = measure(&traces, |what| {
        progress.show(what);
        progress.advance();
    });
    progress.clear();
    let report = Report { environment: Environment::read(String::new(), false), rows: rows? };
    let text = if options.json {
        serde_json::to_string_pretty(&report).context("cannot write the report as JSON")? + "\n"
    } else {
        table(&report.rows)
    };
    write!(io::stdout().lock(), "{text}").context("cannot print the report")?;
    Ok(ExitCode::SUCCESS)
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

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut trace = "";
    let mut table = Table::new();
    for row in rows {
        if row.trace != trace {
            if !trace.is_empty() {
                text += &format!("{}\n\n", lines(&table));
            }
            text += &format!("trace {}\n", row.trace);
            trace = &row.trace;
            table = header();
        }
        let ns = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
        table.add_row([
            row.allocator.to_owned(),
            row.after.clone(),
            row.objects.to_string(),
            format!("{:.3}", row.allocated_per_compressed),
            format!("{:.1}", row.metadata_bytes_per_page),
            ns(row.put_ns),
            ns(row.free_ns),
            row.compact_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}")),
        ]);
    }
    text + &lines(&table) + "\n"
}

fn header() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "allocator",
        "after",
        "objects",
        "allocated/compressed",
        "metadata B/page",
        "put ns",
        "free ns",
        "compact ms",
    ]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
