//! Tests of the estimator beyond the tests of all samplers: it learns.

use super::*;
use crate::config::{Config, Value};
use crate::objective::Goal;
use crate::sampler::{KnownOutcome, MeasuredNumbers, NumberReading, ObjectiveTarget, PastTrial, SearchAim};
use crate::space::{Condition, Domain, IntScale, Parameter, Space};

fn space() -> Space {
    let parameter =
        |name: &str, domain, when| Parameter { name: name.to_owned(), domain, conditions: when, help: None };
    let fast = vec![Condition { parameter: "mode".to_owned(), values: vec![Value::from("fast")] }];
    let parameters = vec![
        parameter("mode", Domain::Categorical(["fast", "slow", "off"].map(Value::from).into()), vec![]),
        parameter("x", Domain::Float { low: 0.0, high: 1.0, log: false }, vec![]),
        parameter("n", Domain::int(1, 1024, IntScale::PowerOfTwo, 1), fast),
    ];
    Space { parameters, fixed: Config::new() }
}

/// Returns 0, the best value, at `mode=fast`, `n=64` and `x=0.3`. An `x` above 0.8 is infeasible, and `mode=off` fails.
fn measure(config: &Config) -> KnownOutcome {
    let x = config.get_f64("x").unwrap_or(0.5);
    let n = match config.get_str("mode") {
        Some("off") => return KnownOutcome::Failed,
        Some("fast") => config.get_f64("n").map_or(3.0, |n| (n.log2() - 6.0).abs() / 5.0),
        _ => 3.0,
    };
    let values = vec![NumberReading::exact(n + (x - 0.3).abs() * 4.0)];
    KnownOutcome::Measured(MeasuredNumbers { values, excesses: vec![NumberReading::exact(x - 0.8)] })
}

fn aim() -> SearchAim {
    let target = ObjectiveTarget { name: "loss".to_owned(), goal: Goal::Minimize };
    SearchAim { objectives: vec![target], constraints: vec!["x".to_owned()] }
}

fn study(sampler: &dyn Sampler, seed: u64, trials: usize) -> Vec<PastTrial> {
    let (space, aim) = (space(), aim());
    let mut history: Vec<PastTrial> = Vec::new();
    while history.len() < trials {
        let suggestion = sampler.ask(&SamplerAsk::new(&space, &aim, &history, seed, &|_| true)).unwrap();
        let known = measure(&suggestion.config);
        history.push(PastTrial::new(sampler.name(), suggestion.config, known));
    }
    history
}

fn least(history: &[PastTrial]) -> f64 {
    let values = history.iter().filter_map(PastTrial::measured).filter(|measured| measured.is_feasible());
    values.map(|measured| measured.values[0].value).fold(f64::INFINITY, f64::min)
}

#[test]
fn it_finds_better_points_than_random_sampling() {
    let seeds = 0..8;
    let sum = |sampler: &dyn Sampler| seeds.clone().map(|seed| least(&study(sampler, seed, 60))).sum::<f64>();
    let (learnt, random) = (sum(&Tpe), sum(&random::RandomSampler));
    assert!(learnt < 0.5 * random, "{learnt} is not half of {random}");
}

#[test]
fn failures_become_rare_and_the_limit_is_kept() {
    for seed in 0..4 {
        let history = study(&Tpe, seed, 60);
        let late = &history[30..];
        let failed = late.iter().filter(|past| past.outcome == KnownOutcome::Failed).count();
        let beyond = late.iter().filter_map(PastTrial::measured).filter(|measured| !measured.is_feasible()).count();
        // A third of the space does not start, and a fifth of the rest is infeasible.
        assert!(failed <= 5 && beyond <= 5, "{failed} failed and {beyond} beyond the limit with seed {seed}");
    }
}

#[test]
fn the_reason_contains_the_number_of_trials() {
    let (space, aim) = (space(), aim());
    let history = study(&Tpe, 2, 25);
    let why = |history: &[PastTrial]| Tpe.ask(&SamplerAsk::new(&space, &aim, history, 2, &|_| true)).unwrap().why;
    assert_eq!(
        why(&history[..5]),
        "uniform random point: too few trials for a model, or it found no new allowed configuration"
    );
    assert!(
        why(&history).ends_with(" times as common among the best 3 of 25 as among the others"),
        "{}",
        why(&history)
    );
}
