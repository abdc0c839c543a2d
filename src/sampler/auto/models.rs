//! Predictions for configurations that were not tried. Each objective and each constraint has a Gaussian process, and
//! so has the question whether a configuration serves at all.
//!
//! With priors, a process models `value - said = level + slope * said + difference`. The `said` that is subtracted is
//! the prediction of the first prior. Each prior has a slope with an expected value of 0. Before any measurement the
//! first prior therefore holds as it is and the others do not count. The measurements then determine the slopes. A
//! constraint also has a slope for a computed prior's uncertainty about it. If that prior is wrong at one point, it is
//! wrong by as many deviations at others.

use std::sync::Arc;

use super::prior_surrogates::{PriorSurrogates, PriorTrend};
use super::table::{HistoryTable, TargetColumn};
use crate::stats::{normal, to_f64};
use crate::surrogate::{EncodedAxis, HyperPriors, PosteriorBelief, Process, ProcessData};

/// A constraint decides nothing if every measurement keeps it by this margin.
const INACTIVE_MARGIN: f64 = -0.7;
/// Usual error of a prior, as a logarithm and apart from a constant: of an objective, and of a constraint (mostly a
/// tail latency). In the estimate of a prior's error this expectation has the weight of `PRIOR_WEIGHT` measurements.
pub(super) const PRIOR_VALUE_ERROR: f64 = 0.2;
pub(super) const PRIOR_LIMIT_ERROR: f64 = 0.35;
const PRIOR_WEIGHT: f64 = 8.0;
/// Assumed excess of a pending trial over its expectation for a constraint, in standard deviations.
const CAUTION: f64 = 1.0;

/// The models with one set of hyper-parameters.
pub(super) struct Models<'a> {
    pub(super) objectives: Vec<Model<'a>>,
    /// Only of constraints that may decide.
    pub(super) constraints: Vec<Model<'a>>,
    /// Of the labels 1 (did not serve) and -1 (served). `None` while no failure was measured or predicted.
    crash: Option<Model<'a>>,
}

/// The model of one number, with the priors' predictions of it.
pub(super) struct Model<'a> {
    /// Index of the objective or constraint in the aim.
    pub(super) index: usize,
    process: Process,
    /// Number of coordinates of the space, and of live knobs.
    dimensions: [usize; 2],
    trends: Vec<&'a PriorTrend>,
}

/// The prediction for one point.
#[derive(Clone, Debug)]
pub(super) struct PointOutlook {
    pub(super) objectives: Vec<PosteriorBelief>,
    /// Logarithm of the probability that every constraint is kept.
    pub(super) log_feasible: f64,
    /// Probability that the configuration serves.
    pub(super) serving_probability: f64,
    /// The largest correlation with a known point.
    pub(super) nearest_correlation: f64,
}

impl PointOutlook {
    /// Returns the probability that the configuration serves and keeps every constraint.
    pub(super) fn feasible(&self) -> f64 {
        libm::exp(self.log_feasible) * self.serving_probability
    }
}

/// The inputs that all models of a question share.
#[derive(Clone, Copy)]
struct SharedInputs<'t> {
    axes: &'t [EncodedAxis],
    /// Number of live knobs.
    knobs: usize,
    pending: &'t [Vec<f64>],
    /// Assumed excess of a pending trial over its expectation, in deviations.
    caution: f64,
    /// As in `Models::fit`.
    prior_offsets: &'t [f64],
}

