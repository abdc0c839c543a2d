//! Prior covariance of the values at two points.
//!
//! `k(x, y) = rough^2 M(r) + sum_i smooth_i^2 w_i p_i(x_i) . p_i(y_i) + 1`, where `M` is the Matern function with
//! smoothness 5/2 and `r^2 = sum_i a_i(x_i, y_i) / length_i^2`:
//!
//! | axis | `a`, the distance | `p`, the smooth part's functions | `w` |
//! |---|---|---|---|
//! | number | squared difference | the first two Legendre polynomials of `2 x - 1` | `1 / d` |
//! | choice of two | squared difference | `2 x - 1` | `1 / d` |
//! | choice of more | 1 if they differ, 1/2 if one is not active | the indicators | `1 / d` |
//! | trend, difference | 0 | `x` | 1 |
//! | choice of one | 0 | none | |
//!
//! `d` is the number of axes of the first three kinds. The coordinate on a trend axis is a prior's prediction, and its
//! effect is linear. So is that of a difference between ways of measuring. The smooth part carries effects that hold in the whole space. They are learnt from a few points
//! and extrapolated, with a weight for each axis. The rough part carries local effects.
//!
//! Source of the rough part: C. Rasmussen and C. Williams, "Gaussian processes for machine learning", 2006, formula
//! 4.17. Source of sums of parts of one coordinate: D. Duvenaud et al., "Additive Gaussian processes", 2011.

use std::f64::consts::LOG2_E;

use super::encoding::{EncodedAxis, NOT_ACTIVE};
use crate::stats::to_f64;

/// Variance of the unknown level, in units of the variance of the values.
pub(super) const LEVEL: f64 = 1.0;

const SQRT_5: f64 = 2.236_067_977_499_79;

/// The fitted hyper-parameters. Lengths are in units of the ranges. The sizes of the rough part, the smooth parts and
/// the noise are in units of the targets' spread.
#[derive(Clone, Debug)]
pub(super) struct HyperParameters {
    /// One for each axis.
    pub(super) lengths: Vec<f64>,
    pub(super) rough: f64,
    /// One for each axis.
    pub(super) smooth: Vec<f64>,
    pub(super) noise: f64,
    /// Factor of the standard deviations that come with the targets: all of them may be too large or too small.
    pub(super) noise_factor: f64,
}

impl HyperParameters {
    /// Returns the variance of a target's noise. `variance` is the one that comes with the target. Both are in units of
    /// the squared spread.
    pub(super) fn noise_variance(&self, variance: f64) -> f64 {
        self.noise * self.noise + self.noise_factor * self.noise_factor * variance
    }
}

/// A kernel with its hyper-parameters.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    axes: Vec<EncodedAxis>,
    /// One over the squared length of each axis.
    inverse_squared_lengths: Vec<f64>,
    /// Variance of each axis's smooth part, `smooth_i^2 w_i`.
    smooth: Vec<f64>,
    /// Variance of the rough part, `rough^2`.
    rough: f64,
}

impl Kernel {
    pub(super) fn new(axes: &[EncodedAxis], hyper: &HyperParameters) -> Self {
        let smooth = hyper.smooth.iter().zip(shares(axes)).map(|(weight, share)| weight * weight * share);
        Self {
            axes: axes.to_vec(),
            inverse_squared_lengths: hyper.lengths.iter().map(|length| 1.0 / (length * length)).collect(),
            smooth: smooth.collect(),
            rough: hyper.rough * hyper.rough,
        }
    }

    pub(super) fn axes(&self) -> &[EncodedAxis] {
        &self.axes
    }

