//! The acquisition function: the logarithm of the expected improvement times the probabilities that the configuration
//! serves and keeps the constraints.
//!
//! Sources: S. Ament et al., "Unexpected improvements to expected improvement for Bayesian optimization", 2023. The
//! product with probabilities: M. Schonlau, W. Welch and D. Jones, "Global versus local search in constrained
//! optimization", 1998. Two objectives use the expected hypervolume improvement. Three or more use the improvement of a
//! weighted distance from the best of each (J. Knowles, "`ParEGO`", 2006), with weights drawn for each suggestion.

use super::models::{Models, PointOutlook};
use super::table::HistoryTable;
use crate::stats::normal;
use crate::surrogate::{front, log_expected_improvement_2d};

/// Least probability of serving. A configuration below it is tried only if no other is left.
const LEAST_SERVING: f64 = 0.5;
/// Weight of the logarithm of that probability. A failure teaches less than a measurement and costs nearly as much.
const SERVING_WEIGHT: f64 = 2.0;
/// Correlation with a known point above which a point counts as known.
const MAX_CORRELATION: f64 = 0.98;
/// Penalty of a point that is not to be tried, as a logarithm.
const PENALTY: f64 = 20.0;
/// Least probability of keeping the constraints for a point to be the incumbent.
const MIN_FEASIBLE_PROBABILITY: f64 = 0.5;
/// Weight of the objective while no point is known to be feasible.
const VALUE_WEIGHT: f64 = 0.5;
/// Gains below this, in modelled units (mostly logarithms), are not worth a trial.
const LEAST_GAIN: f64 = 0.01;
/// An exploring suggestion multiplies the deviations by `EXPLORATION_DEVIATION_FACTOR`. With one objective, its mean plus `EXPLORATION_OPTIMISM` times the
/// models' own deviation has to reach the best value. Without this bound the suggestion is a corner of the space.
const EXPLORATION_DEVIATION_FACTOR: f64 = 3.0;
const EXPLORATION_OPTIMISM: f64 = 2.0;
/// Weight of the sum of all distances beside the largest one, with three or more objectives.
const DISTANCE_SUM_WEIGHT: f64 = 0.05;

/// The incumbent that a trial is to improve on.
enum Incumbent {
    /// No point is probably feasible. Contains the mean of the first objective's measurements.
    NoneFeasible(f64),
    /// The best expected value.
    Value(f64),
    /// Expected values that are not dominated, ascending by the first, and a reference point that all of them dominate.
    Front(Vec<[f64; 2]>, [f64; 2]),
    /// The distance from the best of each objective, and the smallest one, with three or more objectives.
    Distance(Distance, f64),
}

/// The distance of a point from the best value of each objective: the largest weighted distance, plus `DISTANCE_SUM_WEIGHT` times the
/// sum of all. The largest distance makes every part of a front reachable, for any shape of it. With the sum the other
/// objectives count a little.
struct Distance {
    /// The best value of each objective, and the weight of a unit of distance from it.
    best: Vec<f64>,
    weights: Vec<f64>,
}

pub(super) struct Acquisition<'a> {
    models: &'a Models<'a>,
    incumbent: Incumbent,
    /// Factor of the models' deviations.
    deviation_factor: f64,
}

impl<'a> Acquisition<'a> {
    /// Creates the acquisition of a launch, which is to improve on the launches so far. `weights` are those of the
    /// objectives, used with three or more. With `doubts` the models' deviations are taken to be larger.
    pub(super) fn new(models: &'a Models<'a>, table: &HistoryTable, weights: &[f64], doubts: bool) -> Self {
        // A pending trial counts as its expected value. Otherwise its neighbours would promise the same gain again.
        let points = table.measured.iter().map(|(_, point)| point).chain(&table.pending);
        Self::among(models, table, weights, doubts, points)
    }

