//! Ranges that vLLM's rules narrow.

use super::VLLM_RULES;
use crate::config::{Config, Value};
use crate::facts::{Device, EngineVersion, Gpu, ModelShape};
use crate::rule::{Facts, narrow};
use crate::space::{Condition, Domain, IntScale, Parameter, Space};

fn parameter(name: &str, domain: Domain) -> Parameter {
    Parameter { name: name.to_owned(), domain, conditions: vec![], help: None }
}

/// Returns the remaining values of each parameter, as text, on a model with 4 heads, 2 KV heads and length 4096.
fn narrowed(version: (u32, u32, u32), parameters: Vec<Parameter>, fixed: Config) -> Vec<String> {
    let model = ModelShape::from_json(&serde_json::json!({
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 4096, "vocab_size": 4096, "intermediate_size": 512
    }));
    let version = EngineVersion::new(version.0, version.1, version.2);
    let facts = Facts::new(VLLM_RULES, &model, version, Device::Cuda(Gpu { memory: Some(80 << 30), ..Gpu::default() }));
    let (space, changes) = narrow(&Space { parameters, fixed }, &Config::new(), &facts);
    let text = |parameter: &Parameter| {
        let change = changes.iter().find(|change| change.parameter == parameter.name);
        let rules: Vec<_> = change.into_iter().flat_map(|c| c.reasons.iter().map(|(rule, _)| *rule)).collect();
        format!("{} {}", parameter.domain, rules.join(",")).trim_end().to_owned()
    };
    space.parameters.iter().map(text).collect()
}

const NEW: (u32, u32, u32) = (0, 32, 0);

#[test]
fn values_that_the_model_or_the_kernel_refuses_are_dropped_with_the_rule() {
    let parallel = Domain::int(1, 16, IntScale::PowerOfTwo, 1);
    let length = Domain::int(1, 100_000, IntScale::Log, 1);
    let blocks = Domain::Categorical([8_i64, 16, 24, 32].map(Value::Int).to_vec());
    let share = Domain::Float { low: 0.5, high: 1.2, log: false };
    for (name, domain, expected) in [
        ("tensor-parallel-size", parallel, "1 to 4, powers of two R8"),
        ("max-model-len", length, "1 to 4096, logarithmic R11"),
        ("block-size", blocks, "16, 32 R15a"),
        ("gpu-memory-utilization", share, "0.5 to 0.996 R4a,R5b"),
        ("enable-prefix-caching", Domain::Bool, "true or false"),
    ] {
        assert_eq!(narrowed(NEW, vec![parameter(name, domain)], Config::new()), [expected], "{name}");
    }
}

#[test]
fn a_value_stays_as_long_as_one_value_of_another_parameter_makes_it_valid() {
    let sequences = |high| parameter("max-num-seqs", Domain::int(1, high, IntScale::Linear, 1));
    let tokens = |low, high| parameter("max-num-batched-tokens", Domain::int(low, high, IntScale::Log, 1));
    let both = narrowed(NEW, vec![sequences(100_000), tokens(2, 5000)], Config::new());
    assert_eq!(both, ["1 to 5000 R2", "2 to 5000, logarithmic"]);
    let chunked = parameter("enable-chunked-prefill", Domain::Bool);
    let short = narrowed(NEW, vec![chunked.clone(), tokens(2, 4095)], Config::new());
    assert_eq!(short, ["true R1", "2 to 4095, logarithmic"]);
    let long = narrowed(NEW, vec![chunked, tokens(2, 4096)], Config::new());
    assert_eq!(long, ["true or false", "2 to 4096, logarithmic"]);
}

#[test]
fn a_parameter_without_a_usable_value_stays_and_a_conditional_one_counts_only_while_active() {
    let hopeless = narrowed(NEW, vec![parameter("block-size", Domain::int(8, 8, IntScale::Linear, 1))], Config::new());
    assert_eq!(hopeless, ["8 to 8"]);
    let when = vec![Condition { parameter: "enable-chunked-prefill".to_owned(), values: vec![Value::Bool(false)] }];
    let tokens = Domain::int(1, 8192, IntScale::PowerOfTwo, 1);
    let child = Parameter { conditions: when, ..parameter("max-num-batched-tokens", tokens) };
    let space = vec![parameter("enable-chunked-prefill", Domain::Bool), child];
    assert_eq!(narrowed(NEW, space, Config::new()), ["true or false", "4096 to 8192, powers of two R1"]);
}
