//! Tests of the grid beyond the tests that are common to all samplers.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::config::{Config, Value};
use crate::sampler::{KnownOutcome, PastTrial, SearchAim};
use crate::space::{Condition, Domain, IntScale, Parameter, Space};

fn parameter(name: &str, domain: Domain, when: Vec<Condition>) -> Parameter {
    Parameter { name: name.to_owned(), domain, conditions: when, help: None }
}

fn numbers(count: usize) -> Space {
    let domain = Domain::Float { low: 0.0, high: 1.0, log: false };
    let parameters = (0..count).map(|index| parameter(&format!("p{index:02}"), domain.clone(), vec![])).collect();
    Space { parameters, fixed: Config::new() }
}

fn walk(space: &Space, seed: u64, most: usize) -> Vec<Config> {
    let mut history: Vec<PastTrial> = Vec::new();
    let aim = SearchAim::default();
    while history.len() < most
        && let Some(suggestion) = GridSampler.ask(&SamplerAsk::new(space, &aim, &history, seed, &|_| true))
    {
        history.push(PastTrial::new("grid", suggestion.config, KnownOutcome::Pending));
    }
    history.into_iter().map(|past| past.config).collect()
}

#[test]
fn a_number_has_its_ends_first_then_its_middle_then_the_quarters() {
    let space = numbers(1);
    let values: Vec<_> = walk(&space, 1, 9).iter().filter_map(|config| config.get_f64("p00")).collect();
    let sorted = |part: &[f64]| {
        let mut part = part.to_vec();
        part.sort_by(f64::total_cmp);
        part
    };
    assert_eq!(sorted(&values[..2]), [0.0, 1.0]);
    assert_eq!(sorted(&values[2..3]), [0.5]);
    assert_eq!(sorted(&values[3..5]), [0.25, 0.75]);
    assert_eq!(sorted(&values[5..]), [0.125, 0.375, 0.625, 0.875]);
}

#[test]
fn levels_follow_the_scale_of_a_number_and_all_choices_are_there_at_once() {
    let values = |domain: Domain, refinement| Levels::new(&domain, refinement, LAST).values;
    let ints = |numbers: &[i64]| numbers.iter().copied().map(Value::Int).collect::<Vec<_>>();
    assert_eq!(values(Domain::int(1, 1024, IntScale::PowerOfTwo, 1), 1), ints(&[1, 32, 1024]));
    assert_eq!(values(Domain::int(64, 640, IntScale::Linear, 64), 0), ints(&[64, 640]));
    assert_eq!(values(Domain::int(1, 3, IntScale::Linear, 1), 9), ints(&[1, 2, 3]));
    assert_eq!(values(Domain::int(1, 9999, IntScale::Log, 1), 1), ints(&[1, 100, 9999]));
    assert_eq!(values(Domain::Categorical(ints(&[5, 3, 4])), 0), ints(&[5, 3, 4]));
}

#[test]
fn the_first_points_of_a_large_grid_are_not_all_in_one_corner() {
    // 2^12 combinations in the first refinement. In 64 of them each end of each parameter is expected 32 times.
    let configs = walk(&numbers(12), 5, 64);
    for index in 0..12 {
        let high = configs.iter().filter(|config| config.get_f64(&format!("p{index:02}")) == Some(1.0)).count();
        assert!((16..=48).contains(&high), "p{index:02} is high {high} times of 64");
    }
}

#[test]
fn a_space_too_large_to_be_numbered_is_as_fast_as_a_small_one() {
    // 2^40 combinations in the first refinement, and 2^200, which does not fit into a `u64`.
    for count in [40, 200] {
        let configs = walk(&numbers(count), 3, 20);
        let distinct: HashSet<_> = configs.iter().map(Config::key).collect();
        assert_eq!((configs.len(), distinct.len()), (20, 20));
    }
}

#[test]
fn inactive_parameters_do_not_multiply_the_points() {
    // Each of ten choices has three numbers of its own: 9^30 combinations. The first refinement has 10 * 8 distinct
    // ones.
    let choices: Vec<_> = (0..10_i64).map(Value::Int).collect();
    let mut parameters = vec![parameter("kind", Domain::Categorical(choices.clone()), vec![])];
    for choice in &choices {
        for index in 0..3 {
            let when = vec![Condition { parameter: "kind".to_owned(), values: vec![choice.clone()] }];
            let domain = Domain::Float { low: 0.0, high: 1.0, log: false };
            parameters.push(parameter(&format!("p{choice}{index}"), domain, when));
        }
    }
    let space = Space { parameters, fixed: Config::new() };
    let levels: Vec<_> = space.parameters.iter().map(|parameter| Levels::new(&parameter.domain, 0, LAST)).collect();
    assert_eq!(GridTree::new(&space, &levels).count(), Some(80));
    let ends = |config: &Config| config.iter().all(|(name, value)| name == "kind" || value.as_f64() != Some(0.5));
    let configs = walk(&space, 3, 100);
    assert!(configs[..80].iter().all(ends));
    assert!(!configs[80..].iter().any(ends));
}

#[test]
fn a_finite_space_includes_values_between_the_levels() {
    let space =
        Space { parameters: vec![parameter("n", Domain::int(1, 200, IntScale::Log, 1), vec![])], fixed: Config::new() };
    let values: HashSet<_> = walk(&space, 3, 1000).iter().filter_map(|config| config.get_i64("n")).collect();
    assert_eq!(values.len(), 200);
}

proptest! {
    #[test]
    fn a_shuffle_is_a_permutation(count in 1..2000_u64, seed: u64, stream in 0..20_u64) {
        let shuffle = Shuffle::new(count, seed, stream);
        let numbers: HashSet<_> = (0..count).map(|place| shuffle.at(place)).collect();
        prop_assert_eq!(numbers.len() as u64, count);
        prop_assert!(numbers.iter().all(|number| *number < count));
    }
}
