//! The choice of configurations for the twin: evenly spread ones, then neighbours and crossings of the best.
//!
//! The best configuration depends on the constraints, and a prior's most frequent error is in the excess over a limit.
//! If it predicts a latency a third too low, another configuration is the best one. The best ones are therefore
//! determined under several assumed errors ([`Assumption`]). If the measurements show one of these errors, the
//! predictions around its best configuration are already computed.

use std::collections::HashSet;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::Config;
use crate::objective::Goal;
use crate::sampler::{KnownOutcome, MeasuredNumbers, NumberReading, SearchAim, sobol_point};
use crate::space::{Domain, Space};
use crate::stats::to_f64;

/// Maximum number of evenly spread configurations, and of those around the best.
const EVEN: usize = 160;
const NEAR: usize = 160;
/// Maximum cost of all of them together, in units of about 100 ns (2.4 s). Half of it is for the evenly spread ones.
const WORK: u64 = 24_000_000;
/// Number of configurations between two determinations of the best.
const BATCH: usize = 16;
/// Number of best configurations for each assumption.
const LEADERS: usize = 3;
/// Assumed errors of the excesses of all constraints, in deviations of the prediction.
const ASSUMED_DEVIATIONS: [f64; 2] = [1.0, 0.5];
/// Assumed errors of a constraint's excess, as logarithms.
const SHIFTS: [f64; 4] = [0.25, 0.5, 1.0, -0.5];
/// Number of constraints whose excesses are also shifted one at a time; the others are shifted only together.
const SHIFTED: usize = 4;
/// Draws without a find before the space counts as used up.
const MAX_FRUITLESS_DRAWS: usize = 4096;

/// The result of one configuration.
pub(super) struct ExploredOutcome {
    /// `None` if no prediction is possible.
    pub(super) known: Option<KnownOutcome>,
    /// In units of about 100 ns.
    pub(super) cost: u64,
}

/// A configuration with its outcome. Those of `first` have no place in the unit cube.
struct Point {
    coordinates: Option<Vec<f64>>,
    config: Config,
    known: KnownOutcome,
}

/// Predicts configurations until their number or the work reaches its limit. `look` computes the predictions. The
/// configurations of `first` are predicted before all others. `ignored` names the parameters without effect in the
/// twin.
pub(super) fn explore(
    space: &Space,
    aim: &SearchAim,
    allowed: &dyn Fn(&Config) -> bool,
    seed: u64,
    first: Vec<Config>,
    ignored: &[String],
    look: &mut dyn FnMut(&[Config]) -> Vec<ExploredOutcome>,
) -> Vec<(Config, KnownOutcome)> {
    let mut found =
        Exploration { space, allowed, predict: look, points: Vec::new(), known_keys: HashSet::new(), work: 0 };
    let first = first.into_iter().map(|config| (None, config)).collect();
    found.predict_batch(first);
    let mut even = (0..).map(|index| sobol_point(index, space.dimensions(), seed));
    while found.points.len() < EVEN && found.work < WORK / 2 {
        let batch = found.next_batch(|| even.next());
        if batch.is_empty() {
            break;
        }
        found.predict_batch(batch);
    }
    let (most, mut rng) = (found.points.len() + NEAR, ChaCha8Rng::seed_from_u64(seed));
    while found.points.len() < most && found.work < WORK {
        let leaders = leading_coordinates(aim, &found.points);
        let batch = found.next_batch(|| neighbour(space, ignored, &leaders, &mut rng));
        if batch.is_empty() {
            break;
        }
        found.predict_batch(batch);
    }
    found.points.into_iter().map(|point| (point.config, point.known)).collect()
}

struct Exploration<'a> {
    space: &'a Space,
    allowed: &'a dyn Fn(&Config) -> bool,
    predict: &'a mut dyn FnMut(&[Config]) -> Vec<ExploredOutcome>,
    points: Vec<Point>,
    /// Keys of all configurations so far, refused ones included.
    known_keys: HashSet<String>,
    /// Cost so far.
    work: u64,
}

