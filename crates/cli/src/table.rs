//! Tables as all commands print them.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Row, Table};

/// A table without lines, with these headings.
pub(crate) fn table(headings: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(headings);
    table
}

/// Figures are aligned to the right, in all columns but the first ones.
pub(crate) fn align_figures(table: &mut Table, words: usize) {
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
