//! Histogram with buckets of equal relative width, for runs with more values than memory should hold.
//!
//! Below 1,024 every value has a bucket of its own; above, every power of two is divided into 1,024. A bucket's middle
//! is therefore within 0.05 % of each value in it. A histogram grows to its largest value: an hour in nanoseconds needs
//! 260 KB. This implementation keeps sums as integers. They are exact in any order, and mean and standard deviation
//! have no bucket error.

use crate::stats::{f64_to_u64, to_f64};
use crate::trial::Distribution;

/// Base-2 logarithm of the number of buckets per power of two.
const BUCKET_BITS: u32 = 10;

/// Counts of unsigned values. The owner decides their unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    squares: u128,
}

impl Histogram {
    /// Counts a value.
    pub(crate) fn add(&mut self, value: u64) {
        let bucket = bucket(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.squares = self.squares.saturating_add(u128::from(value).pow(2));
    }

    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean, without bucket error, or `None` if nothing was counted.
    #[must_use]
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| to_f64(self.sum) / to_f64(self.count))
    }

    /// Returns the population standard deviation, without bucket error.
    #[must_use]
    pub(crate) fn std(&self) -> Option<f64> {
        let mean = self.mean()?;
        // n * sum of squares - (sum)^2 in integers if it fits, otherwise in floating point.
        let n = u128::from(self.count);
        let exact = n.checked_mul(self.squares).zip(self.sum.checked_mul(self.sum));
        let variance = match exact {
            Some((squares, square)) => to_f64(squares.saturating_sub(square)) / to_f64(n).powi(2),
            None => to_f64(self.squares) / to_f64(n) - mean * mean,
        };
        Some(variance.max(0.0).sqrt())
    }

    /// Returns the value at this place, from 0, of the sorted values, within 0.05 %.
    #[must_use]
    pub(crate) fn at(&self, place: u64) -> Option<f64> {
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen > place
        })?;
        Some(middle(bucket))
    }

    /// Returns the `p`-th percentile (0 to 100), interpolated as among exact values, within 0.05 %.
    #[must_use]
    pub(crate) fn percentile(&self, p: f64) -> Option<f64> {
        let rank = p.clamp(0.0, 100.0) / 100.0 * to_f64(self.count.checked_sub(1)?);
        let place = f64_to_u64(rank.floor());
        let low = self.at(place.min(self.count - 1))?;
        let high = self.at((place + 1).min(self.count - 1))?;
        Some(low + rank.fract() * (high - low))
    }

    /// Returns all statistics of a latency. The values are divided by `per_unit`: 1e6 converts nanoseconds to
    /// milliseconds.
    #[must_use]
    pub(crate) fn distribution(&self, per_unit: f64) -> Option<Distribution> {
        let at = |p| Some(self.percentile(p)? / per_unit);
        let (mean, std) = (self.mean()? / per_unit, self.std()? / per_unit);
        Some(Distribution { mean, median: at(50.0)?, std, p90: at(90.0)?, p95: at(95.0)?, p99: at(99.0)? })
    }
}

fn bucket(value: u64) -> usize {
    let power = value.checked_ilog2().unwrap_or(0).max(BUCKET_BITS) - BUCKET_BITS;
    // The value's leading bits. The first is the 1 of its power of two.
    let lead = value >> power;
    usize::try_from(u64::from(power) * (1 << BUCKET_BITS) + lead).unwrap_or(usize::MAX)
}

fn middle(bucket: usize) -> f64 {
    let power = (bucket >> BUCKET_BITS).saturating_sub(1);
    let lead = bucket - (power << BUCKET_BITS);
    let width = 2.0_f64.powi(i32::try_from(power).unwrap_or(i32::MAX));
    // A bucket contains the values from its start up to, but not including, the next bucket's start.
    to_f64(lead) * width + (width - 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::metrics::distribution::distribution;
    use crate::stats::percentile;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for value in values {
            histogram.add(*value);
        }
        histogram
    }

    /// Generates values of every size from nanoseconds to hours.
    fn values() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec((0_u32..42, any::<u64>()).prop_map(|(bits, value)| value >> (63 - bits)), 0..60)
    }

    proptest! {
        #[test]
        fn percentiles_are_within_their_bound(values in values(), p in 0.0..=100.0) {
            let mut sorted: Vec<f64> = values.iter().map(|value| to_f64(u128::from(*value))).collect();
            sorted.sort_by(f64::total_cmp);
            match (of(&values).percentile(p), percentile(&sorted, p)) {
                (Some(found), Some(exact)) => {
                    prop_assert!((found - exact).abs() <= exact * 0.0005 + 1e-9, "{} is not {}", found, exact);
                }
                (found, exact) => prop_assert_eq!(found, exact),
            }
        }

        #[test]
        fn mean_and_deviation_have_no_error(values in prop::collection::vec(0_u64..1 << 40, 1..60)) {
            let exact = distribution(values.iter().map(|value| to_f64(u128::from(*value))).collect()).unwrap();
            let found = of(&values).distribution(1.0).unwrap();
            prop_assert!((found.mean - exact.mean).abs() <= exact.mean * 1e-9);
            prop_assert!((found.std - exact.std).abs() <= exact.std * 1e-6 + 1e-6);
        }

        #[test]
        fn every_value_lies_in_its_bucket(value in any::<u64>()) {
            prop_assert!(bucket(value) <= bucket(value.saturating_add(1)));
            let value_f = to_f64(u128::from(value));
            prop_assert!((middle(bucket(value)) - value_f).abs() <= value_f / 2048.0);
        }
    }

    #[test]
    fn buckets_follow_each_other_without_a_hole() {
        assert_eq!([0, 1, 1023, 1024, 2047, 2048, 2049, 2050].map(bucket), [0, 1, 1023, 1024, 2047, 2048, 2048, 2049]);
        assert!((middle(2048) - 2048.5).abs() < 1e-12);
        assert_eq!(Histogram::default().distribution(1.0), None);
    }
}
