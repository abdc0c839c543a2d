//! What the history says of configurations that were not tried: one Gaussian process for each objective and each limit, and
//! one for whether a configuration serves at all.
//!
//! Where there is a prior, the processes model the difference to what it says, and follow what it says as far as the
//! measurements bear it out: `value = said + slope * said + difference`, with an unknown slope around 0.

use super::knob::knob;
use super::opinion::{Opinion, Trend};
use super::table::{Column, Table};
use crate::surrogate::{Axis, Belief, Data, Expected, Process, normal};

/// Noise of one measurement of a throughput or latency, as a share: what is expected before it is known.
const NOISE: f64 = 0.03;
/// Length scales are short, because launch parameters have cliffs: far shorter than the default of most libraries.
const LENGTH: f64 = 1.0;
const LENGTH_DEVIATION: f64 = 1.0;
/// The border between what serves and what does not is sharp.
const CRASH_LENGTH: f64 = 0.5;
/// A limit that every measurement keeps by so much does not decide anything.
const FAR_WITHIN: f64 = -0.7;

pub(super) struct Models<'a> {
    pub(super) objectives: Vec<Model<'a>>,
    /// Only of limits that may decide.
    pub(super) constraints: Vec<Model<'a>>,
    crash: Option<Model<'a>>,
}

/// One number, with what priors say of it.
pub(super) struct Model<'a> {
    process: Process,
    trends: Vec<&'a Trend>,
}

/// What is expected of one point.
pub(super) struct Outlook {
    pub(super) objectives: Vec<Belief>,
    /// Logarithm of the probability that every limit is kept.
    pub(super) log_feasible: f64,
    /// Probability that it serves.
    pub(super) serves: f64,
    /// The largest correlation with anything known.
    pub(super) alike: f64,
}

impl<'a> Model<'a> {
    fn fit(
        axes: &[Axis],
        column: &Column,
        trends: Vec<&'a Trend>,
        pending: &[Vec<f64>],
        expected: &Expected,
        moved: &[f64],
    ) -> Option<Self> {
        let mut all_axes = axes.to_vec();
        all_axes.extend(trends.iter().map(|_| Axis::Trend));
        let mut data = Data { variances: column.data.variances.clone(), ..Data::default() };
        for (point, target) in column.data.points.iter().zip(&column.data.targets) {
            let (point, said) = extended(&trends, point);
            data.points.push(point);
            data.targets.push(target - said);
        }
        let mut process = Process::fit(&all_axes, &data, expected, moved)?;
        if !pending.is_empty() {
            // What is under way is taken for measured as expected: it is not proposed again.
            for point in pending {
                let (point, _) = extended(&trends, point);
                data.targets.push(process.mean(&point));
                data.points.push(point);
                data.variances.push(0.0);
            }
            process = process.on(&data)?;
        }
        Some(Self { process, trends })
    }

    pub(super) fn near(&self, point: &[f64]) -> (Belief, f64) {
        let (point, said) = extended(&self.trends, point);
        let (belief, alike) = self.process.near(&point);
        (Belief { mean: belief.mean + said, ..belief }, alike)
    }
}

/// A point with what priors say of it as further coordinates, and what the first of them says.
fn extended(trends: &[&Trend], point: &[f64]) -> (Vec<f64>, f64) {
    let mut all = point.to_vec();
    let mut first = 0.0;
    for (place, trend) in trends.iter().enumerate() {
        let said = trend.at(point);
        if place == 0 {
            first = said;
        }
        all.push(trend.units(said));
    }
    (all, first)
}

impl<'a> Models<'a> {
    pub(super) fn fit(axes: &[Axis], table: &Table, opinions: &[&'a Opinion], moved: &[f64]) -> Self {
        let trends =
            |of: &dyn Fn(&'a Opinion) -> Option<&'a Trend>| opinions.iter().filter_map(|opinion| of(opinion)).collect();
        let model = |column: &Column, trends, expected: &Expected| {
            Model::fit(axes, column, trends, &table.pending, expected, moved)
        };
        let objectives = table.objectives.iter().enumerate().filter_map(|(index, column)| {
            let trends: Vec<_> = trends(&|opinion| opinion.objectives.get(index)?.as_ref());
            let is_known = !column.data.targets.is_empty() || !trends.is_empty();
            if is_known { model(column, trends, &of_values()) } else { None }
        });
        let constraints = table.constraints.iter().enumerate().filter_map(|(index, column)| {
            let trends: Vec<_> = trends(&|opinion| opinion.constraints.get(index)?.as_ref());
            let decides = column.data.targets.iter().any(|excess| *excess > FAR_WITHIN)
                || (column.data.targets.len() < 3 && !trends.is_empty());
            if decides { model(column, trends, &of_values()) } else { None }
        });
        let has_crashed = table.crashes.data.targets.iter().any(|label| *label > 0.0);
        let crash_trends: Vec<_> = trends(&|opinion| opinion.crash.as_ref());
        let crash = if has_crashed || !crash_trends.is_empty() {
            model(&table.crashes, crash_trends, &of_crashes())
        } else {
            None
        };
        Self { objectives: objectives.collect(), constraints: constraints.collect(), crash }
    }

    pub(super) fn at(&self, point: &[f64]) -> Outlook {
        self.wider(point, 1.0)
    }

    pub(super) fn wider(&self, point: &[f64], wider: f64) -> Outlook {
        let mut alike: f64 = 0.0;
        let objectives = self.objectives.iter().map(|model| {
            let (belief, nearest) = model.near(point);
            alike = alike.max(nearest);
            belief
        });
        let objectives = objectives.collect();
        let kept = |model: &Model<'_>| {
            let (belief, _) = model.near(point);
            normal::log_cdf(-belief.mean / (wider * belief.deviation))
        };
        let serves = self.crash.as_ref().map_or(1.0, |model| {
            let (belief, _) = model.near(point);
            normal::cdf(-belief.mean / belief.deviation)
        });
        Outlook { objectives, log_feasible: self.constraints.iter().map(kept).sum(), serves, alike }
    }
}

pub(super) fn of_values() -> Expected {
    Expected {
        length: knob("len", LENGTH),
        length_deviation: knob("lend", LENGTH_DEVIATION),
        noise: knob("noise", NOISE),
        noise_deviation: knob("noised", 1.0),
        rough: knob("rough", 0.7),
        smooth: knob("smooth", 0.7),
        size_deviation: knob("sized", 1.0),
        trend: knob("trend", 1.0),
        level: 0.0,
        spread: None,
    }
}

pub(super) fn of_crashes() -> Expected {
    Expected {
        length: knob("clen", CRASH_LENGTH),
        length_deviation: 0.7,
        noise: 0.1,
        noise_deviation: 0.5,
        rough: knob("crough", 0.7),
        smooth: knob("csmooth", 0.7),
        size_deviation: knob("csized", 1.0),
        trend: 1.0,
        level: knob("clevel", -0.5),
        spread: Some(1.0),
    }
}
