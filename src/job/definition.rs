//! The definition of a study: every input that decides the meaning of a measurement. Runs with equal definitions
//! continue one study.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::{Job, LoadJob, NamedWorkload};
use crate::load::{ArrivalPattern, RequestApi};
use crate::metrics::RunPart;
use crate::stats::Fnv1a;
use crate::trial::redact;
use crate::workload::{Think, TokenLength, WorkloadSpec};

impl Job {
    /// Returns the definition to store with the study. Budget, sampler and priors are left out: they may change when a
    /// study continues.
    #[must_use]
    pub fn definition(&self) -> Json {
        let parameters: serde_json::Map<_, _> = self
            .search_space()
            .parameters
            .iter()
            .map(|parameter| {
                let when: Vec<_> = parameter
                    .conditions
                    .iter()
                    .map(|condition| json!({"parameter": condition.parameter, "values": condition.values}))
                    .collect();
                (parameter.name.clone(), json!({"domain": parameter.domain.to_string(), "when": when}))
            })
            .collect();
        // The API key does not change measurements.
        let mut env = self.engine.env.clone();
        self.engine.engine.api_key_variable().and_then(|variable| env.remove(variable));
        let mut definition = json!({
            "engine": {
                "kind": self.engine.engine.kind(),
                // As written in the study: defaults and absolute paths differ between machines and builds.
                "command": self.engine.written_command.as_deref().map(redacted_words),
                "args": redacted_words(&self.engine.args),
                "env": super::redacted(env),
            },
            "model": self.model.written,
            "seed": self.seed,
            "space": { "fixed": self.search_space().fixed, "parameters": parameters },
            "objective": self.objective,
        });
        if self.workloads.is_empty() {
            definition["workload"] = self.workload.definition();
            definition["load"] = load(&self.load);
        } else {
            // The weights are in the objective.
            let entry = |entry: &NamedWorkload| {
                let mut object = entry.workload.definition();
                object["name"] = json!(entry.name);
                object["load"] = load(&entry.load);
                object
            };
            definition["workloads"] = self.workloads.iter().map(entry).collect();
        }
        if let Some(description) = self.engine.engine.definition() {
            definition["engine"]["description"] = description;
        }
        if let Some(adapter) = &self.model.adapter {
            definition["adapter"] = adapter.as_str().into();
        }
        if let Some(guard) = self.guard.definition() {
            definition["guard"] = guard;
        }
        if let Some(slots) = &self.slots {
            definition["slots"] = slots.definition();
        }
        definition
    }
}

fn redacted_words(words: &[String]) -> Vec<String> {
    words.iter().map(|word| redact(word).into_owned()).collect()
}

/// Returns the 64-bit FNV-1a hash of a file. It detects changes, and is no protection against forgery.
pub(super) fn digest(file: &Path) -> std::io::Result<String> {
    let mut reader = std::io::BufReader::with_capacity(1 << 20, std::fs::File::open(file)?);
    let mut hash = Fnv1a::new();
    loop {
        let bytes = std::io::BufRead::fill_buf(&mut reader)?;
        if bytes.is_empty() {
            return Ok(format!("{:016x}", hash.value()));
        }
        hash = hash.with(bytes);
        let len = bytes.len();
        std::io::BufRead::consume(&mut reader, len);
    }
}

/// Returns the part of a specification that decides its requests. `files` yields the names and digests of its files, in
/// order.
pub(super) fn workload_definition(spec: &WorkloadSpec, files: &mut std::slice::Iter<'_, (String, String)>) -> Json {
    let length = |length: &TokenLength| match length {
        TokenLength::Exact(length) => json!(length),
        TokenLength::Range { min, max } => json!({"min": min, "max": max}),
        TokenLength::BelowMaxModelLen(_) => json!(length.to_string()),
    };
    let mut object = match spec {
        WorkloadSpec::Random { input_len, output_len, prefix_len } => {
            let mut object = json!({"input_len": length(input_len), "output_len": length(output_len)});
            if *prefix_len > 0 {
                object["prefix_len"] = json!(prefix_len);
            }
            object
        }
        WorkloadSpec::ShareGpt { prompts, output_len, pruning, .. } => json!({
            "prompts": prompts, "output_len": output_len, "min_len": pruning.min_len,
            "max_prompt_len": pruning.max_prompt_len, "max_total_len": pruning.max_total_len,
        }),
        WorkloadSpec::Jsonl { output_len, .. } => json!({"output_len": output_len}),
        WorkloadSpec::Trace { .. } => json!({}),
        WorkloadSpec::Prefix { groups, prefix_len, share, suffix_len, output_len } => json!({
            "groups": groups, "prefix_len": prefix_len, "share": share,
            "suffix_len": length(suffix_len), "output_len": length(output_len),
        }),
        WorkloadSpec::Conversation { turns, system_len, first_len, user_len, output_len, think } => {
            let (distribution, think) = match think {
                Think::Fixed(time) => ("fixed", time),
                Think::Exponential(mean) => ("exponential", mean),
            };
            json!({
                "turns": length(turns), "system_len": system_len, "first_len": length(first_len),
                "user_len": length(user_len), "output_len": length(output_len),
                "think_time_s": think.as_secs_f64(), "think_distribution": distribution,
            })
        }
        WorkloadSpec::Image { sizes, count, input_len, output_len } => json!({
            "sizes": sizes, "count": count, "input_len": length(input_len), "output_len": length(output_len),
        }),
        WorkloadSpec::Mixture { parts } => {
            let mut part = |(weight, part): &(f64, WorkloadSpec)| {
                let mut object = workload_definition(part, files);
                object["weight"] = json!(weight);
                object
            };
            json!({"part": parts.iter().map(&mut part).collect::<Vec<_>>()})
        }
    };
    object["kind"] = json!(spec.kind());
    let is_mixture = matches!(spec, WorkloadSpec::Mixture { .. });
    if let Some((name, digest)) = (!is_mixture && !spec.files().is_empty()).then(|| files.next()).flatten() {
        object["file"] = json!({"name": name, "digest": digest});
    }
    object
}

