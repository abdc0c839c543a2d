//! Search for the highest acquisition: random points, points near the best known ones, and hill climbing from the best
//! of both.
//!
//! L-BFGS and similar methods support neither discrete moves nor conditions. Hill climbing moves from a configuration
//! to its neighbours in the space.

use std::cell::OnceCell;
use std::collections::HashSet;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::cost::ExpectedCost;
use crate::config::Config;
use crate::sampler::SamplerAsk;
use crate::stats::to_f64;
use crate::surrogate::{EncodedAxis, Encoding};

/// Number of points drawn from the whole space, and number drawn near known points.
const RANDOM: usize = 500;
const NEAR: usize = 200;
/// Largest number of configurations in a space that is enumerated.
const MAX_ENUMERATED: usize = 700;
/// Number of candidates with the highest quick score, for which the full score is computed.
const FULLY_SCORED: usize = 40;
/// Number of candidates that hill climbing starts from, and maximum number of its steps.
const CLIMBS: usize = 4;
const STEPS: usize = 20;
/// Lengths of a number's moves, as shares of its range.
const MOVE_LENGTHS: [f64; 3] = [0.02, 0.08, 0.25];

/// The search of one question. Scores are logarithms of the gain.
pub(super) struct PointSearch<'a, 's> {
    pub(super) ask: &'a SamplerAsk<'a>,
    pub(super) encoding: &'a Encoding<'s>,
    pub(super) cost: ExpectedCost<'a>,
    seen: HashSet<String>,
    /// All configurations, if they are at most `FEW`.
    all_configs: OnceCell<Option<Vec<Config>>>,
}

/// A configuration that is allowed and was not proposed before. `score` includes the cost.
#[derive(Clone)]
pub(super) struct ScoredPoint {
    pub(super) score: f64,
    pub(super) point: Vec<f64>,
    pub(super) config: Config,
}

impl<'a, 's> PointSearch<'a, 's> {
    pub(super) fn new(ask: &'a SamplerAsk<'a>, encoding: &'a Encoding<'s>, cost: ExpectedCost<'a>) -> Self {
        Self { ask, encoding, cost, seen: ask.history_keys(), all_configs: OnceCell::new() }
    }

    /// Returns the allowed and new configuration with the highest score found, and its point. The full `score` is
    /// computed only for the candidates with the highest `quick` score.
    pub(super) fn best(
        &self,
        rng: &mut ChaCha8Rng,
        around: &[Vec<f64>],
        quick: &dyn Fn(&[f64]) -> f64,
        score: &dyn Fn(&[f64]) -> f64,
    ) -> Option<(Vec<f64>, Config)> {
        let best = self.several(rng, around, quick, score).into_iter().next()?;
        Some((best.point, best.config))
    }

    /// Like `best`, but returns several configurations, the best one first.
    pub(super) fn several(
        &self,
        rng: &mut ChaCha8Rng,
        around: &[Vec<f64>],
        quick: &dyn Fn(&[f64]) -> f64,
        score: &dyn Fn(&[f64]) -> f64,
    ) -> Vec<ScoredPoint> {
        let mut candidates = self.candidates(rng, around, quick);
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        candidates.truncate(FULLY_SCORED);
        for candidate in &mut candidates {
            candidate.score = self.score_less_cost(score(&candidate.point), &candidate.point, &candidate.config);
        }
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        let mut climbed: Vec<_> =
            candidates.iter().take(CLIMBS).map(|start| self.climb(start.clone(), score)).collect();
        // Of equal ones the last is taken.
        climbed.reverse();
        climbed.extend(candidates);
        climbed.sort_by(|a, b| b.score.total_cmp(&a.score));
        let mut known = HashSet::new();
        climbed.retain(|candidate| known.insert(candidate.config.key()));
        climbed
    }

    /// Returns many usable points, spread over the space and near known points.
    pub(super) fn points(&self, rng: &mut ChaCha8Rng, around: &[Vec<f64>]) -> Vec<Vec<f64>> {
        self.candidates(rng, around, &|_| 0.0).into_iter().map(|candidate| candidate.point).collect()
    }

    fn candidates(&self, rng: &mut ChaCha8Rng, around: &[Vec<f64>], quick: &dyn Fn(&[f64]) -> f64) -> Vec<ScoredPoint> {
        let mut known = HashSet::new();
        let mut candidates = Vec::new();
        let mut consider = |point: Vec<f64>, config: Config| {
            if known.insert(config.key()) {
                candidates.push(ScoredPoint {
                    score: self.score_less_cost(quick(&point), &point, &config),
                    point,
                    config,
                });
            }
        };
        if let Some(all) = self.all_configs.get_or_init(|| self.ask.space.enumerate(MAX_ENUMERATED)) {
            for config in all {
                if let Some(point) = self.encoding.point(config)
                    && self.is_usable(config)
                {
                    consider(point, config.clone());
                }
            }
            return candidates;
        }
        let near = if around.is_empty() { 0 } else { NEAR };
        for at in 0..RANDOM + near {
            let mut point =
                if at < RANDOM { self.random(rng) } else { self.perturbed(rng, &around[at % around.len()]) };
            self.encoding.snap(&mut point);
            if let Some(config) = self.usable_config(&point) {
                consider(point, config);
            }
        }
        candidates
    }

