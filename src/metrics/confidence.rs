//! 95 % confidence intervals of percentiles, means and throughputs.
//!
//! **Percentiles** use order statistics, for any distribution (David and Nagaraja, Order Statistics, 2003, section
//! 7.1). Let `B` be binomial of `n` and `p`. The interval from the `l`-th to the `u`-th smallest value has the largest
//! `l` with `P(B <= l - 1) <= 2.5 %` and the smallest `u` with `P(B <= u - 1) >= 97.5 %`. Without such an `l` or `u`
//! the bound is missing: the P99 of fewer than 368 values has no upper one. If bursts of requests suffer together, `n` is
//! the number of independent requests with the same information: `n / f`. `f` is the variance of the share of requests
//! beyond the percentile between batches in the order of time, divided by that of independent requests. It counts if it
//! is significantly above 1 (5 %).
//!
//! **Means and throughputs** use non-overlapping batch means (Law, Simulation Modeling and Analysis, 2015, section
//! 9.5.3). The observations form `k` batches in the order of time. In each, `y` is the counted quantity (milliseconds,
//! tokens) and `x` its base (requests, seconds). With `R = sum y / sum x` and `d = y - R x` the interval is
//!
//! ```text
//! R +- t(k - 1) * sqrt(sum d^2 / (k - 1) / k * f) / mean x         f = (1 + r) / (1 - r)
//! ```
//!
//! `r` is the lag-1 correlation of `d`, clamped to the range from 0 to 0.9. `f` widens the interval if batches still
//! resemble their neighbours (a first-order autoregression). `t` is the 97.5 % quantile of Student's distribution. `k`
//! is 20, but 10 for fewer than 100 observations. With fewer than 50 there is no interval (Schmeiser 1982: more than 30
//! batches gain nothing, fewer than 10 lose much).

use crate::stats::{f64_to_usize, to_f64};
use crate::trial::Interval;

/// The 97.5 % quantile of the normal distribution.
const NORMAL_QUANTILE: f64 = 1.959_963_984_540_054;

/// A ratio and half the width of its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioEstimate {
    pub value: f64,
    pub half: f64,
}

impl From<RatioEstimate> for Interval {
    /// Clamps at 0: times, counts and their ratios are never negative.
    fn from(estimate: RatioEstimate) -> Self {
        Self { low: Some((estimate.value - estimate.half).max(0.0)), high: Some(estimate.value + estimate.half) }
    }
}

/// Returns the number of batches, or `None` if there are too few observations.
pub(super) fn batches(observations: usize) -> Option<usize> {
    match observations {
        0..50 => None,
        50..100 => Some(10),
        _ => Some(20),
    }
}

/// Adds up neighbours, so that `k` batches of nearly equal numbers of observations are left. Fewer than `k`
/// observations are kept as they are.
pub(super) fn batched(observations: &[(f64, f64)], k: usize) -> Vec<(f64, f64)> {
    let k = k.min(observations.len());
    let edge = |i: usize| i * observations.len() / k;
    let sum = |part: &[(f64, f64)]| part.iter().fold((0.0, 0.0), |(y, x), more| (y + more.0, x + more.1));
    (0..k).map(|i| sum(&observations[edge(i)..edge(i + 1)])).collect()
}

/// Returns the ratio of the sums of `y` and `x` over batches `(y, x)` in the order of time, with 95 % confidence.
/// Returns `None` for fewer than 10 batches, and if the sum of `x` is not above 0.
pub(crate) fn batch_means(batches: &[(f64, f64)]) -> Option<RatioEstimate> {
    batch_means_at(batches, NORMAL_QUANTILE)
}

/// Like [`batch_means`], but for the quantile `z` of the normal distribution instead of that of 97.5 %.
pub(super) fn batch_means_at(batches: &[(f64, f64)], z: f64) -> Option<RatioEstimate> {
    let k = to_f64(batches.len());
    let (y, x) = batches.iter().fold((0.0, 0.0), |(y, x), batch| (y + batch.0, x + batch.1));
    if batches.len() < 10 || x <= 0.0 {
        return None;
    }
    let value = y / x;
    let off: Vec<f64> = batches.iter().map(|(y, x)| y - value * x).collect();
    let squares: f64 = off.iter().map(|off| off * off).sum();
    let products: f64 = off.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let correlation = if squares > 0.0 { (products / squares).clamp(0.0, 0.9) } else { 0.0 };
    let variance = squares / (k - 1.0) / k * (1.0 + correlation) / (1.0 - correlation);
    Some(RatioEstimate { value, half: student(z, k - 1.0) * variance.sqrt() / (x / k) })
}

