//! The memory model against measured starts: an L40S (`auto-tuning-vllm-l40s`) and an H100 (`llm-d-benchmark`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use setpoint::config::{Config, Value};
use setpoint::engines::vllm::{memory_launch, resolve_config};
use setpoint::facts::{Device, EngineVersion, ModelShape};
use setpoint::memory::{LearnedMemory, MemoryLaunch, MemoryPrediction, StartObservation, predict};
use setpoint::rule::Facts;
use setpoint::stats::{f64_to_u64, gib_to_bytes, to_f64};
use setpoint::trial::MemoryObservation;

use super::support::{public_path, root, table};

/// Prints figures even if the test passes.
pub(crate) fn show(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

pub(crate) fn model(name: &str) -> ModelShape {
    ModelShape::read(&root().join("tests/fixtures/models").join(name)).unwrap()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    assert!(!values.is_empty());
    values[values.len() / 2]
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn launch(model: &ModelShape, version: &str, gib: f64, v0: bool, config: &Config) -> MemoryLaunch {
    let version: EngineVersion = version.parse().unwrap();
    let engine = if v0 { "0" } else { "1" };
    let env = BTreeMap::from([("VLLM_USE_V1".to_owned(), engine.to_owned())]);
    let facts = Facts {
        env: &env,
        ..Facts::new(setpoint::engines::vllm::VLLM_RULES, model, version, Device::gpu_of(gib_to_bytes(gib)))
    };
    memory_launch(config, &facts, &resolve_config(config, &facts))
}

fn cold(model: &ModelShape, launch: &MemoryLaunch) -> MemoryPrediction {
    predict(model, launch, &LearnedMemory::default()).unwrap()
}

/// One start on the L40S.
struct Start {
    model: String,
    /// The branch of the study. In one branch, something else held 18.7 GiB of the device.
    branch: String,
    observation: StartObservation,
    tokens: f64,
}

impl Start {
    fn error(&self, shape: &ModelShape, learned: &LearnedMemory) -> f64 {
        let prediction = predict(shape, &self.observation.launch, learned).unwrap();
        let tokens = to_f64(prediction.tokens());
        (tokens - self.tokens).abs() / self.tokens
    }

    fn is_shared(&self) -> bool {
        self.branch == "candidates/batch1"
    }

    fn regime(&self) -> (String, String, bool, bool) {
        let launch = &self.observation.launch;
        (self.model.clone(), self.branch.clone(), launch.resolved.v0, launch.compiled)
    }
}

/// Parses `{'a': 1, 'b': {"c": false}}` as a configuration.
pub(crate) fn arguments(python: &str) -> Config {
    let text = python.replace('\'', "\"").replace("True", "true").replace("False", "false");
    let json: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let flags = json.into_iter().map(|(name, value)| {
        let value = if value.is_object() || value.is_array() {
            Value::Text(value.to_string())
        } else {
            serde_json::from_value(value).unwrap()
        };
        (name.replace('_', "-"), value)
    });
    flags.collect()
}

fn l40s() -> Vec<Start> {
    let number = |row: &BTreeMap<String, String>, key: &str| row[key].parse::<f64>().ok();
    let rows = table(&public_path("auto-tuning-vllm-l40s/vllm_startup.csv"));
    let starts = rows.iter().filter_map(|row| {
        let name = match row["model"].as_str() {
            "Qwen/Qwen3-1.7B" => "qwen3-1.7b",
            "Qwen/Qwen3-32B-FP8" => "qwen3-32b-fp8",
            text if text.starts_with("meta-llama/Llama-3.1-8B") => "llama-3.1-8b",
            _ => return None,
        };
        let v0 = row["engine"] == "V0";
        let launch = launch(&model(name), "0.9.0", 44.52, v0, &arguments(&row["non_default_args"]));
        // V0 does not log the number of tokens, but the number of sequences of the longest length that fit.
        let (concurrency, length) = (number(row, "max_conc"), number(row, "max_conc_tokens"));
        let told = number(row, "kv_tokens");
        let tokens = told.or_else(|| Some(concurrency? * length?))?;
        let observed = MemoryObservation {
            weights_gib: number(row, "weights_gib"),
            tokens: told.map(f64_to_u64),
            concurrency,
            graphs_gib: number(row, "graph_gib"),
            ..MemoryObservation::default()
        };
        let observation = StartObservation { launch, observed };
        Some(Start { model: name.to_owned(), branch: row["ref"].clone(), observation, tokens })
    });
    starts.collect()
}

#[test]
fn starts_on_an_l40s_are_predicted_cold() {
    let starts = l40s();
    let errors = |filter: &dyn Fn(&Start) -> bool| -> Vec<f64> {
        let cold = LearnedMemory::default();
        starts.iter().filter(|start| filter(start)).map(|start| start.error(&model(&start.model), &cold)).collect()
    };
    let alone = errors(&|start| !start.is_shared());
    show(&format!(
        "L40S, cold: {} starts with the GPU to themselves: median {:.2} %, largest {:.2} %",
        alone.len(),
        100.0 * median(alone.clone()),
        100.0 * largest(&alone)
    ));
    for name in ["qwen3-1.7b", "llama-3.1-8b", "qwen3-32b-fp8"] {
        let of = errors(&|start| !start.is_shared() && start.model == name);
        show(&format!("  {name}: {} starts, median {:.2} %", of.len(), 100.0 * median(of)));
    }
    let shared = errors(&|start| start.is_shared());
    show(&format!(
        "  beside 18.7 GiB of something else: {} starts, median {:.0} %",
        shared.len(),
        100.0 * median(shared)
    ));
    show(&format!("  all: median {:.2} %", 100.0 * median(errors(&|_| true))));
    assert!(alone.len() > 100 && median(alone) < 0.05);
}

#[test]
fn two_observed_starts_on_an_l40s_make_the_prediction_exact() {
    let starts = l40s();
    let mut all = Vec::new();
    for (by, regimes) in [("model", false), ("model and kind of engine", true)] {
        let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let key = |start: &Start| {
            if regimes { start.regime() } else { (start.model.clone(), start.branch.clone(), false, false) }
        };
        for group in starts.iter().map(key).collect::<BTreeSet<_>>() {
            let members: Vec<_> = starts.iter().filter(|start| key(start) == group).collect();
            // The first start and the first one that differs from it.
            let Some(other) = members.iter().find(|s| s.observation.launch != members[0].observation.launch) else {
                continue;
            };
            let learned = LearnedMemory::new(vec![members[0].observation.clone(), other.observation.clone()]);
            let shape = model(&group.0);
            for start in &members {
                // Only configurations that were not observed.
                if [members[0], *other].iter().all(|seen| seen.observation.launch != start.observation.launch) {
                    errors.entry(format!("{}, {}", group.0, group.1)).or_default().push(start.error(&shape, &learned));
                }
            }
        }
        let together: Vec<f64> = errors.values().flatten().copied().collect();
        show(&format!(
            "L40S, after two starts of the same {by}: {} others, median {:.2} %, largest {:.2} %",
            together.len(),
            100.0 * median(together.clone()),
            100.0 * largest(&together)
        ));
        for (group, errors) in errors {
            show(&format!("  {group}: {} starts, median {:.2} %", errors.len(), 100.0 * median(errors)));
        }
        all.push(median(together));
    }
    assert!(all.iter().all(|median| *median < 0.01), "{all:?}");
}

#[test]
fn profiles_of_an_h100_are_predicted_cold_and_its_failed_starts_as_failures() {
    let rows = table(&public_path("llm-d-benchmark/h100_memory_profile.csv"));
    let of = |name: &str, parallel: i64, share: f64, length: i64| {
        let shape = model(name);
        let config = Config::new()
            .with("block-size", 128_i64)
            .with("gpu-memory-utilization", share)
            .with("max-model-len", length)
            .with("tensor-parallel-size", parallel);
        let launch = launch(&shape, "0.11.0", 79.18, false, &config);
        cold(&shape, &launch)
    };
    let mut errors = Vec::new();
    for row in &rows {
        let name = match row["model"].as_str() {
            "gpt-oss-20b (MoE)" => "gpt-oss-20b",
            "gpt-oss-120b (MoE)" => "gpt-oss-120b",
            "Llama-3.3-70B-FP8" => "llama-3.3-70b-fp8",
            "Llama-3.1-8B" => "llama-3.1-8b",
            "Qwen3-0.6B" => "qwen3-0.6b",
            "Qwen3-32B" => "qwen3-32b",
            "Mistral-Small-3.2-24B" => "mistral-small-3.2-24b",
            other => panic!("no shape of {other}"),
        };
        let number = |key: &str| row[key].parse::<f64>().unwrap();
        let parallel = row["tp"].parse().unwrap();
        // The parts must add up to the share of 79.18 GiB. gpt-oss-120b is listed with 0.9 and adds up to 0.95.
        let parts = ["weights_gib", "activation_gib", "non_torch_gib", "kv_cache_gib"].map(number);
        let share = (parts.iter().sum::<f64>() / 79.18 * 100.0).round() / 100.0;
        if (share - number("gpu_mem_util")).abs() > 1e-9 {
            show(&format!(
                "H100: {name} is listed with a share of {}, its parts add up to {share}",
                row["gpu_mem_util"]
            ));
        }
        let prediction = of(name, parallel, share, row["max_model_len"].parse().unwrap());
        let error = (prediction.cache_gib - number("kv_cache_gib")).abs() / number("kv_cache_gib");
        show(&format!(
            "H100, cold: {name} x{parallel}: weights {:.2} ({}), activations {:.2} ({}), cache {:.2} +- {:.2} ({}): {:.1} %",
            prediction.weights_gib,
            row["weights_gib"],
            prediction.activations_gib,
            row["activation_gib"],
            prediction.cache_gib,
            prediction.cache_deviation_gib,
            row["kv_cache_gib"],
            100.0 * error
        ));
        assert!(prediction.failure_probability() < 0.5, "{name} started");
        errors.push(error);
    }
    show(&format!("H100, cold: median {:.2} % of {}", 100.0 * median(errors.clone()), errors.len()));
    assert!(median(errors) < 0.05);
    for (name, length) in [("deepseek-r1", 16_000), ("llama-3.3-70b-fp8", 16_000), ("qwen3-32b", 32_000)] {
        let failure = of(name, 1, 0.9, length).failure_probability();
        show(&format!("H100, cold: {name} x1 at {length} tokens fails with probability {failure:.3}"));
        assert!(failure > 0.9, "{name} did not start");
    }
}
