//! Early end of a load whose configuration cannot win: the race against the best configuration so far.
//!
//! A load has lost if a confidence bound of its objective lies beyond the incumbent's value. Two errors are possible, and
//! each gets half of the allowed probability (Bonferroni):
//!
//! - **The launch.** One launch deviates from the mean of its configuration, and so did those of the incumbent. The
//!   deviation is drawn once for all checks of a load. The incumbent's value is therefore moved once, by the quantile of
//!   the normal distribution, to the *threshold*.
//! - **The window.** The objective of this launch is estimated from the part of the load so far. The estimate is
//!   checked repeatedly. The checks are at least a quarter of the load's time apart, and check `n` has the error
//!   `6 / (pi^2 n^2)` of the whole. The sum of all is 1, so the bound holds over any number of checks (the union bound of
//!   Even-Dar, Mannor and Mansour, Action Elimination and Stopping Conditions, JMLR 7, 2006; on times in geometric
//!   progression as in Howard et al., Time-uniform, nonparametric, nonasymptotic confidence sequences, Annals of
//!   Statistics 49, 2021).
//!
//! The estimate covers the steady part so far, as `steady` defines it: without the warm-up by MSER-5, and for values of
//! requests without those sent later than the longest request ago, whose end may be unknown. Its error is that of
//! batch means. A percentile is compared by the share of requests beyond the threshold.
//!
//! A load that has not lost ends as well once a longer window is of no use: if the window's standard error is at most a
//! third of the noise between launches, the rest of the load would lower the error of the trial's value by at most 5 %.
//! Each limit must be settled by then (`evidence`), and percentiles get the whole load.
//!
//! Only closed loops race. The begin of a load that changes over time by design is no sample of the whole. In an open loop
//! throughputs follow the arrivals and not the server, and the latencies of an overloaded server grow without end.

use std::time::Duration;

use crate::load::{ArrivalPattern, ObserverTick, RequestRecord};
use crate::metrics::confidence::{RatioEstimate, batch_means_at, batched};
use crate::metrics::histogram::Histogram;
use crate::metrics::{Slo, mser5};
use crate::objective::Goal;
use crate::stats::student::two_sided_quantile;
use crate::stats::{f64_to_usize, to_f64};

use super::precision::{ObservedMetric, TimeBins};

/// Factor between the times of two checks.
const CHECK_RATIO: f64 = 1.25;
/// Batches of an estimate.
const BATCHES: usize = 20;
/// Minimum length of a judged steady part, in median durations of a request.
const MIN_MEDIAN_DURATIONS: f64 = 4.0;
/// Minimum number of requests in a judged steady part. More than `steady` requires.
const MIN_STEADY_REQUESTS: f64 = 60.0;
/// The window's standard error at which a longer window is of no use, as a share of the noise between launches.
const USEFUL_WINDOW_ERROR: f64 = 1.0 / 3.0;
/// Degrees of freedom for which Student's distribution equals the normal one.
const NORMAL_FREEDOM: f64 = 1e7;

/// The value that a load must be able to reach.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RaceTarget {
    pub metric: String,
    pub goal: Goal,
    /// The mean of the best feasible configuration so far.
    pub incumbent: f64,
    /// Number of launches behind this mean.
    pub incumbent_launches: u32,
    /// Standard deviation between launches of one configuration, as a share of the value.
    pub launch_noise: f64,
    /// The probability that a configuration as good as the incumbent does not lose.
    pub confidence: f64,
    /// Whether a load ends once it has lost. Launches that others are compared with only end as precise enough.
    pub can_lose: bool,
}

impl RaceTarget {
    /// Returns whether a load of these arrivals can race for a metric.
    pub(crate) fn is_raced(metric: &str, arrival: &ArrivalPattern) -> bool {
        // An overloaded open loop has no steady part: its latencies grow with the length of the load. The queue of requests
        // that come at once only shrinks.
        ObservedMetric::of(metric).is_some() && matches!(arrival, ArrivalPattern::Closed)
    }

    /// Returns the value that a result must be able to reach, if it can lose.
    pub(crate) fn floor(&self) -> Option<f64> {
        self.can_lose.then(|| self.threshold())
    }

    fn error(&self) -> f64 {
        (1.0 - self.confidence).clamp(1e-6, 0.5)
    }

