//! Bayesian optimization of launch parameters: few trials, mixed parameters, noise, constraints, and configurations
//! that do not serve.
//!
//! 1. [`first_trials`]: the first few points are spread over the inner part of the space. With a `SamplerPrior` they are some
//!    of the points that it predicts to be best.
//! 2. [`models`]: a Gaussian process for each objective, each constraint and for whether a configuration serves.
//!    Several sets of hyper-parameters are used. Each is the most likely one under its own hyper-parameter priors:
//!    those of the first set as they are, those of the others moved at random.
//! 3. [`acquisition`]: the expected improvement of a trial, averaged over these sets, divided by its expected [`cost`].
//! 4. [`search`]: the allowed configuration of the highest acquisition. From time to time it is instead an exploration,
//!    because models can be sure and wrong. An exploration is the configuration for which the models are least certain,
//!    or the best one with another value of a parameter that was [`neglected`].

mod acquisition;
mod cost;
mod explain;
mod first_trials;
mod judge;
mod remaining_gain;
mod limit_unit;
mod looks;
mod models;
mod neglected;
mod objective;
mod prior_surrogates;
mod search;
mod table;
mod units;
mod reason;

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::acquisition::Acquisition;
use self::cost::ExpectedCost;
use self::first_trials::PredictedPoints;
use self::looks::{LiveAxes, LookQuestion};
use self::models::Models;
use self::neglected::neglected;
pub(super) use self::prior_surrogates::PriorSurrogateCache;
use self::prior_surrogates::PriorSurrogates;
use self::search::{PointSearch, ScoredPoint};
use self::table::HistoryTable;
use super::{Explanation, Judgement, Sampler, SamplerAsk, Suggestion};
use crate::config::Config;
use crate::stats::{log_sum_exp, normal};
use crate::surrogate::Encoding;

pub(super) struct Auto;

/// Number of the best measured points that the search starts from, and of the best points of each prior.
const SEARCH_STARTS: usize = 6;
/// Number of hyper-parameter sets. From `MANY_TRIALS` trials on, one set is enough.
const HYPER_PARAMETER_SETS: usize = 3;
const MANY_TRIALS: usize = 100;

/// The purpose of a suggestion.
enum SuggestionPurpose<'a> {
    /// The highest acquisition.
    Exploitation,
    /// Exploration: the highest acquisition of models with larger deviations.
    Exploration,
    /// The best configuration so far with another value of this parameter.
    Neglected(&'a str),
    /// The highest acquisition on a running server.
    Look,
}

/// Length of a cycle of suggestions, and the places in it that do not take the highest acquisition. The length of the
/// history determines the place.
const CYCLE_LENGTH: usize = 6;
const NEGLECTED_AT: usize = 2;
const EXPLORATION_POSITION: usize = 5;
/// The last `FINAL_TRIALS` trials never explore: no later trial could use their discoveries.
const FINAL_TRIALS: u32 = 6;

