//! The first trials, before the models are used: the best points of the priors, each unlike the ones before, or an even
//! spread.
//!
//! If a prior is nearly right, one of its best points is one of the best configurations. Its errors decide which point
//! that is. The first trial is therefore the prior's best point. The second is the point with the least uncertain
//! constraints. Each of the others is the point farthest from all known ones. If the measurements refute the prior's
//! best points, the prior is dropped and the next points are spread evenly.

use std::collections::HashMap;

use super::models::PRIOR_VALUE_ERROR;
use super::neglected::is_same;
use super::objective::ObjectiveUnit;
use super::table::HistoryTable;
use super::units::Units;
use crate::config::Config;
use crate::objective::Goal;
use crate::sampler::{
    KnownOutcome, MeasuredNumbers, ObjectiveTarget, PastTrial, SamplerAsk, SamplerPrior, Suggestion, sequence, sobol,
};
use crate::stats::to_f64;
use crate::surrogate::{EncodedAxis, Encoding, front};

/// Number of points spread over the space if no prior has a feasible point.
const SPREAD: usize = 5;
/// The same if live looks have been taken, which spread over the values of some parameters.
const SPREAD_WITH_LOOKS: usize = 3;
/// The same while trials were measured and none of them keeps the limits. The models of the limits then find a feasible
/// configuration sooner than an even spread.
const SPREAD_WHILE_INFEASIBLE: usize = 3;
/// Share of each range for these points: extreme configurations are least likely to serve.
const INNER: f64 = 0.8;
/// Maximum number of first trials at the priors' best points.
pub(super) const MAX_PRIOR_TRIALS: usize = 4;
/// Largest shortfall from the prior's best point for a point to be among the best ones, as a share.
const NEAR_BEST_SHARE: f64 = 0.05;
/// Error that a failure among the prior's best points counts as, in modelled units of an objective.
const FAILURE: f64 = 0.5;

/// A configuration that is among a prior's best ones.
pub(super) struct PredictedPoint<'a> {
    prior: &'a SamplerPrior,
    config: &'a Config,
    point: Vec<f64>,
    /// The prior's prediction.
    prediction: &'a MeasuredNumbers,
    /// Sum of the deviations of the constraints; 0 if the prior is not computed.
    constraint_deviation: f64,
    /// Outcome of the configuration, if it was tried.
    outcome: Option<&'a KnownOutcome>,
}

/// The best feasible configurations of the priors.
pub(super) struct PredictedPoints<'a> {
    /// Configurations of the priors that are not refuted, beginning with the best one of the first prior.
    pub(super) trusted: Vec<PredictedPoint<'a>>,
    /// Number of trials that refuted priors. The other configurations of a refuted prior are left out.
    pub(super) refuting_trials: usize,
}

impl<'a> PredictedPoints<'a> {
    /// Selects the configurations that are nearly as good as the best one or, with several objectives, those that are
    /// not dominated.
    pub(super) fn of(ask: &'a SamplerAsk<'_>, encoding: &Encoding<'_>) -> Self {
        let units = Units::of(ask).objectives;
        let known: HashMap<_, _> = ask.history.iter().map(|past| (past.config.key(), &past.outcome)).collect();
        let mut beliefs = Self { trusted: Vec::new(), refuting_trials: 0 };
        for prior in ask.priors {
            let best = near_best_points(prior, &units, encoding, &known);
            if are_refuted(&best, &units) {
                beliefs.refuting_trials += best.iter().filter(|one| one.outcome.is_some()).count();
            } else {
                beliefs.trusted.extend(best);
            }
        }
        beliefs
    }
}

/// Returns the number of points that are spread over the space before the models are used.
pub(super) fn spread(ask: &SamplerAsk<'_>, table: &HistoryTable) -> usize {
    let mut measured = ask.history.iter().filter_map(PastTrial::measured).peekable();
    if !table.looked.is_empty() {
        SPREAD_WITH_LOOKS
    } else if measured.peek().is_some() && !measured.any(MeasuredNumbers::is_feasible) {
        SPREAD_WHILE_INFEASIBLE
    } else {
        SPREAD
    }
}

