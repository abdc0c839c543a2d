//! Tests of fronts and volumes against brute force, and of the expected growth against Monte Carlo and sums over a fine
//! grid.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Returns the volume between a reference and the points, in the product of the objectives' units. Exact.
///
/// Points that are not better than the reference in every objective add nothing. Points with a number that is not
/// finite add nothing either. Two objectives use a sweep. More use the recursion of L. While, L. Bradstreet and L.
/// Barone, "A fast way of calculating exact hypervolumes", 2012. It is exponential in the worst case and meant for
/// fronts of some dozens of points.
fn hypervolume(points: &[Vec<f64>], reference: &[f64]) -> f64 {
    let counts = |point: &&Vec<f64>| point.iter().zip(reference).all(|(value, at)| value > at && value.is_finite());
    let mut better: Vec<_> = points.iter().filter(counts).cloned().collect();
    better = front(&better).into_iter().map(|place| better[place].clone()).collect();
    better.sort_by(|a, b| descending(a, b));
    if reference.len() == 2 { sweep(&better, reference) } else { exclusive_volumes(&better, reference) }
}

/// Sums up the strips of a front of two objectives from its right end to its left.
fn sweep(front: &[Vec<f64>], reference: &[f64]) -> f64 {
    let mut height = reference[1];
    let mut volume = 0.0;
    for point in front {
        volume += (point[0] - reference[0]) * (point[1] - height);
        height = point[1];
    }
    volume
}

/// Returns the sum of the volumes that each point dominates and no later point does.
fn exclusive_volumes(front: &[Vec<f64>], reference: &[f64]) -> f64 {
    let exclusive = |(place, point): (usize, &Vec<f64>)| {
        let own: f64 = point.iter().zip(reference).map(|(value, at)| value - at).product();
        let shared: Vec<Vec<f64>> = front[place + 1..].iter().map(|other| lower(point, other)).collect();
        own - hypervolume(&shared, reference)
    };
    front.iter().enumerate().map(exclusive).sum()
}

fn lower(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a.min(*b)).collect()
}

/// Points on a small lattice, so that ties and equal points are common.
fn lattice(objectives: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
    let point = proptest::collection::vec((0..6_i32).prop_map(f64::from), objectives);
    proptest::collection::vec(point, 0..9)
}

/// Counts the unit cells of the lattice that the points dominate, one by one.
fn counted(points: &[Vec<f64>], objectives: usize) -> f64 {
    let cells = 6_usize.pow(u32::try_from(objectives).unwrap());
    let inside = |cell: &usize| {
        let mut rest = *cell;
        let corner: Vec<f64> = (0..objectives)
            .map(|_| {
                let coordinate = rest % 6;
                rest /= 6;
                f64::from(u32::try_from(coordinate).unwrap()) + 1.0
            })
            .collect();
        points.iter().any(|point| covers(point, &corner))
    };
    (0..cells).filter(inside).fold(0.0, |sum, _| sum + 1.0)
}

proptest! {
    #[test]
    fn a_front_is_what_brute_force_finds(points in (1..5_usize).prop_flat_map(lattice)) {
        let beats = |a: &[f64], b: &[f64]| covers(a, b) && a != b;
        let expected: Vec<_> = (0..points.len())
            .filter(|&i| !points.iter().any(|other| beats(other, &points[i])) && !points[..i].contains(&points[i]))
            .collect();
        prop_assert_eq!(front(&points), expected);
    }

    #[test]
    fn a_volume_is_the_count_of_dominated_cells(points in (1..5_usize).prop_flat_map(|n| (Just(n), lattice(n)))) {
        let (objectives, points) = points;
        let volume = hypervolume(&points, &vec![0.0; objectives]);
        prop_assert!((volume - counted(&points, objectives)).abs() < 1e-9, "{volume}");
    }

    #[test]
    fn expected_growth_is_at_least_the_growth_of_the_mean(
        points in lattice(2), mean in [-2.0..8.0, -2.0..8.0], deviation in [0.0..3.0, 0.0..3.0],
    ) {
        // The growth is convex in each objective while the other is constant, so that uncertainty adds to it.
        let sorted = sorted_front(&points);
        let expected = |deviation| libm::exp(log_expected_improvement_2d(&sorted, [0.0, 0.0], mean, deviation));
        let (one, both) = (expected([deviation[0], 0.0]), expected(deviation));
        let certain = growth(&points, mean);
        prop_assert!(one >= certain - 1e-9, "{one} below {certain}");
        prop_assert!(both >= one - 1e-9, "{both} below {one}");
        let exact = expected([0.0, 0.0]);
        prop_assert!((exact - certain).abs() < 1e-9, "{exact} is not {certain}");
    }
}

fn sorted_front(points: &[Vec<f64>]) -> Vec<[f64; 2]> {
    let mut sorted: Vec<_> = front(points).into_iter().map(|place| [points[place][0], points[place][1]]).collect();
    sorted.sort_by(|a, b| a[0].total_cmp(&b[0]));
    sorted
}