impl Sampler for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn summary(&self) -> &'static str {
        "Bayesian optimization: Gaussian processes of objectives, constraints and failures, started from predictions"
    }

    fn uses_priors(&self) -> bool {
        true
    }

    fn explain(&self, ask: &SamplerAsk<'_>) -> Option<Explanation> {
        explain::explain(ask)
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        let encoding = Encoding::new(ask.space, ask.defaults);
        let table = HistoryTable::of(ask, &encoding);
        let asked = table.launches;
        let opinions = PriorSurrogates::all(ask, &encoding);
        let mut best_knobs = Vec::new();
        if !table.looked.is_empty() {
            let (_, weights, models) = model(ask, &encoding, &table, &opinions);
            let question = LookQuestion { ask, encoding: &encoding, table: &table, models: &models, weights: &weights };
            if let Some(pair) = question.first_pair() {
                return Some(pair);
            }
            best_knobs = question.best_knobs();
        }
        let spread = first_trials::spread(ask, &table);
        if asked < first_trials::MAX_PRIOR_TRIALS + spread {
            let beliefs = PredictedPoints::of(ask, &encoding);
            if asked < first_trials::MAX_PRIOR_TRIALS
                && let Some(suggestion) = first_trials::next_prior_suggestion(ask, &encoding, &table, &beliefs.trusted)
            {
                return Some(suggestion);
            }
            if asked == 0 || (beliefs.trusted.is_empty() && asked < spread + beliefs.refuting_trials) {
                let refuted = beliefs.refuting_trials > 0;
                let reason = if refuted { "the trials refute the predictions" } else { "too few trials for a model" };
                return first_trials::spread_suggestion(ask, beliefs.refuting_trials, &best_knobs, reason);
            }
        }
        let (mut rng, weights, models) = model(ask, &encoding, &table, &opinions);
        let questioned = LookQuestion { ask, encoding: &encoding, table: &table, models: &models, weights: &weights };
        let place =
            if ask.trials_left.is_some_and(|left| left <= FINAL_TRIALS) { 0 } else { ask.history.len() % CYCLE_LENGTH };
        let acquisitions: Vec<_> = models
            .iter()
            .map(|models| Acquisition::new(models, &table, &weights, place == EXPLORATION_POSITION))
            .collect();
        let search = PointSearch::new(ask, &encoding, ExpectedCost::of(ask, &encoding));
        let around = search_starts(ask, &encoding, &table, &models[0]);
        if place == NEGLECTED_AT
            && let Some(best) = around.first()
            && let Some(found) = neglected(&search, &encoding, &table, &models[0], &acquisitions[0], best)
        {
            let turn = SuggestionPurpose::Neglected(&ask.space.parameters[found.axis].name);
            let why = reason::describe(ask, &table, &models[0], &found.point, &turn);
            let expected = reason::expected_value(&table, &models[0], &found.point);
            return Some(Suggestion { config: found.config, why, expected });
        }
        let first = |point: &[f64]| acquisitions[0].score(point);
        let all = |point: &[f64]| {
            let scores: Vec<_> = acquisitions.iter().map(|acquisition| acquisition.score(point)).collect();
            log_sum_exp(&scores)
        };
        let launches = search.several(&mut rng, &around, &first, &all);
        let best = match LiveAxes::of(ask) {
            Some(live) => questioned.best_launch(&live, launches, &all, &mut rng),
            None => launches.into_iter().next(),
        };
        let Some(ScoredPoint { point, config, .. }) = best else {
            // Nearly every configuration is refused or known: the remaining ones are found in order.
            return first_trials::spread_suggestion(ask, 0, &[], "the model found no new allowed configuration");
        };
        let turn = if place == EXPLORATION_POSITION {
            SuggestionPurpose::Exploration
        } else {
            SuggestionPurpose::Exploitation
        };
        let why = reason::describe(ask, &table, &models[0], &point, &turn);
        let expected = reason::expected_value(&table, &models[0], &point);
        Some(Suggestion { config, why, expected })
    }

    fn uses_live_looks(&self) -> bool {
        true
    }

    fn look(&self, ask: &SamplerAsk<'_>, server: &Config) -> Option<Suggestion> {
        let live = LiveAxes::of(ask)?;
        let encoding = Encoding::new(ask.space, ask.defaults);
        let table = HistoryTable::of(ask, &encoding);
        let opinions = PriorSurrogates::all(ask, &encoding);
        let (mut rng, weights, models) = model(ask, &encoding, &table, &opinions);
        let search = PointSearch::new(ask, &encoding, ExpectedCost::of(ask, &encoding));
        let question = LookQuestion { ask, encoding: &encoding, table: &table, models: &models, weights: &weights };
        if let Some(spread) = question.spread_look(&live, server) {
            return Some(spread);
        }
        let cost = libm::log(ask.live?.cost) + search.cost.log(&encoding.point(server)?, server);
        let look = question.best_look(&live, server, cost, &mut rng)?;
        let acquisitions: Vec<_> =
            models.iter().map(|models| Acquisition::new(models, &table, &weights, false)).collect();
        let first = |point: &[f64]| acquisitions[0].score(point);
        let all = |point: &[f64]| {
            let scores: Vec<_> = acquisitions.iter().map(|acquisition| acquisition.score(point)).collect();
            log_sum_exp(&scores)
        };
        let around = search_starts(ask, &encoding, &table, &models[0]);
        let launches = search.several(&mut rng, &around, &first, &all);
        let launch = question.best_launch(&live, launches, &all, &mut rng);
        if launch.is_some_and(|launch| launch.score > look.score) {
            return None;
        }
        let why = reason::describe(ask, &table, &models[0], &look.point, &SuggestionPurpose::Look);
        let expected = reason::expected_value(&table, &models[0], &look.point);
        Some(Suggestion { config: look.config, why, expected })
    }

    fn judge(&self, ask: &SamplerAsk<'_>) -> Option<Judgement> {
        judge::judge(ask)
    }

    fn expect(&self, ask: &SamplerAsk<'_>, configs: &[Config]) -> Vec<Option<f64>> {
        judge::expect(ask, configs)
    }
}

