//! Model of a device's memory: its parts and their uncertainty, before a launch and after earlier starts.
//!
//! A start fails if the memory that is left for the KV cache does not hold one request. The sizes of the cache are
//! computed exactly ([`CacheLayout`]). The other parts are estimates with a standard deviation ([`predict`]). Every
//! observed start makes that deviation smaller ([`LearnedMemory`]).

mod activation;
mod cache;
mod gaussian;
mod graph;
mod launch;
mod learn;
mod predict;
mod weights;

pub use cache::{CacheLayout, cache_token_bytes};
pub use graph::captured_sizes;
pub use launch::{LaunchTarget, MemoryLaunch};
pub use learn::{LearnedMemory, StartObservation};
pub use predict::{MemoryPrediction, predict};

/// Returns the shape of Llama 3.1 8B.
#[cfg(test)]
fn test_model() -> crate::facts::ModelShape {
    crate::facts::ModelShape::from_json(&serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 128_256, "max_position_embeddings": 131_072, "torch_dtype": "bfloat16"
    }))
}

/// Returns a launch of 0.11 on an H100 with that release's defaults.
#[cfg(test)]
fn test_launch() -> MemoryLaunch {
    MemoryLaunch::from_resolved(
        LaunchTarget {
            version: crate::facts::EngineVersion::new(0, 11, 0),
            cpu: false,
            device_memory: Some(crate::stats::gib_to_bytes(79.18)),
        },
        crate::config::ResolvedConfig {
            v0: false,
            max_model_len: 16_000,
            max_num_batched_tokens: 8192,
            max_num_seqs: 1024,
            block_size: 128,
            chunked_prefill: true,
            prefix_caching: true,
            scheduler_delay_factor: 0.0,
            gpu_memory_utilization: 0.9,
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
        },
    )
}
