//! What `/metrics` shows: vLLM's names and labels in Prometheus' text format.

use std::fmt::Write as _;
use std::time::Duration;

use crate::facts::EngineVersion;
use crate::twin::{Counters, Engine};

/// Bucket bounds in seconds, as vLLM has them.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const GAP: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const TOKENS: &[f64] = &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, count: 0 }
    }

    fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
        self.count += 1;
    }
}

/// How a request left the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Length,
    Stop,
    Abort,
}

impl Finish {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Stop => "stop",
            Self::Abort => "abort",
        }
    }
}

/// The scheduler as of the end of a step. vLLM's page and log tell of nothing later: a request that has just come is not
/// waiting yet, and what is being scheduled does not count (`make_stats` of `v1/core/sched/scheduler.py`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    pub(super) counters: Counters,
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) kv_usage: f64,
}

impl Report {
    pub(super) fn of(engine: &Engine) -> Self {
        let (running, waiting) = (engine.running(), engine.waiting());
        Self { counters: engine.counters(), running, waiting, kv_usage: engine.kv_usage() }
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
    pub(super) fn hit_rate(&self) -> f64 {
        let Counters { prefix_hits, prefix_queries, .. } = self.counters;
        if prefix_queries == 0 { 0.0 } else { prefix_hits as f64 / prefix_queries as f64 }
    }
}

/// What the scheduler does not count itself. Times are real, as a client would measure them.
#[derive(Debug)]
pub(super) struct Metrics {
    version: EngineVersion,
    /// Tokens in a block, by which releases before 0.10 count.
    block_size: u64,
    model_name: String,
    cache_labels: String,
    ttft: Histogram,
    gap: Histogram,
    latency: Histogram,
    /// Queue, prefill and decode time of finished requests.
    phases: [Histogram; 3],
    step_tokens: Histogram,
    prompt: Histogram,
    generation: Histogram,
    finished: [u64; 3],
    /// Whether the engine was told to keep its numbers to itself (`--disable-log-stats`): then the page has none of them.
    pub(super) silent: bool,
}

impl Metrics {
    /// `cache_labels` are the labels of `cache_config_info`, name and value.
    pub(super) fn new(
        version: EngineVersion,
        block_size: u32,
        model_name: &str,
        cache_labels: &[(&str, String)],
    ) -> Self {
        let mut labels = String::new();
        for (name, value) in cache_labels {
            let _ = write!(labels, ",{name}=\"{value}\"");
        }
        Self {
            version,
            block_size: block_size.into(),
            model_name: model_name.replace('\\', "\\\\").replace('"', "\\\""),
            cache_labels: labels,
            ttft: Histogram::new(TTFT),
            gap: Histogram::new(GAP),
            latency: Histogram::new(LATENCY),
            phases: std::array::from_fn(|_| Histogram::new(LATENCY)),
            step_tokens: Histogram::new(TOKENS),
            prompt: Histogram::new(TOKENS),
            generation: Histogram::new(TOKENS),
            finished: [0; 3],
            silent: false,
        }
    }

    pub(super) fn first_token(&mut self, after: Duration) {
        self.ttft.observe(after.as_secs_f64());
    }

    pub(super) fn next_token(&mut self, after: Duration) {
        self.gap.observe(after.as_secs_f64());
    }

    /// A step has ended, between these counters. As in vLLM, a step that generates nothing is no observation, and a prompt
    /// counts as a whole in the step that ends it, less what was cached: that since 0.20 (`v1/metrics/stats.py`).
    #[expect(clippy::cast_precision_loss, reason = "tokens of one step")]
    pub(super) fn step(&mut self, before: &Counters, after: &Counters) {
        let generated = after.generated_tokens - before.generated_tokens;
        if generated == 0 {
            return;
        }
        let cached = after.cached_tokens - before.cached_tokens;
        let spared = if self.version >= EngineVersion::new(0, 20, 0) { cached } else { 0 };
        let tokens = generated + after.prompt_tokens - before.prompt_tokens - spared;
        self.step_tokens.observe(tokens as f64);
    }

    /// `phases` are the time in the queue, to the first token, and from there to the last.
    pub(super) fn finish(&mut self, finish: Finish, phases: [Duration; 3], prompt: u32, generated: u32) {
        self.finished[finish as usize] += 1;
        if finish != Finish::Abort {
            self.latency.observe(phases.iter().sum::<Duration>().as_secs_f64());
            for (histogram, phase) in self.phases.iter_mut().zip(phases) {
                histogram.observe(phase.as_secs_f64());
            }
            self.prompt.observe(f64::from(prompt));
            self.generation.observe(f64::from(generated));
        }
    }

