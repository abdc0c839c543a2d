//! The most likely hyper-parameters of a process: maximum a posteriori, by argmin's L-BFGS over their logarithms.
//!
//! Source of cost and gradient: C. Rasmussen and C. Williams, "Gaussian processes for machine learning", 2006, formulas
//! 5.8 and 5.9, with normal priors on the logarithms.

use std::cell::{Cell, RefCell};

use argmin::core::{CostFunction, Error, Executor, Gradient};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;

use super::EncodedAxis;
use super::kernel::{HyperParameters, LEVEL, compare, matern, shares};
use super::process::{HyperPriors, ProcessData, TargetScale};
use crate::stats::{Cholesky, dot};

/// Maximum number of steps.
const ITERATIONS: u64 = 40;
/// The search ends when the norm of the gradient falls to `MIN_GRADIENT_NORM`, or the decrease of the cost to `MIN_COST_DECREASE`.
const MIN_GRADIENT_NORM: f64 = 0.02;
const MIN_COST_DECREASE: f64 = 1e-3;
/// Number of corrections that L-BFGS remembers.
const MEMORY: usize = 7;
/// Maximum number of evaluations: a line search on data of absurd sizes may not end by itself.
const EVALUATIONS: usize = 400;
/// Largest absolute value of a logarithm.
const MAX_LOGARITHM: f64 = 12.0;
/// Uncertainty of the targets' own deviations, as the standard deviation of the logarithm of a common factor. The
/// deviation of a measurement window predicts little about the next launch, because its requests are the same.
const TARGET_FACTOR_DEVIATION: f64 = 1.0;
/// Maximum number of data in the fit of the hyper-parameters. The process is conditioned on the others, too.
const MAX_FITTED: usize = 150;

/// The likelihood of the data.
struct Likelihood<'a> {
    /// Number of axes, and number of data.
    axes: usize,
    size: usize,
    /// Prior means of the logarithms.
    means: Vec<f64>,
    /// Targets in units of their spread, and their own variances.
    targets: Vec<f64>,
    variances: Vec<f64>,
    /// Terms of the kernel for each axis.
    columns: Vec<AxisTerms>,
    priors: &'a HyperPriors,
    /// The last answer: a line search asks for cost and gradient at one place.
    last: RefCell<Option<Evaluation>>,
    evaluations: Cell<usize>,
}

/// Logarithms with their cost and gradient.
type Evaluation = (Vec<f64>, f64, Vec<f64>);

/// Terms of the kernel for one axis, without hyper-parameters. A term is empty if all of it is 0.
struct AxisTerms {
    /// Distance of the rough part, for each pair `j < i` of data.
    rough_distances: Vec<f64>,
    /// Covariance of the smooth part, for each pair.
    smooth_covariances: Vec<f64>,
    /// Variance of the smooth part, for each datum.
    smooth_variances: Vec<f64>,
}

/// Returns the most likely hyper-parameters, or the prior means if the search fails.
pub(super) fn fit(
    axes: &[EncodedAxis],
    data: &ProcessData,
    scale: TargetScale,
    expected: &HyperPriors,
    moved: &[f64],
) -> HyperParameters {
    let start = prior_means(axes, scale, expected, moved);
    if data.points.len() < 2 {
        return hyper(&start, axes.len());
    }
    let likelihood = Likelihood::new(axes, data, scale, expected, start.clone());
    let found = search(&likelihood, start.clone()).unwrap_or(start);
    hyper(&found, axes.len())
}

fn search(likelihood: &Likelihood<'_>, start: Vec<f64>) -> Option<Vec<f64>> {
    let line = MoreThuenteLineSearch::new();
    let solver = LBFGS::new(line, MEMORY)
        .with_tolerance_grad(MIN_GRADIENT_NORM)
        .and_then(|solver| solver.with_tolerance_cost(MIN_COST_DECREASE));
    let run = Executor::new(likelihood, solver.ok()?).configure(|state| state.param(start).max_iters(ITERATIONS)).run();
    let best = run.ok()?.state.take_best_param()?;
    best.iter().all(|value: &f64| value.is_finite()).then_some(best)
}

