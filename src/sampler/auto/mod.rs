//! Bayesian optimization for launch parameters: few trials, mixed parameters, noise, limits, and configurations that do not
//! serve.
//!
//! 1. The first few points are spread over the inner part of the space, or, with a [`Prior`](super::Prior), those that it
//!    finds best.
//! 2. [`models`]: a Gaussian process for each objective, each limit and for whether it serves, under a few assumptions of
//!    their hyper-parameters, each as likely as the data and the priors of the hyper-parameters allow.
//! 3. [`acquisition`]: what a trial promises, averaged over the assumptions.
//! 4. [`search`]: the allowed configuration that promises most.

mod acquisition;
mod explain;
mod judge;
mod models;
mod opinion;
mod search;
mod table;
mod why;

use std::cell::OnceCell;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::acquisition::Acquisition;
use self::models::Models;
pub(super) use self::opinion::Opinion;
use self::search::Search;
use self::table::Table;
use super::{Ask, Explanation, Judgement, Sampler, Suggestion, sequence, sobol};
use crate::surrogate::{Encoding, normal};

pub(super) struct Auto;

/// Points that are spread over the space before models are asked.
const SPREAD: usize = 5;
/// They lie in so much of each range: what is extreme serves least.
const INNER: f64 = 0.8;
/// Known points around which is searched.
const AROUND: usize = 6;
/// Assumptions of the hyper-parameters, and the number of trials from which on one is enough.
const ASSUMPTIONS: usize = 3;
const MANY_TRIALS: usize = 100;

impl Sampler for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn summary(&self) -> &'static str {
        "Bayesian optimization: Gaussian processes of objectives, limits and failures, begun with what the twin says"
    }

    fn believes(&self) -> bool {
        true
    }

    fn explain(&self, ask: &Ask<'_>) -> Option<Explanation> {
        explain::explain(ask)
    }

    fn ask(&self, ask: &Ask<'_>) -> Option<Suggestion> {
        let encoding = Encoding::new(ask.space, ask.defaults);
        let table = Table::of(ask, &encoding);
        let opinions: Vec<_> = ask.priors.iter().map(|prior| Opinion::of(prior, ask, &encoding)).collect();
        let asked = table.len();
        if (opinions.is_empty() && asked < SPREAD) || (asked == 0 && opinions.iter().all(|opinion| opinion.is_empty()))
        {
            return spread(ask);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(ask.seed);
        rng.set_stream(ask.history.len() as u64);
        let weights: Vec<f64> = weights(&mut rng, ask.aim.objectives.len());
        let models = assume(&mut rng, &encoding, &table, &opinions);
        let acquisitions: Vec<_> = models.iter().map(|models| Acquisition::new(models, &table, &weights)).collect();
        let search = Search { ask, encoding: &encoding, seen: ask.seen(), finite: OnceCell::new() };
        let first = |point: &[f64]| acquisitions[0].score(point);
        let all = |point: &[f64]| {
            let scores: Vec<_> = acquisitions.iter().map(|acquisition| acquisition.score(point)).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            most + libm::log(scores.iter().map(|score| libm::exp(score - most)).sum::<f64>())
        };
        match search.best(&mut rng, &around(ask, &encoding, &table, &models[0]), &first, &all) {
            Some((point, config)) => {
                let why = why::of(ask, &table, &models[0], &acquisitions[0], &point);
                Some(Suggestion { config, why })
            }
            // Nearly everything is refused or known: what is left is found in order.
            None => spread(ask),
        }
    }

    fn judge(&self, ask: &Ask<'_>) -> Option<Judgement> {
        judge::judge(ask)
    }
}

/// A point of an even sequence over the inner part of the space.
fn spread(ask: &Ask<'_>) -> Option<Suggestion> {
    let dimensions = ask.space.dimensions();
    let inner = |index: usize| {
        let point = sobol::point(index, dimensions, ask.seed);
        let few = index < SPREAD;
        point.into_iter().map(|at| if few { 0.5 + INNER * (at - 0.5) } else { at }).collect()
    };
    let config = sequence::first_unseen(ask, "auto", inner)?;
    Some(Suggestion { config, why: "spread over the space, because too little is known for a model".to_owned() })
}

/// The most likely models first, then others that the priors of the hyper-parameters allow: with few data the most likely ones
/// are too sure. Each is the most likely one after its priors have been moved at random.
///
/// Source: the randomize-then-optimize idea of J. Bardsley et al., 2014, without moving the data.
fn assume<'a>(
    rng: &mut ChaCha8Rng,
    encoding: &Encoding<'_>,
    table: &Table,
    opinions: &[&'a Opinion],
) -> Vec<Models<'a>> {
    let count = if table.len() < MANY_TRIALS { ASSUMPTIONS } else { 1 };
    let hyper_parameters = 2 * (encoding.axes.len() + opinions.len()) + 2;
    let mut models = vec![Models::fit(&encoding.axes, table, opinions, &[])];
    models.extend((1..count).map(|_| {
        let moved: Vec<f64> = (0..hyper_parameters).map(|_| normal::draw(rng)).collect();
        Models::fit(&encoding.axes, table, opinions, &moved)
    }));
    models
}

/// Weights of the objectives that add up to 1.
fn weights(rng: &mut ChaCha8Rng, count: usize) -> Vec<f64> {
    let drawn: Vec<f64> = (0..count).map(|_| -libm::log(1.0 - rng.random::<f64>())).collect();
    let sum: f64 = drawn.iter().sum();
    drawn.into_iter().map(|weight| weight / sum).collect()
}

/// The best measured points, and those that priors find best.
fn around(ask: &Ask<'_>, encoding: &Encoding<'_>, table: &Table, models: &Models<'_>) -> Vec<Vec<f64>> {
    let rank = |point: &Vec<f64>| {
        let outlook = models.at(point);
        let value = outlook.objectives.first().map_or(0.0, |belief| belief.mean);
        (10.0 * outlook.log_feasible.max(-20.0) + value, point.clone())
    };
    let mut ranked: Vec<_> = table.measured.iter().map(|(_, point)| rank(point)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let measured = ranked.into_iter().take(AROUND).map(|(_, point)| point);
    measured.chain(ask.priors.iter().flat_map(|prior| opinion::best(prior, ask, encoding, AROUND))).collect()
}
