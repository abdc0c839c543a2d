//! Mean, population standard deviation and percentiles of a sample, exactly.

use crate::stats::{percentile, to_f64};
use crate::trial::{Distribution, Speeds};

/// Returns the statistics of a sample of latencies, or `None` if it is empty.
#[must_use]
pub(crate) fn distribution(mut values: Vec<f64>) -> Option<Distribution> {
    let (mean, std) = moments(&mut values)?;
    let at = |p| percentile(&values, p);
    Some(Distribution { mean, median: at(50.0)?, std, p90: at(90.0)?, p95: at(95.0)?, p99: at(99.0)? })
}

/// Returns the statistics of a sample of speeds, or `None` if it is empty.
#[must_use]
pub(crate) fn speeds(mut values: Vec<f64>) -> Option<Speeds> {
    let (mean, std) = moments(&mut values)?;
    let at = |p| percentile(&values, p);
    Some(Speeds { mean, median: at(50.0)?, std, p10: at(10.0)?, p5: at(5.0)?, p1: at(1.0)? })
}

/// Sorts the values. Returns their mean and population standard deviation, or `None` if there are none.
fn moments(values: &mut [f64]) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    values.sort_unstable_by(f64::total_cmp);
    let n = to_f64(values.len());
    let mean = values.iter().sum::<f64>() / n;
    // In two passes: the difference of two large sums of squares would lose the digits that matter.
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
    Some((mean, variance.sqrt()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes the percentile in another way: weighs every value by its distance from the rank.
    fn naive(values: &[f64], p: f64) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = p / 100.0 * to_f64(sorted.len() - 1);
        sorted.iter().enumerate().map(|(i, x)| x * (1.0 - (to_f64(i) - rank).abs()).max(0.0)).sum()
    }

    proptest! {
        #[test]
        fn percentiles_agree_with_a_naive_version(values in prop::collection::vec(0.0..1e6, 1..200), p in 0.0..=100.0) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert!((percentile(&sorted, p).unwrap() - naive(&values, p)).abs() < 1e-6);
        }

        #[test]
        fn the_statistics_agree_with_naive_versions(values in prop::collection::vec(0.0..1e6, 1..200)) {
            let n = to_f64(values.len());
            let mean = values.iter().sum::<f64>() / n;
            let std = (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt();
            let found = distribution(values.clone()).unwrap();
            prop_assert!((found.mean - mean).abs() < 1e-6 && (found.std - std).abs() < 1e-6);
            prop_assert!((found.median - naive(&values, 50.0)).abs() < 1e-6);
            prop_assert!((found.p99 - naive(&values, 99.0)).abs() < 1e-6);
            let speeds = speeds(values.clone()).unwrap();
            prop_assert!((speeds.p1 - naive(&values, 1.0)).abs() < 1e-6 && (speeds.std - std).abs() < 1e-6);
            prop_assert!(speeds.p1 <= speeds.p5 && speeds.p5 <= speeds.p10 && speeds.p10 <= speeds.median);
            prop_assert!(found.median <= found.p90 && found.p90 <= found.p95 && found.p95 <= found.p99);
        }
    }

    #[test]
    fn the_example_of_numpy_is_reproduced() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        let found = [0.0, 50.0, 90.0, 100.0].map(|p| percentile(&sorted, p).unwrap());
        assert!(found.iter().zip([1.0, 2.5, 3.7, 4.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        assert_eq!(percentile(&[], 50.0), None);
        assert_eq!(distribution(Vec::new()), None);
    }
}
