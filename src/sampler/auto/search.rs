//! The point that promises most: random ones, ones near to the best measured ones, and steps uphill from the most promising.

use std::collections::HashSet;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::super::Ask;
use crate::config::Config;
use crate::surrogate::{Axis, Encoding};

const RANDOM: usize = 600;
const PERTURBED: usize = 240;
const CLIMBS: usize = 4;
const STEPS: usize = 20;
/// How far a number is moved, as a share of its range.
const REACHES: [f64; 3] = [0.02, 0.08, 0.25];

pub(super) struct Search<'a, 's> {
    pub(super) ask: &'a Ask<'a>,
    pub(super) encoding: &'a Encoding<'s>,
    pub(super) seen: HashSet<String>,
}

impl Search<'_, '_> {
    /// The allowed and unseen configuration with the highest score that is found, and its point.
    pub(super) fn best(
        &self,
        rng: &mut ChaCha8Rng,
        around: &[Vec<f64>],
        score: &dyn Fn(&[f64]) -> f64,
    ) -> Option<(Vec<f64>, Config)> {
        let mut scored: Vec<(f64, Vec<f64>, Config)> = Vec::new();
        let mut known = HashSet::new();
        let mut consider = |mut point: Vec<f64>, scored: &mut Vec<(f64, Vec<f64>, Config)>| {
            self.encoding.snap(&mut point);
            if let Some(config) = self.usable(&point)
                && known.insert(config.key())
            {
                scored.push((score(&point), point, config));
            }
        };
        for _ in 0..RANDOM {
            consider(self.random(rng), &mut scored);
        }
        for at in 0..PERTURBED.min(PERTURBED * around.len()) {
            consider(self.perturbed(rng, &around[at % around.len()]), &mut scored);
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        scored.truncate(CLIMBS);
        let climbed = scored.into_iter().map(|start| self.climb(start, score));
        let best = climbed.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((best.1, best.2))
    }

    fn usable(&self, point: &[f64]) -> Option<Config> {
        let config = self.encoding.config(point);
        (!self.seen.contains(&config.key()) && (self.ask.allowed)(&config)).then_some(config)
    }

    fn random(&self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let coordinate = |axis: &Axis| match axis {
            Axis::Number { .. } => rng.random::<f64>(),
            Axis::Choice { count } => choice(rng, *count),
            Axis::Trend => 0.0,
        };
        self.encoding.axes.iter().map(coordinate).collect()
    }

    /// A point with some coordinates moved.
    fn perturbed(&self, rng: &mut ChaCha8Rng, from: &[f64]) -> Vec<f64> {
        let mut point = from.to_vec();
        let reach = REACHES[rng.random_range(0..REACHES.len())];
        let chance = (2.0 / self.encoding.axes.len() as f64).max(0.15);
        for (coordinate, axis) in point.iter_mut().zip(&self.encoding.axes) {
            if rng.random::<f64>() < chance {
                *coordinate = match axis {
                    Axis::Number { step } => {
                        let spread = reach.max(*step);
                        let moved =
                            (rng.random::<f64>() + rng.random::<f64>() + rng.random::<f64>() - 1.5) * 2.0 * spread;
                        (*coordinate + moved).clamp(0.0, 1.0)
                    }
                    Axis::Choice { count } => choice(rng, *count),
                    Axis::Trend => *coordinate,
                };
            }
        }
        point
    }

    /// Goes to the best neighbour as long as that is better.
    fn climb(&self, mut at: (f64, Vec<f64>, Config), score: &dyn Fn(&[f64]) -> f64) -> (f64, Vec<f64>, Config) {
        for _ in 0..STEPS {
            let mut better: Option<(f64, Vec<f64>, Config)> = None;
            for mut neighbour in self.neighbours(&at.1) {
                self.encoding.snap(&mut neighbour);
                if neighbour == at.1 {
                    continue;
                }
                let value = score(&neighbour);
                if value > better.as_ref().map_or(at.0, |better| better.0) + 1e-9
                    && let Some(config) = self.usable(&neighbour)
                {
                    better = Some((value, neighbour, config));
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
                Axis::Trend => {}
                Axis::Choice { count } => (0..*count).for_each(|choice| with(index, choice as f64)),
                Axis::Number { step } => {
                    let reaches = if *step > 0.0 { vec![*step, 2.0 * step] } else { REACHES.to_vec() };
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
    if count < 2 { 0.0 } else { rng.random_range(0..count) as f64 }
}
