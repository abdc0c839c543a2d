//! Tests of posteriors against numbers of other software, and of data that teach little or nothing.

#![expect(clippy::float_cmp, reason = "exact by construction")]

use proptest::prelude::*;

use super::*;
use crate::surrogate::reference::{Numbers, expected, reference};

#[test]
fn beliefs_match_dense_systems_with_fifty_digits() {
    for case in reference().processes {
        let (axes, data) = (case.axes(), case.data());
        let process =
            Process::condition(&axes, case.hyper(), TargetScale { level: case.level, spread: case.spread }, &data)
                .unwrap();
        for answer in &case.asked {
            let belief = process.at(&answer.point);
            let place = format!("{} at {:?}", case.name, answer.point);
            assert!((belief.mean - answer.mean).abs() < 1e-10 * case.spread, "{place}: {belief:?}");
            assert!((belief.deviation - answer.deviation).abs() < 1e-10 * case.spread, "{place}: {belief:?}");
            assert!((process.mean(&answer.point) - belief.mean).abs() < 1e-12 * case.spread, "{place}");
        }
    }
}

#[test]
fn a_measured_point_has_a_likeness_of_1() {
    for case in reference().processes {
        let data = case.data();
        let process =
            Process::condition(&case.axes(), case.hyper(), TargetScale { level: 0.0, spread: 1.0 }, &data).unwrap();
        for point in &data.points {
            assert_eq!(process.posterior_with_correlation(point).1, 1.0, "{}", case.name);
        }
    }
}

fn numbers_and_choices() -> Vec<EncodedAxis> {
    let number = EncodedAxis::Number { step: 0.0 };
    vec![number, EncodedAxis::Choice { count: 2 }, EncodedAxis::Choice { count: 3 }, number, EncodedAxis::Trend]
}

fn random_data(numbers: &mut Numbers, axes: &[EncodedAxis], count: usize) -> ProcessData {
    let points: Vec<_> = (0..count).map(|_| numbers.point(axes)).collect();
    let targets = points.iter().map(|point| 2.0 * point[0] - point[1] + 0.1 * numbers.normal()).collect();
    ProcessData { points, targets, variances: vec![0.0; count] }
}

#[test]
fn pending_points_keep_the_mean_and_reduce_the_deviation() {
    let (axes, mut numbers) = (numbers_and_choices(), Numbers::new(3));
    let mut data = random_data(&mut numbers, &axes, 20);
    let process = Process::fit(&axes, &data, &expected(), &[]).unwrap();
    let pending: Vec<_> = (0..3).map(|_| numbers.point(&axes)).collect();
    for point in &pending {
        data.targets.push(process.mean(point));
        data.points.push(point.clone());
        data.variances.push(0.0);
    }
    let with = process.conditioned_on(&data).unwrap();
    assert_eq!(with.len(), 23);
    for _ in 0..20 {
        let point = numbers.point(&axes);
        let (before, after) = (process.at(&point), with.at(&point));
        assert!((before.mean - after.mean).abs() < 1e-9, "{before:?} and {after:?}");
        assert!(after.deviation <= before.deviation + 1e-9, "{before:?} and {after:?}");
    }
    for point in &pending {
        assert!(with.at(point).deviation < process.at(point).deviation, "{point:?}");
    }
}

#[test]
fn without_data_the_belief_is_the_prior() {
    let axes = numbers_and_choices();
    let process =
        Process::fit(&axes, &ProcessData::default(), &HyperPriors { level: 2.0, spread: Some(3.0), ..expected() }, &[]);
    let (belief, alike) = process.unwrap().posterior_with_correlation(&[0.5, 1.0, 2.0, 0.1, 0.0]);
    assert_eq!((belief.mean, alike), (2.0, 0.0));
    assert!(belief.deviation > 3.0);
}

