//! Several objectives at once: the front of points that are not dominated, and the expected growth of the dominated
//! volume by a new point. Every objective is to be maximised.

use crate::stats::normal::{log_cdf, log_improvement};

/// Returns the indices of the points that no other point dominates: none is at least as good in every objective and
/// better in one. Of equal points the first is on the front. A point with a NaN is on no front.
///
/// Up to three objectives use a sweep over the sorted points. More objectives compare every point with the front so
/// far.
#[must_use]
pub(crate) fn front(points: &[Vec<f64>]) -> Vec<usize> {
    let mut order: Vec<_> = (0..points.len()).filter(|&i| points[i].iter().all(|value| !value.is_nan())).collect();
    // In this order a dominating point comes before the dominated one. The first objective needs no further comparison.
    order.sort_by(|&a, &b| descending(&points[a], &points[b]).then(a.cmp(&b)));
    let mut front: Vec<usize> = if points.iter().all(|point| point.len() == 3) {
        let mut stairs = Stairs::default();
        order.into_iter().filter(|&place| stairs.add(points[place][1], points[place][2])).collect()
    } else if points.iter().all(|point| point.len() <= 2) {
        let mut last: Option<usize> = None;
        order.retain(|&place| {
            let is_new = last.is_none_or(|last| !covers(&points[last], &points[place]));
            if is_new {
                last = Some(place);
            }
            is_new
        });
        order
    } else {
        let mut front: Vec<usize> = Vec::new();
        for place in order {
            if !front.iter().any(|&other| covers(&points[other], &points[place])) {
                front.push(place);
            }
        }
        front
    };
    front.sort_unstable();
    front
}

/// Pairs of numbers. None of them is at least as good as another in both: the first numbers descend, the second ones
/// ascend.
#[derive(Default)]
struct Stairs(Vec<(f64, f64)>);

impl Stairs {
    /// Adds a pair, unless another is at least as good in both. Returns whether it was added.
    fn add(&mut self, y: f64, z: f64) -> bool {
        // Among the pairs that are as good in the first number, the last one is the best in the second.
        let end = self.0.partition_point(|pair| pair.0 >= y);
        if end > 0 && self.0[end - 1].1 >= z {
            return false;
        }
        let worse = self.0[end..].partition_point(|pair| pair.1 <= z);
        // A pair that is equal in the first and worse in the second is directly before.
        let start = if end > 0 && self.0[end - 1].0 <= y { end - 1 } else { end };
        self.0.splice(start..end + worse, [(y, z)]);
        true
    }
}

fn descending(a: &[f64], b: &[f64]) -> std::cmp::Ordering {
    let differences = a.iter().zip(b).map(|(a, b)| b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal));
    differences.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
}

/// Returns whether `a` is at least as good as `b` in every objective.
fn covers(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a >= b)
}

/// Returns the logarithm of the expected growth of the hypervolume by a point. Its two objectives are independent and
/// normal, with the given `mean` and standard `deviation`, in the objectives' units.
///
/// `front` is sorted by its first objective, ascending, and no point of it dominates another. Points of it that are not
/// better than the reference in both objectives do not count. The result is minus infinity only if no growth is
/// possible at all: a deviation of 0 is exact knowledge. All arguments have to be finite and no deviation negative.
///
/// Source: the plane above the front falls into strips, and the growth in each strip is a product of one-dimensional
/// improvements (M. Emmerich, A. Deutz, J. Klinkenberg 2011; K. Yang et al., "Efficient computation of expected
/// hypervolume improvement using box decomposition algorithms", 2019). The computation uses logarithms, so that the
/// result still has a slope far below the front.
#[must_use]
pub(crate) fn log_expected_improvement_2d(
    front: &[[f64; 2]],
    reference: [f64; 2],
    mean: [f64; 2],
    deviation: [f64; 2],
) -> f64 {
    let mut left = reference[0];
    let better = front.iter().filter(|point| point[0] > reference[0] && point[1] > reference[1]);
    // A strip ends at a point. Only the area above that point's height is new in it.
    let mut terms: Vec<f64> = better
        .map(|point| {
            let width = log_gain_between(mean[0], deviation[0], left, point[0]);
            left = point[0];
            width + log_gain(mean[1], deviation[1], point[1])
        })
        .collect();
    terms.push(log_gain(mean[0], deviation[0], left) + log_gain(mean[1], deviation[1], reference[1]));
    log_sum(&terms)
}

/// Returns `ln E max(Y - at, 0)`.
fn log_gain(mean: f64, deviation: f64, at: f64) -> f64 {
    if deviation > 0.0 {
        libm::log(deviation) + log_improvement((mean - at) / deviation)
    } else {
        libm::log((mean - at).max(0.0))
    }
}

/// Returns `ln E max(min(Y, high) - low, 0)`, with `low < high`.
fn log_gain_between(mean: f64, deviation: f64, low: f64, high: f64) -> f64 {
    if deviation <= 0.0 {
        return libm::log((mean.min(high) - low).max(0.0));
    }
    let (upper, lower) = ((mean - low) / deviation, (mean - high) / deviation);
    let width = (high - low) / deviation;
    if width * upper.abs().max(1.0) < NARROW {
        // The difference below would cancel. Simpson's rule integrates its derivative instead.
        let middle = 0.5 * (upper + lower);
        let weighted = [log_cdf(lower), log_cdf(middle) + LN_4, log_cdf(upper)];
        return libm::log(deviation) + libm::log(width) - LN_6 + log_sum(&weighted);
    }
    if lower > 0.0 {
        // With h(z) = z + h(-z) the large parts cancel exactly.
        let rest = libm::exp(log_improvement(-lower)) - libm::exp(log_improvement(-upper));
        return libm::log(deviation) + libm::log(width - rest);
    }
    let (all, beyond) = (log_improvement(upper), log_improvement(lower));
    if all == f64::NEG_INFINITY {
        return all;
    }
    libm::log(deviation) + all + libm::log(-libm::expm1(beyond - all))
}

/// Largest width of a strip that is integrated, in deviations and relative to the slope of the logarithm. The error of
/// the rule is the fourth power of it over 2880.
const NARROW: f64 = 1e-2;
const LN_4: f64 = 2.0 * std::f64::consts::LN_2;
const LN_6: f64 = 1.791_759_469_228_055;

fn log_sum(terms: &[f64]) -> f64 {
    let most = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return most;
    }
    most + libm::log(terms.iter().map(|term| libm::exp(term - most)).sum())
}

#[cfg(test)]
mod tests;
