//! The normal distribution with accurate tails: logarithms that neither overflow nor cancel.
//!
//! It uses `libm` instead of the standard library, so that results are equal on every machine.

use std::f64::consts::{PI, SQRT_2, TAU};

use rand::RngExt;

/// Draws a standard normal number (G. Box and M. Muller, "A note on the generation of random normal deviates", 1958).
#[must_use]
pub(crate) fn draw(rng: &mut impl RngExt) -> f64 {
    let (radius, angle): (f64, f64) = (rng.random(), rng.random());
    libm::sqrt(-2.0 * libm::log(1.0 - radius)) * libm::cos(TAU * angle)
}

/// Returns the density of the standard normal distribution.
#[must_use]
pub(crate) fn density(z: f64) -> f64 {
    libm::exp(-0.5 * z * z) / libm::sqrt(2.0 * PI)
}

/// Returns the probability that a standard normal number is at most `z`.
#[must_use]
pub(crate) fn cdf(z: f64) -> f64 {
    0.5 * libm::erfc(-z / SQRT_2)
}

/// Returns the logarithm of [`cdf`]; finite if `z^2` is.
#[must_use]
pub(crate) fn log_cdf(z: f64) -> f64 {
    if z > 0.0 {
        libm::log1p(-0.5 * libm::erfc(z / SQRT_2))
    } else if z > -FAR {
        libm::log(cdf(z))
    } else {
        log_density(z) - libm::log(remainder(-z) - z)
    }
}

/// Returns the logarithm of the expected improvement `E max(z + X, 0)` with a standard normal `X`. The improvement is
/// `density(z) + z cdf(z)`. The logarithm is finite if `z^2` is.
///
/// Source: S. Ament et al., "Unexpected improvements to expected improvement for Bayesian optimization", 2023. The
/// ratio of tail and density comes from its continued fraction, which avoids cancellation.
#[must_use]
pub(crate) fn log_improvement(z: f64) -> f64 {
    if z > -1.0 {
        libm::log(density(z) + z * cdf(z))
    } else if z > -FAR {
        libm::log(1.0 + z * cdf(z) / density(z)) + log_density(z)
    } else {
        // With `t = -z` and the tail `density / (t + c)`, the factor `1 + z cdf(z) / density(z)` equals `c / (t + c)`.
        let c = remainder(-z);
        libm::log(c / (c - z)) + log_density(z)
    }
}

/// The distance from 0 beyond which the tail comes from its continued fraction.
const FAR: f64 = 10.0;

fn log_density(z: f64) -> f64 {
    -0.5 * z * z - 0.5 * libm::log(2.0 * PI)
}

/// Returns `c` such that the upper tail beyond `t` is `density(t) / (t + c)`, for `t >= FAR`, by the continued fraction
/// of Laplace, `1 / (t + 2 / (t + 3 / ...))`.
fn remainder(t: f64) -> f64 {
    // Evaluated from the inside out.
    let inside = (2..=40).rev().fold(t, |below, k| t + f64::from(k) / below);
    1.0 / inside
}

#[cfg(test)]
mod tests;