    /// Returns the value beyond which the noise between launches is no explanation.
    fn threshold(&self) -> f64 {
        let deviation = self.launch_noise * (1.0 + 1.0 / f64::from(self.incumbent_launches.max(1))).sqrt();
        // Half of the error on one side.
        let margin = two_sided_quantile(self.error(), NORMAL_FREEDOM) * deviation;
        match self.goal {
            Goal::Maximize => self.incumbent * libm::exp(-margin),
            Goal::Minimize => self.incumbent * libm::exp(margin),
        }
    }
}

/// Observations of a load that races.
#[derive(Debug)]
pub(super) struct RaceProgress {
    target: RaceTarget,
    threshold: f64,
    sample: ObservedMetric,
    /// `(y, x)` per time. For a throughput: the count at a request's end. For values of requests: sum and number at
    /// their send. For a percentile: requests beyond the threshold and all requests at their send.
    bins: TimeBins,
    /// `(received content chunks, ticks)`.
    chunks: TimeBins,
    /// Number of content chunks up to the last tick.
    counted: u64,
    /// Output tokens and content chunks of completed requests.
    per_chunk: (f64, f64),
    durations_ns: Histogram,
    longest: Duration,
    checks: u32,
    next_check: Duration,
}

/// The reason to end a racing load, with a sentence for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RaceVerdict {
    /// The objective cannot reach the incumbent's.
    Lost(String),
    /// The objective is known much better than one launch can represent its configuration.
    Precise(String),
}

/// An estimate of the objective, or of the share of requests beyond the threshold.
struct RaceEstimate {
    ratio: RatioEstimate,
    /// The value that the ratio is compared with.
    limit: f64,
}

impl RaceProgress {
    /// Returns `None` if the metric cannot be judged during a run, or the target is not above 0.
    pub(super) fn new(target: RaceTarget) -> Option<Self> {
        let sample = ObservedMetric::of(&target.metric)?;
        let threshold = target.threshold();
        (threshold > 0.0 && threshold.is_finite()).then(|| Self {
            target,
            threshold,
            sample,
            bins: TimeBins::new(),
            chunks: TimeBins::new(),
            counted: 0,
            per_chunk: (0.0, 0.0),
            durations_ns: Histogram::default(),
            longest: Duration::ZERO,
            checks: 0,
            next_check: Duration::ZERO,
        })
    }

    pub(super) fn tick(&mut self, tick: &ObserverTick) {
        let more = to_f64(tick.chunks.saturating_sub(self.counted));
        self.counted = tick.chunks;
        // The chunks arrived since the previous tick, on average half a tick (50 ms) ago.
        self.chunks.add(tick.at.saturating_sub(Duration::from_millis(50)), more, 1.0);
    }

    /// Records a completed request.
    pub(super) fn ended(&mut self, record: &RequestRecord, goodput: &[Slo]) {
        self.per_chunk.0 += f64::from(record.output_tokens);
        self.per_chunk.1 += f64::from(record.chunk_count);
        let duration = record.end.saturating_sub(record.sent);
        self.longest = self.longest.max(duration);
        self.durations_ns.add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        let (at, y, x) = match self.sample {
            ObservedMetric::OutputTokens => return,
            ObservedMetric::Requests => (record.end, 1.0, 0.0),
            ObservedMetric::GoodRequests => {
                (record.end, f64::from(goodput.iter().all(|slo| slo.is_kept(record) == Some(true))), 0.0)
            }
            ObservedMetric::TotalTokens => {
                (record.end, f64::from(record.prompt_tokens) + f64::from(record.output_tokens), 0.0)
            }
            ObservedMetric::Mean(quantity) => {
                let Some((sum, n)) = quantity.of(record) else { return };
                (record.sent, sum, n)
            }
            ObservedMetric::Percentile(quantity, _) => {
                let Some((value, _)) = quantity.of(record) else { return };
                (record.sent, f64::from(value > self.threshold), 1.0)
            }
        };
        self.bins.add(at, y, x);
    }