impl<'a> Model<'a> {
    /// Fits the model of one column. A drift of the machine is removed from measured numbers. `wrong` is the usual error of a prior. With priors it determines the spread of the
    /// residuals, unless it is `None`.
    fn fit(
        common: &SharedInputs<'_>,
        index: usize,
        column: &TargetColumn,
        trends: Vec<&'a PriorTrend>,
        expected: HyperPriors,
        wrong: Option<f64>,
    ) -> Option<Self> {
        let dimensions = [common.axes.len(), common.knobs];
        let mut axes = common.axes.to_vec();
        axes.extend((0..common.knobs).map(|_| EncodedAxis::Difference));
        axes.extend(trends.iter().map(|_| EncodedAxis::Trend));
        let mut data = ProcessData { variances: column.data.variances.clone(), ..ProcessData::default() };
        for (point, target) in column.data.points.iter().zip(&column.data.targets) {
            let (point, said) = extend(dimensions, &trends, point);
            data.points.push(point);
            data.targets.push(target - said);
        }
        let prior_error = wrong.filter(|_| !trends.is_empty());
        let expected = prior_error.map_or(expected, |wrong| with_prior_error(expected, &data, wrong));
        let mut process = Process::fit(&axes, &data, &expected, common.prior_offsets)?;
        if wrong.is_some()
            && let Some(drift) = process.drift(&data, &column.places)
        {
            data.targets.iter_mut().zip(drift).for_each(|(target, drift)| *target -= drift);
            process = Process::fit(&axes, &data, &expected, common.prior_offsets)?;
        }
        if !common.pending.is_empty() {
            // A pending trial counts as measured, so that it is not proposed again.
            for point in common.pending {
                let (point, _) = extend(dimensions, &trends, point);
                let belief = process.at(&point);
                data.targets.push(belief.mean + common.caution * belief.deviation);
                data.points.push(point);
                data.variances.push(0.0);
            }
            process = process.conditioned_on(&data)?;
        }
        Some(Self { index, process, dimensions, trends })
    }

    /// Returns the standard deviation of the noise between measurements of one point.
    pub(super) fn noise(&self) -> f64 {
        self.process.noise()
    }

    /// Returns the distribution at a point, and the largest correlation with a known point that was measured in the same
    /// way. A point without coordinates of live knobs is a launch.
    pub(super) fn predict_with_correlation(&self, point: &[f64]) -> (PosteriorBelief, f64) {
        let (point, said) = extend(self.dimensions, &self.trends, point);
        let (belief, alike) = self.process.posterior_with_correlation(&point);
        (PosteriorBelief { mean: belief.mean + said, ..belief }, alike)
    }
}

impl Model<'_> {
    /// Returns joint posterior samples, `count` per point. Samples at different points are correlated.
    pub(super) fn draws(&self, points: &[Vec<f64>], count: usize, seed: u64) -> Vec<Vec<f64>> {
        let draws = self.process.draws(count, seed);
        let drawn = |point: &Vec<f64>| {
            let (point, said) = extend(self.dimensions, &self.trends, point);
            // The first is the mean.
            draws.at(&point).into_iter().skip(1).map(|value| value + said).collect()
        };
        points.iter().map(drawn).collect()
    }
}

/// Returns `expected` with the level and spread of the residuals, shrunk towards 0 and the usual error `wrong`. The
/// residuals of a few measurements close to each other are smaller than those of the whole space will be.
fn with_prior_error(expected: HyperPriors, data: &ProcessData, wrong: f64) -> HyperPriors {
    let count = to_f64(data.targets.len());
    let mean = data.targets.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = data.targets.iter().map(|target| (target - mean) * (target - mean)).sum();
    let variance = (squares + PRIOR_WEIGHT * wrong * wrong) / (count + PRIOR_WEIGHT);
    HyperPriors { spread: Some(variance.sqrt()), level: mean * count / (count + 0.5), ..expected }
}

/// Returns a point with all coordinates of a model: those of the space, of the live knobs, which are 0 if they are
/// absent, and the priors' predictions in units of their spread. Also returns the first prediction in its own unit, or 0
/// without priors.
fn extend([space, knobs]: [usize; 2], trends: &[&PriorTrend], point: &[f64]) -> (Vec<f64>, f64) {
    let of_space = &point[..space];
    let mut all = point.to_vec();
    all.resize(space + knobs, 0.0);
    let said: Vec<_> = trends.iter().map(|trend| trend.at(of_space)).collect();
    all.extend(trends.iter().zip(&said).map(|(trend, said)| trend.units(*said)));
    (all, said.first().copied().unwrap_or(0.0))
}