    /// Creates an acquisition that is to improve on these points.
    pub(super) fn among<'p>(
        models: &'a Models<'a>,
        table: &HistoryTable,
        weights: &[f64],
        doubts: bool,
        points: impl Iterator<Item = &'p Vec<f64>>,
    ) -> Self {
        let probable: Vec<_> = points
            .map(|point| models.at(point))
            .filter(|outlook| outlook.log_feasible >= libm::log(MIN_FEASIBLE_PROBABILITY))
            .map(|outlook| means(&outlook))
            .collect();
        let level = models.objectives.first().map_or(0.0, |model| table.objectives[model.index].mean());
        let incumbent = Incumbent::of(&probable, weights, level);
        Self { models, incumbent, deviation_factor: if doubts { EXPLORATION_DEVIATION_FACTOR } else { 1.0 } }
    }

    /// Returns the acquisition of a point, as a logarithm and without its cost.
    pub(super) fn score(&self, point: &[f64]) -> f64 {
        self.score_of(&self.models.at_widened(point, self.deviation_factor))
    }

    /// Returns the acquisition of a live look. `looked` is its point with the moves of the knobs. The expectations are those
    /// of a launch. The deviations are those of the look, because a look does not show its own bias.
    pub(super) fn look_score(&self, point: &[f64], looked: &[f64]) -> f64 {
        let mut outlook = self.models.at_widened(point, self.deviation_factor);
        let of_look = self.models.at_widened(looked, self.deviation_factor);
        for (belief, look) in outlook.objectives.iter_mut().zip(of_look.objectives) {
            belief.deviation = look.deviation;
        }
        self.score_of(&outlook)
    }

    fn score_of(&self, outlook: &PointOutlook) -> f64 {
        let mut score = outlook.log_feasible + SERVING_WEIGHT * libm::log(outlook.serving_probability.max(1e-300));
        score += self.incumbent.log_gain(outlook);
        if outlook.serving_probability < LEAST_SERVING {
            score -= PENALTY * (1.0 + LEAST_SERVING - outlook.serving_probability);
        }
        if self.deviation_factor > 1.0
            && let (Incumbent::Value(best), Some(first)) = (&self.incumbent, outlook.objectives.first())
        {
            let missing = best - first.mean - EXPLORATION_OPTIMISM * first.deviation / self.deviation_factor;
            if missing > 0.0 {
                score -= PENALTY * (1.0 + missing);
            }
        }
        if outlook.nearest_correlation > MAX_CORRELATION {
            score -= PENALTY;
        }
        score
    }
}

/// Returns the expected gain of a trial over a modelled value of the only objective, times the probability that the
/// trial is feasible.
pub(super) fn gain(models: &Models<'_>, point: &[f64], over: f64) -> f64 {
    let outlook = models.at(point);
    let first = outlook.objectives.first();
    first.map_or(0.0, |first| libm::exp(improvement(first.mean - over, first.deviation)) * outlook.feasible())
}

fn means(outlook: &PointOutlook) -> Vec<f64> {
    outlook.objectives.iter().map(|belief| belief.mean).collect()
}

impl Incumbent {
    fn of(probable: &[Vec<f64>], weights: &[f64], level: f64) -> Self {
        let best = |value: &dyn Fn(&Vec<f64>) -> f64| probable.iter().map(value).max_by(f64::total_cmp);
        match probable.first().map_or(0, Vec::len) {
            0 => Self::NoneFeasible(level),
            1 => best(&|means| means[0]).map_or(Self::NoneFeasible(level), Self::Value),
            2 => {
                let worst = |of: usize| probable.iter().map(|means| means[of]).fold(f64::INFINITY, f64::min);
                let reach =
                    |of: usize| probable.iter().map(|means| means[of]).fold(f64::NEG_INFINITY, f64::max) - worst(of);
                let reference = [0, 1].map(|of| worst(of) - 0.1 * reach(of) - LEAST_GAIN);
                let mut points: Vec<_> =
                    front(probable).into_iter().map(|at| [probable[at][0], probable[at][1]]).collect();
                points.sort_by(|a, b| a[0].total_cmp(&b[0]));
                Self::Front(points, reference)
            }
            _ => {
                let distance = Distance::new(probable, weights);
                let nearest = probable.iter().map(|means| distance.of(means).0).fold(f64::INFINITY, f64::min);
                Self::Distance(distance, nearest)
            }
        }
    }

