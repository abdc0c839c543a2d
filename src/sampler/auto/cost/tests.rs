//! Searches with known costs of trials, and the costs that they expect.

use super::*;
use crate::config::Value;
use crate::objective::Goal;
use crate::sampler::auto::Auto;
use crate::sampler::{MeasuredNumbers, NumberReading, ObjectiveTarget, Sampler, SearchAim};
use crate::space::{Domain, Parameter, Space};

/// Two sides, and a number.
fn space() -> Space {
    let parameter =
        |name: &str, domain| Parameter { name: name.to_owned(), domain, conditions: Vec::new(), help: None };
    let parameters = vec![
        parameter("side", Domain::Categorical(["left", "right"].map(Value::from).into())),
        parameter("x", Domain::Float { low: 0.0, high: 1.0, log: false }),
    ];
    Space { parameters, fixed: Config::new() }
}

fn aim() -> SearchAim {
    let target = ObjectiveTarget { name: "speed".to_owned(), goal: Goal::Maximize };
    SearchAim { objectives: vec![target], constraints: Vec::new() }
}

fn x(config: &Config) -> f64 {
    config.get_f64("x").unwrap()
}

fn is_left(config: &Config) -> bool {
    config.get_str("side") == Some("left")
}

/// Returns a value that does not depend on the side. It is best at 0.3 and has a second, lower hill.
fn speed(config: &Config) -> f64 {
    let hill = |at: f64, width: f64| libm::exp(-((x(config) - at) / width).powi(2));
    100.0 + 50.0 * hill(0.3, 0.1) + 30.0 * hill(0.8, 0.15)
}

fn serves(config: &Config) -> KnownOutcome {
    KnownOutcome::Measured(MeasuredNumbers { values: vec![NumberReading::exact(speed(config))], excesses: Vec::new() })
}

/// Returns the trials of a search with these outcomes and costs.
fn search(
    trials: usize,
    seed: u64,
    known: impl Fn(&Config) -> KnownOutcome,
    cost: impl Fn(&Config) -> Option<f64>,
) -> Vec<PastTrial> {
    let (space, aim, mut history) = (space(), aim(), Vec::new());
    while history.len() < trials {
        let config = Auto.ask(&SamplerAsk::new(&space, &aim, &history, seed, &|_| true)).unwrap().config;
        let (known, cost) = (known(&config), cost(&config));
        history.push(PastTrial { cost, ..PastTrial::new("auto", config, known) });
    }
    history
}

fn configs(history: &[PastTrial]) -> Vec<String> {
    history.iter().map(|past| past.config.to_string()).collect()
}

#[test]
fn uninformative_costs_change_nothing() {
    let known = |config: &Config| if x(config) > 0.9 { KnownOutcome::Failed } else { serves(config) };
    let without = search(14, 3, known, |_| None);
    assert!(without.iter().any(|past| past.outcome == KnownOutcome::Failed));
    assert_eq!(configs(&search(14, 3, known, |_| Some(7.5))), configs(&without), "all cost the same");
    let cheap_failures = |config: &Config| Some(if x(config) > 0.9 { 0.1 } else { 7.5 });
    assert_eq!(configs(&search(14, 3, known, cheap_failures)), configs(&without));
    let senseless = |config: &Config| match x(config) {
        x if x < 0.2 => Some(f64::NAN),
        x if x < 0.4 => Some(0.0),
        x if x < 0.6 => Some(-3.0),
        x if x < 0.8 => Some(f64::INFINITY),
        _ => None,
    };
    assert_eq!(configs(&search(14, 3, known, senseless)), configs(&without));
    let different = |config: &Config| Some(if is_left(config) { 1.0 } else { 9.0 });
    assert_ne!(configs(&search(14, 3, known, different)), configs(&without));
}

/// Returns the number of a search's trials on the left, where each costs `factor` times as much. The search learns the
/// cost from the trials if `is_told`; otherwise it is given the cost function.
fn left_of(seed: u64, factor: f64, is_told: bool) -> usize {
    let cost = |config: &Config| if is_left(config) { factor } else { 1.0 };
    let (space, aim, mut history) = (space(), aim(), Vec::new());
    while history.len() < 24 {
        let ask = SamplerAsk::new(&space, &aim, &history, seed, &|_| true);
        let said: Option<&dyn Fn(&Config) -> f64> = if is_told { None } else { Some(&cost) };
        let config = Auto.ask(&SamplerAsk { cost: said, ..ask }).unwrap().config;
        let cost = is_told.then(|| cost(&config));
        history.push(PastTrial { cost, ..PastTrial::new("auto", config.clone(), serves(&config)) });
    }
    // The first suggestions, before the models are used, do not depend on costs.
    history[5..].iter().filter(|past| is_left(&past.config)).count()
}

#[test]
fn the_cheaper_of_two_equal_sides_is_tried_more_often() {
    for is_told in [true, false] {
        let of = |factor: f64| (0..2).map(|seed| left_of(seed, factor, is_told)).sum::<usize>();
        let (cheap, dear) = (of(0.25), of(4.0));
        assert!(2 * cheap > 3 * dear, "{cheap} where it is cheap, {dear} where it is dear; told: {is_told}");
    }
}

#[test]
fn useless_cheap_trials_do_not_displace_the_best() {
    // The best configuration costs a hundred times as much as those farthest from it.
    let cost = |config: &Config| Some(libm::exp(4.6 * (1.0 - (x(config) - 0.3).abs() / 0.7)));
    for seed in 0..2 {
        let history = search(20, seed, serves, cost);
        let best = history.iter().map(|past| speed(&past.config)).fold(0.0, f64::max);
        assert!(best > 147.0, "{best} with seed {seed}: {:?}", configs(&history));
    }
}

#[test]
fn expected_costs_stay_within_the_observed_range() {
    let (space, aim) = (space(), aim());
    let config = |x: f64| Config::new().with("side", "left").with("x", x);
    let past = |x: f64| PastTrial {
        cost: Some(10.0 * libm::exp(-8.0 * x)),
        ..PastTrial::new("auto", config(x), serves(&config(x)))
    };
    let history: Vec<_> = (3..7_u8).map(|at| past(f64::from(at) / 10.0)).collect();
    let defaults = Config::new();
    let encoding = Encoding::new(&space, &defaults);
    let allowed = |_: &Config| true;
    let cost = ExpectedCost::of(&SamplerAsk::new(&space, &aim, &history, 1, &allowed), &encoding);
    let at = |x: f64| libm::exp(cost.log(&encoding.point(&config(x)).unwrap(), &config(x)));
    let told = history.iter().filter_map(|past| past.cost);
    let (least, most) = told.fold((f64::MAX, 0.0_f64), |(least, most), cost| (least.min(cost), most.max(cost)));
    for step in 0..=20 {
        let cost = at(f64::from(step) / 20.0);
        assert!((0.999 * least..=1.001 * most).contains(&cost), "{cost} at {step}");
    }
    assert!(at(0.35) > 2.0 * at(0.55), "{} {}", at(0.35), at(0.55));
}