impl Exploration<'_> {
    /// Returns the next allowed and new configurations; fewer than a batch if there are no more.
    fn next_batch(&mut self, mut next: impl FnMut() -> Option<Vec<f64>>) -> Vec<(Option<Vec<f64>>, Config)> {
        let (mut batch, mut vain) = (Vec::new(), 0);
        while batch.len() < BATCH && vain < MAX_FRUITLESS_DRAWS {
            let Some(place) = next() else { break };
            let config = self.space.decode(&place);
            if self.known_keys.insert(config.key()) && (self.allowed)(&config) {
                batch.push((Some(place), config));
            } else {
                vain += 1;
            }
        }
        batch
    }

    fn predict_batch(&mut self, batch: Vec<(Option<Vec<f64>>, Config)>) {
        let configs: Vec<Config> = batch.iter().map(|(_, config)| config.clone()).collect();
        self.known_keys.extend(configs.iter().map(Config::key));
        for ((place, config), seen) in batch.into_iter().zip((self.predict)(&configs)) {
            self.work += seen.cost;
            if let Some(known) = seen.known {
                self.points.push(Point { coordinates: place, config, known });
            }
        }
    }
}

/// Assumed errors of the prediction, for the choice of the best configurations.
struct Assumption {
    /// Indices of the objectives that count.
    objectives: std::ops::Range<usize>,
    /// The amount to add to each constraint's excess.
    shifts: Vec<f64>,
    /// The number of its own deviations to add to each excess.
    deviations: f64,
}

fn assumptions(aim: &SearchAim) -> Vec<Assumption> {
    let (count, limits) = (aim.objectives.len(), aim.constraints.len());
    let single = |one: usize, shift: f64| (0..limits).map(|limit| if limit == one { shift } else { 0.0 }).collect();
    let mut all: Vec<(Vec<f64>, f64)> = vec![(vec![0.0; limits], 0.0)];
    all.extend(ASSUMED_DEVIATIONS.map(|doubt| (vec![0.0; limits], doubt)));
    for shift in SHIFTS {
        all.extend((0..limits.min(SHIFTED)).map(|one| (single(one, shift), 0.0)));
        if limits > 1 {
            all.push((vec![shift; limits], 0.0));
        }
    }
    // Each objective by itself, and all of them together.
    let views = (count > 1).then(|| (0..count).map(|one| one..one + 1)).into_iter().flatten();
    let views: Vec<_> = std::iter::once(0..count).chain(views).collect();
    let of = |objectives: &std::ops::Range<usize>| -> Vec<Assumption> {
        let one = |(shifts, doubt): &(Vec<f64>, f64)| Assumption {
            objectives: objectives.clone(),
            shifts: shifts.clone(),
            deviations: *doubt,
        };
        all.iter().map(one).collect()
    };
    views.iter().flat_map(of).collect()
}

/// Returns the places of the best points under each assumption: first the best of each, then the second ones. Of points
/// with equal predictions only one is returned.
fn leading_coordinates(aim: &SearchAim, points: &[Point]) -> Vec<Vec<f64>> {
    let measured: Vec<(&Vec<f64>, &MeasuredNumbers)> = points
        .iter()
        .filter_map(|point| match (&point.coordinates, &point.known) {
            (Some(place), KnownOutcome::Measured(measured)) => Some((place, measured)),
            _ => None,
        })
        .collect();
    let mut ranked: Vec<Vec<usize>> = Vec::new();
    for assumption in assumptions(aim) {
        let ranks: Vec<(f64, f64)> = measured.iter().map(|(_, known)| rank(aim, &assumption, known)).collect();
        let mut order: Vec<usize> = (0..measured.len()).collect();
        order.sort_by(|a, b| ranks[*a].0.total_cmp(&ranks[*b].0).then(ranks[*b].1.total_cmp(&ranks[*a].1)));
        order.dedup_by(|a, b| ranks[*a] == ranks[*b]);
        order.truncate(LEADERS);
        ranked.push(order);
    }
    let mut taken = HashSet::new();
    let by_place = (0..LEADERS).flat_map(|place| ranked.iter().filter_map(move |order| order.get(place)));
    by_place.filter(|index| taken.insert(**index)).map(|index| measured[*index].0.clone()).collect()
}

