//! Observer of a virtual run: shares of the time, server metrics, and the batch over time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::series::StepRecorder;
use crate::stats::to_f64;
use crate::twin::{BatchWork, Counters, DriveObserver, ScheduledStep, StepParts, StepTime, TwinEngine, WaitReason};

/// Reasons why requests wait, in the order of display.
pub(super) const WAIT_REASONS: [WaitReason; 4] =
    [WaitReason::Blocks, WaitReason::Sequences, WaitReason::Budget, WaitReason::Delay];

/// The terms of a step's time, as in `StepParts`. The linear term is split in two: `Weights` is its part for a single
/// token, nearly all of it reading, and `Compute` the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepTerm {
    Weights,
    Compute,
    Attention,
    Sampling,
    Launch,
    Communication,
    Host,
}

impl StepTerm {
    pub const ALL: [Self; 7] =
        [Self::Weights, Self::Compute, Self::Attention, Self::Sampling, Self::Launch, Self::Communication, Self::Host];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Compute => "compute",
            Self::Attention => "attention",
            Self::Sampling => "sampling",
            Self::Launch => "launch",
            Self::Communication => "communication",
            Self::Host => "host",
        }
    }
}

/// Observer of all steps after the warm-up. Its sums are on the device's clock.
pub(super) struct StepWatch<'a> {
    step_time: &'a StepTime,
    time_scale: f64,
    /// Whether host and device work at the same time.
    overlapped: bool,
    budget: u32,
    replicas: usize,
    /// Seconds of the linear term for a single token.
    weights_s: f64,
    /// The end of the last step of each engine.
    ends: Vec<Duration>,
    busy_s: f64,
    /// Busy seconds while requests wait, by reason in the order of `WAIT_REASONS`.
    waits_s: [f64; WAIT_REASONS.len()],
    /// Seconds of each term, in the order of `StepTerm::ALL`.
    terms_s: [f64; StepTerm::ALL.len()],
    running: Mean,
    waiting: Mean,
    kv: Mean,
    samples: Mean,
    pub(super) series: StepRecorder,
    /// The cost of the computation: 4 per step and 1 per sequence in it.
    pub(super) cost: u64,
}

/// The sum of a value multiplied by its seconds, and the largest value.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    most: f64,
}

impl Mean {
    fn add(&mut self, value: f64, seconds: f64) {
        self.sum += value * seconds;
        self.most = self.most.max(value);
    }
}

/// Shares of the engines' time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepShares {
    /// Share of the window with a step under way, as a mean over all engines.
    pub busy: f64,
    /// Shares of the busy time while requests wait, in the order of `WAIT_REASONS`. The reasons are free cache blocks, the
    /// number of running requests, the token budget, and their turn.
    pub waits: [f64; WAIT_REASONS.len()],
    /// Shares of the steps' time, in the order of [`StepTerm::ALL`].
    pub terms: [f64; StepTerm::ALL.len()],
}

impl<'a> StepWatch<'a> {
    pub(super) fn new(step_time: &'a StepTime, engines: &[TwinEngine], pace: f64) -> Self {
        let one = BatchWork { sequences: 1, tokens: 1, ..BatchWork::default() };
        let settings = engines.first().map(TwinEngine::settings);
        let budget = settings.map_or(u32::MAX, |settings| {
            settings.scheduling.max_num_scheduled_tokens.unwrap_or(u32::MAX).min(settings.max_num_batched_tokens())
        });
        Self {
            step_time,
            time_scale: pace,
            overlapped: settings.is_some_and(|settings| settings.scheduling.async_scheduling),
            budget,
            replicas: engines.len(),
            weights_s: step_time.parts(&one).linear_s,
            ends: vec![Duration::ZERO; engines.len()],
            busy_s: 0.0,
            waits_s: [0.0; WAIT_REASONS.len()],
            terms_s: [0.0; StepTerm::ALL.len()],
            running: Mean::default(),
            waiting: Mean::default(),
            kv: Mean::default(),
            samples: Mean::default(),
            series: StepRecorder::new(budget),
            cost: 0,
        }
    }

