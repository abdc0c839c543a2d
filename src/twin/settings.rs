//! The engine's settings in the scheduler's form: resolved numbers without open defaults.

use crate::config::ResolvedConfig;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// V1 has one token budget per step for running and new requests alike. V0 schedules prefills first, in batches of
    /// their own, unless chunked prefill is on.
    pub resolved: ResolvedConfig,
    /// Blocks that requests can use; a block that the engine keeps to itself is not counted.
    pub num_blocks: u32,
    /// Whether every kernel is launched by the host, without captured graphs.
    pub eager: bool,
    /// Bytes of one number in the cache, if they differ from the model's own: 1 for fp8.
    pub cache_dtype_bytes: Option<u64>,
    pub scheduling: Scheduling,
}

/// Precedence of requests, in the queue and when blocks run short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// The queue is in order of arrival. The request admitted last is preempted.
    #[default]
    Arrival,
    /// The smallest number comes first, among equals the earlier arrival. The last request by that order is preempted.
    Priority,
}

/// V1's finer rules. V0 uses only `stream_interval`. The default is vLLM 0.32's own, but scheduling is not asynchronous
/// and the pipeline has one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduling {
    pub order: QueueOrder,
    /// Most tokens of one request in one step while there are others, running or waiting; 0 for no limit.
    pub long_prefill_token_threshold: u32,
    /// Whether that limit is at least the budget divided by the number of requests.
    pub long_prefill_adaptive: bool,
    /// Most requests that run at once, if less than `max_num_seqs`.
    pub max_num_active_seqs: Option<u32>,
    /// Most tokens scheduled in one step, if less than `max_num_batched_tokens`.
    pub max_num_scheduled_tokens: Option<u32>,
    /// Whether a request is admitted only if there are blocks for all of it, not only for its first piece.
    pub reserve_full_isl: bool,
    /// Share of the cache's blocks, 0 to 1, that an admission leaves unused while others run.
    pub watermark: f64,
    /// Whether the next step is scheduled while one is computed, with placeholders for the tokens to come.
    pub async_scheduling: bool,
    /// Stages of pipeline parallelism. An equal number of steps is under way at once.
    pub pipeline_stages: u32,
    /// Tokens of a stream that are sent together, after the first.
    pub stream_interval: u32,
    pub speculation: Option<Speculation>,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            order: QueueOrder::Arrival,
            long_prefill_token_threshold: 0,
            long_prefill_adaptive: false,
            max_num_active_seqs: None,
            max_num_scheduled_tokens: None,
            reserve_full_isl: true,
            watermark: 0.0,
            async_scheduling: false,
            pipeline_stages: 1,
            stream_interval: 1,
            speculation: None,
        }
    }
}

impl Scheduling {
    /// Returns the number of steps that may be under way at once: `max_concurrent_batches` of vLLM's `config/vllm.py`.
    #[must_use]
    pub fn concurrent_steps(&self) -> usize {
        self.pipeline_stages.max(1) as usize + usize::from(self.async_scheduling)
    }
}

/// Speculative decoding: each decode proposes drafts and keeps those that the model accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// Drafts of each request and step.
    pub tokens: u32,
    /// Probability, 0 to 1, that a draft is accepted if all before it were.
    pub acceptance: f64,
    /// Seed of the draws. Equal seeds accept equal drafts, independent of the batches.
    pub seed: u64,
    /// Cache slots that are reserved beyond the scheduled tokens for the drafter's writes. A draft model and EAGLE need
    /// one for each draft, n-grams none.
    pub lookahead: u32,
    /// Further inputs of each request that the drafter adds to a step, out of `max_num_batched_tokens`: 1 for a draft
    /// model, 0 for n-grams and EAGLE.
    pub draft_slots: u32,
}

/// Settings that do not allow every request to run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0} is 0, must be at least 1")]
    Zero(&'static str),
    #[error(
        "max_num_batched_tokens {max_num_batched_tokens} is smaller than max_model_len {max_model_len} without chunked prefill"
    )]
    Budget { max_num_batched_tokens: u32, max_model_len: u32 },
    #[error("{num_blocks} blocks of {block_size} tokens cannot hold max_model_len {max_model_len}")]
    Cache { num_blocks: u32, block_size: u32, max_model_len: u32 },
    #[error("{name} is {value}, must be at least 0 and {limit}")]
    Share { name: &'static str, value: f64, limit: &'static str },
    #[error("a step has room for {room} tokens of one request, fewer than for one token and its {drafts} drafts")]
    Drafts { room: u32, drafts: u32 },
}

