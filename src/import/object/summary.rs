//! Summaries of requests: `total_requests ... latency {average, p50, p95, p99}`. Times are in seconds.
//!
//! A percentile of `tokens_per_second` is the speed that this share of the requests reached: p95 is lower than p50.
//! Programs that write this shape divide a reply's tokens by the duration of the whole request, and so does their time
//! per output token. Our own summaries leave out the first token, as in `vllm bench serve`.

use super::{LineProblem, Members, count, number, object};
use crate::import::{ImportedResult, LoadDescription};

/// Keys and our names of their metrics, all in plain units.
const PLAIN: [(&str, &str); 4] = [
    ("successful_requests", "completed"),
    ("total_time", "duration"),
    ("requests_per_second", "request_throughput"),
    ("total_output_tokens", "total_output_tokens"),
];

/// Keys of distributions in seconds and our names of their latencies.
const LATENCIES: [(&str, &str); 3] =
    [("latency", "e2el"), ("time_to_first_token(ttft)", "ttft"), ("time-per-output-token(tpot)", "tpot")];

/// Statistics of a distribution and our names.
const STATISTICS: [(&str, &str); 4] = [("average", "mean"), ("p50", "median"), ("p95", "p95"), ("p99", "p99")];

/// Statistics of the speed and our names.
const SPEEDS: [(&str, &str); 4] = [("average", "mean"), ("p50", "median"), ("p95", "p5"), ("p99", "p1")];

pub(super) fn read(line: usize, members: &Members) -> Result<Vec<ImportedResult>, LineProblem> {
    let mut result = ImportedResult { line, ..ImportedResult::default() };
    for (key, name) in PLAIN {
        result.metrics.insert(name.to_owned(), number(line, members, key)?);
    }
    let total = number(line, members, "total_requests")?;
    let completed = result.metrics.get("completed").copied().unwrap_or_default();
    result.metrics.insert("failed".to_owned(), (total - completed).max(0.0));
    let (tokens, seconds) = (number(line, members, "total_output_tokens")?, number(line, members, "total_time")?);
    if seconds > 0.0 {
        result.metrics.insert("output_throughput".to_owned(), tokens / seconds);
    }
    for (key, latency) in LATENCIES {
        let values = object(line, members, key)?;
        for (statistic, ours) in STATISTICS {
            let value = number(line, values, statistic)?;
            result.metrics.insert(format!("{ours}_{latency}_ms"), value * 1e3);
        }
    }
    let speeds = object(line, members, "tokens_per_second")?;
    for (statistic, ours) in SPEEDS {
        result.metrics.insert(format!("{ours}_output_speed"), number(line, speeds, statistic)?);
    }
    result.load = LoadDescription {
        concurrency: count(members, "concurrency"),
        requests: Some(crate::stats::f64_to_u64(total)),
        output_len: count(members, "max_output_tokens"),
        ..LoadDescription::default()
    };
    Ok(vec![result])
}
