//! Writes the block that `vllm bench serve` prints at its end, line for line, followed by a few lines of our own.
//!
//! Labels, order and widths are those of `benchmark()` in `vllm/benchmarks/serve.py` of vLLM 0.32. A missing latency is
//! `nan` here, and 0.00 in that program. For instance, replies that are not streamed have no time to first token.

use std::fmt::Write;

use super::{BenchResult, BenchRuns};
use crate::report::number;
use crate::report::telemetry::with_unit;
use crate::trial::ClientReport;

/// Width of the block in characters.
const BLOCK_WIDTH: usize = 50;

/// Metrics whose 95 % confidence interval is shown.
const INTERVAL_METRICS: [&str; 4] = ["output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"];

/// Metrics of the server that are shown, with their labels.
const SERVER_METRICS: [(&str, &str); 9] = [
    ("kv_cache_usage_max", "KV cache at most"),
    ("preemptions", "preemptions"),
    ("prefix_cache_hit_rate", "prefix cache hits"),
    ("draft_acceptance_rate", "accepted draft tokens"),
    ("mean_acceptance_length", "acceptance length"),
    ("host_cpu_share_mean", "host CPU"),
    ("gpu_utilization_mean", "GPU"),
    ("gpu_power_w_mean", "power"),
    ("energy_per_output_token_j", "per output token"),
];

pub(super) fn write(runs: BenchRuns<'_>) -> String {
    match runs {
        BenchRuns::One(run) => block(run),
        BenchRuns::Profile(all) => {
            all.iter().map(|run| format!("{}\n{}", run.name, block(run))).collect::<Vec<_>>().join("\n\n")
        }
    }
}

fn block(run: &BenchResult) -> String {
    let measurement = &run.measurement;
    let metric = |name: &str| measurement.metric(name);
    let mut block = TextBlock(String::new());
    block.title(" Serving Benchmark Result ", '=');
    block.count("Successful requests:", measurement.completed);
    block.count("Failed requests:", measurement.failed);
    if let Some(concurrency) = run.concurrency {
        block.count("Maximum request concurrency:", concurrency);
    }
    if run.rate.is_finite() {
        block.number("Request rate configured (RPS):", Some(run.rate));
    }
    block.number("Benchmark duration (s):", Some(measurement.duration_s));
    block.count("Total input tokens:", measurement.total_input_tokens);
    block.count("Total generated tokens:", measurement.total_output_tokens);
    block.number("Request throughput (req/s):", metric("request_throughput"));
    if let Some(goodput) = metric("request_goodput") {
        block.number("Request goodput (req/s):", Some(goodput));
    }
    block.number("Output token throughput (tok/s):", metric("output_throughput"));
    block.number("Peak output token throughput (tok/s):", metric("max_output_tokens_per_s"));
    block.number("Peak concurrent requests:", metric("max_concurrent_requests"));
    block.number("Total token throughput (tok/s):", metric("total_token_throughput"));
    for (title, name, metric_name) in [
        ("Time to First Token", "TTFT", "ttft"),
        ("Time per Output Token (excl. 1st token)", "TPOT", "tpot"),
        ("Inter-token Latency", "ITL", "itl"),
    ] {
        block.title(title, '-');
        for (label, statistic) in [("Mean", "mean"), ("Median", "median"), ("P99", "p99")] {
            block.number(&format!("{label} {name} (ms):"), metric(&format!("{statistic}_{metric_name}_ms")));
        }
    }
    block.title("", '=');
    let mut text = block.0;
    for (name, value) in ours(run) {
        let _ = writeln!(text, "{name:<14}{value}");
    }
    text.truncate(text.trim_end_matches('\n').len());
    text
}

