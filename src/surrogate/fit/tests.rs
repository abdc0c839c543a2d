//! Tests of likelihoods against numbers of other software, of gradients against differences, and of fits.

use proptest::prelude::*;

use super::*;
use crate::surrogate::kernel::Kernel;
use crate::surrogate::reference::{Case, Numbers, expected, reference};

fn logs(hyper: &HyperParameters) -> Vec<f64> {
    let all = hyper.lengths.iter().chain(&hyper.smooth).chain([&hyper.rough, &hyper.noise, &hyper.noise_factor]);
    all.map(|value| libm::log(*value)).collect()
}

#[test]
fn likelihood_and_gradient_match_dense_systems_with_fifty_digits() {
    let expected = expected();
    let compare = |case: &Case| {
        let logs = logs(&case.hyper());
        let likelihood = Likelihood::new(
            &case.axes(),
            &case.data(),
            TargetScale { level: case.level, spread: case.spread },
            &expected,
            logs.clone(),
        );
        let (cost, gradient) = likelihood.negative_log(&logs).unwrap();
        assert!((cost - case.negative_log).abs() < 1e-10 * cost.abs().max(1.0), "{}: {cost}", case.name);
        for (index, (found, known)) in gradient.iter().zip(case.gradient.iter().flatten()).enumerate() {
            let miss = (found - known).abs();
            assert!(miss < 1e-8 * known.abs().max(1.0), "{}, {index}: {found} and not {known}", case.name);
        }
    };
    reference().processes.iter().for_each(compare);
}

fn axes() -> Vec<EncodedAxis> {
    let number = EncodedAxis::Number { step: 0.0 };
    vec![
        number,
        EncodedAxis::Choice { count: 2 },
        EncodedAxis::Choice { count: 3 },
        number,
        EncodedAxis::Choice { count: 1 },
        EncodedAxis::Trend,
    ]
}

fn random_data(numbers: &mut Numbers, axes: &[EncodedAxis], count: usize) -> ProcessData {
    let points: Vec<_> = (0..count).map(|_| numbers.point(axes)).collect();
    let targets = points.iter().map(|point| libm::sin(6.0 * point[0]) + point[1] + 0.2 * numbers.normal()).collect();
    let variances = (0..count).map(|_| 0.02 * numbers.uniform()).collect();
    ProcessData { points, targets, variances }
}

const SCALE: TargetScale = TargetScale { level: 0.3, spread: 0.8 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_gradient_is_that_of_central_differences(seed: u64, count in 2..16_usize) {
        let (axes, expected, mut numbers) = (axes(), expected(), Numbers::new(seed));
        let data = random_data(&mut numbers, &axes, count);
        let means = prior_means(&axes, SCALE, &expected, &[]);
        let likelihood = Likelihood::new(&axes, &data, SCALE, &expected, means.clone());
        let at: Vec<_> = means.iter().map(|mean| mean + 0.7 * numbers.normal()).collect();
        let (_, gradient) = likelihood.evaluate(&at);
        let step = 1e-5;
        for (index, slope) in gradient.iter().enumerate() {
            let cost = |by: f64| {
                let mut moved = at.clone();
                moved[index] += by;
                likelihood.evaluate(&moved).0
            };
            let difference = (cost(step) - cost(-step)) / (2.0 * step);
            // Rounding of the cost, and the third derivative times the squared step.
            prop_assert!((difference - slope).abs() < 1e-5 * (1.0 + slope.abs()), "{index}: {slope}, not {difference}");
        }
    }

    #[test]
    fn a_fit_lowers_the_cost_wherever_it_starts_on_a_slope(seed: u64, count in 2..20_usize, moved: bool) {
        let (axes, expected, mut numbers) = (axes(), expected(), Numbers::new(seed));
        let data = random_data(&mut numbers, &axes, count);
        let moved: Vec<_> = (0..2 * axes.len() + 2).map(|_| if moved { numbers.normal() } else { 0.0 }).collect();
        let start = prior_means(&axes, SCALE, &expected, &moved);
        let likelihood = Likelihood::new(&axes, &data, SCALE, &expected, start.clone());
        let (before, slopes) = likelihood.evaluate(&start);
        let found = fit(&axes, &data, SCALE, &expected, &moved);
        let after = likelihood.evaluate(&logs(&found)).0;
        let steepness = dot(&slopes, &slopes).sqrt();
        prop_assert!(after <= before + 1e-9, "{after} after {before}");
        prop_assert!(steepness < 1.0 || after < before - 1e-3, "{after} after {before}, with a slope of {steepness}");
    }
}

