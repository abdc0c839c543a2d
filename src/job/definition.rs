//! What makes two runs the same study: everything that decides what a measurement means.

use serde_json::{Value as Json, json};

use super::{Job, LoadJob};
use crate::load::{Api, Arrival};

impl Job {
    /// Stored with the study. Budget and sampler are left out: they may change when a study is taken up again.
    #[must_use]
    pub fn definition(&self) -> Json {
        let parameters: serde_json::Map<_, _> = self
            .parameters()
            .parameters
            .iter()
            .map(|parameter| {
                let when: Vec<_> = parameter
                    .when
                    .iter()
                    .map(|condition| json!({"parameter": condition.parameter, "values": condition.values}))
                    .collect();
                (parameter.name.clone(), json!({"domain": parameter.domain.to_string(), "when": when}))
            })
            .collect();
        json!({
            "engine": {
                "kind": self.engine.engine.kind(),
                // As written: defaults and absolute paths differ between machines and builds.
                "command": self.engine.written_command,
                "args": self.engine.args,
                "env": super::redacted(self.engine.env.clone()),
            },
            "model": self.model.written,
            "seed": self.seed,
            "space": { "fixed": self.parameters().fixed, "parameters": parameters },
            "workload": self.workload.definition(),
            "load": load(&self.load),
            "objective": self.objective,
        })
    }
}

/// Keys that came later are there only where they are not the default, so that older studies go on.
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
        Arrival::Closed => {}
        Arrival::AtOnce => object["rate_per_s"] = json!("inf"),
        Arrival::Rate { per_s, burstiness } => {
            object["rate_per_s"] = json!(per_s);
            object["burstiness"] = number(*burstiness);
        }
        Arrival::Ramp { from_per_s, to_per_s, over, burstiness } => {
            object["ramp"] = json!({"from_per_s": from_per_s, "to_per_s": to_per_s, "over_s": over.as_secs_f64()});
            object["burstiness"] = number(*burstiness);
        }
        Arrival::Trace { factor } => object["trace_factor"] = json!(factor),
    }
    if let Some(duration) = load.duration {
        object["duration_s"] = json!(duration.as_secs_f64());
    }
    if load.allow_eos {
        object["allow_eos"] = json!(true);
    }
    if load.api == Api::Chat {
        object["api"] = json!("chat");
    }
    object
}

/// The dotted paths at which two definitions differ.
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
            _ if a != b => found.push(format!("{path} (now {a}, stored {b})")),
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
    }
}
