//! Writes the tables of vLLM's nightly benchmarks by columns: `{"serving": {"GPU": {"0": ..., "1": ...}, ...}}`.
//!
//! `pandas.DataFrame.from_dict` reads each of the three tables. Latency and throughput are empty, because they describe
//! runs without a server.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::table::{BenchColumn, COLUMNS};
use super::{BenchResult, BenchRuns};

pub(super) fn write(runs: BenchRuns<'_>) -> String {
    // A map with texts as keys and finite numbers as values always serializes.
    serde_json::to_string(&Tables(runs.all())).unwrap_or_default()
}

/// The three tables. They are serialized directly and not through a JSON value, because the order of the columns
/// matters.
struct Tables<'a>(&'a [BenchResult]);

struct ServingTable<'a>(&'a [BenchResult]);

struct ColumnCells<'a>(&'a [BenchResult], BenchColumn);

struct EmptyTable;

impl Serialize for Tables<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("latency", &EmptyTable)?;
        map.serialize_entry("throughput", &EmptyTable)?;
        map.serialize_entry("serving", &ServingTable(self.0))?;
        map.end()
    }
}

impl Serialize for EmptyTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_map(Some(0))?.end()
    }
}

impl Serialize for ServingTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(COLUMNS.iter().map(|(header, column)| (header, ColumnCells(self.0, *column))))
    }
}

impl Serialize for ColumnCells<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().enumerate().map(|(row, run)| (row.to_string(), self.1.of(run))))
    }
}
