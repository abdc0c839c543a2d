//! Tests of the tails' logarithms against numbers of 50 digits, across the seams of their cases, and against Monte
//! Carlo.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::*;

/// Reference values (`tests/fixtures/record_gaussian_process.py`).
#[derive(Deserialize)]
struct Reference {
    normal: Vec<Tail>,
}

#[derive(Deserialize)]
struct Tail {
    z: f64,
    log_cdf: f64,
    log_improvement: f64,
}

#[test]
fn tails_and_improvements_match_numbers_of_fifty_digits() {
    let text = include_str!("../../../tests/fixtures/gaussian-process.json");
    let reference: Reference = serde_json::from_str(text).unwrap();
    for tail in reference.normal {
        // The error of `log_cdf` is relative, also near 0. That of `log_improvement` is absolute near 0.
        let (cdf, improvement) = (log_cdf(tail.z), log_improvement(tail.z));
        assert!((cdf - tail.log_cdf).abs() <= 1e-13 * tail.log_cdf.abs(), "{}: {cdf} and not {}", tail.z, tail.log_cdf);
        let scale = tail.log_improvement.abs().max(1.0);
        let miss = (improvement - tail.log_improvement).abs();
        assert!(miss <= 2e-13 * scale, "{}: {improvement} and not {}", tail.z, tail.log_improvement);
    }
}

#[test]
fn probabilities_are_those_of_the_tables() {
    for (x, expected) in [(0.0, 0.5), (1.0, 0.841_344_7), (-2.326_347_9, 0.01), (9.0, 1.0)] {
        assert!((cdf(x) - expected).abs() < 1e-7, "{x}");
    }
}

#[test]
fn the_cases_meet_at_their_seams() {
    for seam in [-1e5, -FAR, -5.0, -1.0, 0.0, 5.0] {
        let width = 1e-12 * f64::max(seam.abs(), 1.0);
        for function in [log_cdf, log_improvement] {
            let (below, above) = (function(seam - width), function(seam + width));
            // The slope is at most about `-seam` there.
            let slope = seam.abs() + 2.0;
            assert!((above - below).abs() < 4.0 * slope * width + 1e-12 * below.abs(), "{seam}: {below} and {above}");
        }
    }
}

proptest! {
    #[test]
    fn both_grow_with_z(z in prop_oneof![-1e6..40.0_f64, -12.0..8.0], step in 1e-4..3.0_f64) {
        let step = step * (1.0 + 1e-6 * z.abs());
        prop_assert!(log_cdf(z + step) >= log_cdf(z));
        prop_assert!(log_improvement(z + step) > log_improvement(z));
        prop_assert!(log_cdf(z).is_finite() && log_improvement(z).is_finite());
        // The improvement is at least `z`, and the distribution function is its slope.
        prop_assert!(z <= 0.0 || log_improvement(z) >= libm::log(z) - 1e-15);
        prop_assert!(log_cdf(z) <= 0.0);
    }

    #[test]
    fn the_distribution_function_is_the_slope_of_the_improvement(z in -30.0..8.0_f64) {
        let step = 1e-5;
        let (above, below) = (log_improvement(z + step), log_improvement(z - step));
        let slope = (above - below) / (2.0 * step);
        let expected = libm::exp(log_cdf(z) - log_improvement(z));
        prop_assert!((slope - expected).abs() < 1e-6 * expected + 1e-7, "{slope} and not {expected}");
    }
}

/// Returns the mean of `draws` draws and five of its standard errors.
fn monte_carlo(draws: u32, mut next: impl FnMut() -> f64) -> (f64, f64) {
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..draws {
        let value = next();
        sum += value;
        squares += value * value;
    }
    let count = f64::from(draws);
    let mean = sum / count;
    (mean, 5.0 * ((squares / count - mean * mean) / count).sqrt())
}

#[test]
fn expected_improvement_is_that_of_draws() {
    let mut numbers = ChaCha8Rng::seed_from_u64(1);
    for (mean, deviation) in [(0.0, 1.0), (1.5, 0.3), (-0.4, 0.5), (-3.0, 2.0), (0.2, 4.0)] {
        let expected = deviation * libm::exp(log_improvement(mean / deviation));
        let (found, error) = monte_carlo(100_000, || f64::max(mean + deviation * draw(&mut numbers), 0.0));
        assert!((found - expected).abs() < error, "{mean}, {deviation}: {found} +- {error}, and not {expected}");
    }
}

#[test]
fn the_product_with_the_probabilities_of_limits_is_that_of_draws() {
    let mut numbers = ChaCha8Rng::seed_from_u64(2);
    for limits in [[(-0.5, 1.0), (0.3, 0.8)], [(0.0, 0.2), (-2.0, 1.0)], [(1.0, 1.0), (-0.1, 3.0)]] {
        let (mean, deviation) = (-0.2, 0.7);
        let kept = limits.iter().map(|(mean, deviation)| log_cdf(-mean / deviation)).sum::<f64>();
        let expected = deviation * libm::exp(log_improvement(mean / deviation) + kept);
        let (found, error) = monte_carlo(100_000, || {
            let gain = f64::max(mean + deviation * draw(&mut numbers), 0.0);
            let keeps = limits.iter().all(|(mean, deviation)| mean + deviation * draw(&mut numbers) <= 0.0);
            if keeps { gain } else { 0.0 }
        });
        assert!((found - expected).abs() < error, "{limits:?}: {found} +- {error}, and not {expected}");
    }
}
