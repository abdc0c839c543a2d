//! What the measurements say so far: the best measured configuration by all that is known, and what is left to gain.

use std::collections::HashMap;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::acquisition::Acquisition;
use super::cost::Cost;
use super::models::{Models, Outlook};
use super::opinion::Opinion;
use super::search::Search;
use super::table::Table;
use super::{around, assume, weights};
use crate::sampler::{Ask, Judgement, Pick};
use crate::surrogate::{Encoding, front};

/// A configuration is picked only if it keeps every limit with this probability.
const PROBABLY: f64 = 0.75;
/// Deviations of a difference by which two configurations can be told apart.
const TOLD_APART: f64 = 2.0;
/// Configurations among which the best one of the space is looked for, and draws of what they are worth, of all assumptions.
const RIVALS: usize = 60;
const DRAWS: usize = 300;
/// Measurements from which on a prior can be judged, and the rank correlation below which it is of no use.
const ENOUGH: usize = 8;
const OF_USE: f64 = 0.3;

pub(super) fn judge(ask: &Ask<'_>) -> Option<Judgement> {
    let encoding = Encoding::new(ask.space, ask.defaults);
    // What is under way was not measured.
    let table = Table { pending: Vec::new(), ..Table::of(ask, &encoding) };
    if table.measured.is_empty() {
        return None;
    }
    let opinions = Opinion::all(ask, &encoding);
    let mut rng = ChaCha8Rng::seed_from_u64(ask.seed);
    rng.set_stream(u64::MAX - ask.history.len() as u64);
    let weights = weights(&mut rng, ask.aim.objectives.len());
    let models = assume(&mut rng, &encoding, &table, &opinions);
    let likely = &models[0];
    let ranking = ranking(ask, &table, likely);
    let pick = ranking.first().cloned();
    let notes = notes(ask, &table, &opinions);
    let best = pick.as_ref().and_then(|pick| table.measured.iter().find(|(place, _)| *place == pick.place));
    let (Some((_, best)), [model], [_]) = (best, likely.objectives.as_slice(), ask.aim.objectives.as_slice()) else {
        let front = undominated(&table, &ranking);
        return Some(Judgement { pick, ranking, front, remaining: None, next_gain: None, notes });
    };
    // A search ends when no trial pays any more, and not when a cheap one does not.
    let search = Search::new(ask, &encoding, Cost::Equal);
    let mut rivals: Vec<(f64, Vec<f64>)> = Vec::new();
    let hopes = |outlook: &Outlook| {
        let belief = outlook.objectives[0];
        belief.mean + 2.0 * belief.deviation + libm::log(outlook.feasible().max(1e-6))
    };
    for point in search.points(&mut rng, &around(ask, &encoding, &table, likely)) {
        rivals.push((hopes(&likely.at(&point)), point));
    }
    let acquisition = Acquisition::new(likely, &table, &weights, false);
    let gain = |point: &[f64]| libm::log(acquisition.gain(point).max(1e-300));
    let next = search.best(&mut rng, std::slice::from_ref(best), &gain, &gain);
    rivals.sort_by(|a, b| b.0.total_cmp(&a.0));
    rivals.truncate(RIVALS);
    rivals.extend(next.iter().map(|(point, _)| (0.0, point.clone())));
    let points: Vec<_> = std::iter::once(best.clone()).chain(rivals.into_iter().map(|(_, point)| point)).collect();
    let level = model.near(best).0.mean;
    let share = |gain: f64| table.measures[model.index].share(gain, level);
    let remaining = remaining(&mut rng, &models, &points).map(|gains| gains.map(share));
    let next_gain = next.map(|(point, _)| share(acquisition.gain(&point)));
    Some(Judgement { pick, ranking, front: Vec::new(), remaining, next_gain, notes })
}

/// A configuration in the ranking.
struct Ranked {
    /// The sum of the objectives that are expected, each in units of its spread, and how uncertain that is.
    order: f64,
    deviation: f64,
    /// How often it was measured.
    times: usize,
    pick: Pick,
}

/// Measured configurations that are probably within the limits, the best expected one first, or what cannot be told apart from it
/// and was measured more often. A history of several objectives is in the order of their sum, each in units of its spread.
fn ranking(ask: &Ask<'_>, table: &Table, models: &Models<'_>) -> Vec<Pick> {
    let mut times: HashMap<String, usize> = HashMap::new();
    for (place, _) in &table.measured {
        *times.entry(ask.history[*place].config.key()).or_default() += 1;
    }
    let mut ranked = Vec::new();
    for (place, point) in &table.measured {
        // Of equal ones only the first is looked at.
        let Some(times) = times.remove(&ask.history[*place].config.key()) else { continue };
        let outlook = models.at(point);
        let feasible = outlook.feasible();
        if feasible < PROBABLY || outlook.objectives.is_empty() {
            continue;
        }
        let (mut order, mut deviation) = (0.0, 0.0);
        let mut values = vec![None; table.measures.len()];
        for (model, belief) in models.objectives.iter().zip(&outlook.objectives) {
            let column = &table.objectives[model.index];
            order += (belief.mean - column.mean()) / column.spread();
            deviation += belief.deviation / column.spread();
            let measure = table.measures[model.index];
            values[model.index] = Some((measure.value(belief.mean), measure.deviation(belief.deviation, belief.mean)));
        }
        ranked.push(Ranked { order, deviation, times, pick: Pick { place: *place, values, feasible } });
    }
    ranked.sort_by(|a, b| b.order.total_cmp(&a.order));
    surest_first(&mut ranked);
    ranked.into_iter().map(|ranked| ranked.pick).collect()
}

