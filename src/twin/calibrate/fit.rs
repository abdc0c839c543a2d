//! Minimizes the calibration's loss, and determines the curvature at the minimum.
//!
//! Gauss-Newton steps with numerical derivatives lead near the minimum. There the loss is rough, because one more or
//! one less step of the engine changes which request is preempted. The Nelder-Mead method continues from there, in
//! coordinates that make the curvature equal in all directions.

use std::cell::{Cell, RefCell};

use argmin::core::{CostFunction, Error, Executor, State};
use argmin::solver::neldermead::NelderMead;

use super::replay::{ObservedRequest, RequestTimes, replay};
use super::residual::{ResidualPair, Residuals};
use super::{CalibrateError, Calibration, FACTOR_COUNT, ObservedRun, prior_spread};
use crate::stats::small::{Matrix, cholesky, inverse};
use crate::twin::step_time::{Factors, TermFactor};

/// Smallest number of requests with times.
const LEAST_REQUESTS: usize = 8;
/// Half the distance between the two points of a central difference, in units of the prior.
const STEP: f64 = 0.5;
/// Largest number of Gauss-Newton steps.
const NEWTON_STEPS: u32 = 4;
/// Distance at which the loss along a direction is checked, in multiples of the direction's length.
const PROBE: f64 = 2.0;
/// The largest factor on the length of a direction.
const WIDEST: f64 = 5.0;
/// Limit on the diagonal element of a direction, in units of the prior. Directions of at least this value are not
/// searched, because the observations determine them hardly better than the prior.
const MAX_SEARCHED_DEVIATION: f64 = 0.9;
/// Largest number of halvings of a Gauss-Newton step before it is given up.
const HALVINGS: u32 = 3;
/// A Gauss-Newton step that reduces the loss by less than this is the last one.
const PROGRESS: f64 = 0.2;
/// Largest number of iterations of the Nelder-Mead method.
const ITERATIONS: u64 = 60;
/// The Nelder-Mead method ends if the standard deviation of the loss over its corners is below this.
const TOLERANCE: f64 = 0.02;
/// Misfit as a multiple of the expected one. At this value and above, the observations get less weight.
const TOLERATED: f64 = 1.5;
/// Largest number of rounds that reduce this weight.
const NOISE_ROUNDS: u32 = 3;

/// Natural logarithms of the factors, each divided by the prior's spread.
type Units = [f64; FACTOR_COUNT];

struct Problem<'a> {
    runs: &'a [ObservedRun],
    /// Divisor of every residual.
    noise: f64,
    /// Origin of the search coordinates.
    origin: Units,
    /// Directions of the search coordinates as columns: a root of the covariance.
    directions: Matrix<FACTOR_COUNT>,
    simulations: Cell<u32>,
    failure: RefCell<Option<CalibrateError>>,
}

pub(super) fn fit(runs: &[ObservedRun]) -> Result<Calibration, CalibrateError> {
    let observed = runs.iter().flat_map(|run| &run.requests).filter(|request| request.times.is_some()).count();
    if observed < LEAST_REQUESTS {
        return Err(CalibrateError::TooFew { observed, least: LEAST_REQUESTS });
    }
    let mut problem = Problem {
        runs,
        noise: 1.0,
        origin: [0.0; FACTOR_COUNT],
        directions: [[0.0; FACTOR_COUNT]; FACTOR_COUNT],
        simulations: Cell::new(0),
        failure: RefCell::new(None),
    };
    let loss_before = problem.data_loss(&[0.0; FACTOR_COUNT])?;
    let (mut units, mut misfit) = problem.minimum()?;
    for _ in 0..NOISE_ROUNDS {
        if misfit < TOLERATED {
            break;
        }
        problem.noise *= misfit.sqrt();
        (units, misfit) = problem.minimum()?;
    }
    problem.report(units, (loss_before, misfit))
}

