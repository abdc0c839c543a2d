//! How much a trial of a point promises: the logarithm of the expected improvement, with the probabilities that the
//! configuration serves and keeps the limits.
//!
//! Source: S. Ament et al., "Unexpected improvements to expected improvement for Bayesian optimization", 2023; the product
//! with probabilities: M. Schonlau, W. Welch and D. Jones, "Global versus local search in constrained optimization", 1998; of
//! two objectives the expected hypervolume improvement, of more the improvement of a weighted distance from the best of each
//! (J. Knowles, "`ParEGO`", 2006), with weights drawn for each suggestion.

use super::models::{Models, Outlook};
use super::table::Table;
use crate::stats::normal;
use crate::surrogate::{front, log_expected_improvement_2d};

/// What serves with less than even odds is not tried while anything else is left.
const LEAST_SERVING: f64 = 0.5;
/// A failure tells less than a measurement, and costs nearly as much.
const SERVING_WEIGHT: f64 = 2.0;
/// A place that is so much alike to a known one is as good as known.
const MOST_ALIKE: f64 = 0.98;
/// Logarithms taken from what is not to be tried.
const PENALTY: f64 = 20.0;
/// A point counts as a possible winner from this probability of keeping the limits on.
const PROBABLY: f64 = 0.5;
/// While nothing is known to be within the limits: how much a value counts.
const VALUE_WEIGHT: f64 = 0.5;
/// Gains below this, as a logarithm, are not worth a trial.
const LEAST_GAIN: f64 = 0.01;
/// A suggestion that doubts the models takes uncertainties for so much larger; only where so many of the models' own deviations
/// would reach the best value, for else it finds the corners of the space.
const DOUBT: f64 = 3.0;
const HOPE: f64 = 2.0;
/// Of three or more objectives, how much the sum of all distances counts beside the largest one.
const SUM: f64 = 0.05;

/// What is to be improved on.
enum Incumbent {
    /// Nothing that is probably within the limits; what the first objective is in the mean.
    Nothing(f64),
    /// The best expected value.
    Value(f64),
    /// Expected values that are not dominated, ascending by the first, and the point that all dominate.
    Front(Vec<[f64; 2]>, [f64; 2]),
    /// Of three or more objectives a distance from the best of each, and the smallest one.
    Distance(Distance, f64),
}

/// How far some values are from the best of each objective: the largest of the weighted distances, and a little of their sum,
/// so that all of a front is reached, wherever it bends.
struct Distance {
    /// What is best of each objective, and how much a unit of distance from it weighs.
    best: Vec<f64>,
    weights: Vec<f64>,
}

pub(super) struct Acquisition<'a> {
    models: &'a Models<'a>,
    incumbent: Incumbent,
    doubt: f64,
}

impl<'a> Acquisition<'a> {
    /// `weights` are those of the objectives, of use where there are three or more; with `doubts` the models are taken for less
    /// sure than they are.
    pub(super) fn new(models: &'a Models<'a>, table: &Table, weights: &[f64], doubts: bool) -> Self {
        // What is under way counts as what it is expected to be, or its neighbours would promise the same gain once more.
        let points = table.measured.iter().map(|(_, point)| point).chain(&table.pending);
        let probable: Vec<_> = points
            .map(|point| models.at(point))
            .filter(|outlook| outlook.log_feasible >= libm::log(PROBABLY))
            .map(|outlook| means(&outlook))
            .collect();
        let level = models.objectives.first().map_or(0.0, |model| table.objectives[model.index].mean());
        let incumbent = Incumbent::of(&probable, weights, level);
        Self { models, incumbent, doubt: if doubts { DOUBT } else { 1.0 } }
    }

    pub(super) fn score(&self, point: &[f64]) -> f64 {
        let outlook = self.models.wider(point, self.doubt);
        let mut score = outlook.log_feasible + SERVING_WEIGHT * libm::log(outlook.serves.max(1e-300));
        score += self.incumbent.log_gain(&outlook);
        if outlook.serves < LEAST_SERVING {
            score -= PENALTY * (1.0 + LEAST_SERVING - outlook.serves);
        }
        if self.doubt > 1.0
            && let (Incumbent::Value(best), Some(first)) = (&self.incumbent, outlook.objectives.first())
        {
            let missing = best - first.mean - HOPE * first.deviation / self.doubt;
            if missing > 0.0 {
                score -= PENALTY * (1.0 + missing);
            }
        }
        if outlook.alike > MOST_ALIKE {
            score -= PENALTY;
        }
        score
    }
}

