//! All code that reads a model's shape, run on any `config.json`. None of it may panic.

use setpoint::config::{Config, ResolvedConfig};
use setpoint::engines::vllm::{memory_launch, resolve_config};
use setpoint::facts::{Device, EngineVersion, ModelShape};
use setpoint::rule::{self, Facts};
use setpoint::space::SpaceFile;
use setpoint::twin::{DevicePreset, Settings, StepTime, plan_memory};

/// Expressions over every fact of a model.
const SPACE: &str = r#"
description = "every fact"
engine = "vllm"
[parameters.max-model-len]
kind = "int"
low = 1
high = "max(1, model.max_len * model.layers)"

[parameters.max-num-seqs]
kind = "int"
low = 1
high = "min(model.hidden_size / model.attention_heads, model.kv_heads * model.vocab_size)"
"#;

pub(crate) fn everything(json: &serde_json::Value) {
    let model = ModelShape::from_json(json);
    assert!(!model.fingerprint().is_empty());
    assert!(model.unchecked_facts().iter().all(|unchecked| !unchecked.to_string().is_empty()));
    assert!(model.unusable_keys.iter().all(|problem| problem.len() < 500), "{:?}", model.unusable_keys);
    let _ = model.dense_parameters();
    let huge =
        ["tensor-parallel-size", "pipeline-parallel-size", "max-num-seqs", "max-num-batched-tokens", "block-size"];
    let configs = [
        Config::new(),
        Config::new().with("kv-cache-dtype", "fp8").with("tensor-parallel-size", 3_i64).with("quantization", "fp8"),
        Config::new().with("num-gpu-blocks-override", i64::MAX).with("max-model-len", i64::MAX),
        Config::new().with("gpu-memory-utilization", 1e300).with("cpu-offload-gb", 1e300).with("block-size", 0_i64),
        huge.into_iter().fold(Config::new(), |config, name| config.with(name, i64::MAX)),
    ];
    for version in ["0.6.3", "0.9.0", "0.12.0", "0.20.2", "0.32.0"] {
        let version: EngineVersion = version.parse().expect("a release");
        for device in [Device::Cpu, Device::UNKNOWN_GPU, Device::gpu_of(80 << 30)] {
            let facts = Facts::new(setpoint::engines::vllm::VLLM_RULES, &model, version, device);
            for config in &configs {
                let _ = rule::check(config, &facts);
                let _ = rule::repair(config, &facts);
                if let Some(prediction) = facts.predict_memory(config) {
                    let probability = prediction.failure_probability();
                    assert!((0.0..=1.0).contains(&probability), "{probability}: {prediction:?}");
                    let _ = (prediction.tokens(), prediction.concurrency(), prediction.largest_length());
                }
                let launch = memory_launch(config, &facts, &resolve_config(config, &facts));
                let preset = DevicePreset::find("l4").expect("a preset");
                let _ = plan_memory(&model, preset, &launch);
            }
        }
    }
    let settings = Settings::default();
    let resolved =
        ResolvedConfig { max_model_len: 1024, max_num_seqs: 8, max_num_batched_tokens: 512, ..settings.resolved };
    let settings = Settings { resolved, num_blocks: 128, ..settings };
    let _ = StepTime::new(&model, DevicePreset::find("h100").expect("a preset"), &settings);
    let document = setpoint::document::Document::from_text("space.toml", SPACE);
    let _ = document.parse(|root| SpaceFile::read(root, &model));
}
