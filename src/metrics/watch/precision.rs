//! Confidence interval of a metric during a run, for a run that ends once the metric is precise enough.

use std::time::Duration;

use crate::load::{ObserverTick, RequestRecord};
use crate::metrics::confidence::{batch_means, batched, bounds};
use crate::metrics::histogram::Histogram;
use crate::metrics::{Latency, Slo, milliseconds, mser5, tpot_ms};
use crate::stats::{f64_to_u64, f64_to_usize, to_f64};

/// Precision at which a run may end. `relative` is half the width of the metric's 95 % confidence interval, divided by
/// its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PrecisionTarget {
    pub metric: String,
    pub relative: f64,
}

/// The reason why a requested precision is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PrecisionError {
    #[error("the precision of {0:?} cannot be computed during a run")]
    Metric(String),
    #[error("a precision must be a share above 0 % and below 100 %, such as 2%, not {0:?}")]
    Share(String),
}

impl PrecisionError {
    /// Returns the next step for the user, if there is one.
    #[must_use]
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Metric(_) => Some("use a throughput, or the mean, the median or a percentile of a latency"),
            Self::Share(_) => None,
        }
    }
}

impl PrecisionTarget {
    /// Parses a precision of a metric, such as `2%` or `0.02`.
    ///
    /// # Errors
    /// If no confidence interval of the metric can be computed during a run, or `share` is invalid.
    pub(crate) fn parse(metric: &str, share: &str) -> Result<Self, PrecisionError> {
        ObservedMetric::of(metric).ok_or_else(|| PrecisionError::Metric(metric.to_owned()))?;
        Ok(Self { metric: metric.to_owned(), relative: Self::share(share)? })
    }

    /// Parses a share, such as `2%` or `0.02`.
    ///
    /// # Errors
    /// If `share` is not a number above 0 % and below 100 %.
    pub(crate) fn share(share: &str) -> Result<f64, PrecisionError> {
        let (number, unit) = share.strip_suffix('%').map_or((share, 1.0), |number| (number, 100.0));
        let relative = number.trim().parse().ok().map(|number: f64| number / unit);
        let relative = relative.filter(|relative| *relative > 0.0 && *relative < 1.0);
        relative.ok_or_else(|| PrecisionError::Share(share.to_owned()))
    }
}

/// Quantity of a request whose mean or percentile is a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WatchedQuantity {
    Latency(Latency),
    /// Gaps between content chunks. A request has several.
    Itl,
    /// Output tokens per second after the first token: the inverse of TPOT.
    Speed,
}

impl WatchedQuantity {
    /// Returns the sum and the number of this quantity's values in a completed request. The unit is milliseconds or
    /// tokens per second. Returns `None` if the request has no value.
    pub(super) fn of(self, record: &RequestRecord) -> Option<(f64, f64)> {
        match self {
            Self::Latency(latency) => latency.of(record).map(|value| (value, 1.0)),
            Self::Itl if record.thinned => None,
            Self::Itl => {
                let gaps = record.gaps().map(milliseconds);
                let sums = gaps.fold((0.0, 0.0), |(sum, n), gap| (sum + gap, n + 1.0));
                (sums.1 > 0.0).then_some(sums)
            }
            Self::Speed => tpot_ms(record).filter(|tpot| *tpot > 0.0).map(|tpot| (1e3 / tpot, 1.0)),
        }
    }

    /// Splits a metric's name into its statistic and its quantity.
    pub(super) fn split(metric: &str) -> Option<(&str, Self)> {
        if let Some(statistic) = metric.strip_suffix("_output_speed") {
            return Some((statistic, Self::Speed));
        }
        let (statistic, name) = metric.strip_suffix("_ms")?.split_once('_')?;
        if name == "itl" {
            return Some((statistic, Self::Itl));
        }
        let latency = Latency::ALL.into_iter().find(|latency| latency.name() == name)?;
        Some((statistic, Self::Latency(latency)))
    }
}

/// Converts the name of a statistic, such as `median` or `p99`, to its percentile, 0 to 100.
pub(super) fn percentile_of(statistic: &str) -> Option<f64> {
    match statistic {
        "median" => Some(50.0),
        "p1" | "p5" | "p10" | "p50" | "p90" | "p95" | "p99" => statistic[1..].parse().ok(),
        _ => None,
    }
}

/// The observations that a metric is computed from. The first four are for throughputs: counts per time interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ObservedMetric {
    Requests,
    /// Requests that keep the limits of the goodput.
    GoodRequests,
    /// Counted as content chunks.
    OutputTokens,
    /// Prompt and output tokens.
    TotalTokens,
    Mean(WatchedQuantity),
    Percentile(WatchedQuantity, f64),
}

