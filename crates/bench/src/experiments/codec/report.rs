//! Rows of results of codecs, as a table for people and as JSON.

use comfy_table::Table;
use serde::Serialize;

use super::measurement::Figures;
use crate::content::page_files::Pages;
use crate::harness::report::Skipped;
use crate::harness::table;
use crate::machine::environment::Environment;

/// Everything a run of `ramfold-bench codec` found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) environment: Environment,
    /// Rounds of which speeds are the medians.
    pub(crate) rounds: usize,
    pub(crate) rows: Vec<Row>,
    pub(crate) skipped: Vec<Skipped>,
}

/// One codec on one file. Speeds are GB (10^9 bytes) of pages a second on one core; `cold` ones
/// with nothing in the caches. Times are nanoseconds a page, instructions are a page's.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) codec: String,
    pub(crate) file: String,
    /// Pages of the file, same-filled ones included; what follows is about the others.
    pub(crate) pages: usize,
    pub(crate) same_filled: usize,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    pub(crate) compress_instructions: Option<f64>,
    pub(crate) decompress_instructions: Option<f64>,
}

impl Row {
    pub(crate) fn new(codec: &str, pages: &Pages, figures: Figures) -> Row {
        Row {
            codec: codec.to_owned(),
            file: pages.name.clone(),
            pages: pages.count,
            same_filled: pages.count - pages.distinct.len(),
            figures,
            compress_instructions: None,
            decompress_instructions: None,
        }
    }

    fn share(&self, bytes: u64) -> f64 {
        let distinct = (self.pages - self.same_filled) as u64;
        100.0 * bytes as f64 / (distinct * ramfold_codec::PAGE_SIZE as u64) as f64
    }
}

/// The table for people.
pub(crate) fn text(report: &Report) -> String {
    let counted = report.rows.iter().any(|row| row.compress_instructions.is_some());
    let mut text = String::new();
    let mut file = "";
    let mut table = Table::new();
    for row in &report.rows {
        if row.file != file {
            text += &table::text(&table);
            text += &format!(
                "{}{}: {} pages, {} same-filled\n",
                if file.is_empty() { "" } else { "\n" },
                row.file,
                row.pages,
                row.same_filled
            );
            file = &row.file;
            table = header(counted);
        }
        let figures = &row.figures;
        let mut cells = vec![
            row.codec.clone(),
            format!("{:.1}", row.share(figures.compressed_bytes)),
            format!("{:.1}", row.share(figures.charged_bytes)),
            figures.incompressible.to_string(),
            format!("{:.2}", figures.compress_gbps),
            format!("{:.2}", figures.decompress_gbps),
            format!("{:.2}", figures.pair_gbps),
            format!("{:.2}", figures.cold_compress_gbps),
            format!("{:.2}", figures.cold_decompress_gbps),
            format!("{}/{}", figures.compress_ns_p50, figures.compress_ns_p99),
            format!("{}/{}", figures.decompress_ns_p50, figures.decompress_ns_p99),
        ];
        if counted {
            let count = |count: Option<f64>| count.map_or("-".to_owned(), |n| format!("{n:.0}"));
            cells.push(count(row.compress_instructions));
            cells.push(count(row.decompress_instructions));
        }
        table.add_row(cells);
    }
    text += &table::text(&table);
    for skipped in &report.skipped {
        text += &format!("without {}: {}\n", skipped.peer, skipped.reason);
    }
    text
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
