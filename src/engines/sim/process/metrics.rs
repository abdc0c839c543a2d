//! The page of `/metrics`, with vLLM's names and labels in Prometheus' text format.

use std::fmt::Write as _;
use std::time::Duration;

use crate::facts::EngineVersion;
use crate::stats::to_f64;
use crate::twin::{Counters, TwinEngine};

// Bucket bounds as in vLLM. All are in seconds, except `TOKENS`.
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

/// The reason for the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFinish {
    Length,
    Stop,
    Abort,
}

impl RequestFinish {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Stop => "stop",
            Self::Abort => "abort",
        }
    }
}

/// The state of one scheduler at the end of a step. vLLM's page and log report no later state: a new request is not
/// waiting yet, and a step being scheduled does not count (`make_stats` of `v1/core/sched/scheduler.py`).
#[derive(Clone, Debug, Default)]
pub(super) struct SchedulerReport {
    pub(super) counters: Counters,
    pub(super) running: usize,
    pub(super) waiting: usize,
    /// Share of the KV cache blocks in use, 0 to 1.
    pub(super) kv_usage: f64,
    /// The number of accepted drafts at each position; empty without speculation.
    pub(super) accepted_by_position: Vec<u64>,
}

impl SchedulerReport {
    pub(super) fn of(engine: &TwinEngine) -> Self {
        let (running, waiting) = (engine.running(), engine.waiting());
        let (counters, kv_usage, accepted_at) =
            (engine.counters(), engine.kv_usage(), engine.accepted_by_position().to_vec());
        Self { counters, running, waiting, kv_usage, accepted_by_position: accepted_at }
    }

    /// Returns the share of the looked-up prompt tokens that the prefix cache had, 0 to 1.
    pub(super) fn hit_rate(&self) -> f64 {
        let Counters { prefix_hits, prefix_queries, .. } = self.counters;
        if prefix_queries == 0 { 0.0 } else { to_f64(prefix_hits) / to_f64(prefix_queries) }
    }
}

/// Metrics of one engine: the last report of its scheduler, and latencies. Times are real, as a client measures them.
#[derive(Debug)]
pub(super) struct LatencyMeter {
    /// The scheduler's state at the end of the last step.
    pub(super) report: SchedulerReport,
    /// Whether the number of a step's tokens excludes cached ones, as since 0.20.
    excludes_cached_tokens: bool,
    ttft: Histogram,
    gap: Histogram,
    latency: Histogram,
    /// Queue, prefill and decode time of finished requests.
    phases: [Histogram; 3],
    step_tokens: Histogram,
    prompt: Histogram,
    generation: Histogram,
    finished: [u64; 3],
}

impl LatencyMeter {
    fn new(version: EngineVersion) -> Self {
        Self {
            report: SchedulerReport::default(),
            excludes_cached_tokens: version >= EngineVersion::V0_20,
            ttft: Histogram::new(TTFT),
            gap: Histogram::new(GAP),
            latency: Histogram::new(LATENCY),
            phases: std::array::from_fn(|_| Histogram::new(LATENCY)),
            step_tokens: Histogram::new(TOKENS),
            prompt: Histogram::new(TOKENS),
            generation: Histogram::new(TOKENS),
            finished: [0; 3],
        }
    }

    pub(super) fn first_token(&mut self, after: Duration) {
        self.ttft.observe(after.as_secs_f64());
    }

    pub(super) fn next_token(&mut self, after: Duration) {
        self.gap.observe(after.as_secs_f64());
    }

    /// Records the end of a step. As in vLLM, a step that generates no token is not observed. A prompt counts as a
    /// whole in the step that ends it, and since 0.20 without its cached tokens (`v1/metrics/stats.py`).
    pub(super) fn step(&mut self, engine: &TwinEngine) {
        let before = std::mem::replace(&mut self.report, SchedulerReport::of(engine)).counters;
        let after = &self.report.counters;
        let generated = after.generated_tokens - before.generated_tokens;
        if generated == 0 {
            return;
        }
        let cached = after.cached_tokens - before.cached_tokens;
        let spared = if self.excludes_cached_tokens { cached } else { 0 };
        let tokens = generated + after.prompt_tokens - before.prompt_tokens - spared;
        self.step_tokens.observe(to_f64(tokens));
    }

    /// Records the end of a request. `phases` are the time in the queue, from there to the first token, and to the last
    /// token.
    pub(super) fn finish(&mut self, finish: RequestFinish, phases: [Duration; 3], prompt: u32, generated: u32) {
        self.finished[finish as usize] += 1;
        if finish != RequestFinish::Abort {
            self.latency.observe(phases.iter().sum::<Duration>().as_secs_f64());
            for (histogram, phase) in self.phases.iter_mut().zip(phases) {
                histogram.observe(phase.as_secs_f64());
            }
            self.prompt.observe(f64::from(prompt));
            self.generation.observe(f64::from(generated));
        }
    }
}