    /// Computes the covariances of a point with others, and returns the largest correlation of the rough part with those
    /// that were measured in the same way (0 without any). The others are given as one column for each axis, so that each pass reads contiguous
    /// numbers.
    pub(super) fn fill_covariances(&self, point: &[f64], columns: &[Vec<f64>], covariances: &mut [f64]) -> f64 {
        let mut squared = vec![0.0; covariances.len()];
        let mut differ = vec![false; if self.axes.contains(&EncodedAxis::Difference) { covariances.len() } else { 0 }];
        covariances.fill(LEVEL);
        for (index, column) in columns.iter().enumerate() {
            let x = point[index];
            let (narrow, smooth) = (self.inverse_squared_lengths[index], self.smooth[index]);
            match self.axes[index] {
                EncodedAxis::Number { .. } => {
                    accumulate(column, &mut squared, covariances, |y| scaled(numbers(x, y), narrow, smooth));
                }
                EncodedAxis::Choice { count: 0 | 1 } => {}
                EncodedAxis::Choice { count: 2 } => {
                    accumulate(column, &mut squared, covariances, |y| scaled(pairs(x, y), narrow, smooth));
                }
                EncodedAxis::Choice { .. } => {
                    accumulate(column, &mut squared, covariances, |y| scaled(choices(x, y), narrow, smooth));
                }
                EncodedAxis::Trend => accumulate(column, &mut squared, covariances, |y| (0.0, smooth * (x * y))),
                EncodedAxis::Difference => {
                    accumulate(column, &mut squared, covariances, |y| (0.0, smooth * (x * y)));
                    differ.iter_mut().zip(column).for_each(|(differ, y)| *differ |= (x - y).abs() > 0.0);
                }
            }
        }
        for (covariance, squared) in covariances.iter_mut().zip(&squared) {
            *covariance += self.rough * matern(*squared).0;
        }
        let alike = squared.into_iter().enumerate().filter(|(at, _)| !differ.get(*at).copied().unwrap_or(false));
        alike.map(|(_, squared)| squared).reduce(f64::min).map_or(0.0, |nearest| matern(nearest).0)
    }

    /// Returns the prior variance at a point.
    pub(super) fn prior_variance(&self, point: &[f64]) -> f64 {
        let parts = self.axes.iter().zip(point).zip(&self.smooth);
        let smooth: f64 = parts.map(|((axis, x), weight)| weight * compare(*axis, *x, *x).1).sum();
        self.rough + smooth + LEVEL
    }

    /// Returns the features of a point: those with squared differences that add up to `r^2`, and those with the smooth
    /// part as their inner product.
    pub(super) fn features(&self, point: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (mut rough, mut smooth) = (Vec::new(), Vec::new());
        for (index, (axis, x)) in self.axes.iter().zip(point).enumerate() {
            let (narrow, weight) = (self.inverse_squared_lengths[index].sqrt(), self.smooth[index].sqrt());
            let centred = 2.0 * x - 1.0;
            match axis {
                EncodedAxis::Number { .. } => {
                    rough.push(narrow * x);
                    smooth.extend([weight * centred, weight * (1.5 * centred * centred - 0.5)]);
                }
                EncodedAxis::Choice { count: 0 | 1 } => {}
                EncodedAxis::Choice { count: 2 } => {
                    rough.push(narrow * x);
                    smooth.push(weight * centred);
                }
                EncodedAxis::Choice { count } => {
                    let is =
                        |choice: usize| if (x - to_f64(choice)).abs() < 0.5 && *x != NOT_ACTIVE { 1.0 } else { 0.0 };
                    rough.extend((0..*count).map(|choice| narrow * std::f64::consts::FRAC_1_SQRT_2 * is(choice)));
                    smooth.extend((0..*count).map(|choice| weight * is(choice)));
                }
                EncodedAxis::Trend | EncodedAxis::Difference => smooth.push(weight * x),
            }
        }
        (rough, smooth)
    }
}

