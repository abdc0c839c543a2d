//! The best configuration so far with one parameter changed to its least tried value near that configuration.
//!
//! Models that are sure of a plateau leave the rest of the space untried. Most measurements of another value were made
//! with poor values of the other parameters. From time to time, therefore, the sampler changes one parameter of the
//! best configuration and keeps all others.

use super::acquisition::Acquisition;
use super::first_trials::distance;
use super::models::Models;
use super::search::PointSearch;
use super::table::HistoryTable;
use crate::config::Config;
use crate::stats::to_f64;
use crate::surrogate::{EncodedAxis, Encoding};

/// Maximum number of values for a number to be enumerated like a choice.
const FEW_VALUES: u8 = 12;
/// Least probability of serving.
const SERVING: f64 = 0.5;
/// Difference of two coordinates below which they are the same value.
const COORDINATE_TOLERANCE: f64 = 1e-6;

/// The best point with another coordinate on one axis.
pub(super) struct NeglectedValue {
    pub(super) axis: usize,
    pub(super) point: Vec<f64>,
    pub(super) config: Config,
    /// Weighted number of trials with this coordinate. A trial weighs less the more it differs elsewhere.
    weighted_trials: f64,
    /// The acquisition of the point.
    acquisition: f64,
}

/// Returns the value that was tried least near `best`, over all parameters with few values. Several such values are
/// ranked by their acquisition.
pub(super) fn neglected(
    search: &PointSearch<'_, '_>,
    encoding: &Encoding<'_>,
    table: &HistoryTable,
    models: &Models<'_>,
    acquisition: &Acquisition<'_>,
    best: &[f64],
) -> Option<NeglectedValue> {
    let changed = |(axis, coordinate): (usize, f64)| {
        let mut point = best.to_vec();
        point[axis] = coordinate;
        encoding.snap(&mut point);
        // An inactive parameter has no value.
        let is_changed = is_same(point[axis], coordinate) && !is_same(best[axis], coordinate);
        let config = if is_changed { search.usable_config(&point)? } else { return None };
        if models.at(&point).serving_probability < SERVING {
            return None;
        }
        let same = table.points().filter(|known| is_same(known[axis], coordinate));
        let tried = same.map(|known| libm::exp(-distance(&encoding.axes, known, &point))).sum();
        let promise = acquisition.score(&point);
        Some(NeglectedValue { axis, point, config, weighted_trials: tried, acquisition: promise })
    };
    let axes = encoding.axes.iter().enumerate();
    let all = axes.flat_map(|(axis, kind)| coordinates(*kind).into_iter().map(move |coordinate| (axis, coordinate)));
    let order = |a: &NeglectedValue, b: &NeglectedValue| {
        a.weighted_trials.total_cmp(&b.weighted_trials).then(b.acquisition.total_cmp(&a.acquisition))
    };
    all.filter_map(changed).min_by(order)
}

/// Returns all coordinates of an axis if they are few, otherwise none.
fn coordinates(axis: EncodedAxis) -> Vec<f64> {
    match axis {
        EncodedAxis::Choice { count } => (0..count).map(to_f64).collect(),
        EncodedAxis::Number { step } if step * f64::from(FEW_VALUES) > 1.0 => (0..FEW_VALUES)
            .map(|index| f64::from(index) * step)
            .take_while(|at| *at < 1.0 + COORDINATE_TOLERANCE)
            .collect(),
        EncodedAxis::Number { .. } | EncodedAxis::Trend | EncodedAxis::Difference => Vec::new(),
    }
}

pub(super) fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() < COORDINATE_TOLERANCE
}