/// Returns the load's part of the definition. Keys that were added in later versions are omitted if they have their
/// default, so that older studies keep their definition.
fn load(load: &LoadJob) -> Json {
    let mut object = json!({
        "concurrency": load.concurrency,
        "requests": load.requests,
        "warmup": load.warmup,
        "request_timeout_s": load.request_timeout.as_secs_f64(),
        "max_error_rate": load.max_error_rate,
    });
    // JSON has no infinity.
    let number = |value: f64| if value.is_finite() { json!(value) } else { json!("inf") };
    match &load.arrival {
        ArrivalPattern::Closed => {}
        ArrivalPattern::AtOnce => object["rate_per_s"] = json!("inf"),
        ArrivalPattern::Rate { per_s, burstiness } => {
            object["rate_per_s"] = json!(per_s);
            object["burstiness"] = number(*burstiness);
        }
        ArrivalPattern::Ramp { from_per_s, to_per_s, over, burstiness } => {
            object["ramp"] = json!({"from_per_s": from_per_s, "to_per_s": to_per_s, "over_s": over.as_secs_f64()});
            object["burstiness"] = number(*burstiness);
        }
        ArrivalPattern::Trace { factor } => object["trace_factor"] = json!(factor),
    }
    if let Some(duration) = load.duration {
        object["duration_s"] = json!(duration.as_secs_f64());
    }
    if load.allow_eos {
        object["allow_eos"] = json!(true);
    }
    if load.window == RunPart::Steady {
        object["window"] = json!("steady");
    }
    // The default of a steady window. A load that is measured as a whole never races.
    if load.window == RunPart::Steady && !load.race {
        object["race"] = json!(false);
    }
    if let Some(until) = load.target_precision {
        object["until"] = json!(until);
    }
    if !load.goodput.is_empty() {
        object["goodput"] = json!(load.goodput.iter().map(ToString::to_string).collect::<Vec<_>>());
    }
    if load.api == RequestApi::Chat {
        object["api"] = json!("chat");
    }
    object
}

/// Returns the dotted paths at which two definitions differ, with both values.
#[must_use]
pub fn differences(ours: &Json, stored: &Json) -> Vec<String> {
    fn walk(path: &str, a: &Json, b: &Json, found: &mut Vec<String>) {
        match (a, b) {
            (Json::Object(left), Json::Object(right)) => {
                let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
                for key in keys {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    walk(&path, left.get(key).unwrap_or(&Json::Null), right.get(key).unwrap_or(&Json::Null), found);
                }
            }
            (Json::Array(left), Json::Array(right)) if left.len() == right.len() && !left.is_empty() => {
                let mut inner = Vec::new();
                left.iter().zip(right).for_each(|(a, b)| walk(path, a, b, &mut inner));
                if !inner.is_empty() {
                    found.push(redact(&format!("{path} (now {a}, stored {b})")).into_owned());
                }
            }
            // Earlier versions of `setpoint` stored secrets without redaction.
            (Json::String(a), Json::String(b)) if redact(a) == redact(b) => {}
            _ if a != b => found.push(redact(&format!("{path} (now {a}, stored {b})")).into_owned()),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk("", ours, stored, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_path_and_both_values() {
        let ours = json!({"load": {"concurrency": 16, "requests": 8}, "model": "m"});
        let stored = json!({"load": {"concurrency": 8, "requests": 8}, "model": "m"});
        assert_eq!(differences(&ours, &stored), ["load.concurrency (now 16, stored 8)"]);
        assert!(differences(&ours, &ours).is_empty());
        let env = |url: &str| json!({"engine": {"env": {"URL": url}, "args": ["--url", url]}});
        let stored = env("http://ada:secret-1@proxy");
        assert!(differences(&env("http://ada:(redacted)@proxy"), &stored).is_empty());
        assert_eq!(differences(&env("http://ada:(redacted)@other"), &stored).len(), 2);
    }
}
