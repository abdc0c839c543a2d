//! The block that `vllm bench serve` prints at its end, line for line, and a few lines of ours behind it.
//!
//! Labels, order and widths are those of `benchmark()` in `vllm/benchmarks/serve.py` of vLLM 0.32. A latency without a
//! value is `nan`, where that program prints 0.00: replies that are not streamed have no time to the first token.

use std::fmt::Write;

use super::{Benchmark, Runs};

/// Columns of the block.
const WIDTH: usize = 50;

pub(super) fn write(runs: Runs<'_>) -> String {
    match runs {
        Runs::One(run) => block(run),
        Runs::Profile(all) => {
            all.iter().map(|run| format!("{}\n{}", run.name, block(run))).collect::<Vec<_>>().join("\n\n")
        }
    }
}

fn block(run: &Benchmark) -> String {
    let measurement = &run.measurement;
    let metric = |name: &str| measurement.metric(name);
    let mut block = Block(String::new());
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

/// What `vllm bench serve` has no line for.
fn ours(run: &Benchmark) -> Vec<(&'static str, String)> {
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
    if run.end != "complete" {
        lines.push(("end:", format!("{}; {} requests under way, {} not begun", run.end, run.unfinished, run.unsent)));
    }
    let verdict = if run.is_valid() { "yes".to_owned() } else { format!("NO: {}", run.invalid.join("; ")) };
    lines.push(("valid:", verdict));
    lines
}

struct Block(String);

impl Block {
    /// Centred; where it cannot be exactly, the left side is the shorter one, as in Python.
    fn title(&mut self, title: &str, fill: char) {
        let free = WIDTH.saturating_sub(title.chars().count());
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
