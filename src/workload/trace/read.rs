//! Reads the rows of a trace file. The first character distinguishes CSV and JSONL.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::{BLOCK, Row, table};
use crate::workload::{WorkloadError, json_problem};

/// Reads all rows, in the file's order.
///
/// # Errors
/// The error names the file, the line, the field and the value.
pub(super) fn read(file: &Path) -> Result<Vec<Row>, WorkloadError> {
    let error =
        |error: &dyn std::fmt::Display| WorkloadError::Read { file: file.to_owned(), problem: error.to_string() };
    let mut reader = BufReader::new(File::open(file).map_err(|problem| error(&problem))?);
    let begin = reader.fill_buf().map_err(|problem| error(&problem))?;
    let is_json = begin.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if is_json { json(file, reader) } else { table::read(file, reader) }
}

/// A line of a Mooncake trace: milliseconds, tokens, and the hashes of the prompt's blocks.
#[derive(Deserialize)]
struct Line {
    timestamp: Option<f64>,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

fn json(file: &Path, reader: impl BufRead) -> Result<Vec<Row>, WorkloadError> {
    let mut rows: Vec<Row> = Vec::new();
    for (line, text) in (1..).zip(reader.lines()) {
        let error = |problem: String| WorkloadError::Row { file: file.to_owned(), line, problem };
        let text = text.map_err(|problem| error(problem.to_string()))?;
        if text.trim().is_empty() {
            continue;
        }
        let read: Line = serde_json::from_str(&text).map_err(|problem| error(json_problem(&problem)))?;
        let at = match read.timestamp {
            Some(ms) => match Duration::try_from_secs_f64(ms / 1000.0) {
                Ok(at) => Some(at),
                Err(_) => return Err(error(format!("timestamp: {ms} is not a time in milliseconds"))),
            },
            None => None,
        };
        if at.is_none() && rows.first().is_some_and(|first| first.at.is_some()) {
            return Err(error("timestamp: is missing, and other lines have it".to_owned()));
        }
        let most = read.input_length.div_ceil(BLOCK);
        if read.hash_ids.len() > most as usize {
            let (blocks, tokens) = (read.hash_ids.len(), read.input_length);
            return Err(error(format!(
                "hash_ids: {blocks} blocks, but {tokens} tokens fill at most {most} blocks of {BLOCK}"
            )));
        }
        rows.push(Row { at, input: read.input_length, output: read.output_length, blocks: read.hash_ids });
    }
    if let Some(first) = rows.first().filter(|first| first.at.is_none())
        && rows.iter().any(|row| row.at.is_some())
    {
        let problem = format!("timestamp: is missing, and other lines have it ({} tokens)", first.input);
        return Err(WorkloadError::Row { file: file.to_owned(), line: 1, problem });
    }
    Ok(rows)
}