/// Returns the feasible configurations of a prior that are nearly as good as its best one. With several objectives,
/// returns those that are not dominated.
fn near_best_points<'a>(
    prior: &'a SamplerPrior,
    units: &[ObjectiveUnit],
    encoding: &Encoding<'_>,
    known: &HashMap<String, &'a KnownOutcome>,
) -> Vec<PredictedPoint<'a>> {
    let found = prior.points().iter().filter_map(|(config, said)| {
        let gains = gains(units, said)?;
        let said = said.measured()?;
        let doubts = said.excesses.iter().filter_map(|excess| excess.deviation.filter(|_| prior.is_computed()));
        let (point, known) = (encoding.point(config)?, known.get(&config.key()).copied());
        Some((
            gains,
            PredictedPoint {
                prior,
                config,
                point,
                prediction: said,
                constraint_deviation: doubts.sum(),
                outcome: known,
            },
        ))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by(|(a, _), (b, _)| b[0].total_cmp(&a[0]));
    let gains: Vec<_> = found.iter().map(|(gains, _)| gains.clone()).collect();
    let kept = match (gains.first().map(Vec::as_slice), units.first()) {
        (Some([best]), Some(unit)) => {
            let nearly = |gain: f64| unit.share(best - gain, *best) <= NEAR_BEST_SHARE;
            (0..gains.len()).filter(|at| nearly(gains[*at][0])).collect()
        }
        _ => front(&gains),
    };
    let kept = found.into_iter().enumerate().filter(|(at, _)| kept.contains(at));
    kept.map(|(_, (_, believed))| believed).collect()
}

/// Returns whether the measurements refute a prior's predictions for its best points. They do if the sum of the errors
/// exceeds that of `MAX_PRIOR_TRIALS` points with a prior's usual error, `PRIOR_VALUE_ERROR`. An error that all points share does
/// not count: the models learn a level easily.
fn are_refuted(best: &[PredictedPoint<'_>], units: &[ObjectiveUnit]) -> bool {
    let failed =
        best.iter().filter(|one| matches!(one.outcome, Some(KnownOutcome::Failed | KnownOutcome::Rejected))).count();
    let of_objective = |(index, unit): (usize, &ObjectiveUnit)| {
        let difference = |one: &PredictedPoint<'_>| {
            let [measured, said] = [one.outcome?.measured()?, one.prediction].map(|of| of.values.get(index));
            Some(unit.modelled(measured?.value) - unit.modelled(said?.value)).filter(|of| of.is_finite())
        };
        let differences: Vec<_> = best.iter().filter_map(difference).collect();
        let mean = differences.iter().sum::<f64>() / to_f64(differences.len().max(1));
        differences.iter().map(|difference| (difference - mean).abs()).sum::<f64>()
    };
    let objectives: f64 = units.iter().enumerate().map(of_objective).sum();
    FAILURE * to_f64(failed) + objectives / to_f64(units.len().max(1)) > PRIOR_VALUE_ERROR * to_f64(MAX_PRIOR_TRIALS)
}

/// Returns the modelled objectives, larger is better. `None` if a constraint is exceeded or a value is not finite.
fn gains(units: &[ObjectiveUnit], known: &KnownOutcome) -> Option<Vec<f64>> {
    let measured = known.measured()?;
    let readings = measured.values.iter().zip(units);
    let gains: Vec<_> = readings.map(|(reading, unit)| unit.modelled(reading.value)).collect();
    (measured.is_feasible() && !gains.is_empty() && gains.iter().all(|gain| gain.is_finite())).then_some(gains)
}

/// Returns the suggestion of the next trusted point that is allowed. It is the first point while none was tried, then
/// the one with the least uncertain constraints, then the one farthest from all known points.
pub(super) fn next_prior_suggestion(
    ask: &SamplerAsk<'_>,
    encoding: &Encoding<'_>,
    table: &HistoryTable,
    trusted: &[PredictedPoint<'_>],
) -> Option<Suggestion> {
    let nearest = |point: &[f64]| {
        let known = table.points().map(|known| distance(&encoding.axes, known, point));
        known.fold(f64::INFINITY, f64::min)
    };
    let (tried, left): (Vec<_>, Vec<_>) = trusted.iter().partition(|one| one.outcome.is_some());
    let surest =
        tried.len() == 1 && left.iter().any(|one| !is_same(one.constraint_deviation, tried[0].constraint_deviation));
    let rank = |one: &PredictedPoint<'_>| match tried.len() {
        0 => (0.0, 0.0),
        1 if surest => (-one.constraint_deviation, nearest(&one.point)),
        _ => (0.0, nearest(&one.point)),
    };
    let usable = left.into_iter().filter(|one| (ask.allowed)(one.config));
    // Takes the first of several that are equally far.
    let (_, one) = usable.map(|one| (rank(one), one)).reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    let target = ask.aim.objectives.first()?;
    let reason = match tried.len() {
        0 => "ranks it first",
        1 if surest => "ranks it among the best, and its constraints are the least uncertain",
        _ => "ranks it among the best, and it differs most from the tried configurations",
    };
    let why = format!("{} {reason}{}", one.prior.name, describe_shortfall(one, trusted, target));
    Some(Suggestion::new(one.config.clone(), why))
}

/// Describes how far a prediction is from the best one of the same prior. The values themselves are left out: no
/// measurement has corrected them, and beside measured values they would look like a step back.
fn describe_shortfall(one: &PredictedPoint<'_>, trusted: &[PredictedPoint<'_>], target: &ObjectiveTarget) -> String {
    let value = |of: &PredictedPoint<'_>| of.prediction.values.first().map(|reading| reading.value);
    let same = trusted.iter().filter(|other| other.prior.name == one.prior.name).filter_map(value);
    let (best, side) = match target.goal {
        Goal::Maximize => (same.reduce(f64::max), "below"),
        Goal::Minimize => (same.reduce(f64::min), "above"),
    };
    let share = best.zip(value(one)).map_or(0.0, |(best, own)| ((own - best) / best).abs());
    if share.is_finite() && share >= 0.0005 {
        format!("; predicted {} is {:.1} % {side} the best", target.name, 100.0 * share)
    } else {
        String::new()
    }
}

