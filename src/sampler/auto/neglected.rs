//! Which value of a parameter was tried least.
//!
//! Models that are sure of a plateau leave whatever lies elsewhere, and little that was measured there is by anything near to
//! the best settings of the other parameters. So, from time to time, the value that was tried least is taken, with the others as
//! the models would have them.

use super::acquisition::Acquisition;
use super::models::Models;
use super::table::Table;
use crate::surrogate::{Axis, Encoding};

/// Numbers with at most so many values are looked at value by value, as choices are.
const FEW_VALUES: f64 = 12.0;
/// A value is passed over where no configuration that has it serves with this probability.
const SERVING: f64 = 0.5;
/// Coordinates that differ by less are the same value.
const SAME: f64 = 1e-6;

struct Level {
    axis: usize,
    coordinate: f64,
    tried: usize,
    /// The highest score of a point that has it.
    promise: f64,
}

/// The axis and its coordinate that fewest trials have; of several the one that promises most. Looked for among `points`.
pub(super) fn least_tried(
    encoding: &Encoding<'_>,
    table: &Table,
    models: &Models<'_>,
    acquisition: &Acquisition<'_>,
    points: &[Vec<f64>],
) -> Option<(usize, f64)> {
    let few: Vec<_> = (0..encoding.axes.len()).filter(|axis| has_few_values(encoding.axes[*axis])).collect();
    let mut levels: Vec<Level> = Vec::new();
    for point in points.iter().filter(|point| models.at(point).serves > SERVING) {
        let promise = acquisition.score(point);
        for &axis in &few {
            let coordinate = point[axis];
            let known = levels.iter_mut().find(|level| level.axis == axis && is_same(level.coordinate, coordinate));
            if let Some(level) = known {
                level.promise = level.promise.max(promise);
                continue;
            }
            let tried = table.points().filter(|known| is_same(known[axis], coordinate)).count();
            levels.push(Level { axis, coordinate, tried, promise });
        }
    }
    let least = levels.into_iter().min_by(|a, b| a.tried.cmp(&b.tried).then(b.promise.total_cmp(&a.promise)))?;
    Some((least.axis, least.coordinate))
}

fn has_few_values(axis: Axis) -> bool {
    match axis {
        Axis::Choice { count } => count > 1,
        Axis::Number { step } => step * FEW_VALUES > 1.0,
        Axis::Trend => false,
    }
}

pub(super) fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() < SAME
}
