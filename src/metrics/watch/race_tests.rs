//! Tests of the race: its errors over repeated checks, and the metrics that race.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::metrics::example::record;

fn target(metric: &str, goal: Goal, incumbent: f64) -> RaceTarget {
    RaceTarget {
        metric: metric.to_owned(),
        goal,
        incumbent,
        incumbent_launches: 1,
        launch_noise: 0.0,
        confidence: 0.9,
        can_lose: true,
    }
}

/// Simulates `seconds` of ten requests per second with three chunks each, so that 30 tokens per second arrive. The time
/// to the first chunk is between 100 and 300 ms with the mean 200 ms. A check follows each second. Returns the second of
/// the lost race.
fn race(target: RaceTarget, seed: u64, seconds: u64) -> Option<(u64, String)> {
    match verdict(target, seed, seconds)? {
        (second, RaceVerdict::Lost(text)) => Some((second, text)),
        (_, RaceVerdict::Precise(_)) => None,
    }
}

/// Like [`race`], with either verdict.
fn verdict(target: RaceTarget, seed: u64, seconds: u64) -> Option<(u64, RaceVerdict)> {
    let mut progress = RaceProgress::new(target)?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut chunks = 0;
    (1..=seconds * 10).find_map(|tick| {
        let first = rng.random_range(100..=300);
        progress.ended(&record(tick * 100, &[first, first + 20, first + 40]), &[]);
        chunks += rng.random_range(0..=6);
        progress.tick(&ObserverTick { at: Duration::from_millis(tick * 100), chunks, ..ObserverTick::default() });
        let found = (tick % 10 == 0).then(|| progress.verdict(Duration::from_millis(tick * 100)))??;
        Some((tick / 10, found))
    })
}

#[test]
fn a_load_that_is_far_behind_the_best_loses_at_once_and_one_that_is_ahead_never_does() {
    for (metric, goal, ahead, behind) in [
        ("output_throughput", Goal::Maximize, 25.0, 45.0),
        ("request_throughput", Goal::Maximize, 9.0, 15.0),
        ("mean_ttft_ms", Goal::Minimize, 250.0, 120.0),
        ("median_ttft_ms", Goal::Minimize, 250.0, 120.0),
        ("p90_ttft_ms", Goal::Minimize, 300.0, 200.0),
    ] {
        assert_eq!(race(target(metric, goal, ahead), 1, 120), None, "{metric}");
        let (second, text) = race(target(metric, goal, behind), 1, 120).unwrap();
        assert!(second < 40, "{metric}: {second}");
        assert!(text.starts_with(&format!("{metric} stays ")) && text.contains("(90 % confidence)"), "{text}");
        assert_eq!(race(RaceTarget { can_lose: false, ..target(metric, goal, behind) }, 1, 120), None, "{metric}");
    }
}

#[test]
fn over_all_checks_of_a_load_a_configuration_as_good_as_the_best_rarely_loses() {
    for (metric, goal, best) in [
        ("output_throughput", Goal::Maximize, 30.0),
        ("mean_ttft_ms", Goal::Minimize, 200.0),
        ("median_ttft_ms", Goal::Minimize, 200.0),
    ] {
        let lost = (0..100).filter(|seed| race(target(metric, goal, best), *seed, 300).is_some()).count();
        // The window's half of the error is 5 %. More than 12 of 100 would have a probability of 1 in 1000.
        assert!(lost <= 12, "{metric}: {lost} of 100");
    }
}

#[test]
fn the_noise_of_launches_moves_the_value_to_reach() {
    let threshold = |launch_noise, incumbent_launches, goal| {
        let plain = target("output_throughput", goal, 100.0);
        RaceTarget { incumbent_launches, launch_noise, ..plain }.threshold()
    };
    assert!((threshold(0.0, 1, Goal::Maximize) - 100.0).abs() < 1e-9);
    // The normal quantile of 5 % is 1.645, and two single launches differ by the square root of 2 times 2 %.
    assert!((threshold(0.02, 1, Goal::Maximize) - 95.45).abs() < 0.01, "{}", threshold(0.02, 1, Goal::Maximize));
    assert!((threshold(0.02, 1, Goal::Minimize) - 104.76).abs() < 0.01);
    assert!((threshold(0.02, 100, Goal::Maximize) - 96.75).abs() < 0.01);
}

#[test]
fn a_load_ends_once_its_window_is_much_more_precise_than_a_launch() {
    let noisy = |metric, goal, incumbent, launch_noise| RaceTarget { launch_noise, ..target(metric, goal, incumbent) };
    let end = |launch_noise| verdict(noisy("output_throughput", Goal::Maximize, 30.0, launch_noise), 1, 1200);
    let (second, found) = end(0.06).unwrap();
    let RaceVerdict::Precise(text) = &found else { panic!("{found:?}") };
    assert!(
        text.starts_with("output_throughput has a standard error of ") && text.contains("launches differ by 6.00 %")
    );
    // A third of the noise needs nine times the load.
    let (longer, _) = end(0.02).unwrap();
    assert!(longer > 3 * second, "{second} {longer}");
    assert_eq!(end(0.0), None, "without noise between launches the window is the whole error");
    let percentile = noisy("p90_ttft_ms", Goal::Minimize, 300.0, 0.06);
    assert_eq!(verdict(percentile, 1, 1200), None, "the error of a percentile is not estimated");
}

#[test]
fn only_closed_loops_race_and_only_for_metrics_that_are_known_during_a_run() {
    for metric in ["output_throughput", "request_goodput", "p99_ttft_ms"] {
        assert!(RaceTarget::is_raced(metric, &ArrivalPattern::Closed));
    }
    assert!(!RaceTarget::is_raced("energy_per_token", &ArrivalPattern::Closed));
    let rate = ArrivalPattern::Rate { per_s: 4.0, burstiness: 1.0 };
    for other in [rate, ArrivalPattern::AtOnce, ArrivalPattern::Trace { factor: 1.0 }] {
        assert!(!RaceTarget::is_raced("p99_ttft_ms", &other));
    }
}