    /// The whole page.
    pub(super) fn render(&self, report: &Report) -> String {
        if self.silent {
            return String::new();
        }
        let v0 = self.version.is_v0();
        let mut page = Page {
            text: String::with_capacity(16 << 10),
            labels: format!("{}model_name=\"{}\"", if v0 { "" } else { "engine=\"0\"," }, self.model_name),
        };
        let since = |minor| self.version >= EngineVersion::new(0, minor, 0);
        let counters = report.counters;
        page.number("gauge", "num_requests_running", "Requests in execution.", report.running);
        page.number("gauge", "num_requests_waiting", "Requests waiting.", report.waiting);
        if since(20) {
            page.header("gauge", "num_requests_waiting_by_reason", "Requests waiting, by reason.");
            for (reason, count) in [("capacity", report.waiting), ("deferred", 0)] {
                let labels = &page.labels;
                let _ =
                    writeln!(page.text, "vllm:num_requests_waiting_by_reason{{{labels},reason=\"{reason}\"}} {count}");
            }
        }
        if !since(12) {
            page.number("gauge", "gpu_cache_usage_perc", "KV-cache usage, 1 is full.", report.kv_usage);
        }
        if since(10) {
            page.number("gauge", "kv_cache_usage_perc", "KV-cache usage, 1 is full.", report.kv_usage);
        }
        if v0 {
            page.number("gauge", "num_requests_swapped", "Requests swapped out.", 0);
            page.number("gauge", "gpu_prefix_cache_hit_rate", "Prefix cache hit rate.", report.hit_rate());
        } else {
            let name = if since(10) { "prefix_cache" } else { "gpu_prefix_cache" };
            // Before 0.10 these counted blocks.
            let unit = if since(10) { 1 } else { self.block_size };
            page.counter(&format!("{name}_queries"), "Prefix cache queries.", counters.prefix_queries / unit);
            page.counter(&format!("{name}_hits"), "Prefix cache hits.", counters.prefix_hits / unit);
        }
        let preemptions = if v0 { counters.preemptions } else { counters.told_preemptions };
        page.counter("num_preemptions", "Preemptions.", preemptions);
        page.counter("prompt_tokens", "Prompt tokens processed.", counters.prompt_tokens);
        if since(20) {
            page.counter("prompt_tokens_cached", "Prompt tokens found in the cache.", counters.cached_tokens);
        }
        page.counter("generation_tokens", "Tokens generated.", counters.generated_tokens);
        page.header("counter", "request_success", "Requests that finished.");
        for finish in [Finish::Stop, Finish::Length, Finish::Abort] {
            let labels = format!("finished_reason=\"{}\",{}", finish.name(), page.labels);
            let _ = writeln!(page.text, "vllm:request_success_total{{{labels}}} {}", self.finished[finish as usize]);
        }
        page.histogram("time_to_first_token_seconds", "Time to first token.", &self.ttft);
        let gap = if since(12) { "inter_token_latency_seconds" } else { "time_per_output_token_seconds" };
        page.histogram(gap, "Time between tokens.", &self.gap);
        if since(10) && !since(12) {
            page.histogram("inter_token_latency_seconds", "Time between tokens.", &self.gap);
        }
        page.histogram("e2e_request_latency_seconds", "Request latency.", &self.latency);
        page.histogram("request_prompt_tokens", "Prompt tokens of a request.", &self.prompt);
        page.histogram("request_generation_tokens", "Generated tokens of a request.", &self.generation);
        if !v0 {
            for (phase, histogram) in ["queue", "prefill", "decode"].into_iter().zip(&self.phases) {
                page.histogram(&format!("request_{phase}_time_seconds"), "Time in this phase.", histogram);
            }
            page.histogram("iteration_tokens_total", "Tokens of an engine step.", &self.step_tokens);
        }
        page.header("gauge", "cache_config_info", "Information of the LLMEngine CacheConfig.");
        let engine_label = if v0 { "" } else { "engine=\"0\"" };
        let labels = format!("{engine_label}{}", self.cache_labels);
        let _ = writeln!(page.text, "vllm:cache_config_info{{{}}} 1.0", labels.trim_start_matches(','));
        page.text
    }
}

struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn header(&mut self, kind: &str, name: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn number(&mut self, kind: &str, name: &str, help: &str, value: impl std::fmt::Display) {
        self.header(kind, name, help);
        let _ = writeln!(self.text, "vllm:{name}{{{}}} {value}", self.labels);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.header("counter", name, help);
        let _ = writeln!(self.text, "vllm:{name}_total{{{}}} {value}", self.labels);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.header("histogram", name, help);
        let labels = &self.labels;
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            below += count;
            let _ = writeln!(self.text, "vllm:{name}_bucket{{{labels},le=\"{bound:?}\"}} {below}");
        }
        let (count, sum) = (histogram.count, histogram.sum);
        let _ = writeln!(self.text, "vllm:{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(self.text, "vllm:{name}_sum{{{labels}}} {sum}\nvllm:{name}_count{{{labels}}} {count}");
    }
}