/// Returns the total excess over the limits, and the quality of the objectives as the second criterion.
fn rank(aim: &SearchAim, assumption: &Assumption, measured: &MeasuredNumbers) -> (f64, f64) {
    let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
    let shifted = measured.excesses.iter().zip(&assumption.shifts);
    let doubt = |excess: &NumberReading| assumption.deviations * excess.deviation.unwrap_or(0.0);
    let excess = shifted.map(|(excess, shift)| finite(excess.value + shift + doubt(excess)).max(0.0)).sum();
    let gain = |index: usize| {
        let value = measured.values.get(index).map_or(0.0, |reading| reading.value);
        let log = finite(libm::log(value.max(f64::MIN_POSITIVE)));
        if aim.objectives[index].goal == Goal::Maximize { log } else { -log }
    };
    (excess, assumption.objectives.clone().map(gain).sum())
}

/// Returns a place near a leader's: one or two coordinates are moved, or some of them are taken from another leader.
/// Better leaders are chosen more often. Ignored parameters get any coordinate. `None` without leaders or without a
/// parameter to move.
fn neighbour(space: &Space, ignored: &[String], leaders: &[Vec<f64>], rng: &mut ChaCha8Rng) -> Option<Vec<f64>> {
    let is_ignored = |dimension: &usize| ignored.contains(&space.parameters[*dimension].name);
    let (anywhere, moved): (Vec<usize>, Vec<usize>) = (0..space.dimensions()).partition(is_ignored);
    if moved.is_empty() || leaders.is_empty() {
        return None;
    }
    let mut pick = |count: usize| rng.random_range(0..count);
    let (one, other) = (pick(leaders.len()).min(pick(leaders.len())), pick(leaders.len()));
    let mut place = leaders[one].clone();
    if pick(3) == 0 {
        for (own, others) in place.iter_mut().zip(&leaders[other]) {
            if pick(2) == 0 {
                *own = *others;
            }
        }
    } else {
        for _ in 0..=pick(2) {
            let dimension = moved[pick(moved.len())];
            let coordinate = &mut place[dimension];
            *coordinate = match &space.parameters[dimension].domain {
                Domain::Bool => (*coordinate + 0.5).fract(),
                Domain::Categorical(values) => middle(pick(values.len().max(1)), values.len()),
                Domain::Int { .. } | Domain::Float { .. } => {
                    let step = [1.0, 2.0, 4.0, 8.0][pick(4)] / 32.0;
                    let moved = if pick(2) == 0 { *coordinate + step } else { *coordinate - step };
                    moved.clamp(0.0, 1.0 - f64::EPSILON)
                }
            };
        }
    }
    for dimension in anywhere {
        place[dimension] = rng.random();
    }
    Some(place)
}

/// Returns the middle of a choice's part of the coordinate.
fn middle(index: usize, count: usize) -> f64 {
    (to_f64(index) + 0.5) / to_f64(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::ObjectiveTarget;

    #[test]
    fn the_best_certain_predictions_are_explored_closely() {
        let objectives = vec![ObjectiveTarget { name: "throughput".to_owned(), goal: Goal::Maximize }];
        let aim = SearchAim { objectives, constraints: vec!["tpot_p99".to_owned()] };
        let point = |place: f64, value: f64, excess: f64, deviation: f64| Point {
            coordinates: Some(vec![place]),
            config: Config::new(),
            known: KnownOutcome::Measured(MeasuredNumbers {
                values: vec![NumberReading::exact(value)],
                excesses: vec![NumberReading { value: excess, deviation: Some(deviation) }],
            }),
        };
        // Without doubts, some points for every shift have a higher value and keep the limit.
        let excesses = [0.1, -0.2, -0.4, -0.7, -1.2];
        let unsure =
            excesses.iter().flat_map(|excess| [0.0, 0.1, 0.2].map(|more| (*excess, 95.0 + 10.0 * excess + more)));
        let sure = |deviation| point(0.9, 50.0, -0.05, deviation);
        let of = |sure: Point| {
            let mut points: Vec<_> =
                unsure.clone().map(|(excess, value)| point(0.1, value, excess, 3.0 * excess.abs())).collect();
            points.push(sure);
            leading_coordinates(&aim, &points).contains(&vec![0.9])
        };
        assert!(of(sure(0.0)));
        assert!(!of(sure(3.0)), "a worse one of which it is as unsure");
    }
}
