//! The next load of a search.

use super::crossing::Crossing;
use super::isotonic;
use super::{LoadSearchRange, ProbedExcess, TOLERANCE};
use crate::stats::to_f64;
use crate::trial::LoadKnob;

/// The first step up or down, as a factor of the load: from an expected load, and from any other.
const EXPECTED_STRIDE: f64 = 1.5;
const FREE_STRIDE: f64 = 2.0;

/// The least step, as a factor of the load.
const LEAST_STRIDE: f64 = 1.08;

/// The share of the interval that a probe keeps from both of its ends.
const MARGIN: f64 = 0.12;

/// Returns the next load; `None` if the highest load is known well enough, or lies outside of the range.
pub(super) fn next(points: &[ProbedExcess], range: &LoadSearchRange) -> Option<f64> {
    if points.is_empty() {
        return Some(settle(range.begin, range));
    }
    let load = match Crossing::find(points) {
        Some(found) => between(&found, range)?,
        None => outside(points, range)?,
    };
    Some(settle(load, range))
}

/// Returns the next load between two that enclose the crossing.
fn between(found: &Crossing, range: &LoadSearchRange) -> Option<f64> {
    let (low, high) = found.bracket;
    let is_exact = range.knob == LoadKnob::Concurrency && libm::exp(high) - libm::exp(low) < 1.5;
    if found.half <= TOLERANCE || is_exact && found.noise <= TOLERANCE {
        return None;
    }
    // Another load within a narrow interval has the same noise as a repetition of its nearer end.
    if high - low < TOLERANCE {
        let nearer = if found.x - low < high - found.x { low } else { high };
        return Some(libm::exp(nearer));
    }
    let width = high - low;
    Some(libm::exp(found.x.clamp(low + MARGIN * width, high - MARGIN * width)))
}

/// Returns the next load if all are on one side.
fn outside(points: &[ProbedExcess], range: &LoadSearchRange) -> Option<f64> {
    let fit = isotonic::fit(points);
    let is_up = fit[0].y <= 0.0;
    let edge = if is_up { fit[fit.len() - 1] } else { fit[0] };
    let end = if is_up { range.highest } else { range.lowest };
    if (libm::exp(edge.x) / end - 1.0).abs() < 1e-6 {
        return None;
    }
    let first = libm::log(if range.is_expected { EXPECTED_STRIDE } else { FREE_STRIDE });
    let most = first * to_f64(points.len()).min(3.0);
    // An excess that grows at least as fast as the load crosses zero within its own size.
    let mut distance = edge.y.abs() + edge.error;
    let beside = if is_up { fit.len().checked_sub(2) } else { Some(1).filter(|at| *at < fit.len()) };
    if let Some(beside) = beside.map(|at| fit[at]) {
        let slope = (edge.y - beside.y) / (edge.x - beside.x);
        if slope > 0.05 {
            distance = 1.2 * edge.y.abs() / slope;
        }
    }
    let stride = distance.clamp(libm::log(LEAST_STRIDE), most.max(libm::log(LEAST_STRIDE)));
    Some(libm::exp(if is_up { edge.x + stride } else { edge.x - stride }))
}

/// Moves a load into the range, and to a whole number of users.
fn settle(load: f64, range: &LoadSearchRange) -> f64 {
    let load = load.clamp(range.lowest, range.highest);
    if range.knob == LoadKnob::Concurrency { load.round().max(1.0) } else { load }
}
