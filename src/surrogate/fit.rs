//! The most likely hyper-parameters of a process: maximum a posteriori, by argmin's L-BFGS over their logarithms.
//!
//! Cost and gradient: C. Rasmussen and C. Williams, "Gaussian processes for machine learning", 2006, formulas 5.8 and 5.9, with normal
//! priors on the logarithms.

use std::cell::RefCell;

use argmin::core::{CostFunction, Error, Executor, Gradient};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;

use super::Axis;
use super::cholesky::{Cholesky, dot};
use super::kernel::{Features, LEVEL, matern};
use super::process::{Data, Expected};

/// Steps at most.
const ITERATIONS: u64 = 40;
/// A step that is this flat, or gains as little, is the last.
const FLAT: f64 = 0.02;
const LITTLE: f64 = 1e-3;
/// Corrections that L-BFGS remembers.
const MEMORY: usize = 7;
/// Logarithms beyond this are not tried.
const FARTHEST: f64 = 12.0;
/// Data that hyper-parameters are fitted to, at most; the rest is only conditioned on.
const MOST_FITTED: usize = 150;

/// What is fitted, in units of the targets' spread and of the ranges.
#[derive(Clone, Debug)]
pub(super) struct Hyper {
    /// One for each axis.
    pub(super) lengths: Vec<f64>,
    pub(super) rough: f64,
    /// One for each axis.
    pub(super) smooth: Vec<f64>,
    pub(super) noise: f64,
}

/// The likelihood of some data.
struct Likelihood<'a> {
    axes: usize,
    size: usize,
    /// Logarithms that are expected without any data.
    means: Vec<f64>,
    /// Targets in units of their spread, and their known variances.
    targets: Vec<f64>,
    variances: Vec<f64>,
    /// For each pair `j < i` the squared differences along each axis, and the smooth part's inner product for `j <= i`.
    differences: Vec<f64>,
    smooth: Vec<f64>,
    expected: &'a Expected,
    /// The last answer: a line search asks for cost and gradient of the same place.
    last: RefCell<Option<(Vec<f64>, f64, Vec<f64>)>>,
}

/// The most likely hyper-parameters; those that are expected without any data where the search fails.
pub(super) fn fit(
    features: &Features,
    data: &Data,
    (level, spread): (f64, f64),
    expected: &Expected,
    moved: &[f64],
) -> Hyper {
    let axes = features.axes.len();
    let start = prior_means(&features.axes, expected, moved);
    if data.points.len() < 2 {
        return hyper(&start, axes);
    }
    let likelihood = Likelihood::new(features, data, (level, spread), expected, start.clone());
    let found = search(&likelihood, start.clone()).unwrap_or(start);
    hyper(&found, axes)
}

fn search(likelihood: &Likelihood<'_>, start: Vec<f64>) -> Option<Vec<f64>> {
    let line = MoreThuenteLineSearch::new();
    let solver =
        LBFGS::new(line, MEMORY).with_tolerance_grad(FLAT).and_then(|solver| solver.with_tolerance_cost(LITTLE));
    let run = Executor::new(likelihood, solver.ok()?).configure(|state| state.param(start).max_iters(ITERATIONS)).run();
    let best = run.ok()?.state.take_best_param()?;
    best.iter().all(|value: &f64| value.is_finite()).then_some(best)
}

/// Logarithms that are expected without any data.
fn prior_means(axes: &[Axis], expected: &Expected, moved: &[f64]) -> Vec<f64> {
    let mut means = vec![libm::log(expected.length); axes.len()];
    let smooth = |axis: &Axis| libm::log(if *axis == Axis::Trend { expected.trend } else { expected.smooth });
    means.extend(axes.iter().map(smooth));
    means.extend([libm::log(expected.rough), libm::log(expected.noise)]);
    for (index, (mean, moved)) in means.iter_mut().zip(moved).enumerate() {
        *mean += moved * deviation(index, axes.len(), expected);
    }
    means
}

/// Standard deviation of the prior of one logarithm.
fn deviation(index: usize, axes: usize, expected: &Expected) -> f64 {
    match index.checked_sub(axes) {
        None => expected.length_deviation,
        Some(index) if index == axes + 1 => expected.noise_deviation,
        Some(_) => expected.size_deviation,
    }
}

fn hyper(logs: &[f64], axes: usize) -> Hyper {
    let all: Vec<_> = logs.iter().map(|log| libm::exp(*log)).collect();
    let (lengths, smooth) = (all[..axes].to_vec(), all[axes..2 * axes].to_vec());
    Hyper { lengths, smooth, rough: all[2 * axes], noise: all[2 * axes + 1] }
}

impl<'a> Likelihood<'a> {
    fn new(
        features: &Features,
        data: &Data,
        (level, spread): (f64, f64),
        expected: &'a Expected,
        means: Vec<f64>,
    ) -> Self {
        let all = data.points.len();
        // Evenly over the data, the last one included.
        let size = all.min(MOST_FITTED);
        let chosen: Vec<_> = (0..size).map(|at| at * (all - 1) / (size - 1).max(1)).collect();
        let rough: Vec<_> = chosen.iter().map(|at| features.rough(&data.points[*at])).collect();
        let trends: Vec<_> = chosen.iter().map(|at| features.smooth(&data.points[*at])).collect();
        let axes = features.axes.len();
        let mut differences = Vec::with_capacity(size * size / 2 * axes);
        let mut smooth = Vec::with_capacity(size * (size + 1) / 2 * axes);
        for i in 0..size {
            for j in 0..=i {
                let begin = smooth.len();
                smooth.resize(begin + axes, 0.0);
                for ((axis, one), (_, other)) in trends[i].iter().zip(&trends[j]) {
                    smooth[begin + axis] += one * other;
                }
                if j < i {
                    let begin = differences.len();
                    differences.resize(begin + axes, 0.0);
                    for (feature, axis) in features.axis_of.iter().enumerate() {
                        let difference = rough[i][feature] - rough[j][feature];
                        differences[begin + axis] += difference * difference;
                    }
                }
            }
        }
        Self {
            axes,
            size,
            means,
            targets: chosen.iter().map(|at| (data.targets[*at] - level) / spread).collect(),
            variances: chosen.iter().map(|at| data.variances[*at] / (spread * spread)).collect(),
            differences,
            smooth,
            expected,
            last: RefCell::new(None),
        }
    }

