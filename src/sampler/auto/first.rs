//! What is tried before models are asked: what priors find best, each unlike the ones before, or else an even spread.
//!
//! A prior that is nearly right has one of the best configurations among its own best ones, but which one depends on what it
//! has wrong: so the first is the best one, the second the one whose limits it is surest of, and the others are to differ.

use super::measure::Measure;
use super::neglected::is_same;
use super::table::Table;
use super::units::Units;
use super::why::short;
use crate::config::Config;
use crate::sampler::{Ask, Known, Prior, Suggestion, sequence, sobol};
use crate::surrogate::{Axis, Encoding, front};

/// Points that are spread over the space where no prior knows any that keep the limits.
pub(super) const SPREAD: usize = 5;
/// They lie in so much of each range: what is extreme serves least.
const INNER: f64 = 0.8;
/// Points that priors find best.
pub(super) const BELIEVED: usize = 4;
/// By how much less than the best they may promise, as a share.
const NEARLY: f64 = 0.05;

/// A configuration that a prior finds among the best.
pub(super) struct Believed<'a> {
    prior: &'a Prior,
    config: &'a Config,
    point: Vec<f64>,
    /// What the prior says of the first objective.
    value: f64,
    /// How unsure it is of the limits.
    doubt: f64,
}

/// What the priors find best within the limits: nearly as good as the best one, or, of several objectives, what nothing beats.
/// The best one of the first prior comes first.
pub(super) fn believed<'a>(ask: &'a Ask<'_>, encoding: &Encoding<'_>) -> Vec<Believed<'a>> {
    let measures = Units::of(ask).objectives;
    let of_prior = |prior: &'a Prior| {
        let found = prior.points().iter().filter_map(|(config, known)| {
            let gains = gains(&measures, known)?;
            let measured = known.measured()?;
            let value = measured.values.first()?.value;
            let doubts = measured.excesses.iter().filter_map(|excess| excess.deviation.filter(|_| prior.is_computed()));
            Some((gains, Believed { prior, config, point: encoding.point(config)?, value, doubt: doubts.sum() }))
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
        let kept: Vec<_> = found.into_iter().enumerate().filter(|(at, _)| kept.contains(at)).collect();
        kept.into_iter().map(|(_, (_, believed))| believed)
    };
    ask.priors.iter().flat_map(of_prior).collect()
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
    believed: &[Believed<'_>],
) -> Option<Suggestion> {
    let seen = ask.seen();
    let nearest = |point: &[f64]| {
        let known = table.points().map(|known| apart(&encoding.axes, known, point));
        known.fold(f64::INFINITY, f64::min)
    };
    let (tried, left): (Vec<_>, Vec<_>) = believed.iter().partition(|one| seen.contains(&one.config.key()));
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
    let why = format!("tried because {} {reason}; it says {} of {}", one.prior.name, short(one.value), target.name);
    Some(Suggestion { config: one.config.clone(), why })
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

/// A point of an even sequence over the inner part of the space.
pub(super) fn spread(ask: &Ask<'_>) -> Option<Suggestion> {
    let dimensions = ask.space.dimensions();
    let inner = |index: usize| {
        let point = sobol::point(index, dimensions, ask.seed);
        let few = index < SPREAD;
        point.into_iter().map(|at| if few { 0.5 + INNER * (at - 0.5) } else { at }).collect()
    };
    let config = sequence::first_unseen(ask, "auto", inner)?;
    Some(Suggestion { config, why: "spread over the space, because too little is known for a model".to_owned() })
}
