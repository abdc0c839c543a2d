//! GuideLLM's `benchmarks.json`: one result for each benchmark of the report.
//!
//! GuideLLM divides the time after the first token by the number of later tokens and calls it `inter_token_latency_ms`;
//! here that is TPOT. Its own `time_per_output_token_ms` includes the first token and has no counterpart.

use serde_json::Value as Json;

use super::{LineProblem, Members, object, text};
use crate::import::{ImportedResult, LoadDescription};

/// GuideLLM's distributions over requests: key, our latency, factor to milliseconds.
const LATENCIES: [(&str, &str, f64); 3] = [
    ("time_to_first_token_ms", "ttft", 1.0),
    ("inter_token_latency_ms", "tpot", 1.0),
    ("request_latency", "e2el", 1e3),
];

/// Its rates over the benchmark's duration, whose mean is the throughput.
const RATES: [(&str, &str); 3] = [
    ("requests_per_second", "request_throughput"),
    ("output_tokens_per_second", "output_throughput"),
    ("tokens_per_second", "total_token_throughput"),
];

/// Statistics: our names, and the path in a distribution.
const STATISTICS: [(&str, &str); 6] = [
    ("mean", "/mean"),
    ("median", "/median"),
    ("std", "/std_dev"),
    ("p90", "/percentiles/p90"),
    ("p95", "/percentiles/p95"),
    ("p99", "/percentiles/p99"),
];

pub(super) fn read(line: usize, members: &Members) -> Result<Vec<ImportedResult>, LineProblem> {
    let Some(Json::Array(benchmarks)) = members.get("benchmarks") else {
        return Err(LineProblem::new(line, "\"benchmarks\" is not a list"));
    };
    let mut results = Vec::new();
    for (index, benchmark) in benchmarks.iter().enumerate() {
        let problem = |problem: LineProblem| {
            let text = format!("benchmark {index}: {}", problem.problem);
            LineProblem { problem: text, ..problem }
        };
        let Json::Object(benchmark) = benchmark else {
            return Err(problem(LineProblem::new(line, "it is not an object")));
        };
        results.push(read_benchmark(line, benchmark, members).map_err(problem)?);
    }
    Ok(results)
}

fn read_benchmark(line: usize, benchmark: &Members, report: &Members) -> Result<ImportedResult, LineProblem> {
    let metrics = object(line, benchmark, "metrics")?;
    let mut result = ImportedResult { line, ..ImportedResult::default() };
    for (key, latency, factor) in LATENCIES {
        let distribution = successful(metrics, key);
        for (statistic, path) in STATISTICS {
            if let Some(value) = distribution.and_then(|values| values.pointer(path)).and_then(Json::as_f64) {
                result.metrics.insert(format!("{statistic}_{latency}_ms"), value * factor);
            }
        }
    }
    for (key, name) in RATES {
        let mean = successful(metrics, key).and_then(|values| values.get("mean")).and_then(Json::as_f64);
        result.metrics.extend(mean.map(|mean| (name.to_owned(), mean)));
    }
    if result.metrics.is_empty() {
        return Err(LineProblem::new(line, "\"metrics\" has none of the expected distributions"));
    }
    let whole = Json::Object(benchmark.clone());
    let first = |paths: &[&str]| paths.iter().find_map(|path| whole.pointer(path).filter(|value| !value.is_null()));
    let count_at = |paths: &[&str]| first(paths).and_then(Json::as_f64);
    for (name, paths) in [
        ("completed", &["/request_totals/successful", "/metrics/request_totals/successful"][..]),
        ("failed", &["/request_totals/errored", "/metrics/request_totals/errored"]),
        ("duration", &["/duration"]),
    ] {
        result.metrics.extend(count_at(paths).map(|value| (name.to_owned(), value)));
    }
    let strategy = ["/args/strategy", "/config/strategy", "/scheduler/strategy"];
    let strategy = first(&strategy).and_then(Json::as_object).cloned().unwrap_or_default();
    let is_throughput = text(&strategy, "type_").is_some_and(|kind| kind == "throughput");
    let args = report.get("args").and_then(Json::as_object).cloned().unwrap_or_default();
    let mean_tokens = |key: &str| {
        let mean = successful(metrics, key).and_then(|values| values.get("mean")).and_then(Json::as_f64);
        mean.map(|mean| crate::stats::f64_to_u64(mean.round()))
    };
    result.load = LoadDescription {
        model: text(&args, "model"),
        rate: strategy.get("rate").and_then(Json::as_f64).or(is_throughput.then_some(f64::INFINITY)),
        concurrency: super::count(&strategy, "streams"),
        requests: None,
        input_len: mean_tokens("prompt_token_count"),
        output_len: mean_tokens("output_token_count"),
    };
    Ok(result)
}

/// Returns the distribution over the successful requests.
fn successful<'a>(metrics: &'a Members, key: &str) -> Option<&'a Json> {
    metrics.get(key)?.get("successful")
}