/// Returns the quantile of Student's distribution with `freedom` degrees of freedom that corresponds to the quantile
/// `z` of the normal distribution. Source: expansion 26.7.5 of Abramowitz and Stegun, Handbook of Mathematical
/// Functions. The error is below 0.0003 at 97.5 % from 9 degrees of freedom on.
#[must_use]
pub(crate) fn student(z: f64, freedom: f64) -> f64 {
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

/// Returns the places, from 0, of the sorted values that bound the `p`-th percentile (0 to 100) of `n` values.
pub(super) fn bounds(n: usize, p: f64) -> (Option<usize>, Option<usize>) {
    let share = p / 100.0;
    let (trials, mean) = (to_f64(n), to_f64(n) * share);
    if n == 0 || share <= 0.0 || share >= 1.0 {
        return (None, None);
    }
    // More than ten standard deviations below the mean, the probabilities are negligible.
    let reach = 10.0 * (mean * (1.0 - share)).sqrt() + 10.0;
    let first = f64_to_usize((mean - reach).max(0.0));
    let chosen = |k: f64| libm::lgamma(trials + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(trials - k + 1.0);
    let (mut below, mut low) = (0.0, None);
    for k in first..=n {
        let at = to_f64(k);
        below += (chosen(at) + at * share.ln() + (trials - at) * (-share).ln_1p()).exp();
        // `below` is P(B <= k): k is the place of l while it is small enough, and of u once it is large enough.
        if below <= 0.025 {
            low = Some(k);
        } else if below >= 0.975 {
            return (low, (k < n).then_some(k));
        }
    }
    (low, None)
}

/// The 95 % quantile of a chi-square distribution of 19 degrees of freedom, divided by them: the variance between 20
/// batches of independent requests exceeds the expected one by this factor in 5 % of cases.
const CHANCE_CLUSTERING: f64 = 1.587;

/// Returns the loss of information on a percentile by neighbouring requests, as a factor: 1 if they are independent.
/// `values` are in the order of time, and `at` is the percentile.
#[must_use]
pub(super) fn clustering(values: &[f64], at: f64) -> f64 {
    let beyond = |value: &f64| (if *value > at { 1.0 } else { 0.0 }, 1.0);
    let each: Vec<(f64, f64)> = values.iter().map(beyond).collect();
    let Some(k) = batches(each.len()) else { return 1.0 };
    let share = each.iter().map(|(bad, _)| bad).sum::<f64>() / to_f64(each.len());
    let (independent, batches) = (share * (1.0 - share), to_f64(k));
    if independent <= 0.0 {
        return 1.0;
    }
    let squares: f64 = batched(&each, k).iter().map(|(bad, all)| (bad - share * all).powi(2) / all).sum();
    let factor = squares / (batches - 1.0) / independent;
    if factor > CHANCE_CLUSTERING { factor } else { 1.0 }
}

/// Returns the interval of the `p`-th percentile of ascending values, or `None` if neither bound exists. `clustering` is
/// that of the values.
#[must_use]
pub(crate) fn percentile_interval(sorted: &[f64], p: f64, clustering: f64) -> Option<Interval> {
    let independent = f64_to_usize((to_f64(sorted.len()) / clustering).floor()).max(1);
    let (low, high) = bounds(independent, p);
    let scale = to_f64(sorted.len()) / to_f64(independent);
    let place = |place: usize| f64_to_usize(to_f64(place) * scale).min(sorted.len() - 1);
    let (low, high) = if sorted.is_empty() { (None, None) } else { (low.map(place), high.map(place)) };
    let interval = Interval { low: low.map(|at| sorted[at]), high: high.map(|at| sorted[at]) };
    (interval != Interval::default()).then_some(interval)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn students_quantiles_are_those_of_the_tables() {
        for (freedom, expected) in [(9.0, 2.262), (19.0, 2.093), (30.0, 2.042)] {
            assert!(
                (student(NORMAL_QUANTILE, freedom) - expected).abs() < 0.001,
                "{freedom}: {}",
                student(NORMAL_QUANTILE, freedom)
            );
        }
    }

    #[test]
    fn the_bounds_of_a_median_are_those_of_the_tables() {
        // The sign test's table: the 2nd and the 9th of 10, the 6th and the 15th of 20, the 40th and the 61st of 100.
        assert_eq!(bounds(10, 50.0), (Some(1), Some(8)));
        assert_eq!(bounds(20, 50.0), (Some(5), Some(14)));
        assert_eq!(bounds(100, 50.0), (Some(39), Some(60)));
        assert_eq!(bounds(5, 50.0), (None, None));
    }

    #[test]
    fn a_bound_that_the_sample_is_too_small_for_is_missing() {
        assert_eq!(bounds(100, 99.0).1, None);
        assert_eq!((bounds(367, 99.0).1, bounds(368, 99.0).1), (None, Some(367)));
        assert_eq!(bounds(0, 50.0), (None, None));
        assert_eq!(percentile_interval(&[1.0, 2.0], 50.0, 1.0), None);
    }

    #[test]
    fn bounds_of_a_large_sample_are_near_the_normal_ones() {
        let (low, high) = bounds(1_000_000, 99.0);
        // 990,000 +- 1.96 * 99.5
        assert!(low.unwrap().abs_diff(989_805) < 3 && high.unwrap().abs_diff(990_195) < 3, "{low:?} {high:?}");
    }

    fn exponential(rng: &mut ChaCha8Rng) -> f64 {
        -(1.0 - rng.random::<f64>()).ln()
    }

    /// Returns the number of samples, out of 400, with an interval that contains the truth.
    fn covered(mut holds: impl FnMut(&mut ChaCha8Rng) -> bool) -> usize {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        (0..400).filter(|_| holds(&mut rng)).count()
    }

    #[test]
    fn intervals_contain_the_true_value_at_their_confidence() {
        let percentile = covered(|rng| {
            let mut values: Vec<f64> = (0..500).map(|_| exponential(rng)).collect();
            values.sort_by(f64::total_cmp);
            let interval = percentile_interval(&values, 90.0, 1.0).unwrap();
            let truth = 10.0_f64.ln();
            interval.low.unwrap() <= truth && truth <= interval.high.unwrap()
        });
        // Three standard deviations below 95 % of 400 are 367.
        assert!((367..=400).contains(&percentile), "{percentile}");
        let mean = covered(|rng| {
            let values: Vec<(f64, f64)> = (0..400).map(|_| (exponential(rng), 1.0)).collect();
            let estimate = batch_means(&batched(&values, 20)).unwrap();
            (estimate.value - 1.0).abs() <= estimate.half
        });
        assert!((367..400).contains(&mean), "{mean}");
    }

    #[test]
    fn bursts_widen_the_interval_of_a_percentile() {
        // Bursts of 25 requests with the same delay.
        let covered = covered(|rng| {
            let values: Vec<f64> = (0..1000).step_by(25).flat_map(|_| [exponential(rng); 25]).collect();
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let factor = clustering(&values, crate::stats::percentile(&sorted, 80.0).unwrap());
            let interval = percentile_interval(&sorted, 80.0, factor).unwrap();
            let truth = 5.0_f64.ln();
            interval.low.unwrap() <= truth && interval.high.is_none_or(|high| truth <= high)
        });
        assert!(covered > 360, "{covered} of 400");
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let independent: Vec<f64> = (0..1000).map(|_| exponential(&mut rng)).collect();
        assert_eq!(clustering(&independent, 3.0).to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn neighbours_that_resemble_each_other_widen_the_interval() {
        // A first-order autoregression of correlation 0.6 between batches.
        let covered = covered(|rng| {
            let mut state = 0.0;
            let mut next = || {
                state = 0.6 * state + rng.random_range(-1.0..1.0);
                (state + 10.0, 1.0)
            };
            let values: Vec<(f64, f64)> = (0..420).map(|_| next()).skip(20).collect();
            let estimate = batch_means(&batched(&values, 20)).unwrap();
            (estimate.value - 10.0).abs() <= estimate.half
        });
        assert!((360..400).contains(&covered), "{covered}");
    }

    #[test]
    fn ratios_are_of_sums_and_too_few_batches_give_none() {
        let estimate = batch_means(&[(2.0, 1.0), (6.0, 3.0)].repeat(5)).unwrap();
        assert!((estimate.value - 2.0).abs() < 1e-12 && estimate.half < 1e-12, "{estimate:?}");
        let wide = Interval::from(RatioEstimate { value: 2.0, half: 3.0 });
        assert_eq!(wide, Interval { low: Some(0.0), high: Some(5.0) });
        assert_eq!(batch_means(&[(1.0, 1.0); 9]), None);
        assert_eq!(batch_means(&[(0.0, 0.0); 10]), None);
        assert_eq!(batched(&[(1.0, 1.0); 7], 3), [(2.0, 2.0), (2.0, 2.0), (3.0, 3.0)]);
        assert_eq!((batches(49), batches(50), batches(100)), (None, Some(10), Some(20)));
    }
}
