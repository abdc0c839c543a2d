//! The scenario of a report: the engine with its flags and devices, and the load.

use serde_json::{Map, Value as Json, json};

use super::digest;
use crate::engine::Engine;
use crate::export::ExportedTrial;
use crate::stats::to_f64;
use crate::trial::{LaunchWords, Origin, REDACTED};

/// Returns the engine as a component, or null if engine or release are unknown.
pub(super) fn component(winner: &ExportedTrial<'_>) -> Json {
    let trial = &winner.scored.trial;
    let Some((engine, version)) = winner.engine.zip(trial.engine_version.as_deref()) else { return Json::Null };
    let words = trial.launch.words();
    let native = native(winner, engine, words);
    let tool = json!({"tool": engine.kind(), "tool_version": version});
    let mut standardized = words
        .and_then(|words| inference_engine(winner, engine, words))
        .unwrap_or_else(|| json!({"kind": "generic", "model": winner.report.study.definition["model"]}));
    merge(&mut standardized, tool);
    let cfg_id = digest(&[&native.to_string(), &standardized.to_string()]);
    json!({
        "metadata": {"label": format!("{}-0", engine.kind()), "cfg_id": cfg_id},
        "standardized": standardized,
        "native": native,
    })
}

fn merge(object: &mut Json, other: Json) {
    if let (Json::Object(object), Json::Object(other)) = (object, other) {
        object.extend(other);
    }
}

/// Returns arguments and variables without secrets.
fn native(winner: &ExportedTrial<'_>, engine: &dyn Engine, words: Option<LaunchWords<'_>>) -> Json {
    let arguments = words.map(|words| words.flags.iter().chain(words.arguments).cloned().collect::<Vec<_>>());
    let entries = arguments.and_then(|arguments| engine.config_file_entries(&arguments, winner.release(engine))?.ok());
    let is_secret = |value: &Json| value.to_string().contains(REDACTED);
    let args = entries.map(|file| {
        let kept = file.entries.into_iter().filter(|(_, value)| !is_secret(value));
        // A flag without an argument is null in this format.
        let entries =
            kept.map(|(name, value)| (format!("--{name}"), if value == Json::Bool(true) { Json::Null } else { value }));
        entries.collect::<Map<_, _>>()
    });
    let envars: Map<_, _> =
        winner.variables().values.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let mut native = json!({"envars": envars});
    match args {
        Some(args) if !args.is_empty() => native["args"] = Json::Object(args),
        Some(_) => {}
        None => {
            let words: Vec<_> = winner.command().iter().filter(|word| !word.contains(REDACTED)).collect();
            native["config"] = json!({"command": words});
        }
    }
    native
}

/// Returns the engine with its devices, if the flags of the parallelism and the devices are known.
fn inference_engine(winner: &ExportedTrial<'_>, engine: &dyn Engine, words: LaunchWords<'_>) -> Option<Json> {
    let table = engine.flag_table(winner.release(engine))?;
    let arguments: Vec<_> = words.flags.iter().chain(words.arguments).cloned().collect();
    let config = table.parse_lenient(&arguments).0;
    let number = |flag: &str| config.get_i64(flag).and_then(|number| u64::try_from(number).ok());
    let size = |flag: &str| number(flag).unwrap_or(1).max(1);
    let (tp, pp, dp) = (size("tensor-parallel-size"), size("pipeline-parallel-size"), size("data-parallel-size"));
    let ep = if config.get_bool("enable-expert-parallel") == Some(true) { tp * dp } else { 1 };
    let context = winner.context?;
    let name = context.device.name.as_deref()?;
    let is_cpu = name == "cpu";
    let device = if is_cpu { context.host.cpu.as_deref()? } else { name };
    Some(json!({
        "kind": "inference_engine",
        "role": "replica",
        "replicas": 1,
        "model": {"name": words.model},
        "accelerator": {
            "model": device,
            "count": if is_cpu { 0 } else { tp * pp * dp },
            "parallelism": {
                "tp": tp, "pp": pp, "dp": dp, "ep": ep,
                "dp_local": number("data-parallel-size-local").unwrap_or(dp),
            },
        },
    }))
}

/// Returns the load, or null for imported results and if the length of the requests is unknown.
pub(super) fn load(winner: &ExportedTrial<'_>) -> Json {
    let (study, trial) = (&winner.report.study, &winner.scored.trial);
    let (workload, load) = (&study.definition["workload"], &study.definition["load"]);
    if trial.proposal.origin == Origin::Import || workload["kind"].is_null() {
        return Json::Null;
    }
    let Some(input) = length(&workload["input_len"]).or_else(|| mean_input(winner)) else { return Json::Null };
    let source = match workload["kind"].as_str().unwrap_or_default() {
        "random" | "prefix" | "conversation" | "image" => "random",
        "sharegpt" | "jsonl" => "sampled",
        _ => "unknown",
    };
    // Without `allow_eos` a reply has exactly the requested length.
    let is_enforced = load["allow_eos"] != json!(true);
    let turns = length(&workload["turns"]).map(|turns| json!({"enabled": true, "max_turns": turns}));
    let native = json!({"workload": workload, "load": load, "seed": study.definition["seed"]});
    json!({
        "metadata": {"cfg_id": digest(&[&native.to_string()])},
        "standardized": {
            "tool": "setpoint",
            "tool_version": study.setpoint_version,
            "source": source,
            "input_seq_len": input,
            "output_seq_len": length(&workload["output_len"]).filter(|_| is_enforced),
            "multi_turn": turns,
            "rate_qps": load["rate_per_s"].as_f64().filter(|rate| *rate > 0.0),
            "concurrency": load["concurrency"].as_u64().filter(|concurrency| *concurrency > 0),
        },
        "native": {"config": native},
    })
}

/// Returns the lengths of a definition: a number, or the two ends of a uniform distribution.
fn length(definition: &Json) -> Option<Json> {
    if let Some(exact) = definition.as_u64() {
        return Some(json!({"distribution": "fixed", "value": exact}));
    }
    let (min, max) = (definition["min"].as_u64()?, definition["max"].as_u64()?);
    let mean = f64::midpoint(to_f64(min), to_f64(max));
    Some(json!({"distribution": "uniform", "value": mean, "min": min, "max": max}))
}

/// Returns the mean length of the prompts of a whole run.
fn mean_input(winner: &ExportedTrial<'_>) -> Option<Json> {
    let measurement = winner.scored.trial.outcome.measurement()?;
    let is_whole = measurement.window.as_ref().is_none_or(|window| !window.steady);
    let completed = measurement.metric("completed").filter(|completed| is_whole && *completed > 0.0)?;
    Some(json!({"distribution": "other", "value": measurement.metric("total_input_tokens")? / completed}))
}