impl ObservedMetric {
    pub(super) fn of(metric: &str) -> Option<Self> {
        Some(match metric {
            "request_throughput" => Self::Requests,
            "request_goodput" => Self::GoodRequests,
            "output_throughput" => Self::OutputTokens,
            "total_token_throughput" => Self::TotalTokens,
            _ => match WatchedQuantity::split(metric)? {
                ("mean", quantity) => Self::Mean(quantity),
                // The interval of a percentile requires independent values. Gaps within a request are correlated.
                (_, WatchedQuantity::Itl) => return None,
                (statistic, quantity) => Self::Percentile(quantity, percentile_of(statistic)?),
            },
        })
    }
}

/// Sums of pairs `(y, x)` per time interval. All intervals have the same width, and there are at most `MOST`. If a run
/// needs more, each two neighbours are merged and the width doubles.
#[derive(Clone, Debug)]
pub(super) struct TimeBins {
    width_s: f64,
    sums: Vec<(f64, f64)>,
}

impl TimeBins {
    /// Maximum number of intervals.
    const MAX_BINS: usize = 400;
    /// Initial width of an interval in seconds: the time between two ticks.
    const INITIAL_WIDTH_S: f64 = 0.1;

    pub(super) fn new() -> Self {
        Self { width_s: Self::INITIAL_WIDTH_S, sums: Vec::new() }
    }

    pub(super) fn width_s(&self) -> f64 {
        self.width_s
    }

    /// Adds a pair to the interval that contains `at`.
    pub(super) fn add(&mut self, at: Duration, y: f64, x: f64) {
        let at = at.as_secs_f64();
        while at / self.width_s >= to_f64(Self::MAX_BINS) {
            let joined =
                self.sums.chunks(2).map(|pair| pair.iter().fold((0.0, 0.0), |sum, bin| (sum.0 + bin.0, sum.1 + bin.1)));
            self.sums = joined.collect();
            self.width_s *= 2.0;
        }
        let place = f64_to_usize(at / self.width_s);
        if place >= self.sums.len() {
            self.sums.resize(place + 1, (0.0, 0.0));
        }
        self.sums[place].0 += y;
        self.sums[place].1 += x;
    }

    /// Returns the sums of the intervals that have ended by `now`.
    pub(super) fn past(&self, now: Duration) -> Vec<(f64, f64)> {
        let over = f64_to_usize((now.as_secs_f64() / self.width_s).min(to_f64(Self::MAX_BINS)));
        let mut sums = self.sums.clone();
        sums.resize(over, (0.0, 0.0));
        sums
    }
}

/// Observations of one metric during a run, reduced to sums and a histogram. The size does not grow with the run.
#[derive(Debug)]
pub(super) struct PrecisionProgress {
    sample: Option<ObservedMetric>,
    /// `(y, x)` of completed requests. For a mean: sum and number of values. For a throughput: the count, and 0.
    bins: TimeBins,
    /// `(received content chunks, ticks)`. They show the end of the warm-up and are the observations of
    /// `output_throughput`.
    chunks: TimeBins,
    /// Number of content chunks up to the last tick.
    counted: u64,
    /// Values of a percentile's quantity, in nanoseconds or in millionths of a token per second.
    values: Histogram,
}

impl PrecisionProgress {
    #[expect(clippy::needless_pass_by_value, reason = "the precision is asked for once")]
    pub(super) fn new(until: PrecisionTarget) -> Self {
        Self {
            sample: ObservedMetric::of(&until.metric),
            bins: TimeBins::new(),
            chunks: TimeBins::new(),
            counted: 0,
            values: Histogram::default(),
        }
    }

    pub(super) fn tick(&mut self, tick: &ObserverTick) {
        let more = to_f64(tick.chunks.saturating_sub(self.counted));
        self.counted = tick.chunks;
        // The chunks arrived since the previous tick, on average half a tick (50 ms) ago.
        let at = tick.at.saturating_sub(Duration::from_millis(50));
        self.chunks.add(at, more, 1.0);
    }

