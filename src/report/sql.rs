//! Renders the result of a user's query.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value as Json, json};

use super::grid::grid;
use crate::store::{SqlResult, SqlValue};

/// Returns the rows with a header. NULL is shown as `NULL`, and a blob as the literal `x'...'`.
#[must_use]
pub(crate) fn sql_table(result: &SqlResult) -> String {
    let header: Vec<_> = result.columns.iter().map(String::as_str).collect();
    let is_number =
        |index: &usize| result.rows.iter().all(|row| !matches!(row[*index], SqlValue::Text(_) | SqlValue::Blob(_)));
    let numbers: Vec<_> = (0..header.len()).filter(is_number).collect();
    let rows = result.rows.iter().map(|row| row.iter().map(|value| cell(value, "NULL")).collect()).collect();
    grid(&header, &numbers, rows)
}

/// Returns an object for each row. The second column of a name gets the suffix `:2`, so that none is lost.
#[must_use]
pub(crate) fn sql_json(result: &SqlResult) -> Json {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let names: Vec<_> = result
        .columns
        .iter()
        .map(|name| {
            let count = seen.entry(name).or_default();
            *count += 1;
            if *count == 1 { name.clone() } else { format!("{name}:{count}") }
        })
        .collect();
    let object =
        |row: &Vec<SqlValue>| Json::Object(names.iter().cloned().zip(row.iter().map(json_of)).collect::<Map<_, _>>());
    result.rows.iter().map(object).collect()
}

fn json_of(value: &SqlValue) -> Json {
    match value {
        SqlValue::Null => Json::Null,
        SqlValue::Integer(integer) => json!(integer),
        // JSON has no infinity.
        SqlValue::Real(real) if real.is_finite() => json!(real),
        SqlValue::Real(_) | SqlValue::Blob(_) => json!(cell(value, "")),
        SqlValue::Text(text) => json!(text),
    }
}

/// Writes a header and the rows. NULL is empty.
///
/// # Errors
/// Never in practice: the writer is a buffer in memory.
pub(crate) fn sql_csv(result: &SqlResult) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&result.columns)?;
    for row in &result.rows {
        writer.write_record(row.iter().map(|value| cell(value, "")))?;
    }
    super::csv::text_of(writer)
}

fn cell(value: &SqlValue, null: &str) -> String {
    match value {
        SqlValue::Null => null.to_owned(),
        SqlValue::Integer(integer) => integer.to_string(),
        SqlValue::Real(real) => real.to_string(),
        SqlValue::Text(text) => text.clone(),
        SqlValue::Blob(bytes) => {
            bytes.iter().fold("x'".to_owned(), |mut text, byte| {
                // Writing to a string cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            }) + "'"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> SqlResult {
        let columns = ["a", "a", "text"].map(str::to_owned).to_vec();
        let row = |a, text: &str| vec![a, SqlValue::Null, SqlValue::Text(text.to_owned())];
        let blob = SqlValue::Blob(vec![0, 255]);
        SqlResult {
            columns,
            rows: vec![
                row(SqlValue::Integer(i64::MAX), "x,\"y\""),
                row(blob, ""),
                row(SqlValue::Real(f64::INFINITY), "é"),
            ],
        }
    }

    #[test]
    fn json_keeps_types_and_both_columns_of_one_name() {
        let expected = json!([
            {"a": i64::MAX, "a:2": null, "text": "x,\"y\""},
            {"a": "x'00ff'", "a:2": null, "text": ""},
            {"a": "inf", "a:2": null, "text": "é"},
        ]);
        assert_eq!(sql_json(&result()), expected);
        assert_eq!(sql_json(&SqlResult { rows: Vec::new(), ..result() }), json!([]));
    }

    #[test]
    fn csv_is_quoted_and_has_empty_cells_for_null() {
        assert_eq!(
            sql_csv(&result()).unwrap(),
            format!("a,a,text\n{},,\"x,\"\"y\"\"\"\nx'00ff',,\ninf,,é\n", i64::MAX)
        );
    }

    #[test]
    fn a_table_shows_null_and_has_a_header_without_rows() {
        let lines = sql_table(&result());
        assert!(lines.lines().nth(2).is_some_and(|line| line.contains("x'00ff'") && line.contains("NULL")), "{lines}");
        assert!(sql_table(&SqlResult { rows: Vec::new(), ..result() }).contains("text"));
    }
}
