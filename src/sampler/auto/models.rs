//! What the history says of configurations that were not tried: one Gaussian process for each objective and each limit, and
//! one for whether a configuration serves at all.
//!
//! Where there are priors, a process models `value - said = level + slope * said + difference` with `said` what the first of
//! them says, and slopes around 0 for each: they are followed as far as the measurements bear them out. A limit has a slope for
//! how unsure a computed prior is of it as well: what is wrong in one place is wrong by as many deviations in others.

use std::sync::Arc;

use super::opinion::{Opinion, Trend};
use super::table::{Column, Table};
use crate::stats::{normal, to_f64};
use crate::surrogate::{Axis, Belief, Data, Expected, Process};

/// A limit that every measurement keeps by so much does not decide anything.
const FAR_WITHIN: f64 = -0.7;
/// By how much a prior is wrong in one place and not in another, as a logarithm: of values, of limits (mostly tail latencies),
/// and how many measurements that counts for.
pub(super) const WRONG_VALUES: f64 = 0.2;
pub(super) const WRONG_LIMITS: f64 = 0.35;
const PRIOR_WEIGHT: f64 = 8.0;
/// Until it is measured, what is under way exceeds a limit by so many deviations more than is expected.
const CAUTION: f64 = 1.0;

/// The models under one assumption of their hyper-parameters.
pub(super) struct Models<'a> {
    pub(super) objectives: Vec<Model<'a>>,
    /// Only of limits that may decide.
    pub(super) constraints: Vec<Model<'a>>,
    crash: Option<Model<'a>>,
}

/// One number, with what priors say of it.
pub(super) struct Model<'a> {
    /// The place of the objective or limit in the aim.
    pub(super) index: usize,
    process: Process,
    trends: Vec<&'a Trend>,
}

/// What is expected of one point.
#[derive(Clone, Debug)]
pub(super) struct Outlook {
    pub(super) objectives: Vec<Belief>,
    /// Logarithm of the probability that every limit is kept.
    pub(super) log_feasible: f64,
    /// Probability that it serves.
    pub(super) serves: f64,
    /// The largest correlation with anything known.
    pub(super) alike: f64,
}

impl Outlook {
    /// Probability that it serves and keeps every limit.
    pub(super) fn feasible(&self) -> f64 {
        libm::exp(self.log_feasible) * self.serves
    }
}

/// What every model of one question has in common.
#[derive(Clone, Copy)]
struct Common<'t> {
    axes: &'t [Axis],
    pending: &'t [Vec<f64>],
    /// Deviations by which what is under way is taken for more than is expected.
    caution: f64,
    moved: &'t [f64],
}

impl<'a> Model<'a> {
    fn fit(
        common: &Common<'_>,
        index: usize,
        column: &Column,
        trends: Vec<&'a Trend>,
        expected: Expected,
        wrong: Option<f64>,
    ) -> Option<Self> {
        let mut axes = common.axes.to_vec();
        axes.extend(trends.iter().map(|_| Axis::Trend));
        let mut data = Data { variances: column.data.variances.clone(), ..Data::default() };
        for (point, target) in column.data.points.iter().zip(&column.data.targets) {
            let (point, said) = extended(&trends, point);
            data.points.push(point);
            data.targets.push(target - said);
        }
        let wrong = wrong.filter(|_| !trends.is_empty());
        let expected = wrong.map_or(expected, |wrong| doubted(expected, &data, wrong));
        let mut process = Process::fit(&axes, &data, &expected, common.moved)?;
        if !common.pending.is_empty() {
            // What is under way is taken for measured, so that it is not proposed again.
            for point in common.pending {
                let (point, _) = extended(&trends, point);
                let belief = process.at(&point);
                data.targets.push(belief.mean + common.caution * belief.deviation);
                data.points.push(point);
                data.variances.push(0.0);
            }
            process = process.on(&data)?;
        }
        Some(Self { index, process, trends })
    }

    /// What is believed of a point, and the largest correlation with anything known.
    pub(super) fn near(&self, point: &[f64]) -> (Belief, f64) {
        let (point, said) = extended(&self.trends, point);
        let (belief, alike) = self.process.near(&point);
        (Belief { mean: belief.mean + said, ..belief }, alike)
    }
}

impl Model<'_> {
    /// For each point what so many draws of the process give: what the one turns out to be says something of the others.
    pub(super) fn draws(&self, points: &[Vec<f64>], count: usize, seed: u64) -> Vec<Vec<f64>> {
        let draws = self.process.draws(count, seed);
        let drawn = |point: &Vec<f64>| {
            let (point, said) = extended(&self.trends, point);
            // The first is the mean.
            draws.at(&point).into_iter().skip(1).map(|value| value + said).collect()
        };
        points.iter().map(drawn).collect()
    }
}