fn growth(points: &[Vec<f64>], new: [f64; 2]) -> f64 {
    let mut with = points.to_vec();
    with.push(new.to_vec());
    hypervolume(&with, &[0.0, 0.0]) - hypervolume(points, &[0.0, 0.0])
}

#[test]
fn points_that_are_not_finite_are_on_no_front_and_add_no_volume() {
    let points = [vec![f64::NAN, 9.0], vec![1.0, 1.0], vec![f64::INFINITY, 0.5]];
    assert_eq!(front(&points), [1, 2]);
    assert!((hypervolume(&points, &[0.0, 0.0]) - 1.0).abs() < 1e-12);
    assert!(front(&[]).is_empty());
}

#[test]
fn expected_growth_agrees_with_monte_carlo_within_five_standard_errors() {
    let points: Vec<_> = [[1.0, 4.0], [2.5, 3.0], [3.0, 1.5], [4.0, 1.0]].map(|point: [f64; 2]| point.to_vec()).into();
    let sorted = sorted_front(&points);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (mean, deviation) in [
        ([2.0, 2.0], [1.0, 1.0]),
        ([3.5, 3.5], [0.2, 0.8]),
        ([0.0, 5.0], [0.5, 2.0]),
        ([6.0, 0.5], [1.5, 0.3]),
        ([2.9, 2.9], [0.01, 0.01]),
    ] {
        let draws: Vec<f64> = (0..20_000)
            .map(|_| {
                let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
                let angle = std::f64::consts::TAU * rng.random::<f64>();
                growth(
                    &points,
                    [mean[0] + deviation[0] * radius * angle.cos(), mean[1] + deviation[1] * radius * angle.sin()],
                )
            })
            .collect();
        let average = draws.iter().sum::<f64>() / 20_000.0;
        let variance = draws.iter().map(|draw| (draw - average).powi(2)).sum::<f64>() / 20_000.0;
        let exact = libm::exp(log_expected_improvement_2d(&sorted, [0.0, 0.0], mean, deviation));
        let tolerance = 5.0 * (variance / 20_000.0).sqrt();
        assert!((exact - average).abs() < tolerance, "{exact} and {average} differ by more than {tolerance}");
    }
}

/// Returns `E max(min(Y, high) - low, 0)` of a standard normal `Y` as a sum over a fine grid. The unit is the density
/// at `low`, so that the result is finite even if the density is not representable.
fn summed_gain(low: f64, high: f64) -> f64 {
    let (steps, width) = (400_000, 40.0 / low.abs().max(1.0));
    let step = width / f64::from(steps);
    let term = |i: u32| {
        let above = (f64::from(i) + 0.5) * step;
        above.min(high - low) * (-0.5 * above * (above + 2.0 * low)).exp()
    };
    (0..steps).map(term).sum::<f64>() * step
}

#[test]
fn growth_far_below_the_front_agrees_with_a_sum_over_a_fine_grid() {
    let log_density = |z: f64| -0.5 * z * z - 0.5 * (2.0 * std::f64::consts::PI).ln();
    for (low, high) in [(0.0, 1e-6), (3.0, 3.5), (40.0, 40.0001), (40.0, 41.0), (1000.0, 1000.5)] {
        let expected = log_density(low) + summed_gain(low, high).ln();
        let found = log_gain_between(0.0, 1.0, low, high);
        assert!((found - expected).abs() < 1e-6 * expected.abs(), "{low} to {high}: {found} is not {expected}");
    }
    // A value that is certainly above the strip gains its width, at any width.
    for width in [1e-9, 1e-3, 1.0, 30.0] {
        let found = libm::exp(log_gain_between(100.0, 1.0, 0.0, width));
        assert!((found / width - 1.0).abs() < 1e-6, "{found} of {width}");
    }
}

#[test]
fn growth_keeps_its_slope_if_its_probability_underflows() {
    let sorted = [[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]];
    let at = |mean: f64| log_expected_improvement_2d(&sorted, [0.0, 0.0], [mean, mean], [0.01, 0.02]);
    let values: Vec<_> = [-1000.0, -100.0, -10.0, -1.0, 1.0, 2.0, 3.0].map(at).into();
    assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
    assert!(values.is_sorted_by(|a, b| a < b), "{values:?}");
    assert!(values[0] < -1e9);
}

#[test]
fn an_empty_front_leaves_the_product_of_two_improvements() {
    let found = log_expected_improvement_2d(&[], [1.0, -2.0], [0.5, 0.5], [2.0, 3.0]);
    let expected = 6.0_f64.ln() + log_improvement(-0.25) + log_improvement(2.5 / 3.0);
    assert!((found - expected).abs() < 1e-12);
    // A point of the front that is not better than the reference does not count.
    let beside = log_expected_improvement_2d(&[[0.0, 9.0]], [1.0, -2.0], [0.5, 0.5], [2.0, 3.0]);
    assert!((found - beside).abs() < 1e-12);
    let nothing = log_expected_improvement_2d(&[], [1.0, 1.0], [0.5, 2.0], [0.0, 1.0]);
    assert_eq!(nothing.total_cmp(&f64::NEG_INFINITY), std::cmp::Ordering::Equal, "{nothing}");
}