/// The metrics of all engines, with their names and labels.
#[derive(Debug)]
pub(super) struct ServedMetrics {
    version: EngineVersion,
    /// Tokens in a KV cache block, the unit of the prefix cache's metrics before 0.10.
    block_size: u64,
    model_name: String,
    cache_labels: String,
    meters: Vec<LatencyMeter>,
    /// Whether the page is empty, as with `--disable-log-stats`.
    pub(super) is_disabled: bool,
}

impl ServedMetrics {
    /// Creates empty metrics. `cache_labels` are names and values of the labels of `cache_config_info`.
    pub(super) fn new(
        version: EngineVersion,
        block_size: u32,
        model_name: &str,
        cache_labels: &[(&str, String)],
        engines: usize,
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
            meters: (0..engines).map(|_| LatencyMeter::new(version)).collect(),
            is_disabled: false,
        }
    }

    /// Returns the metrics of one engine.
    ///
    /// # Panics
    /// If there is no such engine.
    pub(super) fn of(&mut self, engine: usize) -> &mut LatencyMeter {
        &mut self.meters[engine]
    }

    /// Returns the states of the schedulers, each at the end of its last step.
    pub(super) fn reports(&self) -> impl Iterator<Item = &SchedulerReport> {
        self.meters.iter().map(|meter| &meter.report)
    }

    /// Renders the whole page. `late` is the number of steps that ended late by more than their own length. It
    /// describes the simulation itself and has a name outside of vLLM's.
    pub(super) fn render(&self, late: u64) -> String {
        if self.is_disabled {
            return String::new();
        }
        let v0 = self.version.is_v0();
        let labels = |at: usize| {
            format!(
                "{}model_name=\"{}\"",
                if v0 { String::new() } else { format!("engine=\"{at}\",") },
                self.model_name
            )
        };
        let engines = self.meters.iter().enumerate();
        let engines = engines.map(|(at, meter)| LabelledMeter { meter, labels: labels(at) }).collect();
        let mut page = Page { text: String::with_capacity(16 << 10), engines };
        let since = |minor| self.version >= EngineVersion::new(0, minor, 0);
        page.number("gauge", "num_requests_running", "Requests in execution.", |of| of.report().running);
        page.number("gauge", "num_requests_waiting", "Requests waiting.", |of| of.report().waiting);
        if since(20) {
            let reasons = |of: &LabelledMeter<'_>| [("capacity", of.report().waiting), ("deferred", 0)];
            page.labelled("gauge", "num_requests_waiting_by_reason", "Requests waiting, by reason.", |of| {
                reasons(of).map(|(reason, count)| (format!("{},reason=\"{reason}\"", of.labels), count)).to_vec()
            });
        }
        if !since(12) {
            page.number("gauge", "gpu_cache_usage_perc", "KV-cache usage, 1 is full.", |of| of.report().kv_usage);
        }
        if since(10) {
            page.number("gauge", "kv_cache_usage_perc", "KV-cache usage, 1 is full.", |of| of.report().kv_usage);
        }
        if v0 {
            page.number("gauge", "num_requests_swapped", "Requests swapped out.", |_| 0);
            page.number("gauge", "gpu_prefix_cache_hit_rate", "Prefix cache hit rate.", |of| of.report().hit_rate());
        } else {
            let name = if since(10) { "prefix_cache" } else { "gpu_prefix_cache" };
            // Before 0.10 these metrics counted blocks.
            let unit = if since(10) { 1 } else { self.block_size };
            let (queries, hits) = (format!("{name}_queries"), format!("{name}_hits"));
            page.counter(&queries, "Prefix cache queries.", |of| of.report().counters.prefix_queries / unit);
            page.counter(&hits, "Prefix cache hits.", |of| of.report().counters.prefix_hits / unit);
        }
        page.counter("num_preemptions", "Preemptions.", |of| {
            let counters = &of.report().counters;
            if v0 { counters.preemptions } else { counters.reported_preemptions }
        });
        page.counter("prompt_tokens", "Prompt tokens processed.", |of| of.report().counters.prompt_tokens);
        if since(20) {
            let help = "Prompt tokens found in the cache.";
            page.counter("prompt_tokens_cached", help, |of| of.report().counters.cached_tokens);
        }
        page.counter("generation_tokens", "Tokens generated.", |of| of.report().counters.generated_tokens);
        page.labelled("counter", "request_success", "Requests that finished.", |of| {
            let ends = [RequestFinish::Stop, RequestFinish::Length, RequestFinish::Abort];
            let labels = |finish: RequestFinish| format!("finished_reason=\"{}\",{}", finish.name(), of.labels);
            ends.map(|finish| (labels(finish), of.meter.finished[finish as usize])).to_vec()
        });
        page.histogram("time_to_first_token_seconds", "Time to first token.", |meter| &meter.ttft);
        let gap = if since(12) { "inter_token_latency_seconds" } else { "time_per_output_token_seconds" };
        page.histogram(gap, "Time between tokens.", |meter| &meter.gap);
        if since(10) && !since(12) {
            page.histogram("inter_token_latency_seconds", "Time between tokens.", |meter| &meter.gap);
        }
        page.histogram("e2e_request_latency_seconds", "Request latency.", |meter| &meter.latency);
        page.histogram("request_prompt_tokens", "Prompt tokens of a request.", |meter| &meter.prompt);
        page.histogram("request_generation_tokens", "Generated tokens of a request.", |meter| &meter.generation);
        if !v0 {
            for (at, phase) in ["queue", "prefill", "decode"].into_iter().enumerate() {
                page.histogram(&format!("request_{phase}_time_seconds"), "Time in this phase.", |meter| {
                    &meter.phases[at]
                });
            }
            page.histogram("iteration_tokens_total", "Tokens of an engine step.", |meter| &meter.step_tokens);
        }
        // Names as in `v1/spec_decode/metrics.py`.
        if page.engines.iter().any(|of| !of.report().accepted_by_position.is_empty()) {
            let of = |of: &LabelledMeter<'_>| of.report().counters;
            page.counter("spec_decode_num_drafts", "Number of spec decoding drafts.", |it| of(it).drafts);
            page.counter("spec_decode_num_draft_tokens", "Number of draft tokens.", |it| of(it).draft_tokens);
            page.counter("spec_decode_num_accepted_tokens", "Number of accepted tokens.", |it| of(it).accepted_tokens);
            let name = "spec_decode_num_accepted_tokens_per_pos";
            page.labelled("counter", name, "Accepted tokens per draft position.", |it| {
                let places = it.report().accepted_by_position.iter().enumerate();
                places.map(|(at, count)| (format!("{},position=\"{at}\"", it.labels), *count)).collect()
            });
        }
        page.header("gauge", "vllm:cache_config_info", "Information of the LLMEngine CacheConfig.");
        for at in 0..page.engines.len() {
            let engine_label = if v0 { String::new() } else { format!("engine=\"{at}\"") };
            let labels = format!("{engine_label}{}", self.cache_labels);
            let _ = writeln!(page.text, "vllm:cache_config_info{{{}}} 1.0", labels.trim_start_matches(','));
        }
        page.header("counter", "sim:late_steps", "Steps that the simulation ended late by more than their length.");
        let _ = writeln!(page.text, "sim:late_steps_total {late}");
        page.text
    }
}