impl<'a> Models<'a> {
    /// Fits the models. `moved` are distances from the means of the hyper-parameters' priors, in their standard
    /// deviations. It is empty for the most likely models.
    pub(super) fn fit(
        axes: &[EncodedAxis],
        table: &HistoryTable,
        opinions: &'a [Arc<PriorSurrogates>],
        moved: &[f64],
    ) -> Self {
        let common =
            SharedInputs { axes, knobs: table.knobs, pending: &table.pending, caution: 0.0, prior_offsets: moved };
        // A constraint that may well be missed must not count as measured at its expected value. The models would be
        // certain that it is kept nearby, and all concurrent trials would take the same risk.
        let of_limits = SharedInputs { caution: CAUTION, ..common };
        let trends = |of: &dyn Fn(&'a PriorSurrogates) -> Option<&'a PriorTrend>| -> Vec<_> {
            opinions.iter().filter_map(|opinion| of(opinion)).collect()
        };
        let objective = |(index, column): (usize, &TargetColumn)| {
            let trends = trends(&|opinion| opinion.objectives.get(index)?.as_ref());
            let is_known = !column.data.targets.is_empty() || !trends.is_empty();
            is_known.then(|| Model::fit(&common, index, column, trends, of_values(), Some(PRIOR_VALUE_ERROR))).flatten()
        };
        let constraint = |(index, column): (usize, &TargetColumn)| {
            let mut trends = trends(&|opinion| opinion.constraints.get(index)?.as_ref());
            if !trends.is_empty() {
                trends.extend(opinions.iter().filter_map(|opinion| opinion.uncertainties.get(index)?.as_ref()));
            }
            let excesses = &column.data.targets;
            let decides = excesses.iter().any(|excess| *excess > INACTIVE_MARGIN);
            let may_decide = excesses.len() < 3 && !trends.is_empty();
            (decides || may_decide)
                .then(|| Model::fit(&of_limits, index, column, trends, of_values(), Some(PRIOR_LIMIT_ERROR)))
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

    pub(super) fn at(&self, point: &[f64]) -> PointOutlook {
        self.at_widened(point, 1.0)
    }

    /// Like `at`, but with deviations that are `wider` times as large.
    pub(super) fn at_widened(&self, point: &[f64], wider: f64) -> PointOutlook {
        let mut alike: f64 = 0.0;
        let objectives = self.objectives.iter().map(|model| {
            let (belief, nearest) = model.predict_with_correlation(point);
            alike = alike.max(nearest);
            PosteriorBelief { deviation: wider * belief.deviation, ..belief }
        });
        let objectives = objectives.collect();
        let kept = |model: &Model<'_>| {
            let (belief, _) = model.predict_with_correlation(point);
            normal::log_cdf(-belief.mean / (wider * belief.deviation))
        };
        let serves = self.crash.as_ref().map_or(1.0, |model| {
            let (belief, _) = model.predict_with_correlation(point);
            normal::cdf(-belief.mean / belief.deviation)
        });
        PointOutlook {
            objectives,
            log_feasible: self.constraints.iter().map(kept).sum(),
            serving_probability: serves,
            nearest_correlation: alike,
        }
    }
}

/// Hyper-parameter priors for objectives and excesses, which are mostly logarithms. Length scales are far shorter than
/// the default of most libraries, because launch parameters have cliffs.
pub(super) fn of_values() -> HyperPriors {
    HyperPriors {
        length: 1.0,
        length_deviation: 1.0,
        noise: 0.03,
        noise_deviation: 1.0,
        rough: 0.7,
        smooth: 0.7,
        size_deviation: 1.0,
        trend: 1.0,
        difference: 0.1,
        level: 0.0,
        spread: None,
    }
}

/// Hyper-parameter priors for labels: 1 if the configuration did not serve, -1 if it did. The border between the two is
/// sharp, and most configurations serve.
pub(super) fn of_crashes() -> HyperPriors {
    HyperPriors {
        length: 0.5,
        length_deviation: 0.7,
        noise: 0.1,
        noise_deviation: 0.5,
        level: -0.5,
        spread: Some(1.0),
        ..of_values()
    }
}
