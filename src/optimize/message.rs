//! The messages of a caller.
//!
//! Every field is optional here, so that null counts as absent. The readers of a message name the fields that are
//! missing. A field stays `Json` if only some readers use it, or if its meaning depends on other fields.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::Deserialize;
use serde_json::Value as Json;

use crate::document::json;
use crate::prior::OptimizeContext;

/// The fields of every message.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct MessageHead {
    #[serde(rename = "type", deserialize_with = "json::word")]
    pub(super) kind: Option<MessageKind>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MessageKind {
    Space,
    Ask,
    Tell,
    Judge,
    Explain,
    End,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SpaceMessage {
    pub(super) protocol: Option<u64>,
    pub(super) params: Option<Vec<Json>>,
    pub(super) objectives: Option<Vec<Json>>,
    pub(super) constraints: Option<Vec<Json>>,
    pub(super) known_constraints: Option<Vec<Json>>,
    pub(super) budget: Option<NonZeroU32>,
    pub(super) seed: Option<u64>,
    #[serde(deserialize_with = "json::object")]
    pub(super) context: Option<OptimizeContext>,
}

/// The fields of parameters, objectives and constraints.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedItem {
    pub(super) name: Option<String>,
}

/// The fields of parameters of every type.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ParameterItem {
    #[serde(rename = "type", deserialize_with = "json::word")]
    pub(super) kind: Option<ParameterKind>,
    #[serde(deserialize_with = "json::object")]
    pub(super) when: Option<WhenItem>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ParameterKind {
    Int,
    Float,
    Bool,
    Categorical,
}

/// The range of an `int`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct IntRange {
    pub(super) low: Json,
    pub(super) high: Json,
    #[serde(deserialize_with = "json::word")]
    pub(super) grid: Option<NumberGrid>,
    pub(super) log: Option<bool>,
}

#[derive(Clone, Copy, Deserialize)]
pub(super) enum NumberGrid {
    #[serde(rename = "pow2")]
    PowerOfTwo,
}

/// The range of a `float`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct FloatRange {
    pub(super) low: Json,
    pub(super) high: Json,
    pub(super) log: Option<bool>,
}

/// The choices of a `categorical`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct CategoricalChoices {
    pub(super) choices: Option<Vec<Json>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WhenItem {
    pub(super) param: Option<String>,
    #[serde(rename = "in")]
    pub(super) values: Option<Vec<Json>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ObjectiveItem {
    #[serde(deserialize_with = "json::word")]
    pub(super) direction: Option<ObjectiveDirection>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ObjectiveDirection {
    Maximize,
    Minimize,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ConstraintItem {
    pub(super) feasible: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct KnownConstraintItem {
    pub(super) expr: Option<String>,
    #[serde(deserialize_with = "json::object")]
    pub(super) when: Option<WhenItem>,
}

/// An ask, a judge or an explain.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct QuestionMessage {
    pub(super) id: Json,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct TellMessage {
    pub(super) id: Json,
    pub(super) config: Json,
    #[serde(deserialize_with = "json::word")]
    pub(super) status: Option<TrialStatus>,
    pub(super) values: Json,
    pub(super) constraints: Json,
    pub(super) deviations: Json,
    #[serde(deserialize_with = "json::amount")]
    pub(super) cost: Option<f64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TrialStatus {
    Ok,
    Infeasible,
    Failed,
}

/// Standard deviations by the name of an objective or a constraint.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct MessageDeviations(#[serde(deserialize_with = "json::amounts")] pub(super) BTreeMap<String, f64>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::field::FieldPlace;
    use serde_json::json;

    fn context(json: &Json) -> Result<OptimizeContext, String> {
        FieldPlace::object("context").read(json).map_err(|error| error.to_string())
    }

    #[test]
    fn known_fields_are_read_and_unknown_ones_are_ignored() {
        let all = context(&json!({
            "model": {"parameters": 8.0e9, "num_hidden_layers": 32, "dtype": "bfloat16", "rope": {"theta": 1e6}},
            "device": {"name": "h100-sxm", "count": 8, "memory_bytes": 80e9},
            "load": {"input_tokens": 512, "shared_prefix_fraction": 0.25, "concurrency": 400, "arrival": "closed"},
            "limits_s": {"ttft_p99": 4.0, "tpot_p99": null},
            "defaults": {"tp": 1, "gmu": 0.9, "chunked_prefill": true, "kv_cache_dtype": "auto", "lora": null},
            "weather": "fine",
        }))
        .unwrap();
        assert_eq!(
            (all.model.parameters, all.model.num_hidden_layers, all.model.head_dim),
            (Some(8e9), Some(32), None)
        );
        assert_eq!((all.device.count, all.load.concurrency, all.load.shared_prefixes), (Some(8), Some(400), None));
        assert_eq!(all.limits_s.into_iter().collect::<Vec<_>>(), [("ttft_p99".to_owned(), 4.0)]);
        assert_eq!(all.defaults.key(), r#"{"chunked_prefill":true,"gmu":0.9,"kv_cache_dtype":"auto","tp":1}"#);
        assert_eq!(context(&json!({})), Ok(OptimizeContext::default()));
    }

    #[test]
    fn a_wrong_field_is_named_with_its_value() {
        for (json, expected) in [
            (json!(3), "context is 3, expected an object"),
            (json!({"model": []}), "context.model is [], expected an object"),
            (
                json!({"model": {"parameters": "8b"}}),
                "context.model.parameters is \"8b\", expected a number of at least 0",
            ),
            (
                json!({"device": {"count": 1.5}}),
                "context.device.count is 1.5, expected a whole number from 0 to 18446744073709551615",
            ),
            (json!({"limits_s": {"ttft_p99": -1}}), "context.limits_s.ttft_p99 is -1, expected a number of at least 0"),
            (json!({"defaults": {"tp": [1]}}), "context.defaults.tp is [1], expected a text, a number, true or false"),
            (json!({"load": {"arrival": 4}}), "context.load.arrival is 4, expected a text"),
        ] {
            assert_eq!(context(&json), Err(expected.to_owned()));
        }
    }
}
