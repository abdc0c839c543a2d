//! The tables of vLLM's nightly benchmarks: in Markdown, and by columns in JSON.
//!
//! A column is known by its header. Headers are those of `convert-results-json-to-markdown.py` (vLLM) and
//! `convert_json_to_markdown.py` (vLLM Ascend). Without a statistic in its header, a latency is the median.

use serde_json::Value as Json;

use super::{ImportedResult, LineProblem};

/// Headers and our names of their metrics.
const METRICS: [(&str, &str); 14] = [
    ("# of req.", "completed"),
    ("Num of reqs", "completed"),
    ("Tput (req/s)", "request_throughput"),
    ("Output Tput (tok/s)", "output_throughput"),
    ("Total Tput (tok/s)", "total_token_throughput"),
    ("Tput (tok/s)", "total_token_throughput"),
    ("Total # of tokens", "total_tokens"),
    ("Total num of tokens", "total_tokens"),
    ("Elapsed time (s)", "duration"),
    ("Mean latency (ms)", "mean_e2el_ms"),
    ("Median latency (ms)", "median_e2el_ms"),
    ("P99 latency (ms)", "p99_e2el_ms"),
    ("Std latency (ms)", "std_e2el_ms"),
    ("P90 latency (ms)", "p90_e2el_ms"),
];

/// The content of a column.
#[derive(Clone, Debug, PartialEq)]
enum TableColumn {
    Name,
    Device,
    Rate,
    Metric(String),
    /// A column without a meaning here.
    Unknown,
}

impl TableColumn {
    fn of(header: &str) -> Self {
        match header {
            "Test name" => return Self::Name,
            "GPU" => return Self::Device,
            "Request rate (req/s)" => return Self::Rate,
            _ => {}
        }
        if let Some((_, name)) = METRICS.iter().find(|(known, _)| *known == header) {
            return Self::Metric((*name).to_owned());
        }
        let Some(words) = header.strip_suffix("(ms)") else { return Self::Unknown };
        let (statistic, latency) = words.trim().rsplit_once(' ').unwrap_or(("Median", words.trim()));
        let (statistic, latency) = (statistic.to_lowercase(), latency.to_lowercase());
        let known = ["ttft", "tpot", "itl", "e2el"].contains(&latency.as_str())
            && (["mean", "median", "std"].contains(&statistic.as_str()) || statistic.starts_with('p'));
        if known { Self::Metric(format!("{statistic}_{latency}_ms")) } else { Self::Unknown }
    }

    /// Writes a cell into a result. Empty cells and null are missing values.
    fn put(&self, result: &mut ImportedResult, line: usize, header: &str, cell: &Json) -> Result<(), LineProblem> {
        let text = cell.as_str().map(str::trim);
        if *self == Self::Unknown || cell.is_null() || text == Some("") {
            return Ok(());
        }
        let number = || {
            let number = cell.as_f64().or_else(|| text?.parse().ok()).filter(|number| !number.is_nan());
            number.ok_or_else(|| LineProblem::new(line, format!("column {header:?}: {cell} is not a number")))
        };
        match self {
            Self::Name => result.name = text.map(|text| text.replace("\\|", "|")),
            Self::Device => result.device = text.map(|text| text.replace("\\|", "|")),
            Self::Rate => result.load.rate = Some(number()?),
            Self::Metric(name) => {
                let value = number()?;
                if name == "completed" {
                    result.load.requests = Some(crate::stats::f64_to_u64(value));
                }
                result.metrics.insert(name.clone(), value);
            }
            Self::Unknown => {}
        }
        Ok(())
    }
}

/// A Markdown table that is being read.
#[derive(Debug)]
pub(super) struct MarkdownTable {
    headers: Vec<String>,
    columns: Vec<TableColumn>,
}

impl MarkdownTable {
    /// Returns a table if the line has the headers of one with results.
    #[must_use]
    pub(super) fn begin(line: &str) -> Option<Self> {
        let headers = cells(line)?;
        let columns: Vec<_> = headers.iter().map(|header| TableColumn::of(header)).collect();
        let has_metric = columns.iter().any(|column| matches!(column, TableColumn::Metric(_)));
        has_metric.then_some(Self { headers, columns })
    }

    /// Reads a row. `None` for the rule below the headers.
    ///
    /// # Errors
    /// If the row has another number of cells, or a cell is not a number.
    pub(super) fn row(&self, number: usize, line: &str) -> Result<Option<ImportedResult>, LineProblem> {
        let incomplete = |count: usize| {
            let problem = format!("the row has {count} of {} columns", self.headers.len());
            LineProblem::cut_off(number, problem)
        };
        let Some(cells) = cells(line) else {
            return Err(incomplete(line.matches('|').count()));
        };
        if cells.len() != self.headers.len() {
            return Err(incomplete(cells.len()));
        }
        if cells.iter().all(|cell| cell.contains('-') && cell.chars().all(|c| c == '-' || c == ':')) {
            return Ok(None);
        }
        let mut result = ImportedResult { line: number, ..ImportedResult::default() };
        for ((column, header), cell) in self.columns.iter().zip(&self.headers).zip(cells) {
            column.put(&mut result, number, header, &Json::String(cell))?;
        }
        Ok(Some(result))
    }
}

/// Splits a row of a Markdown table. `None` if it does not begin and end with a bar. `\|` is a bar within a cell.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|').filter(|inner| !inner.ends_with('\\'))?;
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for c in inner.chars() {
        if c == '|' && !escaped {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push(c);
        }
        escaped = c == '\\';
    }
    Some(cells.into_iter().map(|cell| cell.trim().to_owned()).collect())
}

/// Reads the three tables by columns: `{"latency": {...}, "throughput": {...}, "serving": {"GPU": {"0": ...}}}`.
///
/// # Errors
/// If a column lacks a row that another column has.
pub(super) fn read_columns(
    line: usize,
    tables: &serde_json::Map<String, Json>,
) -> Result<Vec<ImportedResult>, LineProblem> {
    let mut results = Vec::new();
    for (kind, table) in tables {
        let Json::Object(table) = table else {
            return Err(LineProblem::new(line, format!("table {kind:?} is not an object of columns")));
        };
        results.extend(read_table(line, kind, table)?);
    }
    Ok(results)
}

fn read_table(
    line: usize,
    kind: &str,
    table: &serde_json::Map<String, Json>,
) -> Result<Vec<ImportedResult>, LineProblem> {
    let rows = |column: &Json| -> Option<Vec<usize>> {
        let mut rows: Vec<_> = column.as_object()?.keys().map(|key| key.parse().ok()).collect::<Option<_>>()?;
        rows.sort_unstable();
        Some(rows)
    };
    let mut order: Option<Vec<usize>> = None;
    for (header, column) in table {
        let Some(found) = rows(column) else {
            return Err(LineProblem::new(line, format!("column {header:?} of {kind:?} has no numbered rows")));
        };
        if order.as_ref().is_some_and(|order| *order != found) {
            let problem = format!("column {header:?} of {kind:?} has other rows than the first column");
            return Err(LineProblem::cut_off(line, problem));
        }
        order = Some(found);
    }
    let mut results = Vec::new();
    for row in order.unwrap_or_default() {
        let mut result = ImportedResult { line, ..ImportedResult::default() };
        for (header, column) in table {
            let cell = column.get(row.to_string()).unwrap_or(&Json::Null);
            TableColumn::of(header).put(&mut result, line, header, cell)?;
        }
        results.push(result);
    }
    Ok(results)
}