/// Returns the random numbers of a question, its weights of the objectives, and its models.
fn model<'a>(
    ask: &SamplerAsk<'_>,
    encoding: &Encoding<'_>,
    table: &HistoryTable,
    opinions: &'a [Arc<PriorSurrogates>],
) -> (ChaCha8Rng, Vec<f64>, Vec<Models<'a>>) {
    let mut rng = ChaCha8Rng::seed_from_u64(ask.seed);
    rng.set_stream(ask.history.len() as u64);
    let weights: Vec<f64> = weights(&mut rng, ask.aim.objectives.len());
    let models = fit_model_sets(&mut rng, encoding, table, opinions);
    (rng, weights, models)
}

/// Fits the models: the most likely ones first, then others that the priors of the hyper-parameters allow. The most
/// likely ones alone are too sure with few data. Each of the others is the most likely one after its priors have been
/// moved at random.
///
/// Source: the randomize-then-optimize idea of J. Bardsley et al., 2014, without moving the data.
fn fit_model_sets<'a>(
    rng: &mut ChaCha8Rng,
    encoding: &Encoding<'_>,
    table: &HistoryTable,
    opinions: &'a [Arc<PriorSurrogates>],
) -> Vec<Models<'a>> {
    let count = if table.points().count() < MANY_TRIALS { HYPER_PARAMETER_SETS } else { 1 };
    let doubted = |opinion: &&Arc<PriorSurrogates>| opinion.uncertainties.iter().any(Option::is_some);
    let trends = opinions.len() + opinions.iter().filter(doubted).count();
    let hyper_parameters = 2 * (encoding.axes.len() + table.knobs + trends) + 2;
    let mut models = vec![Models::fit(&encoding.axes, table, opinions, &[])];
    models.extend((1..count).map(|_| {
        let moved: Vec<f64> = (0..hyper_parameters).map(|_| normal::draw(rng)).collect();
        Models::fit(&encoding.axes, table, opinions, &moved)
    }));
    models
}

/// Returns random weights of the objectives that add up to 1. They are used with three or more objectives.
fn weights(rng: &mut ChaCha8Rng, count: usize) -> Vec<f64> {
    let drawn: Vec<f64> = (0..count).map(|_| -libm::log(1.0 - rng.random::<f64>())).collect();
    let sum: f64 = drawn.iter().sum();
    drawn.into_iter().map(|weight| weight / sum).collect()
}

/// Returns the best measured points, followed by the best points of the priors.
fn search_starts(
    ask: &SamplerAsk<'_>,
    encoding: &Encoding<'_>,
    table: &HistoryTable,
    models: &Models<'_>,
) -> Vec<Vec<f64>> {
    let rank = |point: &Vec<f64>| {
        let outlook = models.at(point);
        let value = outlook.objectives.first().map_or(0.0, |belief| belief.mean);
        (10.0 * outlook.log_feasible.max(-20.0) + value, point.clone())
    };
    let known = table.measured.iter().map(|(_, point)| point).chain(&table.looked);
    let mut ranked: Vec<_> = known.map(rank).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let measured = ranked.into_iter().take(SEARCH_STARTS).map(|(_, point)| point);
    measured
        .chain(ask.priors.iter().flat_map(|prior| prior_surrogates::best(prior, ask, encoding, SEARCH_STARTS)))
        .collect()
}

#[cfg(test)]
mod tests;
