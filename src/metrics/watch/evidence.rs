//! Evidence that a limit can no longer be kept: arithmetic certainty and sequential tests.

use crate::load::RequestRecord;
use crate::metrics::confidence::{RatioEstimate, batch_means_at, batched};
use crate::metrics::mser5;
use crate::objective::{Constraint, MetricLimit};
use crate::stats::to_f64;

use super::precision::{TimeBins, WatchedQuantity, percentile_of};

/// Probability of error.
const ALPHA: f64 = 0.001;

/// Quantile of the normal distribution for the bounds of a mean. Its probability of error is 1 in 20,000 on each side,
/// because the test is repeated once a second.
const MEAN_QUANTILE: f64 = 3.89;

/// Quantile of the normal distribution for a limit that is clearly kept. Its probability of error is 1 in 2,000.
const KEPT_QUANTILE: f64 = 3.29;

/// Quantile of the normal distribution for an interval of 95 %.
const SETTLED_QUANTILE: f64 = 1.96;

/// Returns whether the true share of bad requests is significantly above `limit` (0 to 1), given that `bad` of `seen`
/// were bad. The answer `true` is wrong in at most one run of a thousand, for any number of calls during a run. A
/// single bad request is never enough.
///
/// This is a sequential likelihood-ratio test (Wald, Sequential Analysis, 1947) against several alternatives at once.
/// If the share is `limit`, the mean of the ratios is a martingale of expectation 1 (Robbins, Statistical Methods
/// Related to the Law of the Iterated Logarithm, 1970). It then exceeds 1000 with a probability of at most 1 /
/// 1000 (Ville's inequality).
pub(super) fn exceeds(bad: u64, seen: u64, limit: f64) -> bool {
    // With a limit of 0 the ratio would be infinite.
    let limit = limit.clamp(1e-3, 1.0);
    let (bad, good, share) = (to_f64(bad), to_f64(seen.saturating_sub(bad)), to_f64(bad) / to_f64(seen.max(1)));
    if bad < 2.0 || share <= limit || limit >= 1.0 {
        return false;
    }
    // Alternatives from half-way between the limit and 1 down to a little above the limit, and multiples of a small
    // limit.
    let towards_one = (1..=6).map(|halvings| limit + (1.0 - limit) * 0.5_f64.powi(halvings));
    let multiples = [1.25, 1.5, 2.0, 4.0].map(|factor| (limit * factor).min(f64::midpoint(limit, 1.0)));
    let alternatives: Vec<f64> = towards_one.chain(multiples).collect();
    let ratio = |other: f64| (bad * (other / limit).ln() + good * ((1.0 - other) / (1.0 - limit)).ln()).exp();
    let n = f64::from(u32::try_from(alternatives.len()).unwrap_or(u32::MAX));
    alternatives.into_iter().map(ratio).sum::<f64>() / n > 1.0 / ALPHA
}

/// Evidence against one limit.
#[derive(Debug)]
pub(super) struct LimitEvidence {
    limit: Constraint,
    quantity: WatchedQuantity,
    /// The limited percentile, 0 to 100. `None` for the mean.
    percentile: Option<f64>,
    /// Requests that have the quantity.
    requests: u64,
    /// Requests beyond the limit.
    bad: u64,
    /// Sum of the values, in milliseconds or tokens per second.
    sum: f64,
    /// Sum and number of the values per time interval.
    bins: TimeBins,
    /// The latest end of a request.
    last: std::time::Duration,
}

impl LimitEvidence {
    /// Creates empty evidence. Returns `None` for a limit that cannot be judged during a run.
    pub(super) fn new(limit: &Constraint) -> Option<Self> {
        let (statistic, quantity) =
            WatchedQuantity::split(&limit.metric).filter(|(_, quantity)| *quantity != WatchedQuantity::Itl)?;
        let percentile = percentile_of(statistic);
        if percentile.is_none() && statistic != "mean" {
            return None;
        }
        let (limit, bins) = (limit.clone(), TimeBins::new());
        Some(Self { limit, quantity, percentile, requests: 0, bad: 0, sum: 0.0, bins, last: std::time::Duration::ZERO })
    }

    /// Records a completed request.
    pub(super) fn ended(&mut self, record: &RequestRecord) {
        let Some((value, _)) = self.quantity.of(record) else { return };
        let beyond = match self.limit.limit {
            MetricLimit::AtMost(limit) => value > limit,
            MetricLimit::AtLeast(limit) => value < limit,
        };
        self.requests += 1;
        self.bad += u64::from(beyond);
        self.sum += value;
        self.last = self.last.max(record.end);
        self.bins.add(record.end, value, 1.0);
    }

    /// Returns the reason if no outcome of the remaining requests can keep the limit. `total` is the number of all
    /// requests of the window. Returns `None` while the limit can be kept.
    pub(super) fn certain_violation(&self, total: u64) -> Option<String> {
        let all = to_f64(total);
        let broken = match (self.percentile, self.limit.limit) {
            // The percentile is interpolated from the place below its rank, so that place must be beyond the limit
            // already. If fewer than `total` requests complete, fewer bad ones are enough.
            (Some(p), limit) => {
                let p = if matches!(limit, MetricLimit::AtMost(_)) { p } else { 100.0 - p };
                let rank = (p / 100.0 * (all - 1.0)).floor();
                let bad = to_f64(self.bad);
                bad >= all - rank
            }
            (None, MetricLimit::AtMost(limit)) => self.sum > limit * all,
            (None, MetricLimit::AtLeast(_)) => false,
        };
        broken.then(|| {
            let how = match self.percentile {
                Some(_) => format!("{} of {total} requests are already beyond the limit", self.bad),
                None => format!("the sum of {} requests already exceeds the limit for all {total}", self.requests),
            };
            format!("{} can no longer be kept: {how}", self.limit)
        })
    }