    /// Cost and gradient; a large cost with a gradient that leads back where there is none.
    fn evaluate(&self, logs: &[f64]) -> (f64, Vec<f64>) {
        let expected = self.expected;
        let deviation = |index: usize| deviation(index, self.axes, expected);
        let mut cost = 0.0;
        let mut gradient = vec![0.0; logs.len()];
        for (index, (log, mean)) in logs.iter().zip(&self.means).enumerate() {
            let units = (log - mean) / deviation(index);
            cost += 0.5 * units * units;
            gradient[index] += units / deviation(index);
        }
        let likely = if logs.iter().all(|log| log.abs() < FARTHEST) { self.negative_log(logs) } else { None };
        let Some((negative_log, slopes)) = likely else { return (1e10 * (1.0 + cost), gradient) };
        for (total, slope) in gradient.iter_mut().zip(slopes) {
            *total += slope;
        }
        (cost + negative_log, gradient)
    }

    /// The negative logarithm of the likelihood and its gradient; `None` where the covariance cannot be factored.
    fn negative_log(&self, logs: &[f64]) -> Option<(f64, Vec<f64>)> {
        let (n, axes) = (self.size, self.axes);
        let hyper = hyper(logs, axes);
        let squares = |value: f64| value * value;
        let (rough, noise) = (squares(hyper.rough), squares(hyper.noise));
        let smooth: Vec<_> = hyper.smooth.iter().map(|weight| squares(*weight)).collect();
        let inverse_squares: Vec<_> = hyper.lengths.iter().map(|length| 1.0 / squares(*length)).collect();
        let mut rows = vec![0.0; n * n];
        // For each pair the correlation and its slope.
        let mut pairs = Vec::with_capacity(n * n / 2);
        let (mut pair, mut place) = (0, 0);
        for i in 0..n {
            for j in 0..i {
                let squared = dot(&self.differences[pair..pair + axes], &inverse_squares);
                let (correlation, slope) = matern(squared);
                pairs.push((correlation, slope));
                rows[i * n + j] = rough * correlation + dot(&self.smooth[place..place + axes], &smooth) + LEVEL;
                pair += axes;
                place += axes;
            }
            let trend = dot(&self.smooth[place..place + axes], &smooth);
            rows[i * n + i] = rough + trend + LEVEL + noise + self.variances[i];
            place += axes;
        }
        let factor = Cholesky::new(n, rows)?;
        let mut weights = self.targets.clone();
        factor.forward(&mut weights);
        let misfit = dot(&weights, &weights);
        factor.backward(&mut weights);
        let cost = 0.5 * (misfit + factor.log_determinant());
        let inverse = factor.inverse();
        // The derivative by the logarithm of a hyper-parameter is half the sum over `inverse - weights weights^T` times that of the covariance.
        let mut gradient = vec![0.0; logs.len()];
        let (mut pair, mut place, mut at) = (0, 0, 0);
        for i in 0..n {
            for j in 0..i {
                let both = inverse[i * n + j] - weights[i] * weights[j];
                let (correlation, slope) = pairs[at];
                let along = both * rough * slope;
                for axis in 0..axes {
                    gradient[axis] += along * self.differences[pair + axis];
                }
                for axis in 0..axes {
                    gradient[axes + axis] += 2.0 * both * self.smooth[place + axis];
                }
                gradient[2 * axes] += both * 2.0 * rough * correlation;
                pair += axes;
                place += axes;
                at += 1;
            }
            let own = 0.5 * (inverse[i * n + i] - weights[i] * weights[i]);
            for axis in 0..axes {
                gradient[axes + axis] += 2.0 * own * self.smooth[place + axis];
            }
            gradient[2 * axes] += own * 2.0 * rough;
            gradient[2 * axes + 1] += own * 2.0 * noise;
            place += axes;
        }
        for axis in 0..axes {
            gradient[axis] *= inverse_squares[axis];
            gradient[axes + axis] *= smooth[axis];
        }
        Some((cost, gradient))
    }

    fn remembered<T>(&self, logs: &[f64], pick: impl Fn(&(Vec<f64>, f64, Vec<f64>)) -> T) -> T {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(known, ..)| known != logs) {
            let (cost, gradient) = self.evaluate(logs);
            *last = Some((logs.to_vec(), cost, gradient));
        }
        last.as_ref().map(pick).unwrap_or_else(|| unreachable!("it was just set"))
    }
}

impl CostFunction for &Likelihood<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, logs: &Self::Param) -> Result<f64, Error> {
        Ok(self.remembered(logs, |(_, cost, _)| *cost))
    }
}

impl Gradient for &Likelihood<'_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, logs: &Self::Param) -> Result<Self::Gradient, Error> {
        Ok(self.remembered(logs, |(.., gradient)| gradient.clone()))
    }
}
