//! Configurations that vLLM's rules remove from spaces.

use super::VLLM_RULES;
use crate::config::Config;
use crate::facts::{Device, EngineVersion, ModelShape};
use crate::rule::{Facts, SAMPLED, Severity, SpaceRemoval, removal};
use crate::space::{Domain, IntScale, Parameter, Space};

fn parameter(name: &str, domain: Domain) -> Parameter {
    Parameter { name: name.to_owned(), domain, conditions: vec![], help: None }
}

fn of(space: &Space, arguments: &Config) -> SpaceRemoval {
    let model = ModelShape::from_json(&serde_json::json!({"max_position_embeddings": 4096}));
    removal(space, arguments, &Facts::new(VLLM_RULES, &model, EngineVersion::V0_32, Device::UNKNOWN_GPU))
}

#[test]
fn a_small_space_is_counted_whole_with_the_rules_that_remove_something() {
    let space = Space {
        parameters: vec![
            parameter("max-num-seqs", Domain::int(64, 256, IntScale::PowerOfTwo, 1)),
            parameter("max-num-batched-tokens", Domain::int(64, 256, IntScale::PowerOfTwo, 1)),
        ],
        fixed: Config::new(),
    };
    let removal = of(&space, &Config::new());
    assert_eq!((removal.configurations, removal.complete, removal.remaining), (9, true, 6));
    assert_eq!((removal.rules[0].rule, removal.rules[0].configurations), ("R2", 3));
    assert_eq!(removal.rules[0].condition, "the token budget holds one token of every sequence");
    let example = &removal.rules[0].config;
    assert_eq!((example.get_i64("max-num-seqs"), example.get_i64("max-num-batched-tokens")), (Some(128), Some(64)));
    // Without chunked prefill, no budget in the space covers the model's length.
    let nothing = of(&space, &Config::new().with("enable-chunked-prefill", false));
    assert_eq!((nothing.remaining, nothing.rules[0].rule), (0, "R1"));
}

#[test]
fn an_endless_space_is_sampled_and_the_sample_is_always_the_same() {
    let parameters = vec![parameter("gpu-memory-utilization", Domain::Float { low: 0.5, high: 1.5, log: false })];
    let space = Space { parameters, fixed: Config::new() };
    let removal = of(&space, &Config::new());
    assert!((removal.configurations, removal.complete) == (SAMPLED, false));
    assert!((0.48..0.52).contains(&removal.remaining_share()), "{}", removal.remaining_share());
    assert_eq!(removal, of(&space, &Config::new()));
}

#[test]
fn the_example_of_a_late_rule_is_a_configuration_that_the_engine_would_not_refuse_before() {
    let choices = |values: &[i64]| Domain::Categorical(values.iter().map(|value| (*value).into()).collect());
    let space = Space {
        parameters: vec![
            parameter("block-size", choices(&[24, 16])),
            parameter("max-num-seqs", choices(&[4096, 64])),
            parameter("max-num-batched-tokens", choices(&[2048])),
        ],
        fixed: Config::new(),
    };
    let removal = of(&space, &Config::new());
    let late = removal.rules.iter().find(|removed| removed.rule == "R15a").unwrap();
    assert_eq!((late.severity, late.configurations), (Severity::Startup, 2));
    assert_eq!(late.config.get_i64("max-num-seqs"), Some(64), "4096 sequences are refused by R2");
}
