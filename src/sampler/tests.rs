//! Conformance tests of all samplers.
//!
//! A model-based sampler takes tens of milliseconds for a suggestion, and ten times that without optimization. Tests
//! therefore ask for few suggestions if their number does not matter.

mod history;
mod spaces;

use std::collections::HashSet;

use super::*;
use crate::config::{Config, Value};
use crate::objective::Goal;
use crate::space::{Condition, Domain, IntScale, Parameter, Space};

fn parameter(name: &str, domain: Domain, when: Vec<Condition>) -> Parameter {
    Parameter { name: name.to_owned(), domain, conditions: when, help: None }
}

fn aim() -> SearchAim {
    let target = ObjectiveTarget { name: "output_throughput".to_owned(), goal: Goal::Maximize };
    SearchAim { objectives: vec![target], constraints: Vec::new() }
}

fn finite_space() -> Space {
    let when = vec![Condition { parameter: "a".to_owned(), values: vec![Value::Bool(true)] }];
    let parameters = vec![
        parameter("a", Domain::Bool, vec![]),
        parameter("b", Domain::int(1, 8, IntScale::Linear, 1), when),
        parameter("c", Domain::int(1, 16, IntScale::PowerOfTwo, 1), vec![]),
    ];
    Space { parameters, fixed: Config::new().with("z", 1_i64) }
}

fn endless_space() -> Space {
    let parameters = vec![parameter("x", Domain::Float { low: 0.0, high: 1e6, log: false }, vec![])];
    Space { parameters, fixed: Config::new() }
}

/// Numbers of every scale, choices, a switch and parameters that depend on it.
fn mixed_space() -> Space {
    let when = |parent: &str, value: Value| vec![Condition { parameter: parent.to_owned(), values: vec![value] }];
    let parameters = vec![
        parameter("backend", Domain::Categorical(["flash", "triton", "none"].map(Value::from).into()), vec![]),
        parameter("blocks", Domain::int(1, 64, IntScale::PowerOfTwo, 1), when("backend", Value::from("flash"))),
        parameter("chunked", Domain::Bool, vec![]),
        parameter("delay", Domain::Float { low: 0.0, high: 2.0, log: false }, vec![]),
        parameter("seqs", Domain::int(8, 1024, IntScale::Log, 8), vec![]),
        parameter("share", Domain::Float { low: 0.01, high: 1.0, log: true }, vec![]),
        parameter("steps", Domain::int(1, 7, IntScale::Linear, 1), when("chunked", Value::Bool(true))),
    ];
    Space { parameters, fixed: Config::new().with("z", 1_i64) }
}

/// Returns whether this is a value of the domain.
fn is_value(domain: &Domain, value: &Value) -> bool {
    match (domain, value) {
        (Domain::Bool, Value::Bool(_)) => true,
        (Domain::Categorical(values), value) => values.contains(value),
        (Domain::Int { low, high, scale, multiple_of }, Value::Int(value)) => {
            let is_power = *scale != IntScale::PowerOfTwo || value.count_ones() == 1;
            (low..=high).contains(&value) && value % multiple_of == 0 && is_power
        }
        (Domain::Float { low, high, .. }, Value::Float(value)) => (low..=high).contains(&value),
        _ => false,
    }
}

/// Returns the first fault of a suggestion, independent of the sampler.
fn complaint(ask: &SamplerAsk<'_>, suggestion: &Suggestion) -> Option<String> {
    let config = &suggestion.config;
    let mut expected = ask.space.fixed.clone();
    for parameter in &ask.space.parameters {
        // Parents come first, so the conditions can be checked in order.
        let holds = |on: &Condition| expected.get(&on.parameter).is_some_and(|value| on.values.contains(value));
        match (parameter.conditions.iter().all(holds), config.get(&parameter.name)) {
            (true, Some(value)) if is_value(&parameter.domain, value) => {
                expected.set(parameter.name.clone(), value.clone());
            }
            (true, found) => return Some(format!("{} is {found:?} in {config}", parameter.name)),
            (false, _) => {}
        }
    }
    if *config != expected {
        return Some(format!("{config} should be {expected}"));
    }
    if ask.history.iter().any(|past| past.config.key() == config.key()) {
        return Some(format!("{config} was proposed before"));
    }
    if !(ask.allowed)(config) {
        return Some(format!("{config} is not allowed"));
    }
    (suggestion.why.is_empty() || suggestion.why.contains('\n')).then(|| format!("{:?} is no reason", suggestion.why))
}