/// The residuals of a few measurements near to each other look smaller than those of the whole space will be.
fn doubted(expected: Expected, data: &Data, wrong: f64) -> Expected {
    let count = to_f64(data.targets.len());
    let mean = data.targets.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = data.targets.iter().map(|target| (target - mean) * (target - mean)).sum();
    let variance = (squares + PRIOR_WEIGHT * wrong * wrong) / (count + PRIOR_WEIGHT);
    Expected { spread: Some(variance.sqrt()), level: mean * count / (count + 0.5), ..expected }
}

/// A point with what priors say of it as further coordinates, and what the first of them says.
fn extended(trends: &[&Trend], point: &[f64]) -> (Vec<f64>, f64) {
    let mut all = point.to_vec();
    let said: Vec<_> = trends.iter().map(|trend| trend.at(point)).collect();
    all.extend(trends.iter().zip(&said).map(|(trend, said)| trend.units(*said)));
    (all, said.first().copied().unwrap_or(0.0))
}

impl<'a> Models<'a> {
    /// `moved` are deviations of the hyper-parameters' priors, in units of their own: none of the most likely models.
    pub(super) fn fit(axes: &[Axis], table: &Table, opinions: &'a [Arc<Opinion>], moved: &[f64]) -> Self {
        let common = Common { axes, pending: &table.pending, caution: 0.0, moved };
        // Measured as expected, a limit that may well be missed would be sure to be kept beside it: trials that are under way
        // together would all run the same risk.
        let of_limits = Common { caution: CAUTION, ..common };
        let trends = |of: &dyn Fn(&'a Opinion) -> Option<&'a Trend>| -> Vec<_> {
            opinions.iter().filter_map(|opinion| of(opinion)).collect()
        };
        let objective = |(index, column): (usize, &Column)| {
            let trends = trends(&|opinion| opinion.objectives.get(index)?.as_ref());
            let is_known = !column.data.targets.is_empty() || !trends.is_empty();
            is_known.then(|| Model::fit(&common, index, column, trends, of_values(), Some(WRONG_VALUES))).flatten()
        };
        let constraint = |(index, column): (usize, &Column)| {
            let mut trends = trends(&|opinion| opinion.constraints.get(index)?.as_ref());
            if !trends.is_empty() {
                trends.extend(opinions.iter().filter_map(|opinion| opinion.doubts.get(index)?.as_ref()));
            }
            let excesses = &column.data.targets;
            let decides = excesses.iter().any(|excess| *excess > FAR_WITHIN);
            let may_decide = excesses.len() < 3 && !trends.is_empty();
            (decides || may_decide)
                .then(|| Model::fit(&of_limits, index, column, trends, of_values(), Some(WRONG_LIMITS)))
                .flatten()
        };
        let has_crashed = table.crashes.data.targets.iter().any(|label| *label > 0.0);
        let said = trends(&|opinion| opinion.crash.as_ref());
        let may_crash = has_crashed || !said.is_empty();
        Self {
            objectives: table.objectives.iter().enumerate().filter_map(objective).collect(),
            constraints: table.constraints.iter().enumerate().filter_map(constraint).collect(),
            crash: may_crash.then(|| Model::fit(&common, 0, &table.crashes, said, of_crashes(), None)).flatten(),
        }
    }

    pub(super) fn at(&self, point: &[f64]) -> Outlook {
        self.wider(point, 1.0)
    }

    /// The same with deviations so many times as large.
    pub(super) fn wider(&self, point: &[f64], wider: f64) -> Outlook {
        let mut alike: f64 = 0.0;
        let objectives = self.objectives.iter().map(|model| {
            let (belief, nearest) = model.near(point);
            alike = alike.max(nearest);
            Belief { deviation: wider * belief.deviation, ..belief }
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

/// Of objectives and excesses, mostly logarithms. Length scales are short, because launch parameters have cliffs: far shorter
/// than the default of most libraries.
pub(super) fn of_values() -> Expected {
    Expected {
        length: 1.0,
        length_deviation: 1.0,
        noise: 0.03,
        noise_deviation: 1.0,
        rough: 0.7,
        smooth: 0.7,
        size_deviation: 1.0,
        trend: 1.0,
        level: 0.0,
        spread: None,
    }
}

/// Of labels: 1 where it did not serve, -1 where it did. The border between the two is sharp, and most serves.
pub(super) fn of_crashes() -> Expected {
    Expected {
        length: 0.5,
        length_deviation: 0.7,
        noise: 0.1,
        noise_deviation: 0.5,
        level: -0.5,
        spread: Some(1.0),
        ..of_values()
    }
}
