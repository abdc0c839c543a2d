//! Assessment of the measurements: the best measured configuration by the models, and the remaining gain.

use std::collections::HashMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::fit_model_sets;
use super::models::{Models, PRIOR_LIMIT_ERROR, PRIOR_VALUE_ERROR, PointOutlook};
use super::prior_surrogates::PriorSurrogates;
use super::remaining_gain::{self, RemainingGain};
use super::table::HistoryTable;
use crate::config::Config;
use crate::sampler::{Judgement, KnownOutcome, Pick, SamplerAsk};
use crate::stats::to_f64;
use crate::surrogate::{Encoding, PosteriorBelief, front};

/// Least probability of keeping every constraint for a configuration to be picked.
const MIN_FEASIBLE_PROBABILITY: f64 = 0.75;
/// Number of standard deviations beyond which a difference of two configurations is significant.
const SIGNIFICANT_DEVIATIONS: f64 = 2.0;
/// Least number of measurements to assess a prior, and the rank correlation below which its predictions are of no use.
const MIN_PRIOR_MEASUREMENTS: usize = 8;
const MIN_USEFUL_CORRELATION: f64 = 0.3;

pub(super) fn judge(ask: &SamplerAsk<'_>) -> Option<Judgement> {
    let encoding = Encoding::new(ask.space, ask.defaults);
    let table = measured_table(ask, &encoding)?;
    let opinions = PriorSurrogates::all(ask, &encoding);
    let mut rng = rng_of(ask);
    let mut models = fit_model_sets(&mut rng, &encoding, &table, &opinions);
    let modelled = models[0].objectives.len();
    models.retain(|models| models.objectives.len() == modelled);
    let ranking = ranking(ask, &table, &models);
    let pick = ranking.first().cloned();
    let notes = notes(ask, &table, &opinions);
    let best = pick.as_ref().and_then(|pick| table.measured.iter().find(|(place, _)| *place == pick.history_index));
    let (Some((_, best)), 1, 1) = (best, modelled, ask.aim.objectives.len()) else {
        let front = undominated(&table, &ranking);
        return Some(Judgement { pick, ranking, front, remaining_gain: None, next_gain: None, notes });
    };
    let RemainingGain { remaining, next_gain } = remaining_gain::of(ask, &encoding, &table, &models, best, &mut rng);
    Some(Judgement { pick, ranking, front: Vec::new(), remaining_gain: remaining, next_gain, notes })
}

/// Returns the expected value of the first objective for each configuration.
pub(super) fn expect(ask: &SamplerAsk<'_>, configs: &[Config]) -> Vec<Option<f64>> {
    let encoding = Encoding::new(ask.space, ask.defaults);
    let Some(table) = measured_table(ask, &encoding) else { return vec![None; configs.len()] };
    let opinions = PriorSurrogates::all(ask, &encoding);
    let mut models = fit_model_sets(&mut rng_of(ask), &encoding, &table, &opinions);
    let modelled = models[0].objectives.len();
    models.retain(|models| models.objectives.len() == modelled);
    let expected = |config: &Config| {
        let (beliefs, _) = average_posterior(&models, &encoding.point(config)?);
        models[0].objectives.first().filter(|model| model.index == 0)?;
        Some(table.units.objectives[0].value(beliefs.first()?.mean))
    };
    configs.iter().map(expected).collect()
}

/// Returns the measured trials. Pending ones have no measurement. `None` if there are none.
fn measured_table(ask: &SamplerAsk<'_>, encoding: &Encoding<'_>) -> Option<HistoryTable> {
    let table = HistoryTable { pending: Vec::new(), ..HistoryTable::of(ask, encoding) };
    (!table.measured.is_empty()).then_some(table)
}

fn rng_of(ask: &SamplerAsk<'_>) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(ask.seed);
    let ended = ask.history.iter().filter(|past| !matches!(past.outcome, KnownOutcome::Pending)).count();
    rng.set_stream(u64::MAX - ended as u64);
    rng
}

/// A configuration in the ranking.
struct RankedPick {
    /// Sum of the expected objectives, each as its distance from the mean in units of its spread, and the standard
    /// deviation of the sum.
    total_score: f64,
    deviation: f64,
    /// Number of measurements of the configuration.
    times: usize,
    pick: Pick,
}

/// Returns the measured configurations that are probably feasible, the best expected one first. With one objective, a
/// configuration that does not differ significantly from it and was measured more often goes before it. Several
/// objectives are ordered by their sum, each in units of its spread.
fn ranking(ask: &SamplerAsk<'_>, table: &HistoryTable, models: &[Models<'_>]) -> Vec<Pick> {
    let mut times: HashMap<String, usize> = HashMap::new();
    for (place, _) in &table.measured {
        *times.entry(ask.history[*place].config.key()).or_default() += 1;
    }
    let mut ranked = Vec::new();
    for (place, point) in &table.measured {
        // A configuration that was measured repeatedly has one entry, at its first place.
        let Some(times) = times.remove(&ask.history[*place].config.key()) else { continue };
        let (beliefs, feasible) = average_posterior(models, point);
        if feasible < MIN_FEASIBLE_PROBABILITY || beliefs.is_empty() {
            continue;
        }
        let (mut order, mut deviation) = (0.0, 0.0);
        let mut values = vec![None; table.objectives.len()];
        for (model, belief) in models[0].objectives.iter().zip(&beliefs) {
            let column = &table.objectives[model.index];
            order += (belief.mean - column.mean()) / column.spread();
            deviation += belief.deviation / column.spread();
            let unit = table.units.objectives[model.index];
            values[model.index] = Some((unit.value(belief.mean), unit.deviation(belief.deviation, belief.mean)));
        }
        ranked.push(RankedPick {
            total_score: order,
            deviation,
            times,
            pick: Pick { history_index: *place, values, feasible },
        });
    }
    ranked.sort_by(|a, b| b.total_score.total_cmp(&a.total_score));
    // With several objectives the first one is on the front. A configuration that does not differ significantly may not
    // be.
    if ask.aim.objectives.len() == 1 {
        prefer_most_measured(&mut ranked);
    }
    ranked.into_iter().map(|ranked| ranked.pick).collect()
}