/// Round numbers without any shortage. The values of a real engine follow from its flags, model and device.
impl Default for Settings {
    fn default() -> Self {
        Self {
            resolved: ResolvedConfig {
                v0: false,
                max_model_len: 8192,
                max_num_batched_tokens: 8192,
                max_num_seqs: 256,
                block_size: 16,
                chunked_prefill: true,
                prefix_caching: true,
                scheduler_delay_factor: 0.0,
                gpu_memory_utilization: 0.9,
                tensor_parallel_size: 1,
                pipeline_parallel_size: 1,
            },
            num_blocks: 100_000,
            eager: false,
            cache_dtype_bytes: None,
            scheduling: Scheduling::default(),
        }
    }
}

impl Settings {
    /// Returns the longest prompt plus output, in tokens.
    #[must_use]
    pub fn max_model_len(&self) -> u32 {
        saturated(self.resolved.max_model_len)
    }

    /// Returns the most requests that run at once by `max_num_seqs`.
    #[must_use]
    pub fn max_num_seqs(&self) -> u32 {
        saturated(self.resolved.max_num_seqs)
    }

    /// Returns the most tokens computed in one step.
    #[must_use]
    pub fn max_num_batched_tokens(&self) -> u32 {
        saturated(self.resolved.max_num_batched_tokens)
    }

    /// Returns the tokens in one block of the KV cache.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        saturated(self.resolved.block_size)
    }

    /// # Errors
    /// If a request within `max_model_len` could never be admitted or never finish.
    pub fn check(&self) -> Result<(), SettingsError> {
        for (name, value) in [
            ("max_model_len", self.max_model_len()),
            ("max_num_seqs", self.max_num_seqs()),
            ("max_num_batched_tokens", self.max_num_batched_tokens()),
            ("block_size", self.block_size()),
            ("pipeline_stages", self.scheduling.pipeline_stages),
            ("stream_interval", self.scheduling.stream_interval),
            ("max_num_active_seqs", self.scheduling.max_num_active_seqs.unwrap_or(1)),
            ("max_num_scheduled_tokens", self.scheduling.max_num_scheduled_tokens.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(SettingsError::Zero(name));
            }
        }
        let max_model_len = self.max_model_len();
        let drafts = self.scheduling.speculation.map_or(0, |speculation| speculation.tokens);
        let room = self.largest_piece();
        if room <= drafts {
            return Err(SettingsError::Drafts { room, drafts });
        }
        if !self.resolved.chunked_prefill && room < max_model_len {
            return Err(SettingsError::Budget { max_num_batched_tokens: room, max_model_len });
        }
        let watermark = self.scheduling.watermark;
        if !(0.0..1.0).contains(&watermark) {
            return Err(SettingsError::Share { name: "watermark", value: watermark, limit: "less than 1" });
        }
        if let Some(Speculation { acceptance, .. }) = self.scheduling.speculation
            && !(0.0..=1.0).contains(&acceptance)
        {
            return Err(SettingsError::Share { name: "acceptance", value: acceptance, limit: "at most 1" });
        }
        let (num_blocks, block_size) = (self.num_blocks, self.block_size());
        if num_blocks < max_model_len.div_ceil(block_size) {
            return Err(SettingsError::Cache { num_blocks, block_size, max_model_len });
        }
        Ok(())
    }

    /// Returns the most tokens of one request in one step.
    fn largest_piece(&self) -> u32 {
        let draft_slots = self.scheduling.speculation.map_or(0, |speculation| speculation.draft_slots);
        let inputs = self.max_num_batched_tokens().saturating_sub(draft_slots);
        inputs.min(self.scheduling.max_num_scheduled_tokens.unwrap_or(inputs))
    }

    /// Returns the most requests that run at once.
    pub(super) fn most_running(&self) -> usize {
        let active = self.scheduling.max_num_active_seqs.unwrap_or(self.max_num_seqs());
        self.max_num_seqs().min(active) as usize
    }
}

/// Saturates at `u32::MAX`: no device has room for more of anything.
fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