/// One engine on the page, with its labels.
struct LabelledMeter<'a> {
    meter: &'a LatencyMeter,
    labels: String,
}

impl LabelledMeter<'_> {
    fn report(&self) -> &SchedulerReport {
        &self.meter.report
    }
}

struct Page<'a> {
    text: String,
    engines: Vec<LabelledMeter<'a>>,
}

impl Page<'_> {
    fn header(&mut self, kind: &str, name: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn number<T: std::fmt::Display>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        of: impl Fn(&LabelledMeter<'_>) -> T,
    ) {
        self.header(kind, &format!("vllm:{name}"), help);
        for engaged in &self.engines {
            let _ = writeln!(self.text, "vllm:{name}{{{}}} {}", engaged.labels, of(engaged));
        }
    }

    fn counter(&mut self, name: &str, help: &str, of: impl Fn(&LabelledMeter<'_>) -> u64) {
        self.labelled("counter", name, help, |engaged| vec![(engaged.labels.clone(), of(engaged))]);
    }

    /// Adds series with further labels for each engine. Counters get the suffix `_total`.
    fn labelled<T: std::fmt::Display>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        of: impl Fn(&LabelledMeter<'_>) -> Vec<(String, T)>,
    ) {
        self.header(kind, &format!("vllm:{name}"), help);
        let total = if kind == "counter" { "_total" } else { "" };
        for engaged in &self.engines {
            for (labels, value) in of(engaged) {
                let _ = writeln!(self.text, "vllm:{name}{total}{{{labels}}} {value}");
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&LatencyMeter) -> &Histogram) {
        self.header("histogram", &format!("vllm:{name}"), help);
        for LabelledMeter { meter, labels, .. } in &self.engines {
            let histogram = of(meter);
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
}