fn run(sampler: &dyn Sampler, space: &Space, seed: u64, most: usize) -> Vec<PastTrial> {
    run_allowed(sampler, space, seed, most, &|_| true)
}

fn run_allowed(
    sampler: &dyn Sampler,
    space: &Space,
    seed: u64,
    most: usize,
    allowed: &dyn Fn(&Config) -> bool,
) -> Vec<PastTrial> {
    let mut history = Vec::new();
    while history.len() < most {
        let Some((by, suggestion)) = next(sampler, &SamplerAsk::new(space, &aim(), &history, seed, allowed)) else {
            break;
        };
        history.push(PastTrial::new(by, suggestion.config, KnownOutcome::Pending));
    }
    history
}

#[test]
fn the_engines_defaults_come_first() {
    for sampler in SAMPLERS {
        let first = run(sampler, &finite_space(), 1, 1);
        assert_eq!((&first[0].origin, &first[0].config), (&Origin::Baseline, &finite_space().fixed));
    }
}

#[test]
fn a_finite_space_is_used_up_exactly_and_nothing_is_proposed_twice() {
    let expected: HashSet<_> = finite_space().enumerate(1000).unwrap().iter().map(Config::key).collect();
    for sampler in SAMPLERS {
        let history = run(sampler, &finite_space(), 3, 1000);
        let proposed: HashSet<_> = history.iter().skip(1).map(|past| past.config.key()).collect();
        assert_eq!(proposed, expected, "{}", sampler.name());
        assert_eq!(history.len(), expected.len() + 1, "{}", sampler.name());
    }
}

#[test]
fn seed_and_history_decide_the_next_configuration() {
    for sampler in SAMPLERS {
        let keys = |seed| -> Vec<_> {
            run(sampler, &endless_space(), seed, 20).iter().map(|past| past.config.key()).collect()
        };
        assert_eq!(keys(5), keys(5), "{}", sampler.name());
        assert_ne!(keys(5), keys(6), "{}", sampler.name());
    }
}

#[test]
fn a_resumed_study_gets_the_same_proposals() {
    for sampler in SAMPLERS {
        let whole = run(sampler, &endless_space(), 9, 12);
        let space = endless_space();
        let aim = aim();
        let ask = SamplerAsk::new(&space, &aim, &whole[..7], 9, &|_| true);
        let (_, resumed) = next(sampler, &ask).unwrap();
        assert_eq!(resumed.config, whole[7].config, "{}", sampler.name());
    }
}

#[test]
fn refused_configurations_are_never_proposed_and_a_finite_space_is_still_exhausted() {
    let allowed = |config: &Config| config.get_i64("b").is_none_or(|b| b == 5);
    let whole = finite_space().enumerate(1000).unwrap();
    let expected: HashSet<_> = whole.iter().filter(|config| allowed(config)).map(Config::key).collect();
    for sampler in SAMPLERS {
        let history = run_allowed(sampler, &finite_space(), 3, 1000, &allowed);
        let proposed: HashSet<_> = history.iter().skip(1).map(|past| past.config.key()).collect();
        assert_eq!(proposed, expected, "{}", sampler.name());
        assert_eq!(history.len(), expected.len() + 1, "{}", sampler.name());
    }
}