/// What a trial of a point is expected to gain over a value of the one objective, as it is modelled.
pub(super) fn gain(models: &Models<'_>, point: &[f64], over: f64) -> f64 {
    let outlook = models.at(point);
    let first = outlook.objectives.first();
    first.map_or(0.0, |first| libm::exp(improvement(first.mean - over, first.deviation)) * outlook.feasible())
}

fn means(outlook: &Outlook) -> Vec<f64> {
    outlook.objectives.iter().map(|belief| belief.mean).collect()
}

impl Incumbent {
    fn of(probable: &[Vec<f64>], weights: &[f64], level: f64) -> Self {
        let best = |value: &dyn Fn(&Vec<f64>) -> f64| probable.iter().map(value).max_by(f64::total_cmp);
        match probable.first().map_or(0, Vec::len) {
            0 => Self::Nothing(level),
            1 => best(&|means| means[0]).map_or(Self::Nothing(level), Self::Value),
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

    /// Logarithm of what a point is expected to improve, without the probabilities of the limits.
    fn log_gain(&self, outlook: &Outlook) -> f64 {
        let Some(first) = outlook.objectives.first() else { return 0.0 };
        match self {
            Self::Nothing(level) => VALUE_WEIGHT * (first.mean - level),
            Self::Value(best) => improvement(first.mean - best - LEAST_GAIN, first.deviation),
            Self::Front(points, reference) => {
                let [one, other] = [0, 1].map(|of| outlook.objectives.get(of).copied().unwrap_or(*first));
                let (means, deviations) = ([one.mean, other.mean], [one.deviation, other.deviation]);
                log_expected_improvement_2d(points, *reference, means, deviations)
            }
            Self::Distance(distance, nearest) => {
                let (mean, worst) = distance.of(&means(outlook));
                // The largest distance is nearly normal where one objective decides it.
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

    /// The distance, and the objective that decides it.
    fn of(&self, means: &[f64]) -> (f64, usize) {
        let distances =
            self.best.iter().zip(&self.weights).zip(means).map(|((best, weight), mean)| weight * (best - mean));
        let distances: Vec<_> = distances.collect();
        let largest = (0..distances.len()).max_by(|a, b| distances[*a].total_cmp(&distances[*b])).unwrap_or(0);
        (distances[largest] + SUM * distances.iter().sum::<f64>(), largest)
    }
}

/// Logarithm of the expected improvement of a normal number over zero.
fn improvement(mean: f64, deviation: f64) -> f64 {
    libm::log(deviation) + normal::log_improvement(mean / deviation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surrogate::Belief;

    fn outlook(means: [f64; 3], deviations: [f64; 3]) -> Outlook {
        let beliefs = means.into_iter().zip(deviations).map(|(mean, deviation)| Belief { mean, deviation });
        Outlook { objectives: beliefs.collect(), log_feasible: 0.0, serves: 1.0, alike: 0.0 }
    }

    #[test]
    fn of_three_objectives_the_distance_from_the_best_of_each_is_improved_on() {
        // The ranges are 2, 10 and 100: in units of its own each best one is a range away from the worst.
        let probable = [[2.0, 0.0, 0.0], [0.0, 10.0, 50.0], [1.0, 5.0, 100.0]].map(Vec::from);
        let incumbent = Incumbent::of(&probable, &[0.5, 0.25, 0.25], 0.0);
        let Incumbent::Distance(_, nearest) = &incumbent else { panic!("three objectives have a distance") };
        // The weighted distances of the three are (0, 0.25, 0.25), (0.5, 0, 0.125) and (0.25, 0.125, 0).
        assert!((nearest - 0.25 - SUM * 0.375).abs() < 1e-12, "{nearest}");
        let gain = |means, deviations| incumbent.log_gain(&outlook(means, deviations));
        // The first is a quarter away from its best and decides; the others are at theirs.
        let promised = gain([1.5, 10.0, 100.0], [0.4, 0.1, 1.0]);
        let expected = improvement(nearest - 0.125 - SUM * 0.125 - LEAST_GAIN, 0.5 / 2.0 * 0.4);
        assert!((promised - expected).abs() < 1e-12, "{promised} and {expected}");
        assert!(gain([1.5, 9.0, 100.0], [0.4, 0.1, 1.0]) < promised, "what does not decide counts a little");
    }
}