    pub(super) fn ended(&mut self, record: &RequestRecord, goodput: &[Slo]) {
        let tokens = f64::from(record.prompt_tokens) + f64::from(record.output_tokens);
        let (y, x) = match self.sample {
            Some(ObservedMetric::Requests) => (1.0, 0.0),
            Some(ObservedMetric::GoodRequests) => {
                (f64::from(goodput.iter().all(|slo| slo.is_kept(record) == Some(true))), 0.0)
            }
            Some(ObservedMetric::TotalTokens) => (tokens, 0.0),
            Some(ObservedMetric::Mean(quantity)) => quantity.of(record).unwrap_or((0.0, 0.0)),
            Some(ObservedMetric::Percentile(quantity, _)) => {
                if let Some((value, _)) = quantity.of(record) {
                    self.values.add(f64_to_u64(value * 1e6));
                }
                return;
            }
            Some(ObservedMetric::OutputTokens) | None => return,
        };
        self.bins.add(record.end, y, x);
    }

    /// Returns half the width of the 95 % confidence interval at `now`, divided by the value. Returns `None` if there
    /// is no interval yet: the warm-up has not ended, or the observations are too few.
    pub(super) fn relative(&self, now: Duration) -> Option<f64> {
        let sample = self.sample?;
        if let ObservedMetric::Percentile(_, p) = sample {
            let (low, high) = bounds(usize::try_from(self.values.count()).ok()?, p);
            let at = |place: Option<usize>| self.values.at(place? as u64);
            let value = self.values.percentile(p)?;
            return (value > 0.0).then_some((at(high)? - at(low)?) / 2.0 / value);
        }
        let per_time = !matches!(sample, ObservedMetric::Mean(_));
        let bins = if sample == ObservedMetric::OutputTokens { &self.chunks } else { &self.bins };
        let mut observations = bins.past(now);
        if per_time {
            // The base of a throughput is time. All intervals have the same width, and the unit of time cancels in the
            // relative width.
            for (_, x) in &mut observations {
                *x = 1.0;
            }
        }
        let cut = warmup_length(&self.chunks.past(now), &observations)?;
        let estimate = batch_means(&batched(&observations[cut..], 20))?;
        (estimate.value > 0.0).then_some(estimate.half / estimate.value)
    }
}

/// Returns the number of observations at the beginning of the run that belong to the warm-up. MSER-5 finds its end in
/// the chunks or, without chunks, in the observations. Returns `None` if the warm-up has not ended, or if fewer than 20
/// observations follow it.
fn warmup_length(chunks: &[(f64, f64)], observations: &[(f64, f64)]) -> Option<usize> {
    let series = if chunks.iter().any(|(chunks, _)| *chunks > 0.0) { chunks } else { observations };
    let series: Vec<f64> = series.iter().map(|(y, _)| *y).collect();
    let place = to_f64(mser5(&series)?) / to_f64(series.len());
    let cut = f64_to_usize((place * to_f64(observations.len())).ceil());
    (observations.len() >= cut + 20).then_some(cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Measurement;

    #[test]
    fn precisions_are_read_as_shares_and_percentages() {
        let until = |share: &str| PrecisionTarget::parse("output_throughput", share);
        assert_eq!(until("2%").unwrap().relative.to_bits(), 0.02_f64.to_bits());
        assert_eq!(until("0.05").unwrap().relative.to_bits(), 0.05_f64.to_bits());
        for share in ["", "0", "100%", "-1%", "2", "x%", "nan"] {
            assert_eq!(until(share), Err(PrecisionError::Share(share.to_owned())));
        }
    }

    #[test]
    fn a_metric_without_an_interval_is_refused() {
        for metric in ["p99_itl_ms", "std_ttft_ms", "failed", "duration", "mean_x_ms", ""] {
            assert_eq!(PrecisionTarget::parse(metric, "2%"), Err(PrecisionError::Metric(metric.to_owned())));
        }
        for metric in ["mean_itl_ms", "p99_ttft_ms", "median_e2el_ms", "p1_output_speed", "request_goodput"] {
            assert!(PrecisionTarget::parse(metric, "2%").is_ok() && Measurement::is_known(metric), "{metric}");
        }
    }

    #[test]
    fn joining_bins_loses_nothing() {
        let mut bins = TimeBins::new();
        for i in 0..10_000_u64 {
            bins.add(Duration::from_millis(i * 37), 2.0, 1.0);
        }
        let past = bins.past(Duration::from_secs(100_000));
        let sums = past.iter().fold((0.0, 0.0), |(y, x), bin| (y + bin.0, x + bin.1));
        assert_eq!(sums, (20_000.0, 10_000.0));
        assert_eq!(past.len(), TimeBins::MAX_BINS);
        assert!((bins.width_s - 1.6).abs() < 1e-12);
        // Each ended interval contains one pair per 37 ms of its width of 1.6 s.
        let over = bins.past(Duration::from_secs(320));
        assert!(over.len() == 200 && over.iter().all(|bin| (bin.1 * 0.037 - 1.6).abs() < 0.08), "{over:?}");
    }
}
