//! CSV: our `trials` and `best`, and the summary of `vllm bench sweep`.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::{ImportedFailure, ImportedLaunch, ImportedResult, LineProblem, launch, object};
use crate::config::Config;
use crate::trial::{FailureKind, Measurement};

/// The first columns of our trials. The parameters follow, then the metrics.
const FIXED: [&str; 7] = ["trial", "state", "reason", "value", "feasible", "startup_s", "elapsed_s"];

/// Reads the rows of a file.
///
/// # Errors
/// If the headers are unknown, or a row has another number of columns.
pub(super) fn read(content: &str) -> Result<Vec<ImportedResult>, LineProblem> {
    let mut reader = csv::Reader::from_reader(content.as_bytes());
    let headers = reader.headers().map_err(|error| problem(&error))?.clone();
    let is_own = FIXED.iter().zip(&headers).all(|(fixed, header)| *fixed == header) && headers.len() > FIXED.len();
    let is_sweep =
        ["completed", "duration", "run_number"].iter().all(|key| headers.iter().any(|header| header == *key));
    if !is_own && !is_sweep {
        let hint = "readable are `setpoint trials --format csv` and the summary.csv of vllm bench sweep";
        let problem = format!("the columns {} are unknown", headers.iter().take(6).collect::<Vec<_>>().join(", "));
        return Err(LineProblem { line: 1, problem, hint: Some(hint.to_owned()) });
    }
    let mut results = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| problem(&error))?;
        let line = record.position().map_or(0, |position| usize::try_from(position.line()).unwrap_or(usize::MAX));
        let cells: Vec<_> = headers.iter().zip(&record).filter(|(_, cell)| !cell.is_empty()).collect();
        if is_own {
            results.push(own(line, &headers, &cells)?);
        } else {
            let members: Map<String, Json> =
                cells.iter().map(|(header, cell)| ((*header).to_owned(), json(cell))).collect();
            results.extend(object::read(line, &Json::Object(members))?);
        }
    }
    if !content.ends_with('\n') {
        let last = content.lines().count();
        return Err(LineProblem::cut_off(last, "the last row has no line end"));
    }
    Ok(results)
}

fn problem(error: &csv::Error) -> LineProblem {
    let line = error.position().map_or(0, |position| usize::try_from(position.line()).unwrap_or(usize::MAX));
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            LineProblem::cut_off(line, format!("the row has {len} of {expected_len} columns"))
        }
        _ => LineProblem::new(line, error.to_string()),
    }
}

fn json(cell: &str) -> Json {
    cell.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map_or_else(|| cell.into(), Json::Number)
}

/// Reads a row of our trials.
fn own(line: usize, headers: &csv::StringRecord, cells: &[(&str, &str)]) -> Result<ImportedResult, LineProblem> {
    let cell = |name: &str| cells.iter().find(|(header, _)| *header == name).map(|(_, cell)| *cell);
    let first = headers.iter().position(|header| header == Measurement::NAMES[0]).unwrap_or(headers.len());
    let parameters: Vec<_> = headers.iter().take(first).skip(FIXED.len()).collect();
    let (mut config, mut metrics) = (Config::new(), BTreeMap::new());
    for (header, cell) in cells {
        if parameters.contains(header) {
            config.set(*header, launch::value_of(cell));
        } else if Measurement::NAMES.contains(header) {
            let value: f64 = cell
                .parse()
                .map_err(|_| LineProblem::new(line, format!("column {header:?}: {cell:?} is not a number")))?;
            metrics.insert((*header).to_owned(), value);
        }
    }
    let state = cell("state").unwrap_or_default();
    let failure = (state != "measured").then(|| {
        let reason = cell("reason").unwrap_or_default();
        let (code, message) = reason.split_once(": ").unwrap_or(("", reason));
        let rule = (state == "rejected").then(|| code.to_owned());
        ImportedFailure { message: message.to_owned(), kind: FailureKind::from_name(code), rule }
    });
    if failure.is_none() && metrics.is_empty() {
        return Err(LineProblem::new(line, "the trial is measured, but has no metric"));
    }
    let launch = Some(ImportedLaunch { config, ..ImportedLaunch::default() });
    Ok(ImportedResult { line, launch, metrics, failure, ..ImportedResult::default() })
}