/// Returns a sample of a process at random points, with noise.
fn drawn(axes: &[EncodedAxis], hyper: &HyperParameters, count: usize, seed: u64) -> ProcessData {
    let mut numbers = Numbers::new(seed);
    let points: Vec<_> = (0..count).map(|_| numbers.point(axes)).collect();
    let kernel = Kernel::new(axes, hyper);
    let columns: Vec<Vec<f64>> = (0..axes.len()).map(|axis| points.iter().map(|point| point[axis]).collect()).collect();
    let normals: Vec<_> = (0..count).map(|_| numbers.normal()).collect();
    let mut rows = vec![0.0; count * count];
    for (i, point) in points.iter().enumerate() {
        kernel.fill_covariances(point, &columns, &mut rows[i * count..(i + 1) * count]);
        rows[i * count + i] += hyper.noise_variance(0.0);
    }
    let targets = Cholesky::new(count, rows).unwrap().times(&normals);
    ProcessData { points, targets, variances: vec![0.0; count] }
}

#[test]
fn length_scales_and_noise_of_a_drawn_function_are_found_again() {
    let axes = [EncodedAxis::Number { step: 0.0 }, EncodedAxis::Number { step: 0.0 }];
    let truth =
        HyperParameters { lengths: vec![0.2, 1.2], rough: 1.0, smooth: vec![0.3, 0.3], noise: 0.1, noise_factor: 1.0 };
    // Wide priors, so that the data decide the result.
    let expected = HyperPriors {
        length_deviation: 2.0,
        noise: 0.3,
        noise_deviation: 2.0,
        size_deviation: 1.5,
        spread: Some(1.0),
        ..expected()
    };
    for seed in 0..5 {
        let data = drawn(&axes, &truth, 100, seed);
        let found = fit(&axes, &data, TargetScale { level: 0.0, spread: 1.0 }, &expected, &[]);
        let within = |found: f64, truth: f64, factor: f64| found < truth * factor && found > truth / factor;
        assert!(within(found.lengths[0], 0.2, 1.6), "{seed}: {found:?}");
        assert!(within(found.lengths[1], 1.2, 2.5), "{seed}: {found:?}");
        assert!(within(found.noise, 0.1, 1.5), "{seed}: {found:?}");
    }
}

#[test]
fn given_deviations_are_scaled_to_the_noise_of_the_targets() {
    let axes = [EncodedAxis::Number { step: 0.0 }, EncodedAxis::Number { step: 0.0 }];
    let truth =
        HyperParameters { lengths: vec![0.5, 1.2], rough: 1.0, smooth: vec![0.3, 0.3], noise: 0.1, noise_factor: 1.0 };
    let quiet = HyperPriors { noise: 0.01, spread: Some(1.0), ..expected() };
    for seed in 0..5 {
        let of = |deviation: f64| {
            let data = drawn(&axes, &truth, 60, seed);
            let data = ProcessData { variances: vec![deviation * deviation; 60], ..data };
            let HyperParameters { noise, noise_factor, .. } =
                fit(&axes, &data, TargetScale { level: 0.0, spread: 1.0 }, &quiet, &[]);
            (noise_factor, libm::sqrt(noise * noise + noise_factor * noise_factor * deviation * deviation))
        };
        for (deviation, least, most) in [(0.1, 0.5, 1.5), (1.0, 0.0, 0.2), (0.02, 1.2, 10.0)] {
            let (noise_factor, together) = of(deviation);
            assert!((least..most).contains(&noise_factor), "{seed}: {deviation} times {noise_factor}");
            assert!(
                (0.06..0.15).contains(&together),
                "{seed}: {deviation} times {noise_factor} is {together} with the noise"
            );
        }
    }
}

#[test]
fn more_data_than_are_fitted_are_chosen_evenly_and_with_the_last() {
    let axes = [EncodedAxis::Number { step: 0.0 }];
    let count = 3 * MAX_FITTED + 7;
    let points: Vec<_> = (0..count).map(|at| vec![f64::from(u32::try_from(at).unwrap())]).collect();
    let data =
        ProcessData { targets: points.iter().map(|point| point[0]).collect(), variances: vec![0.0; count], points };
    let expected = expected();
    let likelihood = Likelihood::new(&axes, &data, TargetScale { level: 0.0, spread: 1.0 }, &expected, vec![0.0; 4]);
    let chosen = &likelihood.targets;
    assert_eq!(chosen.len(), MAX_FITTED);
    assert_eq!((chosen[0], chosen[MAX_FITTED - 1]), (0.0, data.targets[count - 1]));
    assert!(chosen.windows(2).all(|pair| (3.0..5.0).contains(&(pair[1] - pair[0]))));
}
