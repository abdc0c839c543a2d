//! What is tried before models are asked: what priors find best, each unlike the ones before, or else an even spread.
//!
//! A prior that is nearly right has one of the best configurations among its own best ones, but which one depends on what it
//! has wrong: so the first is the best one, the second the one whose limits it is surest of, and the others are to differ.
//! One that is wrong of its own best ones would have the search begin where nothing good is: then the even spread follows.

use std::collections::HashMap;

use super::measure::Measure;
use super::models::WRONG_VALUES;
use super::neglected::is_same;
use super::table::Table;
use super::units::Units;
use crate::config::Config;
use crate::objective::Goal;
use crate::sampler::{Ask, Known, Measured, Prior, Suggestion, Target, sequence, sobol};
use crate::stats::to_f64;
use crate::surrogate::{Axis, Encoding, front};

/// Points that are spread over the space where no prior knows any that keep the limits.
pub(super) const SPREAD: usize = 5;
/// They lie in so much of each range: what is extreme serves least.
const INNER: f64 = 0.8;
/// Points that priors find best.
pub(super) const BELIEVED: usize = 4;
/// By how much less than the best they may promise, as a share.
const NEARLY: f64 = 0.05;
/// A failure of what is to be among the best is as wrong as a value that differs by so much, as it is modelled.
const FAILURE: f64 = 0.5;

/// A configuration that a prior finds among the best.
pub(super) struct Believed<'a> {
    prior: &'a Prior,
    config: &'a Config,
    point: Vec<f64>,
    said: &'a Measured,
    /// How unsure it is of the limits.
    doubt: f64,
    /// What came of it, where it was tried.
    known: Option<&'a Known>,
}

/// What priors find best within the limits.
pub(super) struct Beliefs<'a> {
    /// The best one of the first prior comes first.
    pub(super) trusted: Vec<Believed<'a>>,
    /// How many were tried of priors that were refuted by it; these have no others here.
    pub(super) refuted: usize,
}

impl<'a> Beliefs<'a> {
    /// Those nearly as good as the best one, or, of several objectives, what nothing beats.
    pub(super) fn of(ask: &'a Ask<'_>, encoding: &Encoding<'_>) -> Self {
        let measures = Units::of(ask).objectives;
        let known: HashMap<_, _> = ask.history.iter().map(|past| (past.config.key(), &past.known)).collect();
        let mut beliefs = Self { trusted: Vec::new(), refuted: 0 };
        for prior in ask.priors {
            let best = best(prior, &measures, encoding, &known);
            if are_refuted(&best, &measures) {
                beliefs.refuted += best.iter().filter(|one| one.known.is_some()).count();
            } else {
                beliefs.trusted.extend(best);
            }
        }
        beliefs
    }
}

