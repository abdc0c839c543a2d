//! Writes summaries of requests: the line of used GPU memory, and JSON with averages and percentiles in seconds.
//!
//! A percentile of the speed is the speed that this share of the requests reached, so that p95 is below p50. Speed and
//! time per output token leave out the first token. A value that the run lacks is null.

use serde::Serialize;

use super::{BenchResult, BenchRuns};

/// Mean number of prompt tokens above which the context counts as long.
const LONG_CONTEXT: f64 = 8192.0;

/// The fields in their order.
#[derive(Debug, Serialize)]
struct Summary {
    total_requests: u64,
    successful_requests: u64,
    concurrency: Option<u64>,
    request_timeout: f64,
    max_output_tokens: Option<u32>,
    use_long_context: bool,
    total_time: f64,
    requests_per_second: Option<f64>,
    total_output_tokens: u64,
    latency: Percentiles,
    tokens_per_second: Percentiles,
    #[serde(rename = "time_to_first_token(ttft)")]
    ttft: Percentiles,
    #[serde(rename = "time-per-output-token(tpot)")]
    tpot: Percentiles,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    average: Option<f64>,
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
}

pub(super) fn write(runs: BenchRuns<'_>) -> String {
    runs.all().iter().map(summary).collect::<Vec<_>>().join("\n\n")
}

fn summary(run: &BenchResult) -> String {
    let measurement = &run.measurement;
    let seconds = |latency: &str| {
        let of = |statistic: &str| Some(measurement.metric(&format!("{statistic}_{latency}_ms"))? / 1e3);
        Percentiles { average: of("mean"), p50: of("median"), p95: of("p95"), p99: of("p99") }
    };
    let speed = |statistic: &str| measurement.metric(&format!("{statistic}_output_speed"));
    let input = measurement.metric("total_input_tokens").zip(measurement.metric("completed"));
    let summary = Summary {
        total_requests: measurement.completed + measurement.failed,
        successful_requests: measurement.completed,
        concurrency: run.concurrency,
        request_timeout: run.request_timeout_s,
        max_output_tokens: run.output_len,
        use_long_context: input.is_some_and(|(tokens, requests)| tokens > LONG_CONTEXT * requests),
        total_time: measurement.duration_s,
        requests_per_second: measurement.metric("request_throughput"),
        total_output_tokens: measurement.total_output_tokens,
        latency: seconds("e2el"),
        tokens_per_second: Percentiles {
            average: speed("mean"),
            p50: speed("median"),
            p95: speed("p5"),
            p99: speed("p1"),
        },
        ttft: seconds("ttft"),
        tpot: seconds("tpot"),
    };
    // A structure of numbers always serializes.
    let json = serde_json::to_string_pretty(&summary).unwrap_or_default();
    match run.memory {
        Some(memory) => format!("{memory}\n{json}"),
        None => json,
    }
}
