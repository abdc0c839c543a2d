//! A twin of the server, and the counters that the server's page must show.

use std::collections::HashMap;
use std::time::Duration;

use setpoint::stats::to_f64;
use setpoint::twin::{Counters, RequestId, Settings, TwinEngine};

use super::server::Page;

/// Bounds of the buckets of `iteration_tokens_total` (`ITERATION_TOKENS_BUCKETS` of vLLM's `v1/metrics/buckets.py`).
const BOUNDS: [u32; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

pub(super) struct Twin {
    engine: TwinEngine,
    /// Prompt and output length of each request in progress, by its number.
    open: HashMap<u64, (u32, u32)>,
    requests: u64,
    /// Tokens of each step that has generated any: the computed tokens of prompts that it completed, and the generated
    /// ones.
    steps: Vec<u64>,
    /// Ended requests: their number, their prompt tokens and their output tokens.
    finished: [u64; 3],
}

impl Twin {
    pub(super) fn new(settings: Settings) -> Self {
        let engine = TwinEngine::new(settings).unwrap();
        Self { engine, open: HashMap::new(), requests: 0, steps: Vec::new(), finished: [0; 3] }
    }

    pub(super) fn add(&mut self, prompt: &[u32], output: u32) {
        self.engine.add(RequestId(self.requests), prompt, output, Duration::ZERO).unwrap();
        self.open.insert(self.requests, (u32::try_from(prompt.len()).unwrap(), output));
        self.requests += 1;
    }

    pub(super) fn abort(&mut self, number: usize) {
        assert!(self.engine.abort(RequestId(number as u64)), "request {number} has ended already");
        self.open.remove(&(number as u64));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    pub(super) fn running(&self) -> usize {
        self.engine.running()
    }

    pub(super) fn counters(&self) -> Counters {
        self.engine.counters()
    }

    pub(super) fn preemptions(&self) -> u64 {
        self.counters().preemptions
    }

    pub(super) fn summary(&self) -> String {
        let Counters { preemptions, prefix_hits, generated_tokens, .. } = self.counters();
        let steps = self.steps.len();
        format!("so far {steps} steps, {preemptions} preemptions, {prefix_hits} hits, {generated_tokens} tokens")
    }

    /// Advances to the step that the page reports, and compares all counters. Steps that compute only parts of prompts
    /// are not counted. The page must therefore match after some number of such steps.
    pub(super) fn meet(&mut self, page: &Page, what: &str) {
        let counted = page["iteration_tokens_total_count"];
        while !self.is_idle() && to_f64(self.steps.len()) < counted {
            self.step();
        }
        let (apart, steps) = (self.differences(page), self.steps.len());
        let mut still_apart = !apart.is_empty();
        while still_apart && !self.is_idle() && self.step() && self.steps.len() == steps {
            still_apart = !self.differences(page).is_empty();
        }
        assert!(!still_apart, "{what}, step {steps}:\n{}", apart.join("\n"));
    }

    pub(super) fn expect(&self, page: &Page, what: &str) {
        let apart = self.differences(page);
        assert!(apart.is_empty(), "{what}:\n{}", apart.join("\n"));
    }

    pub(super) fn run(&mut self) {
        while !self.is_idle() && self.step() {}
        assert!(self.is_idle(), "requests that are never scheduled");
    }

    /// Runs one step. Returns false if nothing could be scheduled.
    fn step(&mut self) -> bool {
        let before = self.counters();
        let Some(batch) = self.engine.step(Duration::ZERO) else { return false };
        let events = self.engine.finish(&batch);
        for event in events.iter().filter(|event| event.last) {
            let (prompt, output) = self.open.remove(&event.id.0).unwrap();
            let ended = [1, prompt.into(), output.into()];
            (0..3).for_each(|at| self.finished[at] += ended[at]);
        }
        if !events.is_empty() {
            let Counters { prompt_tokens, cached_tokens, generated_tokens, .. } = self.counters();
            let computed = (prompt_tokens - before.prompt_tokens) - (cached_tokens - before.cached_tokens);
            self.steps.push(computed + generated_tokens - before.generated_tokens);
        }
        true
    }

    /// Returns a line for each counter that differs between the twin and the page.
    pub(super) fn differences(&self, page: &Page) -> Vec<String> {
        let counters = self.counters();
        let [finished, prompts, outputs] = self.finished.map(to_f64);
        let mut expected = vec![
            ("num_requests_running".to_owned(), to_f64(self.engine.running())),
            ("num_requests_waiting".to_owned(), to_f64(self.engine.waiting())),
            ("num_requests_waiting_by_reason{capacity}".to_owned(), to_f64(self.engine.waiting())),
            ("kv_cache_usage_perc".to_owned(), self.engine.kv_usage()),
            ("prefix_cache_queries_total".to_owned(), to_f64(counters.prefix_queries)),
            ("prefix_cache_hits_total".to_owned(), to_f64(counters.prefix_hits)),
            ("num_preemptions_total".to_owned(), to_f64(counters.reported_preemptions)),
            ("prompt_tokens_total".to_owned(), to_f64(counters.prompt_tokens)),
            ("prompt_tokens_cached_total".to_owned(), to_f64(counters.cached_tokens)),
            ("generation_tokens_total".to_owned(), to_f64(counters.generated_tokens)),
            ("request_success_total{length}".to_owned(), finished),
            ("request_prompt_tokens_count".to_owned(), finished),
            ("request_prompt_tokens_sum".to_owned(), prompts),
            ("request_generation_tokens_sum".to_owned(), outputs),
            ("iteration_tokens_total_count".to_owned(), to_f64(self.steps.len())),
            ("iteration_tokens_total_sum".to_owned(), to_f64(self.steps.iter().sum::<u64>())),
        ];
        for bound in BOUNDS {
            let below = self.steps.iter().filter(|tokens| **tokens <= bound.into()).count();
            expected.push((format!("iteration_tokens_total_bucket{{{bound}}}"), to_f64(below)));
        }
        let apart = |(name, expected): &(String, f64)| {
            let shown = page.get(name);
            (shown.is_none_or(|shown| (shown - expected).abs() > 1e-9))
                .then(|| format!("{name}: {expected} in the twin, {shown:?} on the page"))
        };
        expected.iter().filter_map(apart).collect()
    }
}