fn best<'a>(
    prior: &'a Prior,
    measures: &[Measure],
    encoding: &Encoding<'_>,
    known: &HashMap<String, &'a Known>,
) -> Vec<Believed<'a>> {
    let found = prior.points().iter().filter_map(|(config, said)| {
        let gains = gains(measures, said)?;
        let said = said.measured()?;
        let doubts = said.excesses.iter().filter_map(|excess| excess.deviation.filter(|_| prior.is_computed()));
        let (point, known) = (encoding.point(config)?, known.get(&config.key()).copied());
        Some((gains, Believed { prior, config, point, said, doubt: doubts.sum(), known }))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by(|(a, _), (b, _)| b[0].total_cmp(&a[0]));
    let gains: Vec<_> = found.iter().map(|(gains, _)| gains.clone()).collect();
    let kept = match (gains.first().map(Vec::as_slice), measures.first()) {
        (Some([best]), Some(measure)) => {
            let nearly = |gain: f64| measure.share(best - gain, *best) <= NEARLY;
            (0..gains.len()).filter(|at| nearly(gains[*at][0])).collect()
        }
        _ => front(&gains),
    };
    let kept = found.into_iter().enumerate().filter(|(at, _)| kept.contains(at));
    kept.map(|(_, (_, believed))| believed).collect()
}

/// Whether the measurements refute what a prior says of its best ones: together as much as if each of the first points were as
/// wrong as a prior usually is. That all differ by the same is none of it: a level is easily learnt.
fn are_refuted(best: &[Believed<'_>], measures: &[Measure]) -> bool {
    let failed = best.iter().filter(|one| matches!(one.known, Some(Known::Failed | Known::Rejected))).count();
    let of_objective = |(index, measure): (usize, &Measure)| {
        let difference = |one: &Believed<'_>| {
            let [measured, said] = [one.known?.measured()?, one.said].map(|of| of.values.get(index));
            Some(measure.modelled(measured?.value) - measure.modelled(said?.value)).filter(|of| of.is_finite())
        };
        let differences: Vec<_> = best.iter().filter_map(difference).collect();
        let mean = differences.iter().sum::<f64>() / to_f64(differences.len().max(1));
        differences.iter().map(|difference| (difference - mean).abs()).sum::<f64>()
    };
    let objectives: f64 = measures.iter().enumerate().map(of_objective).sum();
    FAILURE * to_f64(failed) + objectives / to_f64(measures.len().max(1)) > WRONG_VALUES * to_f64(BELIEVED)
}

/// The objectives as they are modelled, larger is better; `None` for what misses a limit or is no number.
fn gains(measures: &[Measure], known: &Known) -> Option<Vec<f64>> {
    let measured = known.measured()?;
    let readings = measured.values.iter().zip(measures);
    let gains: Vec<_> = readings.map(|(reading, measure)| measure.modelled(reading.value)).collect();
    (measured.is_feasible() && !gains.is_empty() && gains.iter().all(|gain| gain.is_finite())).then_some(gains)
}

/// Of these the first one while none was tried, then the surest, then the one that is least like anything known.
pub(super) fn next(
    ask: &Ask<'_>,
    encoding: &Encoding<'_>,
    table: &Table,
    trusted: &[Believed<'_>],
) -> Option<Suggestion> {
    let nearest = |point: &[f64]| {
        let known = table.points().map(|known| apart(&encoding.axes, known, point));
        known.fold(f64::INFINITY, f64::min)
    };
    let (tried, left): (Vec<_>, Vec<_>) = trusted.iter().partition(|one| one.known.is_some());
    let surest = tried.len() == 1 && left.iter().any(|one| !is_same(one.doubt, tried[0].doubt));
    let rank = |one: &Believed<'_>| match tried.len() {
        0 => (0.0, 0.0),
        1 if surest => (-one.doubt, nearest(&one.point)),
        _ => (0.0, nearest(&one.point)),
    };
    let usable = left.into_iter().filter(|one| (ask.allowed)(one.config));
    // The first one of several that are equally far.
    let (_, one) = usable.map(|one| (rank(one), one)).reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    let target = ask.aim.objectives.first()?;
    let reason = match tried.len() {
        0 => "finds it best",
        1 if surest => "finds it among the best and is surest of its limits",
        _ => "finds it among the best, unlike what was tried before",
    };
    let why = format!("tried because {} {reason}{}", one.prior.name, below_best(one, trusted, target));
    Some(Suggestion { config: one.config.clone(), why })
}

/// How far a prediction is from the best one of the same prior. Values themselves are left out: no measurement has corrected
/// them, and beside measured ones they would look like a step back.
fn below_best(one: &Believed<'_>, trusted: &[Believed<'_>], target: &Target) -> String {
    let value = |of: &Believed<'_>| of.said.values.first().map(|reading| reading.value);
    let same = trusted.iter().filter(|other| other.prior.name == one.prior.name).filter_map(value);
    let (best, side) = match target.goal {
        Goal::Maximize => (same.reduce(f64::max), "below"),
        Goal::Minimize => (same.reduce(f64::min), "above"),
    };
    let share = best.zip(value(one)).map_or(0.0, |(best, own)| ((own - best) / best).abs());
    if share.is_finite() && share >= 0.0005 {
        format!(": its prediction of {} is {:.1} % {side} its best one", target.name, 100.0 * share)
    } else {
        String::new()
    }
}

/// How much two points differ: the sum over the parameters, each at most 1.
pub(super) fn apart(axes: &[Axis], a: &[f64], b: &[f64]) -> f64 {
    let coordinates = axes.iter().zip(a.iter().zip(b));
    let differences = coordinates.map(|(axis, (a, b))| match axis {
        Axis::Choice { .. } => f64::from(!is_same(*a, *b)),
        Axis::Number { .. } | Axis::Trend => (a - b).abs(),
    });
    differences.sum()
}

/// A point of an even sequence over the space, at first over the inner part of it, after so many trials that refuted priors.
pub(super) fn spread(ask: &Ask<'_>, refuted: usize) -> Option<Suggestion> {
    let dimensions = ask.space.dimensions();
    let inner = |index: usize| {
        let point = sobol::point(index, dimensions, ask.seed);
        let few = index < SPREAD + refuted;
        point.into_iter().map(|at| if few { 0.5 + INNER * (at - 0.5) } else { at }).collect()
    };
    let config = sequence::first_unseen(ask, "auto", inner)?;
    let reason = if refuted > 0 {
        "what was believed to be best turned out otherwise"
    } else {
        "too little is known for a model"
    };
    Some(Suggestion { config, why: format!("spread over the space, because {reason}") })
}