/// Returns the lines that `vllm bench serve` does not have.
fn ours(run: &BenchResult) -> Vec<(&'static str, String)> {
    let measurement = &run.measurement;
    let mut lines = Vec::new();
    let of = |statistic: &str| measurement.metric(&format!("{statistic}_e2el_ms"));
    if let (Some(mean), Some(median), Some(p99)) = (of("mean"), of("median"), of("p99")) {
        lines.push(("E2EL (ms):", format!("mean {mean:.2}, median {median:.2}, p99 {p99:.2}")));
    }
    if !measurement.errors.is_empty() {
        let classes: Vec<_> = measurement.errors.iter().map(|(class, count)| format!("{class} {count}")).collect();
        lines.push(("errors:", classes.join(", ")));
    }
    if let Some(window) = measurement.window.as_ref().filter(|window| window.steady || run.steady) {
        let part = if window.steady { "steady state" } else { "all" };
        lines.push(("window:", format!("{part}, {:.1} s to {:.1} s: {}", window.from_s, window.to_s, window.reason)));
    }
    let known: Vec<_> = INTERVAL_METRICS
        .iter()
        .filter_map(|name| {
            let interval = measurement.confidence.get(*name)?;
            let bound = |bound: Option<f64>| bound.map_or_else(|| "?".to_owned(), number);
            Some(format!("{name} {} to {}", bound(interval.low), bound(interval.high)))
        })
        .collect();
    if !known.is_empty() {
        lines.push(("95 % CI:", known.join(", ")));
    }
    if let Some(client) = &measurement.client {
        lines.push(("client:", client_line(client)));
    }
    let server: Vec<_> = SERVER_METRICS
        .iter()
        .filter_map(|(name, shown)| Some(format!("{shown} {}", with_unit(name, *measurement.server.get(*name)?))))
        .collect();
    if !server.is_empty() {
        lines.push(("server:", server.join(", ")));
    }
    if run.end != "complete" {
        lines.push(("end:", format!("{}; {} requests in flight, {} not sent", run.end, run.unfinished, run.unsent)));
    }
    if let Some(behind) = &run.saturated {
        lines.push(("saturated:", format!("{behind}; latencies grow with the duration of the run")));
    }
    let verdict = if run.is_valid() { "yes".to_owned() } else { format!("NO: {}", run.invalid.join("; ")) };
    lines.push(("valid:", verdict));
    lines
}

/// Describes the load generator's own effect on the numbers.
pub(in crate::report) fn client_line(client: &ClientReport) -> String {
    let mut parts = vec![format!("{:.2} CPU s ({:.0} % of a core)", client.cpu_s, 100.0 * client.cpu_share)];
    if let Some(waited) = client.processor_wait_s.filter(|waited| *waited >= 0.1) {
        parts.push(format!("waited {waited:.1} s for a processor"));
    }
    if let Some(lag) = client.p99_lag_ms {
        parts.push(format!("lag p99 {lag:.2} ms"));
    }
    if let Some(lateness) = client.p99_lateness_ms {
        parts.push(format!("lateness p99 {lateness:.2} ms"));
    }
    if let (Some(achieved), Some(offered)) = (client.achieved_rate, client.offered_rate) {
        parts.push(format!("{achieved:.2} of {offered:.2} req/s sent"));
    }
    parts.push(format!("{} in flight at most", client.peak_in_flight));
    parts.join(", ")
}

struct TextBlock(String);

impl TextBlock {
    /// Writes a centred title. If the padding cannot be split evenly, the left side is the shorter one, as in Python.
    fn title(&mut self, title: &str, fill: char) {
        let free = BLOCK_WIDTH.saturating_sub(title.chars().count());
        let fill = |n: usize| fill.to_string().repeat(n);
        let _ = writeln!(self.0, "{}{title}{}", fill(free / 2), fill(free - free / 2));
    }

    fn count(&mut self, label: &str, value: u64) {
        let _ = writeln!(self.0, "{label:<40} {value:<10}");
    }

    fn number(&mut self, label: &str, value: Option<f64>) {
        let value = value.map_or_else(|| "nan".to_owned(), |value| format!("{value:.2}"));
        let _ = writeln!(self.0, "{label:<40} {value:<10}");
    }
}