impl Problem<'_> {
    /// Returns the minimum and its misfit: the remaining squared residuals as a multiple of the expected ones.
    fn minimum(&mut self) -> Result<(Units, f64), CalibrateError> {
        let (near, information) = self.descend()?;
        self.origin = near;
        self.directions = self.widen_directions(&near, cholesky(&inverse(&information)))?;
        let units = self.polish()?;
        let here = self.residuals(&factors(&units))?;
        let (loss, count): (f64, f64) = here
            .iter()
            .fold((0.0, 0.0), |(loss, count), residuals| (loss + residuals.loss(), count + residuals.count()));
        Ok((units, 2.0 * loss / count.max(1.0)))
    }

    fn residuals(&self, factors: &Factors) -> Result<Vec<Residuals>, CalibrateError> {
        self.runs.iter().enumerate().map(|(number, run)| self.simulate(number, run, factors)).collect()
    }

    fn simulate(&self, number: usize, run: &ObservedRun, factors: &Factors) -> Result<Residuals, CalibrateError> {
        self.simulations.set(self.simulations.get() + 1);
        let step_time = run.prior.clone().scaled(*factors);
        let (simulated, steps) =
            replay(run, &step_time).map_err(|source| CalibrateError::Replay { run: number, source })?;
        let pair = |(request, simulated): (&ObservedRequest, &RequestTimes)| {
            Some(ResidualPair::new(request.output_len, simulated, &request.times?))
        };
        let pairs: Vec<_> = run.requests.iter().zip(&simulated).filter_map(pair).collect();
        let steps = run.steps.map(|observed| [steps, observed]);
        Ok(Residuals::new(&pairs, steps, self.noise))
    }

    /// Returns the loss without the prior's part.
    fn data_loss(&self, units: &Units) -> Result<f64, CalibrateError> {
        Ok(self.residuals(&factors(units))?.iter().map(Residuals::loss).sum())
    }

    /// Returns the loss.
    fn loss(&self, units: &Units) -> Result<f64, CalibrateError> {
        let prior: f64 = units.iter().map(|unit| unit * unit / 2.0).sum();
        Ok(prior + self.data_loss(units)?)
    }

    /// Returns the gradient of the loss at a point and the information matrix `J^T J + 1`, both with the prior.
    /// Outliers have less weight.
    fn linearize(&self, units: &Units) -> Result<(Units, Matrix<FACTOR_COUNT>), CalibrateError> {
        let weighted = |units: &Units| -> Result<Vec<[Vec<f64>; 2]>, CalibrateError> {
            Ok(self.residuals(&factors(units))?.iter().map(Residuals::weighted).collect())
        };
        let here = weighted(units)?;
        let mut slopes: [Vec<f64>; FACTOR_COUNT] = std::array::from_fn(|_| Vec::new());
        for (at, slope) in slopes.iter_mut().enumerate() {
            let moved = |by: f64| {
                let mut moved = *units;
                moved[at] += by;
                weighted(&moved)
            };
            let (above, below) = (moved(STEP)?, moved(-STEP)?);
            for ((above, here), below) in above.iter().zip(&here).zip(&below) {
                for ((above, here), below) in above.iter().zip(here).zip(below) {
                    slope.extend(denoised_slope(above, here, below));
                }
            }
        }
        let here = here.concat().concat();
        let product = |left: &[f64], right: &[f64]| left.iter().zip(right).map(|(a, b)| a * b).sum::<f64>();
        let gradient = std::array::from_fn(|at| units[at] + product(&slopes[at], &here));
        let information = std::array::from_fn(|row| {
            std::array::from_fn(|at| f64::from(u8::from(row == at)) + product(&slopes[row], &slopes[at]))
        });
        Ok((gradient, information))
    }

    /// Returns a point near the minimum, and the information matrix there.
    fn descend(&self) -> Result<(Units, Matrix<FACTOR_COUNT>), CalibrateError> {
        let mut units = [0.0; FACTOR_COUNT];
        let mut loss = self.loss(&units)?;
        let (mut gradient, mut information) = self.linearize(&units)?;
        for _ in 0..NEWTON_STEPS {
            let inverse = inverse(&information);
            let mut share = 1.0;
            let mut better = None;
            for _ in 0..=HALVINGS {
                let next: Units = std::array::from_fn(|row| {
                    let step: f64 = inverse[row].iter().zip(gradient).map(|(a, b)| a * b).sum();
                    // The linear approximation is not valid for larger steps.
                    units[row] - (share * step).clamp(-2.0, 2.0)
                });
                let at_next = self.loss(&next)?;
                if at_next < loss {
                    better = Some((next, at_next));
                    break;
                }
                share /= 2.0;
            }
            let Some((next, at_next)) = better else { break };
            let progress = loss - at_next;
            (units, loss) = (next, at_next);
            (gradient, information) = self.linearize(&units)?;
            if progress < PROGRESS {
                break;
            }
        }
        Ok((units, information))
    }

    /// Corrects the lengths of the directions. According to the curvature, the loss rises by one half over the length
    /// of each direction. If it rises less, the curvature was overestimated because of random deviations, and the
    /// direction is lengthened.
    fn widen_directions(
        &self,
        units: &Units,
        mut directions: Matrix<FACTOR_COUNT>,
    ) -> Result<Matrix<FACTOR_COUNT>, CalibrateError> {
        let here = self.loss(units)?;
        for column in 0..FACTOR_COUNT {
            let moved = |by: f64| self.loss(&std::array::from_fn(|row| units[row] + by * directions[row][column]));
            let rise = f64::midpoint(moved(PROBE)?, moved(-PROBE)?) - here;
            let expected = PROBE * PROBE / 2.0;
            let longer = (expected / rise.max(expected / (WIDEST * WIDEST))).sqrt().max(1.0);
            for row in &mut directions {
                row[column] *= longer;
            }
        }
        Ok(directions)
    }

    /// Returns the columns of the directions that the observations determine better than the prior.
    fn informed_directions(&self) -> Vec<usize> {
        (0..FACTOR_COUNT).filter(|column| self.directions[*column][*column] < MAX_SEARCHED_DEVIATION).collect()
    }

    /// Converts search coordinates to units.
    fn to_units(&self, coordinates: &[f64]) -> Units {
        let mut units = self.origin;
        for (column, coordinate) in self.informed_directions().into_iter().zip(coordinates) {
            for (unit, row) in units.iter_mut().zip(&self.directions) {
                *unit += coordinate * row[column];
            }
        }
        units
    }

    /// Returns the minimum by the Nelder-Mead method, in the directions of `told`.
    fn polish(&self) -> Result<Units, CalibrateError> {
        let stopped = |error: Error| self.failure.take().unwrap_or_else(|| CalibrateError::Solver(error.to_string()));
        let count = self.informed_directions().len();
        if count == 0 {
            return Ok(self.origin);
        }
        let corner = |moved| (0..count).map(|at| if Some(at) == moved { 1.0 } else { 0.0 }).collect::<Vec<_>>();
        let corners = std::iter::once(None).chain((0..count).map(Some)).map(corner).collect();
        let solver = NelderMead::new(corners).with_sd_tolerance(TOLERANCE).map_err(stopped)?;
        let run = Executor::new(self, solver).configure(|state| state.max_iters(ITERATIONS)).timer(false).run();
        let result = run.map_err(stopped)?;
        Ok(result.state().get_best_param().map_or(self.origin, |best| self.to_units(best)))
    }

    /// Builds the result. Its covariance is that of the directions. It is widened if the residuals are larger than
    /// their scales, and its variances are never larger than the prior's.
    fn report(&self, units: Units, (loss_before, misfit): (f64, f64)) -> Result<Calibration, CalibrateError> {
        let loss = self.data_loss(&units)? * self.noise * self.noise;
        let misfit = misfit.max(1.0);
        let mut root = self.widen_directions(&units, self.directions)?;
        let noise = self.noise;
        let mut calibration = Calibration { factors: factors(&units), loss_before, loss, noise, ..Calibration::none() };
        for (row, factor) in root.iter_mut().zip(TermFactor::ALL) {
            let spread = (row.iter().map(|part| part * part).sum::<f64>() * misfit).sqrt();
            let shrink = misfit.sqrt() * (1.0 / spread).min(1.0) * prior_spread(factor);
            for part in row {
                *part *= shrink;
            }
            calibration.spread[factor] = spread.min(1.0) * prior_spread(factor);
        }
        calibration.root = root;
        calibration.simulations = self.simulations.get();
        Ok(calibration)
    }
}

