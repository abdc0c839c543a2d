//! Checks of vLLM that need an unknown fact.

use super::VLLM_RULES;
use crate::facts::{Device, EngineVersion, Gpu, ModelShape};
use crate::rule::{Facts, list_unchecked};
use crate::space::Space;

#[test]
fn each_unknown_fact_is_named_once() {
    let known = serde_json::json!({
        "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096,
        "num_hidden_layers": 4, "intermediate_size": 512, "max_position_embeddings": 4096
    });
    let version = EngineVersion::V0_32;
    let fixed = crate::config::Config::new().with("tensor-parallel-size", 2_i64);
    let parallel = Space { parameters: vec![], fixed };
    let of = |json: &serde_json::Value, device| {
        list_unchecked(&parallel, &Facts::new(VLLM_RULES, &ModelShape::from_json(json), version, device)).len()
    };
    assert_eq!(of(&known, Device::Cpu), 1, "the size of the cache");
    assert_eq!(of(&known, Device::UNKNOWN_GPU), 3);
    let gpu = Gpu { memory: Some(80 << 30), count: Some(8), capability: Some((9, 0)), a100: false, units: &[] };
    assert_eq!(of(&known, Device::Cuda(gpu)), 0);
    assert_eq!(of(&serde_json::json!({"hidden_size": -5}), Device::Cpu), 6);
}
