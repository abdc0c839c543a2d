//! Searches over known curves with noise.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::objective::{MetricLimit, SloTier};
use crate::stats::{normal, to_f64};
use crate::trial::{Distribution, Failure, FailureKind};

/// A latency in milliseconds as a function of the load.
type Latency = fn(f64) -> f64;

/// Grows with every user.
fn smooth(users: f64) -> f64 {
    12.0 + 0.35 * users
}

/// Stays the same up to 90 users, and then grows without bound.
fn cliff(users: f64) -> f64 {
    if users < 90.0 { 40.0 } else { 40.0 + 400.0 * (users - 90.0) }
}

/// A queue near its capacity of 120 requests per second.
fn queue(rate: f64) -> f64 {
    if rate < 119.0 { 30.0 + 20.0 / (1.0 - rate / 120.0) } else { 5000.0 }
}

fn at_most(limit: f64) -> Constraint {
    Constraint { metric: "p95_ttft_ms".to_owned(), limit: MetricLimit::AtMost(limit) }
}

fn goal(limit: f64) -> LoadGoal {
    LoadGoal {
        limits: vec![at_most(limit)],
        good_share: None,
        probes: 6,
        lowest: None,
        highest: None,
        tiers: Vec::new(),
    }
}

fn measured(value: f64, deviation: f64) -> Outcome {
    let interval =
        Interval { low: Some(value * (1.0 - 1.96 * deviation)), high: Some(value * (1.0 + 1.96 * deviation)) };
    Outcome::Measured(Measurement {
        ttft_ms: Some(Distribution { p95: value, ..Distribution::default() }),
        confidence: [("p95_ttft_ms".to_owned(), interval)].into(),
        ..Measurement::default()
    })
}

/// The highest load by bisection, without noise.
fn truth(latency: Latency, limit: f64) -> f64 {
    let (mut low, mut high) = (1.0_f64, 4096.0_f64);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        *(if latency(middle) <= limit { &mut low } else { &mut high }) = middle;
    }
    low
}

/// Runs a search whose begin is wrong by a factor of up to 1.5. Returns the relative error and the number of probes.
fn search(latency: Latency, limit: f64, knob: LoadKnob, noise: f64, seed: u64) -> (f64, usize) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let truth = truth(latency, limit);
    let begin = truth * libm::exp(rng.random_range(-1.0..1.0) * 1.5_f64.ln());
    let goal = goal(limit);
    let range = LoadSearchRange { knob, begin, is_expected: true, lowest: 1.0, highest: 4096.0 };
    let mut search = LoadSearch::new(&goal, range, None);
    while let LoadSearchStep::Probe(load) = search.step() {
        let value = latency(load) * libm::exp(noise * normal::draw(&mut rng));
        search.record(load, 10.0, measured(value, noise));
    }
    let outcome = search.finish();
    let curve = outcome.measurement().unwrap().load_curve.as_ref().unwrap();
    (curve.highest.value / truth - 1.0, curve.probes.len())
}

/// Returns the number of searches, out of 200, with an error of at most 5 %, and the mean number of probes.
fn hits(latency: Latency, limit: f64, knob: LoadKnob, noise: f64) -> (usize, f64) {
    let runs: Vec<_> = (0..200).map(|seed| search(latency, limit, knob, noise, seed)).collect();
    let probes: usize = runs.iter().map(|(_, probes)| probes).sum();
    (runs.iter().filter(|(error, _)| error.abs() <= 0.05).count(), to_f64(probes) / 200.0)
}

#[test]
fn six_probes_find_the_highest_load_of_each_curve() {
    for (name, latency, limit, knob, noise) in [
        ("smooth", smooth as Latency, 40.0, LoadKnob::Concurrency, 0.015),
        ("cliff", cliff, 200.0, LoadKnob::Concurrency, 0.03),
        ("queue", queue, 150.0, LoadKnob::Rate, 0.05),
    ] {
        let (hits, probes) = hits(latency, limit, knob, noise);
        assert!(hits >= 195, "{name}: {hits} of 200, {probes:.2} probes");
        assert!(probes < 5.5, "{name}: {probes:.2} probes");
    }
}

/// Runs a search without noise, and returns its curve.
fn curve(goal: &LoadGoal, begin: f64, floor: Option<f64>, latency: Latency) -> LoadCurve {
    let knob = LoadKnob::Concurrency;
    let range = LoadSearchRange { knob, begin, is_expected: true, lowest: 4.0, highest: 200.0 };
    let mut search = LoadSearch::new(goal, range, floor);
    while let LoadSearchStep::Probe(load) = search.step() {
        search.record(load, 10.0, measured(latency(load), 0.005));
    }
    search.finish().measurement().unwrap().load_curve.clone().unwrap()
}

