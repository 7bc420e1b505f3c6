//! Plain tables for people.

use comfy_table::{CellAlignment, Table, presets};

/// A table without lines, all of whose columns but the first `names` are numbers.
pub(crate) fn of_numbers(header: &[&str], names: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Has a column that is no number.
pub(crate) fn align_left(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Left);
    }
}

/// A number with so many decimals, or `missing`.
pub(crate) fn number(value: Option<f64>, decimals: usize, missing: &str) -> String {
    value.map_or_else(|| missing.to_owned(), |value| format!("{value:.decimals$}"))
}

/// Bytes in MiB with so many decimals, or `missing`.
pub(crate) fn mebibytes(bytes: Option<f64>, decimals: usize, missing: &str) -> String {
    number(bytes.map(|bytes| bytes / f64::from(1u32 << 20)), decimals, missing)
}

/// The table without spaces at the ends of its lines, each of which ends; nothing if it has no
/// rows.
pub(crate) fn text(table: &Table) -> String {
    if table.row_count() == 0 { String::new() } else { format!("{}\n", table.trim_fmt()) }
}
