//! Writes the tables of vLLM's nightly benchmarks, like their `tabulate(..., tablefmt="pipe")`.
//!
//! Numbers with a fraction have six significant digits, and integers all of theirs. Both are aligned at their decimal points. A column is at least two characters
//! wider than its header (python-tabulate, `MIN_PADDING`).

use serde_json::Value as Json;

use super::table::{HeadedColumn, RATES, columns};
use super::{BenchResult, BenchRuns};
use crate::job::BenchTest;

const PADDING: usize = 2;

/// Writes a table for each kind of test.
pub(super) fn write(runs: BenchRuns<'_>) -> String {
    tables(runs, columns)
}

/// Like [`write`], but the serving test has seven columns: the request rate, throughputs and medians.
pub(super) fn write_rates(runs: BenchRuns<'_>) -> String {
    tables(runs, |test| if test == BenchTest::Serving { RATES } else { columns(test) })
}

/// Writes the tables. A title stands above each if there are several.
fn tables(runs: BenchRuns<'_>, columns: impl Fn(BenchTest) -> &'static [HeadedColumn]) -> String {
    let of = |test| -> Vec<&BenchResult> { runs.all().iter().filter(|run| run.test == test).collect() };
    let mut tables: Vec<_> = BenchTest::ALL
        .into_iter()
        .filter(|test| !of(*test).is_empty())
        .map(|test| (test, table(&of(test), columns(test))))
        .collect();
    if tables.len() == 1 {
        return tables.remove(0).1;
    }
    let titled = tables.into_iter().map(|(test, table)| format!("## {}\n\n{table}", title(test)));
    titled.collect::<Vec<_>>().join("\n\n")
}

fn title(test: BenchTest) -> &'static str {
    match test {
        BenchTest::Latency => "Latency tests",
        BenchTest::Throughput => "Throughput tests",
        BenchTest::Serving => "Serving tests",
    }
}

fn table(rows: &[&BenchResult], columns: &[HeadedColumn]) -> String {
    let columns: Vec<_> = columns
        .iter()
        .map(|(header, column)| PaddedColumn::new(header, &rows.iter().map(|run| column.of(run)).collect::<Vec<_>>()))
        .collect();
    let line = |cells: Vec<&str>| format!("| {} |", cells.join(" | "));
    let mut lines = vec![line(columns.iter().map(|column| column.header.as_str()).collect())];
    lines.push(format!("|{}|", columns.iter().map(PaddedColumn::separator).collect::<Vec<_>>().join("|")));
    lines.extend((0..rows.len()).map(|row| line(columns.iter().map(|column| column.cells[row].as_str()).collect())));
    lines.join("\n")
}

/// One column with padded cells. `width` is in characters. Numeric columns are right-aligned.
struct PaddedColumn {
    header: String,
    cells: Vec<String>,
    width: usize,
    is_numeric: bool,
}

impl PaddedColumn {
    fn new(header: &str, values: &[Json]) -> Self {
        // Python reads a column with `inf` as numbers.
        let is_text = |value: &Json| value.as_str().is_some_and(|text| text != "inf");
        let is_numeric = !values.iter().any(is_text);
        let mut cells: Vec<_> = values.iter().map(format_cell).collect();
        if is_numeric {
            align_points(&mut cells);
        }
        let min_width = header.chars().count() + PADDING;
        let width = cells.iter().map(|cell| cell.chars().count()).fold(min_width, usize::max);
        let pad = |cell: &str| if is_numeric { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
        let cells = cells.iter().map(|cell| pad(cell)).collect();
        Self { header: pad(header), cells, width, is_numeric }
    }

    /// Returns the column's part of the line below the header. A colon marks the side of the alignment.
    fn separator(&self) -> String {
        let dashes = "-".repeat(self.width + 1);
        if self.is_numeric { format!("{dashes}:") } else { format!(":{dashes}") }
    }
}

fn format_cell(value: &Json) -> String {
    match value {
        // An unescaped bar would end the cell.
        Json::String(text) => text.replace('|', "\\|"),
        Json::Number(number) if number.is_f64() => number.as_f64().map_or_else(String::new, format_general),
        Json::Null => String::new(),
        other => other.to_string(),
    }
}

/// Pads numbers on the right, so that their decimal points align once the column is padded on the left.
fn align_points(cells: &mut [String]) {
    let fraction_len = |cell: &str| cell.find(['.', 'e']).map_or(0, |point| cell.len() - point);
    let max_len = cells.iter().map(|cell| fraction_len(cell)).max().unwrap_or(0);
    for cell in cells {
        let missing = max_len - fraction_len(cell);
        cell.push_str(&" ".repeat(missing));
    }
}

/// Formats a number like Python's `format(value, "g")`: six significant digits and no zeros at the end. Very large and
/// very small numbers have an exponent.
pub(super) fn format_general(value: f64) -> String {
    const DIGITS: i32 = 6;
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let scientific = format!("{value:.*e}", (DIGITS - 1).unsigned_abs() as usize);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| {
        let whole = !text.contains('.');
        if whole { text.to_owned() } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
    };
    if (-4..DIGITS).contains(&exponent) {
        trim(&format!("{value:.*}", (DIGITS - 1 - exponent).unsigned_abs() as usize))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.unsigned_abs())
    }
}