/// Returns the prior means of the logarithms, moved by `moved` standard deviations. The order is: lengths and smooth
/// parts by axis, rough part, noise, noise factor.
fn prior_means(axes: &[EncodedAxis], scale: TargetScale, expected: &HyperPriors, moved: &[f64]) -> Vec<f64> {
    let mut means = vec![libm::log(expected.length); axes.len()];
    let smooth = |axis: &EncodedAxis| match axis {
        EncodedAxis::Trend => expected.trend,
        EncodedAxis::Difference => expected.difference / scale.spread,
        EncodedAxis::Number { .. } | EncodedAxis::Choice { .. } => expected.smooth,
    };
    means.extend(axes.iter().map(|axis| libm::log(smooth(axis))));
    means.extend([libm::log(expected.rough), libm::log(expected.noise), 0.0]);
    for (index, (mean, moved)) in means.iter_mut().zip(moved).enumerate() {
        *mean += moved * deviation(index, axes.len(), expected);
    }
    means
}

/// Returns the standard deviation of the prior of one logarithm.
fn deviation(index: usize, axes: usize, expected: &HyperPriors) -> f64 {
    match index.checked_sub(axes) {
        None => expected.length_deviation,
        Some(index) if index == axes + 1 => expected.noise_deviation,
        Some(index) if index == axes + 2 => TARGET_FACTOR_DEVIATION,
        Some(_) => expected.size_deviation,
    }
}

fn hyper(logs: &[f64], axes: usize) -> HyperParameters {
    let all: Vec<_> = logs.iter().map(|log| libm::exp(*log)).collect();
    let (lengths, smooth) = (all[..axes].to_vec(), all[axes..2 * axes].to_vec());
    HyperParameters { lengths, smooth, rough: all[2 * axes], noise: all[2 * axes + 1], noise_factor: all[2 * axes + 2] }
}

impl<'a> Likelihood<'a> {
    fn new(
        axes: &[EncodedAxis],
        data: &ProcessData,
        scale: TargetScale,
        expected: &'a HyperPriors,
        means: Vec<f64>,
    ) -> Self {
        let data = data.evenly(MAX_FITTED);
        let columns = axes.iter().zip(shares(axes)).enumerate().map(|(index, (axis, share))| {
            let coordinates: Vec<_> = data.points.iter().map(|point| point[index]).collect();
            AxisTerms::new(*axis, share, &coordinates)
        });
        Self {
            axes: axes.len(),
            size: data.points.len(),
            means,
            targets: data.targets.iter().map(|target| scale.target(*target)).collect(),
            variances: data.variances.iter().map(|variance| scale.variance(*variance)).collect(),
            columns: columns.collect(),
            priors: expected,
            last: RefCell::new(None),
            evaluations: Cell::new(0),
        }
    }

    /// Returns cost and gradient. If the likelihood cannot be computed, the cost is huge and the gradient is that of
    /// the priors, so that the search turns back.
    fn evaluate(&self, logs: &[f64]) -> (f64, Vec<f64>) {
        let expected = self.priors;
        let deviation = |index: usize| deviation(index, self.axes, expected);
        let mut cost = 0.0;
        let mut gradient = vec![0.0; logs.len()];
        for (index, (log, mean)) in logs.iter().zip(&self.means).enumerate() {
            let units = (log - mean) / deviation(index);
            cost += 0.5 * units * units;
            gradient[index] += units / deviation(index);
        }
        let likely = if logs.iter().all(|log| log.abs() < MAX_LOGARITHM) { self.negative_log(logs) } else { None };
        let Some((negative_log, slopes)) = likely else { return (1e10 * (1.0 + cost), gradient) };
        for (total, slope) in gradient.iter_mut().zip(slopes) {
            *total += slope;
        }
        (cost + negative_log, gradient)
    }

