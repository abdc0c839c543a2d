//! Writes the tables of vLLM's nightly benchmarks by columns: `{"serving": {"GPU": {"0": ..., "1": ...}, ...}}`.
//!
//! `pandas.DataFrame.from_dict` reads each of the three tables. A table without a run is empty.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::table::{BenchColumn, columns};
use super::{BenchResult, BenchRuns};
use crate::job::BenchTest;

pub(super) fn write(runs: BenchRuns<'_>) -> String {
    // A map with texts as keys and finite numbers as values always serializes.
    serde_json::to_string(&Tables(runs.all())).unwrap_or_default()
}

/// The three tables. They are serialized directly and not through a JSON value, because the order of the columns
/// matters.
struct Tables<'a>(&'a [BenchResult]);

struct TestTable<'a> {
    test: BenchTest,
    runs: Vec<&'a BenchResult>,
}

struct ColumnCells<'a>(&'a [&'a BenchResult], BenchColumn);

impl Serialize for Tables<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let table = |test: BenchTest| {
            let runs = self.0.iter().filter(|run| run.test == test).collect();
            (test.name(), TestTable { test, runs })
        };
        serializer.collect_map(BenchTest::ALL.map(table))
    }
}

impl Serialize for TestTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.runs.is_empty() {
            return serializer.serialize_map(Some(0))?.end();
        }
        let columns = columns(self.test);
        serializer.collect_map(columns.iter().map(|(header, column)| (header, ColumnCells(&self.runs, *column))))
    }
}

impl Serialize for ColumnCells<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().enumerate().map(|(row, run)| (row.to_string(), self.1.of(run))))
    }
}