    /// Returns the score for the gain, less the cost. Both are logarithms.
    pub(super) fn score_less_cost(&self, score: f64, point: &[f64], config: &Config) -> f64 {
        score - self.cost.log(point, config)
    }

    fn is_usable(&self, config: &Config) -> bool {
        !self.seen.contains(&config.key()) && (self.ask.allowed)(config)
    }

    /// Returns the configuration of a point if it is allowed and new.
    pub(super) fn usable_config(&self, point: &[f64]) -> Option<Config> {
        let config = self.encoding.config(point);
        self.is_usable(&config).then_some(config)
    }

    fn random(&self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let coordinate = |axis: &EncodedAxis| match axis {
            EncodedAxis::Number { .. } => rng.random::<f64>(),
            EncodedAxis::Choice { count } => choice(rng, *count),
            EncodedAxis::Trend | EncodedAxis::Difference => 0.0,
        };
        self.encoding.axes.iter().map(coordinate).collect()
    }

    /// Returns `from` with some coordinates moved.
    fn perturbed(&self, rng: &mut ChaCha8Rng, from: &[f64]) -> Vec<f64> {
        let mut point = from.to_vec();
        let reach = MOVE_LENGTHS[rng.random_range(0..MOVE_LENGTHS.len())];
        let chance = (2.0 / to_f64(self.encoding.axes.len())).max(0.15);
        for (coordinate, axis) in point.iter_mut().zip(&self.encoding.axes) {
            if rng.random::<f64>() < chance {
                *coordinate = match axis {
                    EncodedAxis::Number { step } => {
                        // The sum of three uniform numbers is nearly normal.
                        let sum: f64 = (0..3).map(|_| rng.random::<f64>() - 0.5).sum();
                        (*coordinate + 2.0 * sum * reach.max(*step)).clamp(0.0, 1.0)
                    }
                    EncodedAxis::Choice { count } => choice(rng, *count),
                    EncodedAxis::Trend | EncodedAxis::Difference => *coordinate,
                };
            }
        }
        point
    }

    /// Moves to the best neighbour until no neighbour is better.
    fn climb(&self, mut at: ScoredPoint, score: &dyn Fn(&[f64]) -> f64) -> ScoredPoint {
        for _ in 0..STEPS {
            let mut better: Option<ScoredPoint> = None;
            for mut point in self.neighbours(&at.point) {
                self.encoding.snap(&mut point);
                let most = better.as_ref().map_or(at.score, |better| better.score);
                if point == at.point {
                    continue;
                }
                let gain = score(&point);
                if self.cost.is_equal() && gain <= most + 1e-9 {
                    continue;
                }
                let config = self.encoding.config(&point);
                let score = self.score_less_cost(gain, &point, &config);
                // The check comes last: it is needed only for a better configuration.
                if score > most + 1e-9 && self.is_usable(&config) {
                    better = Some(ScoredPoint { score, point, config });
                }
            }
            match better {
                Some(better) => at = better,
                None => break,
            }
        }
        at
    }

    fn neighbours(&self, point: &[f64]) -> Vec<Vec<f64>> {
        let mut neighbours = Vec::new();
        let mut with = |index: usize, coordinate: f64| {
            let mut neighbour = point.to_vec();
            neighbour[index] = coordinate;
            neighbours.push(neighbour);
        };
        for (index, axis) in self.encoding.axes.iter().enumerate() {
            match axis {
                EncodedAxis::Trend | EncodedAxis::Difference => {}
                EncodedAxis::Choice { count } => (0..*count).for_each(|choice| with(index, to_f64(choice))),
                EncodedAxis::Number { step } => {
                    let reaches = if *step > 0.0 { vec![*step, 2.0 * step] } else { MOVE_LENGTHS.to_vec() };
                    for reach in reaches {
                        with(index, (point[index] + reach).min(1.0));
                        with(index, (point[index] - reach).max(0.0));
                    }
                }
            }
        }
        neighbours
    }
}

fn choice(rng: &mut ChaCha8Rng, count: usize) -> f64 {
    if count < 2 { 0.0 } else { to_f64(rng.random_range(0..count)) }
}