impl CostFunction for &Problem<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, coordinates: &Vec<f64>) -> Result<f64, Error> {
        (*self).loss(&self.to_units(coordinates)).map_err(|error| {
            let text = error.to_string();
            self.failure.replace(Some(error));
            Error::msg(text)
        })
    }
}

fn factors(units: &Units) -> Factors {
    let mut factors = Factors::ONE;
    for (factor, unit) in TermFactor::ALL.into_iter().zip(units) {
        factors[factor] = (unit * prior_spread(factor)).exp();
    }
    factors
}

/// Returns derivatives by central differences, reduced by their estimated random part.
///
/// With independent random errors of variance `v`, a first difference has variance `2 v` and a second difference `6 v`.
/// A third of the squared second differences is therefore subtracted from the squared first differences.
fn denoised_slope(above: &[f64], here: &[f64], below: &[f64]) -> Vec<f64> {
    let first: Vec<f64> = above.iter().zip(below).map(|(above, below)| above - below).collect();
    let second = above.iter().zip(below).zip(here).map(|((above, below), here)| above + below - 2.0 * here);
    let told: f64 = first.iter().map(|part| part * part).sum();
    let chance = second.map(|part| part * part).sum::<f64>() / 3.0;
    let share = if told > 0.0 { (1.0 - chance / told).max(0.0).sqrt() } else { 0.0 };
    first.into_iter().map(|part| share * part / (2.0 * STEP)).collect()
}