#[test]
fn the_measurement_is_that_of_the_highest_load_within_the_limits() {
    let goal = goal(40.0);
    let range =
        LoadSearchRange { knob: LoadKnob::Concurrency, begin: 60.0, is_expected: true, lowest: 4.0, highest: 200.0 };
    let mut search = LoadSearch::new(&goal, range, None);
    while let LoadSearchStep::Probe(load) = search.step() {
        let kept = search.record(load, 10.0, measured(smooth(load), 0.005));
        assert_eq!(kept, smooth(load) <= 40.0);
    }
    let outcome = search.finish();
    let measurement = outcome.measurement().unwrap();
    let p95 = measurement.metric("p95_ttft_ms").unwrap();
    assert!((36.0..=40.0).contains(&p95), "{p95}");
    let (value, interval) = (measurement.metric("load_under_slo").unwrap(), measurement.confidence["load_under_slo"]);
    assert!(
        (value - 80.0).abs() < 2.0 && interval.low < Some(80.0) && interval.high > Some(80.0),
        "{value} {interval:?}"
    );
}

#[test]
fn a_cliff_is_reported_as_one() {
    let found = curve(&goal(200.0), 80.0, None, cliff).highest;
    assert!(found.cliff && (86.0..94.0).contains(&found.value), "{found:?}");
    assert!(!curve(&goal(40.0), 60.0, None, smooth).highest.cliff);
}

#[test]
fn the_ends_of_the_range_are_bounds() {
    let found = curve(&goal(1000.0), 80.0, None, smooth).highest;
    assert_eq!((found.value, found.bound, found.high), (200.0, LoadBound::AtLeast, None));
    let found = curve(&goal(1.0), 80.0, None, smooth).highest;
    assert_eq!((found.value, found.bound, found.low), (4.0, LoadBound::Below, None));
}

#[test]
fn a_search_ends_once_its_load_cannot_reach_the_floor() {
    let whole = curve(&goal(200.0), 70.0, None, cliff);
    let lost = curve(&goal(200.0), 70.0, Some(170.0), cliff);
    assert_eq!((whole.lost_against, lost.lost_against), (None, Some(170.0)));
    assert!(lost.probes.len() < whole.probes.len(), "{lost:?}");
    assert!((70.0..105.0).contains(&lost.highest.value), "{lost:?}");
}

#[test]
fn a_failed_load_is_beyond_every_limit_and_the_only_failures_are_the_outcome() {
    let failed = || Outcome::Failed(Failure { kind: FailureKind::RequestErrors, message: "timeouts".to_owned() });
    let goal = goal(40.0);
    let range =
        LoadSearchRange { knob: LoadKnob::Concurrency, begin: 60.0, is_expected: true, lowest: 4.0, highest: 200.0 };
    let mut search = LoadSearch::new(&goal, range, None);
    while let LoadSearchStep::Probe(load) = search.step() {
        search.record(load, 10.0, if load > 50.0 { failed() } else { measured(smooth(load), 0.005) });
    }
    let outcome = search.finish();
    let found = outcome.measurement().unwrap().load_curve.as_ref().unwrap().highest;
    assert!((45.0..56.0).contains(&found.value), "{found:?}");
    let mut search = LoadSearch::new(&goal, range, None);
    while let LoadSearchStep::Probe(load) = search.step() {
        search.record(load, 10.0, failed());
    }
    assert_eq!(search.finish(), failed());
}

#[test]
fn tiers_share_the_probes() {
    let tier = SloTier { name: "relaxed".to_owned(), limits: vec![at_most(61.0)] };
    let goal = LoadGoal { probes: 8, tiers: vec![tier], ..goal(40.0) };
    let found = curve(&goal, 70.0, None, smooth);
    assert!(found.probes.len() <= 8);
    assert!((found.highest.value - 80.0).abs() < 4.0, "{found:?}");
    assert_eq!(found.tiers[0].name, "relaxed");
    assert!((found.tiers[0].highest.value - 140.0).abs() < 7.0, "{found:?}");
}

#[test]
fn a_curve_is_read_back_from_its_json() {
    let measurement =
        Measurement { load_curve: Some(curve(&goal(40.0), 60.0, None, smooth)), ..Measurement::default() };
    let json = serde_json::to_value(&measurement).unwrap();
    assert_eq!(json["load_curve"]["of"], "concurrency");
    assert!(json["load_curve"]["probes"][0]["p95_ttft_ms"].is_f64(), "{json}");
    assert_eq!(serde_json::from_value::<Measurement>(json).unwrap(), measurement);
}