    /// Returns the reason if the limit is broken with a confidence of 99.9 %. For a run without a known number of
    /// requests.
    pub(super) fn likely_violation(&self) -> Option<String> {
        let broken = match (self.percentile, self.limit.limit) {
            (Some(p), MetricLimit::AtMost(_)) => exceeds(self.bad, self.requests, 1.0 - p / 100.0),
            (Some(p), MetricLimit::AtLeast(_)) => exceeds(self.bad, self.requests, p / 100.0),
            (None, limit) => {
                let estimate = self.steady_mean(MEAN_QUANTILE)?;
                match limit {
                    MetricLimit::AtMost(limit) => estimate.value - estimate.half > limit,
                    MetricLimit::AtLeast(limit) => estimate.value + estimate.half < limit,
                }
            }
        };
        let how = match self.percentile {
            Some(_) => format!("{} of {} requests are beyond the limit", self.bad, self.requests),
            None => format!("the mean of {} requests is significantly beyond the limit", self.requests),
        };
        broken.then(|| format!("{} is not kept (99.9 % confidence): {how}", self.limit))
    }

    /// Returns whether the limit lies outside of the 95 % confidence interval of its metric, on either side.
    pub(super) fn is_settled(&self) -> bool {
        self.distance(SETTLED_QUANTILE).is_some_and(|excess| excess != 0.0)
    }

    /// Returns whether the limit is kept, with a confidence of 99.9 %.
    pub(super) fn is_clearly_kept(&self) -> bool {
        self.distance(KEPT_QUANTILE).is_some_and(|excess| excess < 0.0)
    }

    /// Returns -1 if the metric keeps the limit at the normal quantile `z`, 1 if it breaks it, and 0 if neither is clear.
    /// `None` while the observations are too few.
    fn distance(&self, z: f64) -> Option<f64> {
        let (limit, sign) = match self.limit.limit {
            MetricLimit::AtMost(limit) => (limit, 1.0),
            MetricLimit::AtLeast(limit) => (limit, -1.0),
        };
        let (excess, half) = if let Some(p) = self.percentile {
            // The share of requests beyond the limit against the allowed one (the score interval of Wilson, 1927).
            let allowed = if sign > 0.0 { 1.0 - p / 100.0 } else { p / 100.0 };
            let requests = Some(to_f64(self.requests)).filter(|requests| *requests > 0.0)?;
            (to_f64(self.bad) / requests - allowed, z * (allowed * (1.0 - allowed) / requests).sqrt())
        } else {
            let mean = self.steady_mean(z)?;
            (sign * (mean.value - limit), mean.half)
        };
        Some(if excess.abs() > half { excess.signum() } else { 0.0 })
    }

    /// Estimates the mean without the warm-up, with an interval at the normal quantile `z`. `None` while the
    /// observations are too few.
    fn steady_mean(&self, z: f64) -> Option<RatioEstimate> {
        let past = self.bins.past(self.last);
        let series: Vec<f64> = past.iter().map(|(y, x)| if *x > 0.0 { y / x } else { 0.0 }).collect();
        batch_means_at(&batched(&past[mser5(&series)?..], 20), z)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Returns the number of runs, out of 300, that the test ends. Each has 2,000 requests that fail with the
    /// probability `share`.
    fn ended(share: f64, limit: f64) -> usize {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let mut ends = || {
            let mut bad = 0;
            (1..=2000).any(|seen| {
                bad += u64::from(rng.random_bool(share));
                exceeds(bad, seen, limit)
            })
        };
        (0..300).filter(|_| ends()).count()
    }

    #[test]
    fn a_rate_at_its_limit_ends_no_run_and_one_far_above_ends_all() {
        for limit in [0.01, 0.05, 0.3] {
            // Two of 300 would already be a chance of one in 27 at a level of 1 / 1000.
            assert!(ended(limit, limit) <= 1, "{limit}");
            assert_eq!(ended(limit * 2.0 + 0.05, limit), 300, "{limit}");
        }
    }

    #[test]
    fn a_limit_is_settled_if_it_lies_outside_of_the_interval() {
        let p90 = |bad: u64, requests: u64| {
            let limit = Constraint { metric: "p90_ttft_ms".to_owned(), limit: MetricLimit::AtMost(500.0) };
            LimitEvidence { requests, bad, ..LimitEvidence::new(&limit).unwrap() }.is_settled()
        };
        // With 100 requests the standard error of a share of 10 % is 3 %.
        assert!(!p90(0, 0) && !p90(0, 20) && p90(0, 100));
        assert!(p90(4, 100) && !p90(5, 100) && !p90(15, 100) && p90(16, 100));
    }

    #[test]
    fn a_limit_is_clearly_kept_only_far_below_it() {
        let p95 = |bad: u64, requests: u64| {
            let limit = Constraint { metric: "p95_ttft_ms".to_owned(), limit: MetricLimit::AtMost(500.0) };
            LimitEvidence { requests, bad, ..LimitEvidence::new(&limit).unwrap() }.is_clearly_kept()
        };
        // 5 % of 210 requests are 3.3 standard errors above none.
        assert!(!p95(0, 200) && p95(0, 210) && !p95(4, 210) && !p95(50, 210) && p95(20, 1000));
    }

    #[test]
    fn one_failure_proves_nothing_and_a_few_in_a_row_do() {
        assert!((0..=50).all(|seen| !exceeds(seen.min(1), seen, 0.0)));
        assert!(!exceeds(2, 2, 0.05) && exceeds(6, 6, 0.05));
        assert!(!exceeds(100, 100, 1.0));
    }
}
