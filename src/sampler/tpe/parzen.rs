//! A density over a space of numbers, choices and conditions: one kernel for each trial and a flat one.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::axis::{AxisKind, ParzenAxis, Position};
use crate::stats::normal;
use crate::stats::to_f64;

/// A mixture of kernels. Each is a product over the parameters. A number has a normal density, truncated at the ends of
/// the range. A choice has a weight on its own value and a smaller one on all others. A kernel is flat in a parameter
/// that its trial lacks.
#[derive(Debug)]
pub(super) struct Parzen<'a> {
    axes: &'a [ParzenAxis<'a>],
    /// For each parameter, the factor of each kernel. The density is computed parameter by parameter.
    columns: Vec<Vec<Part>>,
    /// Weights of the kernels and, last, of the flat one. They sum to 1.
    weights: Vec<f64>,
    /// Standard deviation of the normal kernels, in coordinates.
    width: f64,
    /// Weight that a kernel of a choice adds to every value. Its own value has 1 more.
    blur: f64,
}

/// The factor of a kernel for one parameter: its centre, and the logarithm of its normalization. `None` if it is flat.
type Part = Option<(f64, f64)>;

/// Number of the newest trials with full weight. The weight of older ones falls to `1 / n` (Optuna's default).
const FULL_WEIGHT_TRIALS: usize = 25;

impl<'a> Parzen<'a> {
    /// Creates a density with equal weights of all trials.
    pub(super) fn even(axes: &'a [ParzenAxis<'a>], trials: &[Position]) -> Self {
        let weights = vec![1.0; trials.len()];
        Self::new(axes, trials, weights)
    }

    /// Creates a density with smaller weights of older trials. In a long study they are numerous and resemble the
    /// candidates less.
    pub(super) fn fading(axes: &'a [ParzenAxis<'a>], trials: &[Position]) -> Self {
        let count = trials.len();
        let old = count.saturating_sub(FULL_WEIGHT_TRIALS);
        let weight = |place: usize| {
            let share = to_f64(place) / to_f64(old.max(2) - 1);
            if place < old { share + (1.0 - share) / to_f64(count) } else { 1.0 }
        };
        let weights = (0..count).map(weight).collect();
        Self::new(axes, trials, weights)
    }

    /// Creates a density. The widths are Optuna's for densities of several parameters: `0.2 n^(-1 / (d + 4))` of the
    /// range, and no less than `1 / (n + 1)` of it while trials are few.
    fn new(axes: &'a [ParzenAxis<'a>], trials: &[Position], mut weights: Vec<f64>) -> Self {
        let count = to_f64(trials.len().max(1));
        let width = (0.2 * libm::pow(count, -1.0 / (to_f64(axes.len()) + 4.0))).max(1.0 / (count + 1.0).min(100.0));
        weights.push(1.0);
        let sum: f64 = weights.iter().sum();
        for weight in &mut weights {
            *weight /= sum;
        }
        let blur = 1.0 / (count + 1.0);
        // The sums are computed once for each cell: they are expensive, and trials share most of their values.
        let sums: Vec<Vec<(f64, f64)>> = axes
            .iter()
            .map(|axis| match &axis.kind {
                AxisKind::Number { cells } => cells.iter().map(|&at| (at, log_sum(cells, at, width))).collect(),
                AxisKind::Choice { .. } => Vec::new(),
            })
            .collect();
        let part = |index: usize, at: Option<f64>| -> Part {
            let at = at?;
            let sum = match &axes[index].kind {
                AxisKind::Choice { count } => libm::log(1.0 + to_f64(*count) * blur),
                AxisKind::Number { cells } if cells.is_empty() => log_mass(at, width),
                AxisKind::Number { .. } => {
                    let place = sums[index].partition_point(|(cell, _)| *cell < at);
                    sums[index].get(place).map_or(0.0, |(_, sum)| *sum)
                }
            };
            Some((at, sum))
        };
        let column = |index: usize| trials.iter().map(|position| part(index, position[index])).collect();
        Self { axes, columns: (0..axes.len()).map(column).collect(), weights, width, blur }
    }

    /// Returns the logarithm of the density over the parameters that this position has.
    pub(super) fn log_density(&self, position: &Position) -> f64 {
        // One for each kernel and, last, the flat one.
        let mut logs = vec![0.0; self.weights.len()];
        let (near, far) = (libm::log(1.0 + self.blur), libm::log(self.blur));
        for ((axis, column), at) in self.axes.iter().zip(&self.columns).zip(position) {
            let Some(at) = *at else { continue };
            let flat = flat(axis);
            let parts = logs.iter_mut().zip(column);
            match axis.kind {
                AxisKind::Choice { .. } => parts.for_each(|(log, part)| {
                    *log += part.map_or(flat, |(place, sum)| if same(at, place) { near - sum } else { far - sum });
                }),
                AxisKind::Number { .. } => parts.for_each(|(log, part)| {
                    *log += part.map_or(flat, |(place, sum)| log_kernel(at, place, self.width) - sum);
                }),
            }
            if let Some(last) = logs.last_mut() {
                *last += flat;
            }
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logs.iter().zip(&self.weights).map(|(log, weight)| weight * libm::exp(log - most)).sum();
        most + libm::log(sum)
    }

    /// Draws a coordinate in `[0, 1)` for each parameter.
    pub(super) fn draw(&self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let mut rest: f64 = rng.random();
        let chosen = self.weights.iter().position(|weight| {
            rest -= weight;
            rest < 0.0
        });
        let columns = self.axes.iter().zip(&self.columns);
        columns
            .map(|(axis, column)| match chosen.and_then(|place| column.get(place).copied().flatten()) {
                Some((place, _)) => self.draw_near(&axis.kind, place, rng),
                None => rng.random(),
            })
            .collect()
    }

    fn draw_near(&self, kind: &AxisKind, place: f64, rng: &mut ChaCha8Rng) -> f64 {
        match kind {
            AxisKind::Choice { count } => {
                let count = to_f64(*count);
                let own = 1.0 / (1.0 + count * self.blur);
                if rng.random::<f64>() < own { (place + 0.5) / count } else { rng.random() }
            }
            // For any position in the range at least a third of the draws lies between the ends.
            AxisKind::Number { .. } => loop {
                let drawn = place + self.width * normal::draw(rng);
                if (0.0..1.0).contains(&drawn) {
                    return drawn;
                }
            },
        }
    }
}