#[test]
fn one_allowed_point_in_a_thousand_is_found_and_the_walk_can_be_resumed() {
    let allowed = |config: &Config| config.get_f64("x").is_some_and(|x| x < 1e3);
    for sampler in SAMPLERS {
        let whole = run_allowed(sampler, &endless_space(), 9, 12, &allowed);
        assert_eq!(whole.len(), 12, "{}", sampler.name());
        assert!(whole.iter().skip(1).all(|past| allowed(&past.config)), "{}", sampler.name());
        let space = endless_space();
        let aim = aim();
        let ask = SamplerAsk::new(&space, &aim, &whole[..7], 9, &allowed);
        assert_eq!(next(sampler, &ask).unwrap().1.config, whole[7].config, "{}", sampler.name());
    }
}

#[test]
fn a_space_without_an_allowed_configuration_ends_after_the_baseline() {
    for sampler in SAMPLERS {
        for space in [finite_space(), endless_space()] {
            assert_eq!(run_allowed(sampler, &space, 0, 10, &|_| false).len(), 1, "{}", sampler.name());
        }
    }
}

#[test]
fn a_space_without_parameters_ends_after_the_baseline() {
    let space = Space { parameters: vec![], fixed: Config::new().with("z", 1_i64) };
    for sampler in SAMPLERS {
        assert_eq!(run(sampler, &space, 0, 10).len(), 1, "{}", sampler.name());
    }
}

#[test]
fn names_are_different_and_each_is_found() {
    let names: HashSet<_> = SAMPLERS.iter().map(|sampler| sampler.name()).collect();
    assert_eq!(names.len(), SAMPLERS.len());
    for name in names {
        assert_eq!(find(name).map(Sampler::name), Some(name));
    }
}

#[test]
fn a_space_of_one_point_has_one_suggestion() {
    let one = Value::Int(3);
    let parameters = vec![
        parameter("a", Domain::Categorical(vec![one.clone()]), vec![]),
        parameter(
            "b",
            Domain::int(5, 5, IntScale::Log, 5),
            vec![Condition { parameter: "a".to_owned(), values: vec![one] }],
        ),
        parameter("c", Domain::Float { low: 0.5, high: 0.5, log: true }, vec![]),
        parameter("d", Domain::int(64, 64, IntScale::PowerOfTwo, 1), vec![]),
    ];
    let space = Space { parameters, fixed: Config::new() };
    for sampler in SAMPLERS {
        let history = run(sampler, &space, 4, 10);
        let only = Config::new().with("a", 3_i64).with("b", 5_i64).with("c", 0.5).with("d", 64_i64);
        assert_eq!(history.iter().skip(1).map(|past| &past.config).collect::<Vec<_>>(), [&only], "{}", sampler.name());
    }
}

#[test]
fn a_finite_space_is_exhausted_for_any_measurements() {
    let when = vec![Condition { parameter: "a".to_owned(), values: vec![Value::Bool(true)] }];
    let parameters = vec![
        parameter("a", Domain::Bool, vec![]),
        parameter("b", Domain::int(1, 3, IntScale::Linear, 1), when),
        parameter("c", Domain::int(1, 4, IntScale::PowerOfTwo, 1), vec![]),
    ];
    let space = Space { parameters, fixed: Config::new() };
    for sampler in SAMPLERS {
        let mut history = Vec::new();
        // (1 + 3) * 3 configurations besides the engine's defaults.
        for number in 0..13 {
            let aim = aim();
            let ask = SamplerAsk::new(&space, &aim, &history, 2, &|_| true);
            let (by, suggestion) = next(sampler, &ask).unwrap_or_else(|| panic!("{} ends", sampler.name()));
            assert_eq!(if number > 0 { complaint(&ask, &suggestion) } else { None }, None, "{}", sampler.name());
            let values = vec![NumberReading::exact(f64::from(number % 4))];
            let known = match number % 3 {
                0 => KnownOutcome::Failed,
                _ => KnownOutcome::Measured(MeasuredNumbers { values, excesses: Vec::new() }),
            };
            history.push(PastTrial::new(by, suggestion.config, known));
        }
        assert_eq!(next(sampler, &SamplerAsk::new(&space, &aim(), &history, 2, &|_| true)), None, "{}", sampler.name());
    }
}
