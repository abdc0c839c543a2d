//! AIPerf's `profile_export_aiperf.json` (and that of its predecessor GenAI-Perf): one result.
//!
//! AIPerf calls the mean gap of a request `inter_token_latency`; here that is TPOT.

use serde_json::Value as Json;

use super::{LineProblem, Members, object};
use crate::import::{ImportedResult, LoadDescription};

/// AIPerf's distributions and our latencies.
const LATENCIES: [(&str, &str); 3] =
    [("time_to_first_token", "ttft"), ("inter_token_latency", "tpot"), ("request_latency", "e2el")];

/// Its single values, whose number is `avg`.
const VALUES: [(&str, &str); 7] = [
    ("request_throughput", "request_throughput"),
    ("output_token_throughput", "output_throughput"),
    ("total_token_throughput", "total_token_throughput"),
    ("request_count", "completed"),
    ("error_request_count", "failed"),
    ("benchmark_duration", "duration"),
    ("goodput", "request_goodput"),
];

const STATISTICS: [(&str, &str); 6] =
    [("avg", "mean"), ("p50", "median"), ("std", "std"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99")];

pub(super) fn read(line: usize, members: &Members) -> Result<Vec<ImportedResult>, LineProblem> {
    if members.get("was_cancelled") == Some(&Json::Bool(true)) {
        return Err(LineProblem::new(line, "the benchmark was cancelled (\"was_cancelled\" is true)"));
    }
    let mut result = ImportedResult { line, ..ImportedResult::default() };
    for (key, latency) in LATENCIES {
        let Some(Json::Object(values)) = members.get(key) else { continue };
        let factor = match values.get("unit").and_then(Json::as_str) {
            None | Some("ms") => 1.0,
            Some("s" | "sec") => 1e3,
            Some("us") => 1e-3,
            Some("ns") => 1e-6,
            Some(unit) => return Err(LineProblem::new(line, format!("{key:?} has the unknown unit {unit:?}"))),
        };
        for (theirs, ours) in STATISTICS {
            let value = values.get(theirs).and_then(Json::as_f64);
            result.metrics.extend(value.map(|value| (format!("{ours}_{latency}_ms"), value * factor)));
        }
    }
    for (key, name) in VALUES {
        let value = members.get(key).and_then(|value| value.get("avg")).and_then(Json::as_f64);
        result.metrics.extend(value.map(|value| (name.to_owned(), value)));
    }
    if !result.metrics.contains_key("mean_e2el_ms") || !result.metrics.contains_key("request_throughput") {
        // Only an export whose values are no objects gets here, since the keys themselves are present.
        object(line, members, "request_latency")?;
        object(line, members, "request_throughput")?;
        return Err(LineProblem::new(line, "\"request_latency\" or \"request_throughput\" has no \"avg\""));
    }
    let whole = Json::Object(members.clone());
    let at = |path: &str| whole.pointer(&format!("/input_config/{path}")).filter(|value| !value.is_null());
    let count = |path: &str| at(path).and_then(Json::as_f64).map(crate::stats::f64_to_u64);
    let length = |key: &str| {
        let mean = members.get(key).and_then(|value| value.get("avg")).and_then(Json::as_f64);
        mean.map(|mean| crate::stats::f64_to_u64(mean.round()))
    };
    result.load = LoadDescription {
        model: at("endpoint/model_names/0").and_then(Json::as_str).map(str::to_owned),
        rate: at("loadgen/request_rate").and_then(Json::as_f64),
        concurrency: count("loadgen/concurrency"),
        requests: count("loadgen/request_count"),
        input_len: length("input_sequence_length"),
        output_len: length("output_sequence_length"),
    };
    result.measured_at = members.get("start_time").and_then(Json::as_str).map(str::to_owned);
    Ok(vec![result])
}
