//! The engine's settings as the scheduler sees them: resolved numbers, no defaults left open.

/// Which generation of vLLM's scheduler decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// One token budget a step for running and new requests alike.
    V1,
    /// Prefill first, in batches of its own, unless chunked prefill is on.
    V0,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub policy: Policy,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: u32,
    /// Most requests that run at once.
    pub max_num_seqs: u32,
    /// Most tokens computed in one step.
    pub max_num_batched_tokens: u32,
    /// Tokens in one block of the key/value cache.
    pub block_size: u32,
    /// Blocks that requests can use; a block that the engine keeps to itself is not counted.
    pub num_blocks: u32,
    /// Whether a prompt may be computed in pieces.
    pub chunked_prefill: bool,
    pub prefix_caching: bool,
    /// V0 only: a new prompt waits until this many times the last prompt step's length have passed.
    pub scheduler_delay_factor: f64,
    /// Whether every kernel is launched by the host, without captured graphs.
    pub eager: bool,
    /// Bytes of one number in the cache where they differ from the model's own: 1 for fp8.
    pub cache_dtype_bytes: Option<u64>,
}

/// Settings with which some request could never run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0} is 0, must be at least 1")]
    Zero(&'static str),
    #[error(
        "max_num_batched_tokens {max_num_batched_tokens} is smaller than max_model_len {max_model_len} without chunked prefill"
    )]
    Budget { max_num_batched_tokens: u32, max_model_len: u32 },
    #[error("{num_blocks} blocks of {block_size} tokens cannot hold max_model_len {max_model_len}")]
    Cache { num_blocks: u32, block_size: u32, max_model_len: u32 },
}

impl Settings {
    /// # Errors
    /// When a request within `max_model_len` could never be admitted or never finish.
    pub fn check(&self) -> Result<(), SettingsError> {
        for (name, value) in [
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("block_size", self.block_size),
        ] {
            if value == 0 {
                return Err(SettingsError::Zero(name));
            }
        }
        let (max_model_len, max_num_batched_tokens) = (self.max_model_len, self.max_num_batched_tokens);
        if !self.chunked_prefill && max_num_batched_tokens < max_model_len {
            return Err(SettingsError::Budget { max_num_batched_tokens, max_model_len });
        }
        let (num_blocks, block_size) = (self.num_blocks, self.block_size);
        if num_blocks < max_model_len.div_ceil(block_size) {
            return Err(SettingsError::Cache { num_blocks, block_size, max_model_len });
        }
        Ok(())
    }
}
