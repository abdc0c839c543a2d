//! Exact mean, median and percentiles of a sample.

use super::{f64_to_usize, to_f64};

/// Returns the arithmetic mean; `None` if there are no values.
#[must_use]
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / to_f64(values.len()))
}

/// Returns the `p`-th percentile (0 to 100) of ascending values, by linear interpolation; `None` if there are none.
#[must_use]
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = p.clamp(0.0, 100.0) / 100.0 * to_f64(last);
    let below = f64_to_usize(rank.floor());
    let (low, high) = (sorted[below.min(last)], sorted[(below + 1).min(last)]);
    Some(low + rank.fract() * (high - low))
}

/// Returns the median of values in any order; `None` if there are none.
#[must_use]
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    percentile(&values, 50.0)
}

/// Returns `ln(sum(exp(values)))` without overflow; minus infinity without values.
pub(crate) fn log_sum_exp(values: &[f64]) -> f64 {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most.is_infinite() {
        return most;
    }
    most + libm::log(values.iter().map(|value| libm::exp(value - most)).sum::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_and_a_median_need_a_value() {
        assert_eq!((mean(&[]), median([].into_iter()), percentile(&[], 50.0)), (None, None, None));
        assert_eq!((mean(&[1.0, 2.0, 6.0]), median([6.0, 1.0, 2.0].into_iter())), (Some(3.0), Some(2.0)));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
    }
}
