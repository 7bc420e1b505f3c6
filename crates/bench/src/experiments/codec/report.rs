//! Rows of results of codecs, as a table for people and as JSON.

use comfy_table::Table;
use serde::Serialize;

use super::measurement::Speeds;
use crate::content::page_files::Pages;
use crate::harness::report::Skipped;
use crate::harness::table;

/// All rows, and the peers that are missing.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    /// Rounds of which speeds are the medians.
    pub(super) rounds: usize,
    pub(super) rows: Vec<Row>,
    pub(super) skipped: Vec<Skipped>,
}

/// One codec on one file. Speeds are GB (10^9 bytes) of pages a second on one core; `cold` ones
/// with nothing in the caches. Times are nanoseconds a page, instructions are a page's.
#[derive(Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) codec: String,
    pub(super) file: String,
    /// Pages of the file, same-filled ones included; what follows is about the others.
    pub(super) pages: usize,
    pub(super) same_filled: usize,
    #[serde(flatten)]
    pub(super) speeds: Speeds,
    pub(super) compress_instructions: Option<f64>,
    pub(super) decompress_instructions: Option<f64>,
}

impl Row {
    pub(super) fn new(codec: &str, pages: &Pages, speeds: Speeds) -> Row {
        Row {
            codec: codec.to_owned(),
            file: pages.name.clone(),
            pages: pages.count,
            same_filled: pages.count - pages.distinct.len(),
            speeds,
            compress_instructions: None,
            decompress_instructions: None,
        }
    }

    fn share(&self, bytes: u64) -> f64 {
        let distinct = (self.pages - self.same_filled) as u64;
        100.0 * bytes as f64 / (distinct * ramfold_codec::PAGE_SIZE as u64) as f64
    }
}

/// The tables for people, one for each file.
pub(super) fn text(figures: &Figures) -> String {
    let counted = figures.rows.iter().any(|row| row.compress_instructions.is_some());
    let mut tables = Vec::new();
    for rows in figures.rows.chunk_by(|one, next| one.file == next.file) {
        let mut table = header(counted);
        rows.iter().for_each(|row| {
            table.add_row(cells(row, counted));
        });
        let Row { file, pages, same_filled, .. } = &rows[0];
        let title = format!("{file}: {pages} pages, {same_filled} same-filled\n");
        tables.push(title + &table::text(&table));
    }
    let mut text = tables.join("\n");
    for skipped in &figures.skipped {
        text += &format!("without {}: {}\n", skipped.peer, skipped.reason);
    }
    text
}

fn cells(row: &Row, counted: bool) -> Vec<String> {
    let speeds = &row.speeds;
    let mut cells = vec![
        row.codec.clone(),
        format!("{:.1}", row.share(speeds.compressed_bytes)),
        format!("{:.1}", row.share(speeds.charged_bytes)),
        speeds.incompressible.to_string(),
        format!("{:.2}", speeds.compress_gbps),
        format!("{:.2}", speeds.decompress_gbps),
        format!("{:.2}", speeds.pair_gbps),
        format!("{:.2}", speeds.cold_compress_gbps),
        format!("{:.2}", speeds.cold_decompress_gbps),
        format!("{}/{}", speeds.compress_ns_p50, speeds.compress_ns_p99),
        format!("{}/{}", speeds.decompress_ns_p50, speeds.decompress_ns_p99),
    ];
    if counted {
        cells.push(table::number(row.compress_instructions, 0, "-"));
        cells.push(table::number(row.decompress_instructions, 0, "-"));
    }
    cells
}

fn header(counted: bool) -> Table {
    let mut header = vec![
        "codec",
        "size %",
        "charged %",
        "incompr.",
        "comp GB/s",
        "decomp",
        "pair",
        "cold comp",
        "cold dec",
        "comp ns p50/p99",
        "dec ns p50/p99",
    ];
    if counted {
        header.extend(["comp instr.", "dec instr."]);
    }
    table::of_numbers(&header, 1)
}