    /// Returns the verdict on the load by `now`. `None` if it must go on.
    pub(super) fn verdict(&mut self, now: Duration) -> Option<RaceVerdict> {
        if now < self.next_check {
            return None;
        }
        let check = self.checks + 1;
        let error = self.target.error() / 2.0 * 6.0 / (std::f64::consts::PI * f64::from(check)).powi(2);
        let quantile = two_sided_quantile(2.0 * error, NORMAL_FREEDOM);
        let RaceEstimate { ratio, limit } = self.estimate(now, quantile)?;
        self.checks = check;
        self.next_check = now.mul_f64(CHECK_RATIO);
        let is_lost = match (self.target.goal, self.sample) {
            // More than the allowed share is beyond the threshold of a latency.
            (Goal::Minimize, _) => ratio.value - ratio.half > limit,
            // Less than the required share is above the threshold of a speed.
            (Goal::Maximize, _) => ratio.value + ratio.half < limit,
        };
        if self.target.can_lose && is_lost {
            return Some(RaceVerdict::Lost(self.lost_reason(&ratio, now)));
        }
        // The ratio of a percentile is a share of requests, whose error is not that of the metric.
        let is_metric = !matches!(self.sample, ObservedMetric::Percentile(..));
        let window_error = ratio.half / quantile / ratio.value;
        let is_precise = is_metric && window_error <= self.target.launch_noise * USEFUL_WINDOW_ERROR;
        is_precise.then(|| RaceVerdict::Precise(self.precise_reason(window_error, now)))
    }

    /// Returns the sentence for users about a load that is precise enough.
    fn precise_reason(&self, window_error: f64, now: Duration) -> String {
        format!(
            "{} has a standard error of {:.2} % after {:.0} s: a longer load would be of no use, because launches differ \
             by {:.2} %",
            self.target.metric,
            window_error * 100.0,
            now.as_secs_f64(),
            self.target.launch_noise * 100.0
        )
    }

    /// Returns the sentence for users about a lost race.
    fn lost_reason(&self, ratio: &RatioEstimate, now: Duration) -> String {
        let RaceTarget { metric, incumbent, goal, .. } = &self.target;
        let than = if *goal == Goal::Maximize { "below" } else { "above" };
        let found = match self.sample {
            ObservedMetric::Percentile(..) => {
                format!("{:.1} % of the requests are above {:.4}", ratio.value * 100.0, self.threshold)
            }
            _ => format!("it is {:.4} +- {:.4} after {:.0} s", ratio.value, ratio.half, now.as_secs_f64()),
        };
        format!(
            "{metric} stays {than} the best so far, {incumbent:.4} ({:.0} % confidence): {found}",
            self.target.confidence * 100.0
        )
    }

    /// Estimates the objective over the steady part until `now`, with a one-sided bound at the normal quantile `z`. `None`
    /// while the steady part is too short.
    fn estimate(&self, now: Duration, z: f64) -> Option<RaceEstimate> {
        let chunks = self.chunks.past(now);
        let series: Vec<f64> = chunks.iter().map(|(chunks, _)| *chunks).collect();
        let from_s = to_f64(mser5(&series)?) * self.chunks.width_s();
        let known = now.checked_sub(self.longest)?;
        let median_s = self.durations_ns.percentile(50.0)? / 1e9;
        if known.as_secs_f64() < from_s + MIN_MEDIAN_DURATIONS * median_s {
            return None;
        }
        let steady = |bins: &TimeBins, until: Duration| {
            let past = bins.past(until);
            let cut = f64_to_usize((from_s / bins.width_s()).ceil());
            past.get(cut..).filter(|steady| steady.len() >= BATCHES).map(<[_]>::to_vec)
        };
        // The share of the completed requests in the steady part.
        let share = (known.as_secs_f64() - from_s) / now.as_secs_f64();
        if to_f64(self.durations_ns.count()) * share < MIN_STEADY_REQUESTS {
            return None;
        }
        let per_second = |bins: &TimeBins, factor: f64| {
            let mut steady = steady(bins, now)?;
            for (y, x) in &mut steady {
                (*y, *x) = (*y * factor, bins.width_s());
            }
            batch_means_at(&batched(&steady, BATCHES), z)
        };
        let ratio = match self.sample {
            ObservedMetric::OutputTokens => {
                let (tokens, chunks) = self.per_chunk;
                per_second(&self.chunks, (chunks > 0.0).then(|| tokens / chunks)?)?
            }
            ObservedMetric::Requests | ObservedMetric::GoodRequests | ObservedMetric::TotalTokens => {
                per_second(&self.bins, 1.0)?
            }
            ObservedMetric::Mean(_) | ObservedMetric::Percentile(..) => {
                batch_means_at(&batched(&steady(&self.bins, known)?, BATCHES), z)?
            }
        };
        let limit = match self.sample {
            // The share of the requests above the p-th percentile.
            ObservedMetric::Percentile(_, p) => 1.0 - p / 100.0,
            _ => self.threshold,
        };
        Some(RaceEstimate { ratio, limit })
    }
}

#[cfg(test)]
#[path = "race_tests.rs"]
mod tests;