/// What no other one is expected to beat in all objectives that all have.
fn undominated(table: &Table, ranking: &[Pick]) -> Vec<Pick> {
    let expected = |pick: &Pick| -> Vec<f64> {
        let values = pick.values.iter().zip(&table.measures);
        values.filter_map(|(value, measure)| value.map(|(value, _)| measure.modelled(value))).collect()
    };
    let expected: Vec<_> = ranking.iter().map(expected).collect();
    let mut places = front(&expected);
    places.sort_unstable();
    places.into_iter().map(|place| ranking[place].clone()).collect()
}

/// Puts what was measured most often first, of those that cannot be told apart from the first one.
fn surest_first(ranked: &mut [Ranked]) {
    let Some(best) = ranked.first() else { return };
    let is_equal =
        |other: &Ranked| best.order - other.order <= TOLD_APART * libm::hypot(best.deviation, other.deviation);
    let equal = ranked.iter().enumerate().filter(|(_, other)| is_equal(other));
    // The better one of several.
    let surest = equal.reduce(|best, next| if next.1.times > best.1.times { next } else { best });
    if let Some(place) = surest.map(|(place, _)| place) {
        ranked[..=place].rotate_right(1);
    }
}

/// By how much the best of some points is better than the first of them: the 5th, 50th and 95th percentile over draws of all of
/// them together, each under one of the assumptions. A point counts in a draw as often as it is feasible.
fn remaining(rng: &mut ChaCha8Rng, models: &[Models<'_>], points: &[Vec<f64>]) -> Option<[f64; 3]> {
    let draws = DRAWS / models.len();
    let mut gains = Vec::with_capacity(DRAWS);
    for models in models {
        let drawn = models.objectives.first()?.draws(points, draws, rng.random());
        let feasible: Vec<_> = points.iter().map(|point| models.at(point).feasible()).collect();
        for (draw, own) in drawn[0].iter().enumerate() {
            let others = (1..points.len()).filter(|at| rng.random::<f64>() < feasible[*at]);
            gains.push(others.map(|at| drawn[at][draw] - own).fold(0.0, f64::max));
        }
    }
    gains.sort_by(f64::total_cmp);
    let at = |share: usize| gains.get((gains.len() * share / 100).min(gains.len() - 1)).copied();
    Some([at(5)?, at(50)?, at(95)?])
}

/// What the measurements say of the priors.
fn notes(ask: &Ask<'_>, table: &Table, opinions: &[Arc<Opinion>]) -> Vec<String> {
    let mut notes = Vec::new();
    for (prior, opinion) in ask.priors.iter().zip(opinions) {
        let objectives = ask.aim.objectives.iter().map(|target| &target.name);
        let objectives = objectives.zip(&table.objectives).zip(&opinion.objectives);
        let limits = ask.aim.constraints.iter().zip(&table.constraints).zip(&opinion.constraints);
        for ((name, column), trend) in objectives.chain(limits) {
            let (Some(trend), count) = (trend, column.data.targets.len()) else { continue };
            if count < ENOUGH {
                continue;
            }
            let said: Vec<_> = column.data.points.iter().map(|point| trend.at(point)).collect();
            let agreement = rank_correlation(&said, &column.data.targets);
            if agreement < OF_USE {
                notes.push(format!(
                    "what {} says of {name} is of little use here: its rank correlation with {count} measurements is \
                     {agreement:.2}; the search goes by the measurements",
                    prior.name
                ));
            }
        }
    }
    notes
}

/// Spearman's rank correlation; 1 where one of the two does not vary.
#[expect(clippy::cast_precision_loss, reason = "a number of trials")]
fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
    let ranks = |values: &[f64]| {
        let mut order: Vec<_> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        let mut ranks = vec![0.0; values.len()];
        for (rank, place) in order.into_iter().enumerate() {
            ranks[place] = rank as f64;
        }
        ranks
    };
    let varies = |values: &[f64]| values.iter().any(|value| (value - values[0]).abs() > 0.0);
    if !varies(a) || !varies(b) {
        return 1.0;
    }
    let middle = (a.len() - 1) as f64 / 2.0;
    let (a, b) = (ranks(a), ranks(b));
    let product: f64 = a.iter().zip(&b).map(|(a, b)| (a - middle) * (b - middle)).sum();
    product / a.iter().map(|a| (a - middle) * (a - middle)).sum::<f64>()
}
