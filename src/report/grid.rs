//! Tables whose columns are known only at run time.

use comfy_table::{CellAlignment, Table, presets};

/// Returns the rows below their header, in the style of all other tables. `numbers` are the indices of right-aligned
/// columns.
#[must_use]
pub(super) fn grid(header: &[&str], numbers: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    for index in numbers {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.add_rows(rows);
    table.to_string()
}
