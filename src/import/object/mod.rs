//! JSON documents: the shape of an object decides its reader.

mod aiperf;
mod guidellm;
mod own;
mod run_file;
mod served;
mod summary;

use serde_json::{Map, Value as Json};

use super::{ImportedResult, LineProblem, table};

/// The members of an object.
type Members = Map<String, Json>;

/// A kind of JSON object with results.
struct ObjectShape {
    name: &'static str,
    /// Keys that an object of this shape has, and no object of an earlier shape.
    keys: &'static [&'static str],
    read: fn(usize, &Members) -> Result<Vec<ImportedResult>, LineProblem>,
}

/// Every shape, tried in this order.
const SHAPES: [ObjectShape; 7] = [
    ObjectShape { name: "our trial", keys: &["trial", "study", "config"], read: own::read },
    ObjectShape { name: "a GuideLLM report", keys: &["benchmarks"], read: guidellm::read },
    ObjectShape { name: "an AIPerf export", keys: &["request_latency", "request_throughput"], read: aiperf::read },
    ObjectShape { name: "tables by columns", keys: &["latency", "throughput", "serving"], read: table::read_columns },
    ObjectShape {
        name: "a summary of requests",
        keys: &["total_requests", "successful_requests", "total_time"],
        read: summary::read,
    },
    ObjectShape {
        name: "a run's file",
        keys: &["input_length", "output_length", "successful_requests"],
        read: run_file::read,
    },
    ObjectShape { name: "a result of vllm bench serve", keys: &["completed", "duration"], read: served::read },
];

/// Reads the results of a JSON value: an object of a known shape, or a list of them.
///
/// # Errors
/// If the shape is unknown, or a field is missing or has another type.
pub(super) fn read(line: usize, json: &Json) -> Result<Vec<ImportedResult>, LineProblem> {
    match json {
        Json::Array(items) => {
            let mut results = Vec::new();
            for item in items {
                results.extend(read(line, item)?);
            }
            Ok(results)
        }
        Json::Object(members) => {
            let has_all = |shape: &&ObjectShape| shape.keys.iter().all(|key| members.contains_key(*key));
            let Some(shape) = SHAPES.iter().find(has_all) else { return Err(unknown(line, members)) };
            (shape.read)(line, members)
        }
        other => Err(LineProblem::new(line, format!("{other} is neither an object with results nor a list of them"))),
    }
}

fn unknown(line: usize, members: &Members) -> LineProblem {
    let keys: Vec<_> = members.keys().take(6).map(String::as_str).collect();
    let more = if members.len() > keys.len() { ", ..." } else { "" };
    let shapes: Vec<_> = SHAPES.iter().map(|shape| format!("{} ({})", shape.name, shape.keys.join(", "))).collect();
    let problem = format!("no known shape of results has the keys {}{more}", keys.join(", "));
    LineProblem { line, problem, hint: Some(format!("known are {}", shapes.join("; "))) }
}

/// Returns a number.
///
/// # Errors
/// If it is absent or has another type.
fn number(line: usize, members: &Members, key: &str) -> Result<f64, LineProblem> {
    match members.get(key) {
        Some(value) => {
            value.as_f64().ok_or_else(|| LineProblem::new(line, format!("{key:?} is {value} instead of a number")))
        }
        None => Err(LineProblem::new(line, format!("{key:?} is missing"))),
    }
}

/// Returns an object.
///
/// # Errors
/// If it is absent or has another type.
fn object<'a>(line: usize, members: &'a Members, key: &str) -> Result<&'a Members, LineProblem> {
    let found = members.get(key).and_then(Json::as_object);
    found.ok_or_else(|| LineProblem::new(line, format!("{key:?} is not an object with values")))
}

/// Returns a whole number if there is one.
fn count(members: &Members, key: &str) -> Option<u64> {
    members.get(key)?.as_f64().map(crate::stats::f64_to_u64)
}

fn text(members: &Members, key: &str) -> Option<String> {
    members.get(key)?.as_str().map(str::to_owned)
}