    /// Returns the negative log likelihood without its constant term, and its gradient. `None` if the covariance cannot
    /// be factored or a result is not finite.
    fn negative_log(&self, logs: &[f64]) -> Option<(f64, Vec<f64>)> {
        let (n, axes) = (self.size, self.axes);
        let hyper = hyper(logs, axes);
        let squares = |value: &f64| value * value;
        let rough = squares(&hyper.rough);
        let smooth: Vec<_> = hyper.smooth.iter().map(squares).collect();
        let narrowness: Vec<_> = hyper.lengths.iter().map(|length| 1.0 / squares(length)).collect();
        let (mut squared, mut covariances) = (vec![0.0; n * (n - 1) / 2], vec![LEVEL; n * (n - 1) / 2]);
        let noise = |variance: &f64| hyper.noise_variance(*variance);
        let mut variances: Vec<_> = self.variances.iter().map(|variance| rough + LEVEL + noise(variance)).collect();
        for ((column, narrow), weight) in self.columns.iter().zip(&narrowness).zip(&smooth) {
            add(*narrow, &column.rough_distances, &mut squared);
            add(*weight, &column.smooth_covariances, &mut covariances);
            add(*weight, &column.smooth_variances, &mut variances);
        }
        let mut slopes = vec![0.0; squared.len()];
        let mut correlations = squared;
        for (correlation, slope) in correlations.iter_mut().zip(&mut slopes) {
            (*correlation, *slope) = matern(*correlation);
        }
        add(rough, &correlations, &mut covariances);
        let mut rows = vec![0.0; n * n];
        for i in 0..n {
            rows[i * n..i * n + i].copy_from_slice(&covariances[begin(i)..begin(i + 1)]);
            rows[i * n + i] = variances[i];
        }
        let factor = Cholesky::new(n, rows)?;
        let mut weights = self.targets.clone();
        factor.forward(&mut weights);
        let misfit = dot(&weights, &weights);
        factor.backward(&mut weights);
        let cost = 0.5 * (misfit + factor.log_determinant());
        // The derivative by the logarithm of a hyper-parameter is half the sum over `inverse - weights weights^T` times
        // the derivative of the covariance. Each pair stands for two entries of the matrix.
        let inverse = factor.inverse();
        let mut both = covariances;
        for i in 0..n {
            let row = inverse[i * n..i * n + i].iter().zip(&weights);
            for (both, (inverse, weight)) in both[begin(i)..begin(i + 1)].iter_mut().zip(row) {
                *both = inverse - weights[i] * weight;
            }
        }
        let own: Vec<_> = (0..n).map(|i| inverse[i * n + i] - weights[i] * weights[i]).collect();
        for (slope, both) in slopes.iter_mut().zip(&both) {
            *slope *= rough * both;
        }
        let mut gradient = vec![0.0; logs.len()];
        for (axis, column) in self.columns.iter().enumerate() {
            gradient[axis] = narrowness[axis] * dot(&column.rough_distances, &slopes);
            gradient[axes + axis] =
                smooth[axis] * (2.0 * dot(&column.smooth_covariances, &both) + dot(&column.smooth_variances, &own));
        }
        let trace: f64 = own.iter().sum();
        gradient[2 * axes] = rough * (2.0 * dot(&correlations, &both) + trace);
        gradient[2 * axes + 1] = squares(&hyper.noise) * trace;
        gradient[2 * axes + 2] = squares(&hyper.noise_factor) * dot(&self.variances, &own);
        // Squares of huge targets may overflow.
        (cost.is_finite() && gradient.iter().all(|slope| slope.is_finite())).then_some((cost, gradient))
    }

    /// Picks cost or gradient from the last evaluation, if it was at the same place. Otherwise evaluates anew. Fails
    /// after `EVALUATIONS` evaluations.
    fn evaluate_cached<T>(&self, logs: &[f64], pick: impl Fn(&Evaluation) -> T) -> Result<T, Error> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(known, ..)| known != logs) {
            self.evaluations.set(self.evaluations.get() + 1);
            let (cost, gradient) = self.evaluate(logs);
            *last = Some((logs.to_vec(), cost, gradient));
        }
        let known = last.as_ref().filter(|_| self.evaluations.get() <= EVALUATIONS);
        known.map(pick).ok_or_else(|| Error::msg("too many evaluations"))
    }
}

impl AxisTerms {
    fn new(axis: EncodedAxis, share: f64, coordinates: &[f64]) -> Self {
        let (mut apart, mut agree) = (Vec::new(), Vec::new());
        for (i, x) in coordinates.iter().enumerate() {
            for y in &coordinates[..i] {
                let (squared, product) = compare(axis, *x, *y);
                apart.push(squared);
                agree.push(share * product);
            }
        }
        let mut own: Vec<_> = coordinates.iter().map(|x| share * compare(axis, *x, *x).1).collect();
        for column in [&mut apart, &mut agree, &mut own] {
            if column.iter().all(|value| *value == 0.0) {
                column.clear();
            }
        }
        Self { rough_distances: apart, smooth_covariances: agree, smooth_variances: own }
    }
}

/// Returns the index of the first pair of datum `i` with those before it.
fn begin(i: usize) -> usize {
    i * i.saturating_sub(1) / 2
}

fn add(factor: f64, from: &[f64], to: &mut [f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

impl CostFunction for &Likelihood<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, logs: &Self::Param) -> Result<f64, Error> {
        self.evaluate_cached(logs, |(_, cost, _)| *cost)
    }
}

impl Gradient for &Likelihood<'_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, logs: &Self::Param) -> Result<Self::Gradient, Error> {
        self.evaluate_cached(logs, |(.., gradient)| gradient.clone())
    }
}

#[cfg(test)]
mod tests;