/// Returns the logarithm of the flat density of a parameter.
fn flat(axis: &ParzenAxis<'_>) -> f64 {
    match &axis.kind {
        AxisKind::Choice { count } => -libm::log(to_f64(*count)),
        AxisKind::Number { cells } => -libm::log(to_f64(cells.len().max(1))),
    }
}

/// Compares positions of choices, which are whole numbers.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.5
}

/// Returns the logarithm of a normal density without its normalization.
fn log_kernel(at: f64, place: f64, width: f64) -> f64 {
    let distance = (at - place) / width;
    -0.5 * distance * distance
}

/// Returns the normalization of a kernel over few values.
fn log_sum(cells: &[f64], place: f64, width: f64) -> f64 {
    libm::log(cells.iter().map(|&cell| libm::exp(log_kernel(cell, place, width))).sum())
}

/// Returns the normalization of a kernel between 0 and 1.
fn log_mass(place: f64, width: f64) -> f64 {
    let up_to = |at: f64| normal::cdf((at - place) / width);
    libm::log((up_to(1.0) - up_to(0.0)) * width * (2.0 * std::f64::consts::PI).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Value;
    use crate::space::{Domain, IntScale};
    use rand::SeedableRng;

    fn domains() -> [Domain; 3] {
        let choices = ["a", "b", "c"].map(Value::from).into();
        [
            Domain::Categorical(choices),
            Domain::int(1, 16, IntScale::PowerOfTwo, 1),
            Domain::Float { low: 0.0, high: 1.0, log: false },
        ]
    }

    #[test]
    fn a_density_sums_to_one_with_and_without_missing_parameters() {
        let domains = domains();
        let axes: Vec<_> = domains.iter().map(ParzenAxis::new).collect();
        let trials = vec![vec![Some(0.0), Some(0.1), Some(0.0)], vec![Some(2.0), None, Some(0.7)], vec![None; 3]];
        for density in [Parzen::even(&axes, &trials), Parzen::fading(&axes, &trials), Parzen::even(&axes, &[])] {
            for with_float in [true, false] {
                let steps = if with_float { 1000_u32 } else { 1 };
                let mut sum = 0.0;
                for choice in [0.0, 1.0, 2.0] {
                    for cell in [0.1, 0.3, 0.5, 0.7, 0.9] {
                        for step in 0..steps {
                            let float = (f64::from(step) + 0.5) / f64::from(steps);
                            let position = vec![Some(choice), Some(cell), with_float.then_some(float)];
                            sum += density.log_density(&position).exp() / f64::from(steps);
                        }
                    }
                }
                assert!((sum - 1.0).abs() < 1e-4, "{sum}");
            }
        }
    }

    #[test]
    fn draws_follow_the_density() {
        let domains = domains();
        let axes: Vec<_> = domains[..1].iter().chain(&domains[2..]).map(ParzenAxis::new).collect();
        let density = Parzen::even(&axes, &[vec![Some(1.0), Some(0.2)], vec![Some(1.0), Some(0.9)]]);
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let draws: Vec<_> = (0..20_000).map(|_| density.draw(&mut rng)).collect();
        for (choice, low) in [(0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (1.0, 0.8), (2.0, 0.6)] {
            let steps = (0..100).map(|step| low + 0.2 * (f64::from(step) + 0.5) / 100.0);
            let expected: f64 = steps.map(|at| density.log_density(&vec![Some(choice), Some(at)]).exp() * 0.002).sum();
            let inside =
                |draw: &&Vec<f64>| same((draw[0] * 3.0).floor(), choice) && (low..low + 0.2).contains(&draw[1]);
            let found = draws.iter().filter(inside).fold(0.0, |count, _| count + 1.0) / 20_000.0;
            // Five standard errors of a share of 20,000 draws.
            let tolerance = 5.0 * (expected * (1.0 - expected) / 20_000.0).sqrt();
            assert!((found - expected).abs() < tolerance, "{found} of {expected} at {choice}, {low}");
        }
    }
}
