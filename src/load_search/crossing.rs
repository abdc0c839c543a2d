//! The load at which the excess crosses zero, from the measured loads around it.
//!
//! Two estimates are possible, and the one with the narrower interval counts. The *line* is a weighted regression through
//! all loads near the limits. It averages their noise, and is used if the loads are consistent with a line. The *bracket*
//! are the two neighbouring loads that enclose the crossing. It needs no shape but a rising one, and also finds cliffs.

use super::ProbedExcess;
use super::isotonic::{self, FittedPoint};

/// Excesses beyond this are taken as this by the interpolation. A queue raises a latency without bound within a few
/// percent of load, and a line to such a point would be far from the crossing.
const MAX_INTERPOLATED: f64 = 0.7;

/// The excess does not rise before a cliff: at the rate below the bracket it would cross zero this many widths later.
const CLIFF_REACH: f64 = 1.5;

/// The possible error of an interpolated crossing, as a share of the distance to a measured load. Latencies are convex in
/// the load up to saturation, so the crossing is right of the line between two loads, and left of the line through two
/// lower loads.
const SHAPE_ERROR: f64 = 0.1;

/// Normal quantile of an interval of 90 %, wider than its 1.64 because few loads determine the slope.
const QUANTILE: f64 = 1.9;

/// The least rise at a cliff, and the largest distance of its two loads, as logarithms.
const CLIFF_RISE: f64 = 0.69;
const CLIFF_WIDTH: f64 = 0.22;

/// Loads that are nearer, as a logarithm, give no slope: their difference is mostly noise.
const SLOPE_DISTANCE: f64 = 0.05;

/// The largest excess of a load that the line fits, and the error of the line's shape, as a logarithm.
const LINE_REACH: f64 = 0.6;
const LINE_ERROR: f64 = 0.01;

/// The largest mean square of the residuals of a line, in deviations.
const MAX_MISFIT: f64 = 2.0;

/// The crossing between two measured loads. All loads are logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Crossing {
    pub(super) x: f64,
    /// Half the width of the 90 % interval.
    pub(super) half: f64,
    /// The part of `half` that the noise of the excesses causes.
    pub(super) noise: f64,
    /// The highest load below zero, and the lowest above it.
    pub(super) bracket: (f64, f64),
    pub(super) cliff: bool,
}

impl Crossing {
    /// Returns the crossing. `None` if all points are on one side.
    pub(super) fn find(points: &[ProbedExcess]) -> Option<Self> {
        let bracketed = Self::in_bracket(points)?;
        Some(match line(points) {
            Some((x, half)) if half < bracketed.half => Self { x, half, noise: half, ..bracketed },
            _ => bracketed,
        })
    }

    /// Returns the crossing between the two loads that enclose it.
    fn in_bracket(points: &[ProbedExcess]) -> Option<Self> {
        let fit = isotonic::fit(points);
        let above = fit.iter().position(|point| point.y > 0.0)?;
        let below = above.checked_sub(1)?;
        let (low, high) = (fit[below], fit[above]);
        let width = high.x - low.x;
        let (under, over) = (low.y.max(-MAX_INTERPOLATED), high.y.min(MAX_INTERPOLATED));
        let chord = low.x + width * (-under / (over - under));
        let slope = slope_before(&fit, below);
        // The load at which the line through the two lower loads crosses zero.
        let reached = slope.map(|slope| low.x - low.y / slope);
        let (x, left, right) = match reached {
            // The shape below the bracket is not known.
            None => (chord, low.x, high.x),
            // A cliff: the excess does not rise before it.
            Some(reached) if reached - low.x > CLIFF_REACH * width => (f64::midpoint(low.x, high.x), low.x, high.x),
            Some(reached) => {
                let straight = low.x + width * (-low.y / (high.y - low.y));
                let left = straight - SHAPE_ERROR * (straight - low.x);
                let right = reached.min(high.x).max(left) + SHAPE_ERROR * (high.x - reached).max(0.0);
                (f64::midpoint(left, right), left, right)
            }
        };
        let nearest = if -low.y < high.y { low } else { high };
        let noise = QUANTILE * nearest.error / slope_around(&fit, x, (low, high));
        let is_flat_before = slope.is_none_or(|slope| slope * width < (high.y - low.y) / 3.0);
        Some(Self {
            x,
            half: libm::hypot((right - left) / 2.0, noise),
            noise,
            bracket: (low.x, high.x),
            cliff: high.y - low.y > CLIFF_RISE && width < CLIFF_WIDTH && is_flat_before,
        })
    }
}

/// Returns the slope of the fit up to the point at `index`. `None` if the fit does not rise there, or has no point
/// before.
fn slope_before(fit: &[FittedPoint], index: usize) -> Option<f64> {
    let (before, at) = (fit.get(index.checked_sub(1)?)?, fit[index]);
    let (rise, error) = (at.y - before.y, libm::hypot(at.error, before.error));
    // A rise within its noise gives no direction.
    (rise > error && rise > 0.0).then(|| rise / (at.x - before.x))
}

/// Returns the slope of the fit at `x`, between the nearest loads at a distance that exceeds their noise.
fn slope_around(fit: &[FittedPoint], x: f64, bracket: (FittedPoint, FittedPoint)) -> f64 {
    let left = fit.iter().rev().find(|point| point.x <= x - SLOPE_DISTANCE).copied().unwrap_or(bracket.0);
    let right = fit.iter().find(|point| point.x >= x + SLOPE_DISTANCE).copied().unwrap_or(bracket.1);
    let rise = right.y.min(MAX_INTERPOLATED) - left.y.max(-MAX_INTERPOLATED);
    (rise / (right.x - left.x)).max(f64::MIN_POSITIVE)
}

/// Returns the zero of a line through the loads near the limits, and half the width of its 90 % interval. `None` with
/// fewer than three loads, or if they are not on a rising line.
fn line(points: &[ProbedExcess]) -> Option<(f64, f64)> {
    let near: Vec<_> = points.iter().filter(|point| point.excess.value.abs() <= LINE_REACH).collect();
    if near.len() < 3 {
        return None;
    }
    let weight = |point: &ProbedExcess| 1.0 / (point.excess.deviation.powi(2) + LINE_ERROR.powi(2));
    let sum = |of: &dyn Fn(&ProbedExcess) -> f64| near.iter().map(|point| weight(point) * of(point)).sum::<f64>();
    let all = sum(&|_| 1.0);
    let (mean_x, mean_y) = (sum(&|point| point.x) / all, sum(&|point| point.excess.value) / all);
    let squares = sum(&|point| (point.x - mean_x).powi(2));
    let slope = sum(&|point| (point.x - mean_x) * (point.excess.value - mean_y)) / squares;
    let slope_error = squares.sqrt().recip();
    if slope.is_nan() || slope <= 2.0 * slope_error {
        return None;
    }
    let residual = |point: &ProbedExcess| point.excess.value - mean_y - slope * (point.x - mean_x);
    let misfit = sum(&|point| residual(point).powi(2)) / crate::stats::to_f64(near.len() - 2);
    if misfit > MAX_MISFIT {
        return None;
    }
    let x = mean_x - mean_y / slope;
    let is_inside = near.iter().any(|point| point.x <= x) && near.iter().any(|point| point.x >= x);
    let variance = 1.0 / all + ((x - mean_x) * slope_error).powi(2);
    let half = QUANTILE * (variance * misfit.max(1.0)).sqrt() / slope;
    is_inside.then_some((x, half))
}
