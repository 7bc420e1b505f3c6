//! Plain tables for people.

use comfy_table::{CellAlignment, Table, presets};

/// A table without lines, all of whose columns but the first `names` are numbers.
pub fn of_numbers(header: &[&str], names: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The table without spaces at the ends of its lines, each of which ends; nothing if it has no rows.
pub fn text(table: &Table) -> String {
    if table.row_count() == 0 { String::new() } else { format!("{}\n", table.trim_fmt()) }
}
