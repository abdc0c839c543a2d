//! Model, devices and load of a caller without a study file. Every field may be absent while the message is read. A prior
//! needs those that are marked as required.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::Config;
use crate::document::json;

/// The context of a space. Reading accepts numbers of any value. [`context_prior`](super::context_prior) names those that
/// it cannot use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OptimizeContext {
    #[serde(deserialize_with = "json::object_or_default")]
    pub model: ModelContext,
    #[serde(deserialize_with = "json::object_or_default")]
    pub device: DeviceContext,
    #[serde(deserialize_with = "json::object_or_default")]
    pub load: LoadContext,
    /// Limits of latencies in seconds. The keys are the caller's names of metrics, such as `ttft_p99`.
    #[serde(deserialize_with = "json::amounts")]
    pub limits_s: BTreeMap<String, f64>,
    /// Values that the engine uses for parameters that a configuration does not set, by the caller's names.
    #[serde(deserialize_with = "json::values")]
    pub defaults: Config,
    /// The release of vLLM, such as `0.12.0`. The default is the newest known one.
    pub engine_version: Option<String>,
}

/// The model. Except for `parameters` and `max_model_len`, the fields are the keys of its `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ModelContext {
    /// Number of weights, not of bytes. By default computed from the sizes below.
    #[serde(deserialize_with = "json::amount")]
    pub parameters: Option<f64>,
    /// Required.
    pub num_hidden_layers: Option<u64>,
    /// Required.
    pub hidden_size: Option<u64>,
    /// By default 4 times `hidden_size`.
    pub intermediate_size: Option<u64>,
    /// By default computed from `hidden_size` and `head_dim`.
    pub num_attention_heads: Option<u64>,
    /// By default `num_attention_heads`.
    pub num_key_value_heads: Option<u64>,
    /// By default `hidden_size / num_attention_heads`. Either `head_dim` or `num_attention_heads` is required.
    pub head_dim: Option<u64>,
    /// Required.
    pub vocab_size: Option<u64>,
    /// By default `bfloat16`.
    pub dtype: Option<String>,
    /// In tokens. By default the length of the longest request.
    pub max_model_len: Option<u64>,
}

/// The devices of one host. All are of the same kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceContext {
    /// Required. As the driver or a user writes it: `NVIDIA H100 80GB HBM3`, `h100-sxm`.
    pub name: Option<String>,
    /// Number of devices, 1 to 1024. By default one.
    pub count: Option<u64>,
    /// Memory of one device, 1e9 to 1e13 bytes. By default that of the named device.
    #[serde(deserialize_with = "json::amount")]
    pub memory_bytes: Option<f64>,
}

/// The load, as mean sizes and either a number of users or a rate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadContext {
    /// Required. Mean number of tokens of a prompt.
    #[serde(deserialize_with = "json::amount")]
    pub input_tokens: Option<f64>,
    /// Required. Mean number of tokens of a reply.
    #[serde(deserialize_with = "json::amount")]
    pub output_tokens: Option<f64>,
    /// Share of a prompt, 0 to 1, that it has in common with others. By default 0.
    #[serde(deserialize_with = "json::amount")]
    pub shared_prefix_fraction: Option<f64>,
    /// Number of different prefixes. By default 1.
    pub shared_prefixes: Option<u64>,
    /// Number of concurrent requests: exact for a closed load, which requires it, and the maximum for an open one.
    pub concurrency: Option<u64>,
    /// Accepted and not used: the load is open if `rate_per_s` is present. In a closed load each user sends the next
    /// request when the last one has ended.
    pub arrival: Option<String>,
    /// Requests per second of an open load. Without it the load is closed.
    #[serde(deserialize_with = "json::amount")]
    pub rate_per_s: Option<f64>,
}