/// Returns the distance of two points: the sum over the parameters of at most 1 each.
pub(super) fn distance(axes: &[EncodedAxis], a: &[f64], b: &[f64]) -> f64 {
    let coordinates = axes.iter().zip(a.iter().zip(b));
    let differences = coordinates.map(|(axis, (a, b))| match axis {
        EncodedAxis::Choice { .. } => f64::from(!is_same(*a, *b)),
        EncodedAxis::Number { .. } | EncodedAxis::Trend | EncodedAxis::Difference => (a - b).abs(),
    });
    differences.sum()
}

/// Returns the next point of an even sequence. The first `SPREAD + refuted` points lie in the inner part of the space,
/// where `refuted` is the number of trials that refuted priors. `known` are unit coordinates of axes that do not vary: those
/// of the best live look. `reason` explains to users why no model is used.
pub(super) fn spread_suggestion(
    ask: &SamplerAsk<'_>,
    refuted: usize,
    known: &[(usize, f64)],
    reason: &str,
) -> Option<Suggestion> {
    let dimensions = ask.space.dimensions();
    let inner = |index: usize| {
        let point = sobol::point(index, dimensions, ask.seed);
        let few = index < SPREAD + refuted;
        let mut point: Vec<f64> = point.into_iter().map(|at| if few { 0.5 + INNER * (at - 0.5) } else { at }).collect();
        for (axis, value) in known {
            point[*axis] = *value;
        }
        point
    };
    let config = sequence::first_unseen(ask, "auto", inner)?;
    Some(Suggestion::new(config, format!("spread evenly over the space: {reason}")))
}