    /// Returns the logarithm of the expected improvement, without the probabilities of the constraints.
    fn log_gain(&self, outlook: &PointOutlook) -> f64 {
        let Some(first) = outlook.objectives.first() else { return 0.0 };
        match self {
            Self::NoneFeasible(level) => VALUE_WEIGHT * (first.mean - level),
            Self::Value(best) => improvement(first.mean - best - LEAST_GAIN, first.deviation),
            Self::Front(points, reference) => {
                let [one, other] = [0, 1].map(|of| outlook.objectives.get(of).copied().unwrap_or(*first));
                let (means, deviations) = ([one.mean, other.mean], [one.deviation, other.deviation]);
                log_expected_improvement_2d(points, *reference, means, deviations)
            }
            Self::Distance(distance, nearest) => {
                let (mean, worst) = distance.of(&means(outlook));
                // The largest distance is nearly normal if one objective decides it.
                let deviation = distance.weights[worst] * outlook.objectives[worst].deviation;
                improvement(nearest - mean - LEAST_GAIN, deviation)
            }
        }
    }
}

impl Distance {
    fn new(probable: &[Vec<f64>], weights: &[f64]) -> Self {
        let (mut best, mut scaled) = (Vec::new(), Vec::new());
        for (of, weight) in weights.iter().enumerate().take(probable[0].len()) {
            let values = || probable.iter().map(|means| means[of]);
            let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
            best.push(most);
            scaled.push(weight / (most - least).max(LEAST_GAIN));
        }
        Self { best, weights: scaled }
    }

    /// Returns the distance and the objective that decides it.
    fn of(&self, means: &[f64]) -> (f64, usize) {
        let distances =
            self.best.iter().zip(&self.weights).zip(means).map(|((best, weight), mean)| weight * (best - mean));
        let distances: Vec<_> = distances.collect();
        let largest = (0..distances.len()).max_by(|a, b| distances[*a].total_cmp(&distances[*b])).unwrap_or(0);
        (distances[largest] + DISTANCE_SUM_WEIGHT * distances.iter().sum::<f64>(), largest)
    }
}

/// Returns the logarithm of the expected improvement of a normal number over zero.
fn improvement(mean: f64, deviation: f64) -> f64 {
    libm::log(deviation) + normal::log_improvement(mean / deviation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surrogate::PosteriorBelief;

    fn outlook(means: [f64; 3], deviations: [f64; 3]) -> PointOutlook {
        let beliefs = means.into_iter().zip(deviations).map(|(mean, deviation)| PosteriorBelief { mean, deviation });
        PointOutlook {
            objectives: beliefs.collect(),
            log_feasible: 0.0,
            serving_probability: 1.0,
            nearest_correlation: 0.0,
        }
    }

    #[test]
    fn three_objectives_use_the_weighted_distance_from_the_best_of_each() {
        // The ranges are 2, 10 and 100. In units of its range, each best value is 1 away from the worst.
        let probable = [[2.0, 0.0, 0.0], [0.0, 10.0, 50.0], [1.0, 5.0, 100.0]].map(Vec::from);
        let incumbent = Incumbent::of(&probable, &[0.5, 0.25, 0.25], 0.0);
        let Incumbent::Distance(_, nearest) = &incumbent else { panic!("three objectives have a distance") };
        // The weighted distances of the three are (0, 0.25, 0.25), (0.5, 0, 0.125) and (0.25, 0.125, 0).
        assert!((nearest - 0.25 - DISTANCE_SUM_WEIGHT * 0.375).abs() < 1e-12, "{nearest}");
        let gain = |means, deviations| incumbent.log_gain(&outlook(means, deviations));
        // The first objective is a quarter of its range away from its best and decides. The others are at theirs.
        let promised = gain([1.5, 10.0, 100.0], [0.4, 0.1, 1.0]);
        let expected = improvement(nearest - 0.125 - DISTANCE_SUM_WEIGHT * 0.125 - LEAST_GAIN, 0.5 / 2.0 * 0.4);
        assert!((promised - expected).abs() < 1e-12, "{promised} and {expected}");
        assert!(gain([1.5, 9.0, 100.0], [0.4, 0.1, 1.0]) < promised, "what does not decide counts a little");
    }
}