#[test]
fn data_that_are_not_finite_are_refused() {
    let (axes, mut numbers) = (numbers_and_choices(), Numbers::new(4));
    let data = random_data(&mut numbers, &axes, 6);
    let process = Process::fit(&axes, &data, &expected(), &[]).unwrap();
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut cases = vec![data.clone(), data.clone(), data.clone()];
        cases[0].targets[2] = bad;
        cases[1].variances[2] = bad;
        cases[2].points[2][0] = bad;
        for case in cases {
            assert!(Process::fit(&axes, &case, &expected(), &[]).is_none());
            assert!(process.conditioned_on(&case).is_none());
        }
    }
    let shorter = ProcessData { variances: vec![0.0; 5], ..data.clone() };
    assert!(Process::fit(&axes, &shorter, &expected(), &[]).is_none());
    assert!(Process::fit(&axes[1..], &data, &expected(), &[]).is_none());
}

/// Returns whether every answer is a finite number.
fn is_finite(process: &Process, numbers: &mut Numbers, axes: &[EncodedAxis]) -> bool {
    (0..5).all(|_| {
        let (belief, alike) = process.posterior_with_correlation(&numbers.point(axes));
        belief.mean.is_finite() && belief.deviation.is_finite() && belief.deviation > 0.0 && alike.is_finite()
    })
}

#[test]
fn uninformative_data_give_finite_numbers() {
    let (axes, mut numbers) = (numbers_and_choices(), Numbers::new(5));
    let data = random_data(&mut numbers, &axes, 12);
    let point = data.points[0].clone();
    let with = |targets: &dyn Fn(f64) -> f64, variance: f64| ProcessData {
        points: data.points.clone(),
        targets: data.targets.iter().map(|target| targets(*target)).collect(),
        variances: vec![variance; 12],
    };
    let two =
        |a: f64, b: f64| ProcessData { points: vec![point.clone(); 2], targets: vec![a, b], variances: vec![0.0; 2] };
    let cases = [
        ("one datum", ProcessData { points: vec![point.clone()], targets: vec![4.0], variances: vec![0.0] }),
        ("all points equal", ProcessData { points: vec![point.clone(); 12], ..data.clone() }),
        ("all targets equal", with(&|_| 7.0, 0.0)),
        ("all targets 0", with(&|_| 0.0, 0.0)),
        (
            "all equal",
            ProcessData { points: vec![point.clone(); 40], targets: vec![1.0; 40], variances: vec![0.0; 40] },
        ),
        ("two equal points", two(1.0, 1.0)),
        ("two equal points that differ", two(-1.0, 1.0)),
        ("two equal points far apart", two(-1e200, 1e200)),
        ("huge targets", with(&|target| 1e300 * target, 0.0)),
        ("tiny targets", with(&|target| 1e-300 * target, 0.0)),
        ("huge variances", with(&|target| target, 1e300)),
        ("tiny variances", with(&|target| target, 1e-300)),
        ("one far out", with(&|target| if target > 1.0 { 1e150 } else { target }, 0.0)),
    ];
    for spread in [None, Some(1.0)] {
        let expected = HyperPriors { spread, ..expected() };
        for (name, data) in &cases {
            let process = Process::fit(&axes, data, &expected, &[]);
            let process = process.unwrap_or_else(|| panic!("{name}, {spread:?}: no process"));
            assert!(is_finite(&process, &mut numbers, &axes), "{name}, {spread:?}: {process:?}");
            assert!(process.noise().is_finite() && process.lengths().iter().all(|length| length.is_finite()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_fit_follows_its_data(seed: u64, count in 3..25_usize, unit in -3..4_i32) {
        let (axes, mut numbers) = (numbers_and_choices(), Numbers::new(seed));
        let mut data = random_data(&mut numbers, &axes, count);
        let unit = libm::pow(10.0, f64::from(unit));
        data.targets.iter_mut().for_each(|target| *target *= unit);
        let expected = HyperPriors { noise: 0.05 * f64::min(unit, 1.0), ..expected() };
        let process = Process::fit(&axes, &data, &expected, &[]).unwrap();
        prop_assert!(is_finite(&process, &mut numbers, &axes));
        let TargetScale { spread, .. } = TargetScale::of(&data.targets, &expected);
        for (point, target) in data.points.iter().zip(&data.targets) {
            let miss = (process.mean(point) - target).abs();
            prop_assert!(miss <= 6.0 * process.noise() + 0.05 * spread, "{miss} with noise {}", process.noise());
        }
    }
}
