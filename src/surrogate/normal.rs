//! The normal distribution where its tails matter: logarithms that neither overflow nor cancel.
//!
//! `libm` and not the standard library: the same question has the same answer on every machine.

use std::f64::consts::{PI, SQRT_2};

/// Density of the standard normal distribution.
#[must_use]
pub fn density(z: f64) -> f64 {
    libm::exp(-0.5 * z * z) / libm::sqrt(2.0 * PI)
}

/// Probability that a standard normal number is at most `z`.
#[must_use]
pub fn cdf(z: f64) -> f64 {
    0.5 * libm::erfc(-z / SQRT_2)
}

/// Logarithm of [`cdf`], finite for every finite `z`.
#[must_use]
pub fn log_cdf(z: f64) -> f64 {
    if z > 5.0 {
        libm::log1p(-0.5 * libm::erfc(z / SQRT_2))
    } else if z > -10.0 {
        libm::log(cdf(z))
    } else {
        log_density(z) + libm::log(mills(-z))
    }
}

/// Logarithm of the expected improvement `E max(z + X, 0)` with a standard normal `X`, which is `density(z) + z cdf(z)`;
/// finite for every finite `z`.
///
/// Source: S. Ament et al., "Unexpected improvements to expected improvement for Bayesian optimization", 2023, whose three
/// cases are kept; the ratio of tail and density comes from its continued fraction.
#[must_use]
pub fn log_improvement(z: f64) -> f64 {
    if z > -1.0 {
        libm::log(density(z) + z * cdf(z))
    } else if z > -1e5 {
        // density(z) (1 + z cdf(z) / density(z)), with t = -z.
        let t = -z;
        let rest = if t < 10.0 { 1.0 - t * cdf(-t) / density(t) } else { 1.0 - t * mills(t) };
        log_density(z) + libm::log(rest)
    } else {
        // 1 - t mills(t) tends to 1 / t^2.
        log_density(z) - 2.0 * libm::log(-z)
    }
}

fn log_density(z: f64) -> f64 {
    -0.5 * z * z - 0.5 * libm::log(2.0 * PI)
}

/// Upper tail over density at `t >= 10`: asymptotic series, whose first left-out term is below 1e-13 of the sum there.
///
/// The series of `1 - t mills(t)` loses digits to cancellation as `t^2`; [`log_improvement`] needs eight of them.
fn mills(t: f64) -> f64 {
    // Continued fraction of Laplace, from the inside out.
    let mut below = t;
    for k in (1..=40).rev() {
        below = t + f64::from(k) / below;
    }
    1.0 / below
}
