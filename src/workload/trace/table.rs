//! Reads CSV traces. The names of the columns determine the layout.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::Row;
use crate::workload::WorkloadError;

/// The columns of one publisher's traces. A file may have further columns.
struct Layout {
    at: Option<&'static str>,
    input: &'static str,
    output: &'static str,
}

/// In order: Azure LLM inference (<https://github.com/Azure/AzurePublicDataset>); the same data with seconds since the
/// first request; BurstGPT (<https://github.com/HPMLL/BurstGPT>); lengths without times.
const LAYOUTS: [Layout; 4] = [
    Layout { at: Some("TIMESTAMP"), input: "ContextTokens", output: "GeneratedTokens" },
    Layout { at: Some("arrival_s"), input: "input_tokens", output: "output_tokens" },
    Layout { at: Some("Timestamp"), input: "Request tokens", output: "Response tokens" },
    Layout { at: None, input: "input_length", output: "output_length" },
];

pub(super) fn read(file: &Path, reader: impl Read) -> Result<Vec<Row>, WorkloadError> {
    let error = |line: u64, problem: String| WorkloadError::Row { file: file.to_owned(), line, problem };
    let broken = |problem: csv::Error| error(problem.position().map_or(1, csv::Position::line), problem.to_string());
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(reader);
    let header = reader.headers().map_err(broken)?.clone();
    let place = |name: &str| header.iter().position(|column| column.trim_start_matches('\u{feff}') == name);
    let found = LAYOUTS.iter().find_map(|layout| {
        let at = match layout.at {
            Some(name) => Some(place(name)?),
            None => None,
        };
        Some((layout, at, place(layout.input)?, place(layout.output)?))
    });
    let Some((layout, at, input, output)) = found else {
        let known = LAYOUTS.map(|layout| {
            let at = layout.at.map(|at| format!("{at}, ")).unwrap_or_default();
            format!("{at}{}, {}", layout.input, layout.output)
        });
        let columns: Vec<_> = header.iter().collect();
        let problem =
            format!("the columns {} match no known trace; known are {}", columns.join(", "), known.join("; "));
        return Err(error(1, problem));
    };
    let mut rows = Vec::new();
    // The reference of dates with times of day, set by the first row.
    let mut midnight = None;
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let line = record.position().map_or(0, csv::Position::line);
        let field = |place: usize| record.get(place).unwrap_or_default();
        let tokens = |name: &str, place: usize| {
            let text = field(place);
            let problem = || error(line, format!("{name}: {text:?} is not a number of tokens"));
            text.parse::<u32>().map_err(|_| problem())
        };
        let at = match at.map(|place| (field(place), time(field(place), &mut midnight))) {
            None => None,
            Some((_, Some(at))) => Some(at),
            Some((text, None)) => {
                let name = layout.at.unwrap_or_default();
                return Err(error(line, format!("{name}: {text:?} is not a time")));
            }
        };
        let (input, output) = (tokens(layout.input, input)?, tokens(layout.output, output)?);
        rows.push(Row { at, input, output, blocks: Vec::new() });
    }
    Ok(rows)
}

/// Parses a time: seconds, or a date and time of day, counted from the reference midnight.
fn time(text: &str, midnight: &mut Option<jiff::civil::DateTime>) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at: jiff::civil::DateTime = text.parse().ok()?;
    // The reference is the midnight of the day before, in case the first row is not the earliest.
    let midnight = match midnight {
        Some(midnight) => *midnight,
        None => *midnight.insert(at.date().yesterday().ok()?.to_datetime(jiff::civil::Time::midnight())),
    };
    Duration::try_from(at.duration_since(midnight)).ok()
}
