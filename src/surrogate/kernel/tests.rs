//! Tests of the exponential function against the library's, and of the properties of a kernel.

#![expect(clippy::float_cmp, reason = "exact by construction")]

use proptest::prelude::*;

use super::*;
use crate::surrogate::reference::Numbers;

/// One axis or more of every kind.
fn axes() -> Vec<EncodedAxis> {
    let choice = |count| EncodedAxis::Choice { count };
    vec![
        EncodedAxis::Number { step: 0.0 },
        choice(2),
        choice(1),
        choice(3),
        EncodedAxis::Trend,
        EncodedAxis::Number { step: 0.1 },
        choice(5),
    ]
}

fn kernel(numbers: &mut Numbers) -> Kernel {
    let axes = axes();
    let mut sizes = || axes.iter().map(|_| 0.2 + numbers.uniform()).collect();
    let (lengths, smooth) = (sizes(), sizes());
    Kernel::new(&axes, &HyperParameters { lengths, smooth, rough: 0.8, noise: 0.0, noise_factor: 1.0 })
}

fn covariance(kernel: &Kernel, x: &[f64], y: &[f64]) -> f64 {
    let columns: Vec<_> = y.iter().map(|y| vec![*y]).collect();
    let mut covariance = [0.0];
    kernel.fill_covariances(x, &columns, &mut covariance);
    covariance[0]
}

proptest! {
    #[test]
    fn the_exponential_function_matches_the_library(r in prop_oneof![0.0..2.0_f64, 0.0..700.0]) {
        let (found, expected) = (exp_negative(r), libm::exp(-r));
        prop_assert!((found - expected).abs() <= 4.0 * f64::EPSILON * expected, "{found} and not {expected}");
    }

    #[test]
    fn a_kernel_is_symmetric_and_largest_with_the_point_itself(seed: u64) {
        let mut numbers = Numbers::new(seed);
        let kernel = kernel(&mut numbers);
        let (x, y) = (numbers.point(&axes()), numbers.point(&axes()));
        let (one, other) = (covariance(&kernel, &x, &y), covariance(&kernel, &y, &x));
        prop_assert!((one - other).abs() < 1e-12);
        let [at_x, at_y] = [&x, &y].map(|point| kernel.prior_variance(point));
        prop_assert!(one * one <= at_x * at_y * (1.0 + 1e-12));
        prop_assert!((covariance(&kernel, &x, &x) - at_x).abs() < 1e-12 * at_x);
    }

    #[test]
    fn the_slope_of_the_matern_function_is_that_of_differences(squared in 1e-3..50.0_f64) {
        let step = 1e-5 * squared;
        let difference = (matern(squared + step).0 - matern(squared - step).0) / (2.0 * step);
        let slope = -0.5 * matern(squared).1;
        prop_assert!((difference - slope).abs() < 1e-7 * slope.abs() + 1e-12, "{difference} and not {slope}");
    }
}

#[test]
fn the_exponential_function_is_exact_at_0_and_small_far_out() {
    assert_eq!(exp_negative(0.0), 1.0);
    assert_eq!(matern(0.0), (1.0, 5.0 / 3.0));
    for far in [700.0, 1e3, 1e100, f64::MAX] {
        assert!((0.0..1e-303).contains(&exp_negative(far)), "{far}");
    }
}

#[test]
fn the_nearest_of_several_points_determines_the_likeness() {
    let axes = [EncodedAxis::Number { step: 0.0 }];
    let kernel = Kernel::new(
        &axes,
        &HyperParameters { lengths: vec![0.5], smooth: vec![1.0], rough: 1.0, noise: 0.0, noise_factor: 1.0 },
    );
    let mut covariances = [0.0; 3];
    assert_eq!(kernel.fill_covariances(&[0.5], &[vec![0.0, 0.5, 0.9]], &mut covariances), 1.0);
    let alike = kernel.fill_covariances(&[0.75], &[vec![0.0, 0.5, 0.9]], &mut covariances);
    assert!((alike - matern(0.3 * 0.3).0).abs() < 1e-12);
    assert_eq!(kernel.fill_covariances(&[0.5], &[vec![]], &mut []), 0.0);
}
