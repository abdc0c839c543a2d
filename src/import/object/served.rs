//! The JSON of `vllm bench serve --save-result`, which `setpoint bench` writes as well.
//!
//! A metric is a number under a name of ours, or a further percentile such as `p75_ttft_ms`. `vllm bench sweep` adds
//! `run_number` to each result, and the varied flags of the server under their own names.

use serde_json::Value as Json;

use super::{LineProblem, Members, count, number, text};
use crate::config::Config;
use crate::engines::default_engine;
use crate::import::text::void;
use crate::import::{ImportedLaunch, ImportedResult, LoadDescription};
use crate::trial::Measurement;

/// Settings of the benchmark that are flags of the server as well.
const OF_THE_BENCHMARK: [&str; 7] =
    ["model", "tokenizer", "seed", "served-model-name", "host", "port", "tokenizer-mode"];

pub(super) fn read(line: usize, members: &Members) -> Result<Vec<ImportedResult>, LineProblem> {
    let mut result = ImportedResult { line, ..ImportedResult::default() };
    for key in ["completed", "duration"] {
        number(line, members, key)?;
    }
    for (key, value) in members {
        let is_percentile = || ["_ttft_ms", "_tpot_ms", "_itl_ms", "_e2el_ms"].iter().any(|end| key.ends_with(end));
        if let Some(number) = value.as_f64().filter(|_| Measurement::is_known(key) || is_percentile()) {
            result.metrics.insert(key.clone(), number);
        }
    }
    if let Some(server) = members.get("server").and_then(Json::as_object) {
        let known = server.iter().filter(|(name, _)| Measurement::is_known(name));
        result.metrics.extend(known.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))));
    }
    if members.contains_key("run_number") {
        result.launch = varied_flags(members);
    }
    if members.get("valid") == Some(&Json::Bool(false)) {
        let reasons = members.get("invalid_reasons").and_then(Json::as_array);
        let reasons: Vec<_> = reasons.into_iter().flatten().filter_map(Json::as_str).collect();
        result.failure = Some(void(&reasons.join("; ")));
    }
    result.name = text(members, "name");
    result.device = text(members, "device");
    result.load = LoadDescription {
        model: text(members, "model_id"),
        rate: match members.get("request_rate") {
            Some(Json::String(rate)) if rate == "inf" => Some(f64::INFINITY),
            rate => rate.and_then(Json::as_f64),
        },
        concurrency: count(members, "max_concurrency"),
        requests: count(members, "num_prompts"),
        input_len: None,
        output_len: None,
    };
    Ok(vec![result])
}

/// Returns the flags of the server that a sweep has varied. `None` if there are none.
fn varied_flags(members: &Members) -> Option<ImportedLaunch> {
    let table = default_engine().flags()?;
    let table = table.for_version(table.newest_release());
    let mut config = Config::new();
    for (key, value) in members {
        let name = key.trim_start_matches('-').replace('_', "-");
        let is_flag = table.find(&name).is_some() && !OF_THE_BENCHMARK.contains(&name.as_str());
        if let Ok(value) = serde_json::from_value(value.clone())
            && is_flag
        {
            let value: crate::config::Value = value;
            config.set(name, value);
        }
    }
    (!config.is_empty()).then(|| ImportedLaunch { config, ..ImportedLaunch::default() })
}