    /// Splits the time of a step into terms. If device and host work at the same time, the shorter of them is hidden
    /// and counts 0.
    fn terms(&self, parts: &StepParts) -> [f64; StepTerm::ALL.len()] {
        let StepParts { linear_s, attention_s, sampling_s, launch_s, communication_s, host_s, total_s } = *parts;
        let device = linear_s + attention_s + sampling_s + launch_s + communication_s;
        if self.overlapped && host_s >= total_s {
            return [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, host_s];
        }
        let weights = linear_s.min(self.weights_s);
        let host = if self.overlapped { 0.0 } else { host_s };
        // In eager mode the device waits for Python. This time belongs to the launches.
        let launch = launch_s + (total_s - host - device).max(0.0);
        [weights, linear_s - weights, attention_s, sampling_s, launch, communication_s, host]
    }

    /// Returns the shares over a window of this length on the device's clock.
    pub(super) fn shares(&self, window: Duration) -> StepShares {
        let of = |sum: f64, whole: f64| if whole > 0.0 { sum / whole } else { 0.0 };
        let terms: f64 = self.terms_s.iter().sum();
        StepShares {
            busy: of(self.busy_s, window.as_secs_f64() * to_f64(self.replicas)).min(1.0),
            waits: self.waits_s.map(|wait| of(wait, self.busy_s)),
            terms: self.terms_s.map(|term| of(term, terms)),
        }
    }

    /// Returns the number of sequences that get a token in the same step, as a mean over the busy time.
    pub(super) fn mean_samples(&self) -> f64 {
        if self.busy_s > 0.0 { self.samples.sum / self.busy_s } else { 0.0 }
    }

    /// Returns the metrics that the engines' servers would report, under the names that objectives use.
    pub(super) fn server(&self, window: Duration, counted: &[Counters]) -> BTreeMap<String, f64> {
        let seconds = window.as_secs_f64();
        let mean = |mean: Mean| if seconds > 0.0 { mean.sum / seconds } else { 0.0 };
        let sum = |of: fn(&Counters) -> u64| to_f64(counted.iter().map(of).sum::<u64>());
        let mut server: BTreeMap<String, f64> = [
            ("requests_running_mean", mean(self.running)),
            ("requests_running_max", self.running.most),
            ("requests_waiting_mean", mean(self.waiting)),
            ("requests_waiting_max", self.waiting.most),
            ("kv_cache_usage_mean", mean(self.kv) / to_f64(self.replicas)),
            ("kv_cache_usage_max", self.kv.most),
            ("preemptions", sum(|counters| counters.preemptions)),
            ("server_prompt_tokens", sum(|counters| counters.prompt_tokens)),
            ("server_generation_tokens", sum(|counters| counters.generated_tokens)),
            ("server_requests_finished", sum(|counters| counters.finished)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let queries = sum(|counters| counters.prefix_queries);
        if queries > 0.0 {
            server.insert("prefix_cache_hit_rate".to_owned(), sum(|counters| counters.prefix_hits) / queries);
        }
        server
    }
}

impl DriveObserver for StepWatch<'_> {
    fn step(&mut self, seen: &ScheduledStep) {
        // Steps of a pipeline overlap, so only the time after the end of earlier steps counts.
        let begin = seen.start.max(self.ends[seen.replica]).min(seen.end);
        self.ends[seen.replica] = seen.end.max(begin);
        let seconds = seen.end.saturating_sub(begin).as_secs_f64();
        self.busy_s += seconds;
        // A prompt that was cut also waits for the budget of the next step.
        let cut = (seen.work.prompt_tokens > 0 && seen.work.tokens >= self.budget).then_some(WaitReason::Budget);
        if let Some(place) = seen.wait.or(cut).and_then(|wait| WAIT_REASONS.iter().position(|other| *other == wait)) {
            self.waits_s[place] += seconds;
        }
        let parts = self.step_time.parts(&seen.work);
        let share = if parts.total_s > 0.0 { seconds / parts.total_s } else { 0.0 };
        let terms = self.terms(&parts);
        for (sum, term) in self.terms_s.iter_mut().zip(terms) {
            *sum += term * share;
        }
        self.running.add(to_f64(seen.running), seconds);
        self.waiting.add(to_f64(seen.waiting), seconds);
        self.kv.add(seen.kv_usage, seconds);
        self.samples.add(f64::from(seen.work.samples), seconds);
        self.cost += 4 + u64::from(seen.work.sequences);
        self.series.step(seen, begin, self.time_scale);
    }
}