/// Returns the objectives' distributions at a point over all hyper-parameter sets, and the probability that it serves
/// and keeps every constraint. The most likely set alone would be too sure.
fn average_posterior(models: &[Models<'_>], point: &[f64]) -> (Vec<PosteriorBelief>, f64) {
    let outlooks: Vec<_> = models.iter().map(|models| models.at(point)).collect();
    let average = |of: &dyn Fn(&PointOutlook) -> f64| outlooks.iter().map(of).sum::<f64>() / to_f64(outlooks.len());
    let belief = |index: usize| {
        let mean = average(&|outlook| outlook.objectives[index].mean);
        let variance = average(&|outlook| {
            let PosteriorBelief { mean: own, deviation } = outlook.objectives[index];
            deviation * deviation + (own - mean) * (own - mean)
        });
        PosteriorBelief { mean, deviation: variance.sqrt() }
    };
    ((0..models[0].objectives.len()).map(belief).collect(), average(&PointOutlook::feasible))
}

/// Returns the configurations that no other is expected to beat in all modelled objectives.
fn undominated(table: &HistoryTable, ranking: &[Pick]) -> Vec<Pick> {
    let expected = |pick: &Pick| -> Vec<f64> {
        let values = pick.values.iter().zip(&table.units.objectives);
        values.filter_map(|(value, unit)| value.map(|(value, _)| unit.modelled(value))).collect()
    };
    let expected: Vec<_> = ranking.iter().map(expected).collect();
    let mut places = front(&expected);
    places.sort_unstable();
    places.into_iter().map(|place| ranking[place].clone()).collect()
}

/// Moves the configuration measured most often to the front, among those that do not differ significantly from the
/// first one.
fn prefer_most_measured(ranked: &mut [RankedPick]) {
    let Some(best) = ranked.first() else { return };
    let is_equal = |other: &RankedPick| {
        best.total_score - other.total_score <= SIGNIFICANT_DEVIATIONS * libm::hypot(best.deviation, other.deviation)
    };
    let equal = ranked.iter().enumerate().filter(|(_, other)| is_equal(other));
    // Takes the better of two that were measured equally often.
    let surest = equal.reduce(|best, next| if next.1.times > best.1.times { next } else { best });
    if let Some(place) = surest.map(|(place, _)| place) {
        ranked[..=place].rotate_right(1);
    }
}

/// Returns a note for each prediction of a prior that the measurements contradict.
fn notes(ask: &SamplerAsk<'_>, table: &HistoryTable, opinions: &[Arc<PriorSurrogates>]) -> Vec<String> {
    let dimensions = ask.space.dimensions();
    let mut notes = Vec::new();
    for (prior, opinion) in ask.priors.iter().zip(opinions) {
        let objectives = ask.aim.objectives.iter().map(|target| &target.name);
        let objectives = objectives.zip(&table.objectives).zip(&opinion.objectives);
        let objectives = objectives.map(|of| (of, PRIOR_VALUE_ERROR));
        let limits = ask.aim.constraints.iter().zip(&table.constraints).zip(&opinion.constraints);
        for (((name, column), trend), usual) in objectives.chain(limits.map(|of| (of, PRIOR_LIMIT_ERROR))) {
            let (Some(trend), count) = (trend, column.data.targets.len()) else { continue };
            if count < MIN_PRIOR_MEASUREMENTS {
                continue;
            }
            let said: Vec<_> = column.data.points.iter().map(|point| trend.at(&point[..dimensions])).collect();
            let agreement = rank_correlation(&said, &column.data.targets);
            // The order of measurements that hardly differ is chance.
            if agreement < MIN_USEFUL_CORRELATION && prior_error(&said, &column.data.targets) > usual {
                notes.push(format!(
                    "the predictions of {} for {name} contradict the measurements: rank correlation {agreement:.2} \
                     over {count} measurements; the search relies on the measurements",
                    prior.name
                ));
            }
        }
    }
    notes
}

/// Returns the standard deviation of the prior's errors. A constant error does not count.
fn prior_error(said: &[f64], measured: &[f64]) -> f64 {
    let differences = || measured.iter().zip(said).map(|(measured, said)| measured - said);
    let mean = differences().sum::<f64>() / to_f64(measured.len());
    let squares: f64 = differences().map(|difference| (difference - mean) * (difference - mean)).sum();
    (squares / to_f64(measured.len())).sqrt()
}

/// Returns Spearman's rank correlation, or 1 if one of the two does not vary.
fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
    let ranks = |values: &[f64]| {
        let mut order: Vec<_> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        let mut ranks = vec![0.0; values.len()];
        for (rank, place) in order.into_iter().enumerate() {
            ranks[place] = to_f64(rank);
        }
        ranks
    };
    let varies = |values: &[f64]| values.iter().any(|value| (value - values[0]).abs() > 0.0);
    if !varies(a) || !varies(b) {
        return 1.0;
    }
    let middle = to_f64(a.len() - 1) / 2.0;
    let (a, b) = (ranks(a), ranks(b));
    let product: f64 = a.iter().zip(&b).map(|(a, b)| (a - middle) * (b - middle)).sum();
    product / a.iter().map(|a| (a - middle) * (a - middle)).sum::<f64>()
}
