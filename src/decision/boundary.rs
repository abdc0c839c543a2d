//! Levels of an interval that is computed repeatedly while launches are added.
//!
//! The level of all looks together is spent by `level t^3`, where `t` is the share of the planned rounds (I. Hwang, W.
//! Shih and J. De Cani, "Group sequential designs using a family of type I error probability spending functions", 1990).
//! The level of one look follows from the joint distribution of the looks, by the numerical integration of P. Armitage,
//! `C. McPherson` and B. Rowe, "Repeated significance tests on accumulating data", 1969.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::stats::{normal, to_f64};

/// The number of points of a density's grid.
const GRID_POINTS: usize = 81;

/// Half the width of the first density's grid, in standard deviations. Less than 1e-15 of the probability is beyond it.
const FAR: f64 = 8.0;

/// The levels of looks that were computed, by planned looks and level.
static COMPUTED: Mutex<BTreeMap<(u32, u64), Vec<f64>>> = Mutex::new(BTreeMap::new());

/// Returns the two-sided probability for the last of `looks` looks at equal distances. `planned` looks (at least
/// `looks`) exhaust `level`.
pub(super) fn look_level(looks: u32, planned: u32, level: f64) -> f64 {
    let mut computed = COMPUTED.lock().unwrap_or_else(PoisonError::into_inner);
    let levels = computed.entry((planned, level.to_bits())).or_insert_with(|| look_levels(planned, level));
    levels.get(looks.saturating_sub(1) as usize).copied().unwrap_or(level)
}

/// Returns the probabilities of all looks.
fn look_levels(planned: u32, level: f64) -> Vec<f64> {
    let spent = |look: u32| level * (f64::from(look) / f64::from(planned)).powi(3);
    // The sum of `look` normal numbers of variance 1, as long as no boundary was crossed.
    let mut density: Option<Density> = None;
    let mut levels = Vec::new();
    for look in 1..=planned {
        let target = spent(look) - spent(look - 1);
        let scale = f64::from(look).sqrt();
        let beyond = |critical: f64| match &density {
            None => 2.0 * normal::cdf(-critical),
            Some(density) => density.crossing(critical * scale),
        };
        let critical = solve(target, beyond);
        levels.push(2.0 * normal::cdf(-critical));
        density = Some(match &density {
            None => Density::tabulate(critical, normal::density),
            Some(before) => Density::tabulate(critical * scale, |x| before.after_step(x)),
        });
    }
    levels
}

/// Returns the argument at which the decreasing function `beyond` has the value `target`.
fn solve(target: f64, beyond: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, FAR);
    for _ in 0..45 {
        let middle = f64::midpoint(low, high);
        if beyond(middle) > target { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// A density between `-edge` and `edge`, with the weights of Simpson's rule.
struct Density {
    points: Vec<(f64, f64)>,
}

impl Density {
    fn tabulate(edge: f64, density: impl Fn(f64) -> f64) -> Self {
        let edge = edge.min(FAR * 10.0);
        let last = GRID_POINTS - 1;
        let width = 2.0 * edge / to_f64(last);
        let point = |i: usize| {
            let x = width * to_f64(i) - edge;
            let weight = match i {
                0 => 1.0,
                _ if i == last => 1.0,
                _ if i % 2 == 1 => 4.0,
                _ => 2.0,
            };
            (x, weight * width / 3.0 * density(x))
        };
        Self { points: (0..GRID_POINTS).map(point).collect() }
    }

    /// Returns the probability that the next sum is outside of `-edge` to `edge`.
    fn crossing(&self, edge: f64) -> f64 {
        self.points.iter().map(|(x, mass)| mass * (normal::cdf(x - edge) + normal::cdf(-edge - x))).sum()
    }

    /// Returns the density of the next sum.
    fn after_step(&self, sum: f64) -> f64 {
        self.points.iter().map(|(x, mass)| mass * normal::density(sum - x)).sum()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn one_look_has_the_whole_level() {
        assert!((look_level(1, 1, 0.02) - 0.02).abs() < 1e-9);
    }

    #[test]
    fn early_looks_have_little_of_the_level_and_the_last_most_of_it() {
        let levels: Vec<f64> = (1..=10).map(|look| look_level(look, 10, 0.02)).collect();
        assert!((levels[0] - 0.00002).abs() < 1e-9, "{levels:?}");
        assert!(levels.windows(2).all(|pair| pair[0] < pair[1]), "{levels:?}");
        assert!(levels[9] > 0.013 && levels[9] < 0.02, "{levels:?}");
    }

    #[test]
    fn the_looks_together_have_the_level() {
        let planned = 6;
        let criticals: Vec<f64> = (1..=planned).map(|look| look_level(look, planned, 0.1)).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let runs = 40_000;
        let crosses = |_: &u32| {
            let mut sum = 0.0;
            criticals.iter().enumerate().any(|(look, level)| {
                sum += normal::draw(&mut rng);
                2.0 * normal::cdf(-(sum / to_f64(look + 1).sqrt()).abs()) < *level
            })
        };
        let share = f64::from(u32::try_from((0..runs).filter(crosses).count()).unwrap()) / f64::from(runs);
        assert!((share - 0.1).abs() < 0.006, "{share}");
    }
}
