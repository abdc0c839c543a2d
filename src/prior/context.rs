//! What a caller who has no study file knows of model, devices and load. All of it is optional.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::Config;
use crate::document::json;

/// Numbers may be anything; [`of_context`](super::of_context) names those that it cannot use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Context {
    #[serde(deserialize_with = "json::object_or_default")]
    pub model: ModelContext,
    #[serde(deserialize_with = "json::object_or_default")]
    pub device: DeviceContext,
    #[serde(deserialize_with = "json::object_or_default")]
    pub load: LoadContext,
    /// Limits of latencies, in seconds, by the caller's name: `ttft_p99`.
    #[serde(deserialize_with = "json::amounts")]
    pub limits_s: BTreeMap<String, f64>,
    /// The engine's values of parameters that a configuration does not set, by the caller's names.
    #[serde(deserialize_with = "json::values")]
    pub defaults: Config,
    /// The release of vLLM, such as `0.12.0`; without it the newest known one.
    pub engine_version: Option<String>,
}

/// The model, by the keys of its `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ModelContext {
    /// Weights, in numbers and not in bytes; without it what the sizes give.
    #[serde(deserialize_with = "json::amount")]
    pub parameters: Option<f64>,
    pub num_hidden_layers: Option<u64>,
    pub hidden_size: Option<u64>,
    pub intermediate_size: Option<u64>,
    /// Without it as many as `head_dim` says.
    pub num_attention_heads: Option<u64>,
    pub num_key_value_heads: Option<u64>,
    pub head_dim: Option<u64>,
    pub vocab_size: Option<u64>,
    pub dtype: Option<String>,
    /// In tokens.
    pub max_model_len: Option<u64>,
}

/// The devices.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceContext {
    /// As the driver or a person writes it: `NVIDIA H100 80GB HBM3`, `h100-sxm`.
    pub name: Option<String>,
    /// Without it one.
    pub count: Option<u64>,
    /// Of one device; without it what such a device has.
    #[serde(deserialize_with = "json::amount")]
    pub memory_bytes: Option<f64>,
}

/// The load.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadContext {
    /// Tokens of a prompt, in the mean.
    #[serde(deserialize_with = "json::amount")]
    pub input_tokens: Option<f64>,
    /// Tokens of a reply, in the mean.
    #[serde(deserialize_with = "json::amount")]
    pub output_tokens: Option<f64>,
    /// Share of a prompt, 0 to 1, that others begin with as well.
    #[serde(deserialize_with = "json::amount")]
    pub shared_prefix_fraction: Option<f64>,
    /// How many different beginnings there are.
    pub shared_prefixes: Option<u64>,
    /// Requests at a time: of a closed load always, of an open one at most.
    pub concurrency: Option<u64>,
    /// `closed`: the next request is sent when one has ended.
    pub arrival: Option<String>,
    /// Requests per second of an open load; without it the load is closed.
    #[serde(deserialize_with = "json::amount")]
    pub rate_per_s: Option<f64>,
}
