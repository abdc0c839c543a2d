//! Recorded results of the real vLLM 0.32.0 on a CPU for argument lists, against the rules alone.

use serde_json::{Value as Json, json};
use setpoint::engines::vllm::FLAGS;
use setpoint::engines::vllm::resolve_config;
use setpoint::facts::{Device, EngineVersion, ModelShape};
use setpoint::rule::{Facts, Severity, check};

use crate::support::recorded_cases;

/// Returns the outcome by the parser and the configuration classes. The record contains no later failures.
fn outcome(args: &[String], facts: &Facts<'_>) -> &'static str {
    let (config, errors) = FLAGS.for_version(facts.version).parse_lenient(args);
    let worst = check(&config, facts).first().map(|finding| finding.severity);
    match worst.max((!errors.is_empty()).then_some(Severity::Arguments)) {
        Some(Severity::Arguments) => "argparse_exit_2",
        Some(Severity::Configuration) => "config_error_exit_1",
        _ => "accepted",
    }
}

#[test]
fn every_recorded_case_gets_its_verdict_and_its_values() {
    let record: Json = serde_json::from_str(&recorded_cases()).unwrap();
    let about = &record["model"];
    let model = ModelShape::from_json(&json!({
        "architectures": [about["architecture"]], "model_type": "qwen2", "hidden_size": about["hidden"],
        "num_hidden_layers": about["layers"], "num_attention_heads": about["attention_heads"],
        "num_key_value_heads": about["kv_heads"], "head_dim": about["head_dim"], "vocab_size": about["vocab"],
        "max_position_embeddings": about["max_position_embeddings"], "dtype": about["dtype"], "intermediate_size": 1024,
    }));
    let facts = Facts::new(setpoint::engines::vllm::VLLM_RULES, &model, EngineVersion::new(0, 32, 0), Device::Cpu);
    let cases = record["cases"].as_array().unwrap();
    assert!(cases.len() >= 80, "{}", cases.len());
    for case in cases {
        let args: Vec<String> = serde_json::from_value(case["args"].clone()).unwrap();
        assert_eq!(outcome(&args, &facts), case["outcome"], "{args:?}");
        if case["outcome"] == "accepted" {
            let config = FLAGS.for_version(facts.version).parse(&args).unwrap();
            let effective = resolve_config(&config, &facts);
            let resolved = &case["resolved"];
            assert_eq!(effective.max_num_batched_tokens, resolved["max_num_batched_tokens"], "{args:?}");
            assert_eq!(effective.max_num_seqs, resolved["max_num_seqs"], "{args:?}");
            assert_eq!(effective.max_model_len, resolved["max_model_len"], "{args:?}");
            assert_eq!(effective.chunked_prefill, resolved["chunked_prefill"], "{args:?}");
            assert_eq!(effective.prefix_caching, resolved["prefix_caching"], "{args:?}");
            assert_eq!(effective.block_size, resolved["block_size"], "{args:?}");
        }
    }
}
