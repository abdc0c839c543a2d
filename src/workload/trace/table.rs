//! Reads CSV traces. The names of the columns determine the layout.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use jiff::civil::DateTime;

use super::Row;
use crate::workload::WorkloadError;

/// The columns of one publisher's traces. A file may have further columns.
struct Layout {
    at: Option<&'static str>,
    input: &'static str,
    output: &'static str,
}

const LAYOUTS: [Layout; 4] = [
    // Azure LLM inference (<https://github.com/Azure/AzurePublicDataset>).
    Layout { at: Some("TIMESTAMP"), input: "ContextTokens", output: "GeneratedTokens" },
    // The same data with seconds since the first request.
    Layout { at: Some("arrival_s"), input: "input_tokens", output: "output_tokens" },
    // BurstGPT (<https://github.com/HPMLL/BurstGPT>).
    Layout { at: Some("Timestamp"), input: "Request tokens", output: "Response tokens" },
    // Lengths without times.
    Layout { at: None, input: "input_length", output: "output_length" },
];

pub(super) fn read(file: &Path, reader: impl Read) -> Result<Vec<Row>, WorkloadError> {
    let error = |line: u64, problem: String| WorkloadError::Row { file: file.to_owned(), line, problem };
    let broken = |problem: csv::Error| error(problem.position().map_or(1, csv::Position::line), problem.to_string());
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(reader);
    let header = reader.headers().map_err(broken)?.clone();
    let column_index = |name: &str| header.iter().position(|column| column.trim_start_matches('\u{feff}') == name);
    let found = LAYOUTS.iter().find_map(|layout| {
        let at = match layout.at {
            Some(name) => Some(column_index(name)?),
            None => None,
        };
        Some((layout, at, column_index(layout.input)?, column_index(layout.output)?))
    });
    let Some((layout, at, input, output)) = found else {
        let known = LAYOUTS.map(|layout| {
            let at = layout.at.map(|at| format!("{at}, ")).unwrap_or_default();
            format!("{at}{}, {}", layout.input, layout.output)
        });
        let columns: Vec<_> = header.iter().collect();
        let problem = format!(
            "the columns {} match no known trace; rename them to one of these sets: {}",
            columns.join(", "),
            known.join("; ")
        );
        return Err(error(1, problem));
    };
    let mut rows = Vec::new();
    let mut clock = None;
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let line = record.position().map_or(1, csv::Position::line);
        let field = |column: usize| record.get(column).unwrap_or_default();
        let tokens = |name: &str, column: usize| {
            let text = field(column);
            let problem = || error(line, format!("{name}: {text:?} is not a number of tokens"));
            text.parse::<u32>().map_err(|_| problem())
        };
        let at = match (layout.at, at) {
            (Some(name), Some(column)) => {
                let problem = |problem: String| error(line, format!("{name}: {problem}"));
                Some(read_time(field(column), &mut clock).map_err(problem)?)
            }
            _ => None,
        };
        let (input, output) = (tokens(layout.input, input)?, tokens(layout.output, output)?);
        rows.push(Row { at, input, output, blocks: Vec::new() });
    }
    Ok(rows)
}

/// The form of a trace's times. Only the differences between times matter, so each form has an origin of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceClock {
    /// Seconds since any origin.
    Seconds,
    /// Dates with times of day. The origin is the earliest date that can be written, so no date lies before it.
    Dates,
}

/// Parses a time, as the duration since its clock's origin. `clock` is that of the rows before.
fn read_time(text: &str, clock: &mut Option<TraceClock>) -> Result<Duration, String> {
    let (form, at) = if let Ok(seconds) = text.parse::<f64>() {
        let at = Duration::try_from_secs_f64(seconds);
        (
            TraceClock::Seconds,
            at.map_err(|_| format!("{text} s is out of range; seconds must be finite and at least 0"))?,
        )
    } else {
        let at = text.parse().ok().and_then(|at: DateTime| Duration::try_from(at.duration_since(DateTime::MIN)).ok());
        let problem = || {
            format!(
                "{text:?} is not a time; write seconds such as 4.75, or a date and time such as 2023-11-16 18:17:03"
            )
        };
        (TraceClock::Dates, at.ok_or_else(problem)?)
    };
    if *clock.get_or_insert(form) != form {
        return Err(format!(
            "{text:?} and the times before it have different forms; write all as seconds or all as dates"
        ));
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(texts: &[&str]) -> Result<Vec<Duration>, String> {
        let lines: Vec<_> = texts.iter().map(|text| format!("{text},1,1\n")).collect();
        let text = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{}", lines.concat());
        let rows = read(Path::new("trace.csv"), text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(rows.into_iter().filter_map(|row| row.at).collect())
    }

    #[test]
    fn a_row_may_be_days_earlier_than_the_first() {
        let times = times(&["2023-11-16 00:00:01", "2023-11-10 00:00:00", "2023-11-16 00:00:03.5"]).unwrap();
        assert_eq!(times[0].checked_sub(times[1]), Some(Duration::from_secs(6 * 86_400 + 1)));
        assert_eq!(times[2].checked_sub(times[0]), Some(Duration::from_millis(2500)));
    }

    #[test]
    fn a_time_that_cannot_be_used_is_an_error_with_its_reason() {
        for (texts, problem) in [
            (&["-2"][..], ":2: TIMESTAMP: -2 s is out of range; seconds must be finite and at least 0"),
            (&["1", "inf"], ":3: TIMESTAMP: inf s is out of range"),
            (&["noon"], ":2: TIMESTAMP: \"noon\" is not a time; write seconds such as 4.75, or a date and time"),
            (&["1", "2023-11-16 00:00:01"], ":3: TIMESTAMP: \"2023-11-16 00:00:01\" and the times before it"),
        ] {
            let error = times(texts).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