/// Returns `w` of each axis.
pub(super) fn shares(axes: &[EncodedAxis]) -> impl Iterator<Item = f64> {
    let is_linear = |axis: &EncodedAxis| matches!(axis, EncodedAxis::Trend | EncodedAxis::Difference);
    let varying =
        axes.iter().filter(|axis| !is_linear(axis) && !matches!(axis, EncodedAxis::Choice { count: 0 | 1 })).count();
    let share = 1.0 / to_f64(varying.max(1));
    axes.iter().map(move |axis| if is_linear(axis) { 1.0 } else { share })
}

/// Returns `a` and `p . p` of two coordinates on an axis.
pub(super) fn compare(axis: EncodedAxis, x: f64, y: f64) -> (f64, f64) {
    match axis {
        EncodedAxis::Number { .. } => numbers(x, y),
        EncodedAxis::Choice { count: 0 | 1 } => (0.0, 0.0),
        EncodedAxis::Choice { count: 2 } => pairs(x, y),
        EncodedAxis::Choice { .. } => choices(x, y),
        EncodedAxis::Trend | EncodedAxis::Difference => (0.0, x * y),
    }
}

fn numbers(x: f64, y: f64) -> (f64, f64) {
    let (p, q) = (2.0 * x - 1.0, 2.0 * y - 1.0);
    ((x - y) * (x - y), p * q + (1.5 * p * p - 0.5) * (1.5 * q * q - 0.5))
}

fn pairs(x: f64, y: f64) -> (f64, f64) {
    ((x - y) * (x - y), (2.0 * x - 1.0) * (2.0 * y - 1.0))
}

fn choices(x: f64, y: f64) -> (f64, f64) {
    // Values are whole numbers. The coordinate of an inactive parameter lies between two of them.
    let is_active = |at: f64| if at == NOT_ACTIVE { 0.0 } else { 1.0 };
    let (one, other) = (is_active(x), is_active(y));
    let same = if (x - y).abs() < 0.5 { one * other } else { 0.0 };
    (0.5 * (one + other) - same, same)
}

fn scaled((apart, agree): (f64, f64), narrow: f64, smooth: f64) -> (f64, f64) {
    (narrow * apart, smooth * agree)
}

fn accumulate(column: &[f64], squared: &mut [f64], smooth: &mut [f64], terms: impl Fn(f64) -> (f64, f64)) {
    for ((y, squared), smooth) in column.iter().zip(squared).zip(smooth) {
        let (apart, agree) = terms(*y);
        *squared += apart;
        *smooth += agree;
    }
}

/// Returns the Matern function with smoothness 5/2 at a squared distance, and -2 times its derivative with respect
/// to the squared distance.
pub(super) fn matern(squared: f64) -> (f64, f64) {
    let r = SQRT_5 * squared.sqrt();
    let decay = exp_negative(r);
    ((1.0 + r + r * r / 3.0) * decay, 5.0 / 3.0 * (1.0 + r) * decay)
}

/// Returns `exp(-r)` for `r >= 0` within two units of the last place. It has no branches or tables, so that the
/// compiler can vectorize it. For `r > 700` it stays at `exp(-700)`, about 1e-304, instead of reaching 0.
fn exp_negative(r: f64) -> f64 {
    // Adding and subtracting this number rounds a small number to a whole one.
    const ROUNDING: f64 = 6_755_399_441_055_744.0;
    // ln 2 in two parts. The first is so short that its multiples are exact.
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let x = -r.min(700.0);
    let rounded = x * LOG2_E + ROUNDING;
    let whole = rounded - ROUNDING;
    let rest = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    // Taylor's polynomial: the rest is at most half of ln 2, so the omitted terms are below 2e-17.
    let mut sum = 1.0 / 87_178_291_200.0;
    for coefficient in INVERSE_FACTORIALS {
        sum = sum * rest + coefficient;
    }
    // The low bits of `rounded` are the whole number. Shifted up they are an exponent.
    sum * f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52)
}

/// One over the factorials of 13 down to 0.
const INVERSE_FACTORIALS: [f64; 14] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
    1.0,
    1.0,
];

#[cfg(test)]
mod tests;
