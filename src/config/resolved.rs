//! The values of a configuration after the engine has filled in its defaults.

use super::Value;

/// The values that scheduling, memory and parallelism depend on, defaults included.
///
/// The defaults depend on the release, the model and the device. `EngineRules::resolve` computes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResolvedConfig {
    /// Whether the V0 engine runs.
    pub v0: bool,
    /// Limit of a sequence's prompt and output together, in tokens.
    pub max_model_len: u64,
    /// Tokens in one step.
    pub max_num_batched_tokens: u64,
    /// Sequences in one batch.
    pub max_num_seqs: u64,
    /// Tokens in one block of the key/value cache.
    pub block_size: u64,
    /// Whether a prompt may be computed in pieces.
    pub chunked_prefill: bool,
    pub prefix_caching: bool,
    /// V0 only: a new prompt waits for this multiple of the last prompt step's duration.
    pub scheduler_delay_factor: f64,
    /// Share of the device's memory, 0 to 1.
    pub gpu_memory_utilization: f64,
    pub tensor_parallel_size: u64,
    pub pipeline_parallel_size: u64,
}

impl ResolvedConfig {
    /// Returns the value of a flag, or `None` of flags that are not resolved here.
    #[must_use]
    pub fn value(&self, flag: &str) -> Option<Value> {
        let count = |number: u64| i64::try_from(number).ok().map(Value::Int);
        match flag {
            "max-model-len" => count(self.max_model_len),
            "max-num-batched-tokens" => count(self.max_num_batched_tokens),
            "max-num-seqs" => count(self.max_num_seqs),
            "block-size" => count(self.block_size),
            "tensor-parallel-size" => count(self.tensor_parallel_size),
            "pipeline-parallel-size" => count(self.pipeline_parallel_size),
            "enable-chunked-prefill" => Some(self.chunked_prefill.into()),
            "enable-prefix-caching" => Some(self.prefix_caching.into()),
            "gpu-memory-utilization" => Some(self.gpu_memory_utilization.into()),
            "scheduler-delay-factor" => Some(self.scheduler_delay_factor.into()),
            _ => None,
        }
    }
}
