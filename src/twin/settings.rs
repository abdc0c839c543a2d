//! Settings of the simulated engine: numbers with all defaults resolved.

use crate::config::ResolvedConfig;

/// The settings of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Resolved values of flags that determine the scheduling. Its `v0` selects the scheduler. V1 has one token budget
    /// per step for running and new requests. V0 schedules prefills first, in batches of their own, unless chunked
    /// prefill is on.
    pub resolved: ResolvedConfig,
    /// Number of KV cache blocks that requests can use. The block that V1 keeps to itself is not counted.
    pub num_blocks: u32,
    /// Whether the host launches every kernel, without captured graphs.
    pub eager: bool,
    /// Bytes of one element in the cache, 1 for fp8. `None` means the model's own type.
    pub cache_dtype_bytes: Option<u64>,
    pub scheduling: Scheduling,
}

/// Order of requests in the queue, and for the choice of the request to preempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// The queue is in order of arrival. The request admitted last is preempted.
    #[default]
    Arrival,
    /// The smallest priority value comes first, and among equals the earlier arrival. The last running request in this
    /// order is preempted.
    Priority,
}

/// Detailed rules of V1's scheduler. V0 has only `stream_interval`. With V0, `max_num_active_seqs`, `async_scheduling`,
/// `pipeline_stages` and `speculation` must keep their defaults. The default values are those of vLLM 0.32, except that
/// scheduling is not asynchronous.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduling {
    pub order: QueueOrder,
    /// Largest number of tokens of one request in one step while other requests run or wait. 0 means no limit.
    pub long_prefill_token_threshold: u32,
    /// Whether `long_prefill_token_threshold` is raised to the token budget divided by the number of requests.
    pub long_prefill_adaptive: bool,
    /// Largest number of requests that run at once, if below `max_num_seqs`.
    pub max_num_active_seqs: Option<u32>,
    /// Largest number of tokens scheduled in one step, if below `max_num_batched_tokens`.
    pub max_num_scheduled_tokens: Option<u32>,
    /// Whether an admission needs free blocks for all existing tokens of the request, not only for its first piece.
    pub reserve_full_isl: bool,
    /// Share of the cache's blocks, 0 to 1, that an admission must leave unused while other requests run.
    pub watermark: f64,
    /// Whether the next step is scheduled while the current one is computed. Placeholders then represent the tokens
    /// that it will generate.
    pub async_scheduling: bool,
    /// Stages of pipeline parallelism. As many steps are under way at once, plus one with `async_scheduling`.
    pub pipeline_stages: u32,
    /// Number of tokens of a stream that are sent together. The first output of a request is sent at once.
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

/// Speculative decoding: a drafter proposes tokens (drafts) for each decode, and the model accepts or rejects them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// Number of drafts per request and step.
    pub tokens: u32,
    /// Probability, 0 to 1, that a draft is accepted if all drafts before it were accepted.
    pub acceptance: f64,
    /// Seed of the random acceptances. Equal seeds accept the same drafts, independent of the batches.
    pub seed: u64,
    /// Cache slots that are reserved beyond the scheduled tokens for the drafter's writes. A draft model and EAGLE need
    /// one for each draft, n-grams none.
    pub lookahead: u32,
    /// Inputs that the drafter adds to a step for each request: 1 for a draft model, 0 for n-grams and EAGLE. They
    /// count towards `max_num_batched_tokens`.
    pub draft_slots: u32,
}

/// Invalid settings: some request within `max_model_len` could never run, or a value is out of range.
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
    #[error("a step has room for {room} tokens of one request, but one token and its {drafts} drafts need more")]
    Drafts { room: u32, drafts: u32 },
}

/// Round numbers that leave no resource short. The values of a real engine follow from its flags, model and device.
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

/// The limits that a running engine can change while it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveLimits {
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
    /// As in [`Scheduling`].
    pub long_prefill_token_threshold: u32,
    pub prefix_caching: bool,
}

impl Settings {
    /// Returns the limits of the scheduler in use.
    #[must_use]
    pub fn live_limits(&self) -> LiveLimits {
        let tokens = self.scheduling.max_num_scheduled_tokens.unwrap_or_else(|| self.max_num_batched_tokens());
        LiveLimits {
            max_num_seqs: u32::try_from(self.max_running()).unwrap_or(u32::MAX),
            max_num_batched_tokens: tokens.min(self.max_num_batched_tokens()),
            long_prefill_token_threshold: self.scheduling.long_prefill_token_threshold,
            prefix_caching: self.resolved.prefix_caching,
        }
    }

    /// Sets limits that are at most those of the launch. The buffers and blocks keep their sizes.
    pub(super) fn set_live_limits(&mut self, limits: LiveLimits) {
        self.scheduling.max_num_active_seqs = Some(limits.max_num_seqs);
        self.scheduling.max_num_scheduled_tokens = Some(limits.max_num_batched_tokens);
        self.scheduling.long_prefill_token_threshold = limits.long_prefill_token_threshold;
        self.resolved.prefix_caching = limits.prefix_caching;
    }

    /// Returns the largest length of a request, prompt plus output, in tokens.
    #[must_use]
    pub fn max_model_len(&self) -> u32 {
        saturated(self.resolved.max_model_len)
    }

    /// Returns the largest number of requests that run at once by `max_num_seqs`.
    #[must_use]
    pub fn max_num_seqs(&self) -> u32 {
        saturated(self.resolved.max_num_seqs)
    }

    /// Returns the largest number of tokens computed in one step.
    #[must_use]
    pub fn max_num_batched_tokens(&self) -> u32 {
        saturated(self.resolved.max_num_batched_tokens)
    }

    /// Returns the number of tokens in one block of the KV cache.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        saturated(self.resolved.block_size)
    }

    /// # Errors
    /// If a request within `max_model_len` could never be admitted or never finish, or if a value is out of range.
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

    /// Returns the largest number of tokens of one request in one step.
    fn largest_piece(&self) -> u32 {
        let draft_slots = self.scheduling.speculation.map_or(0, |speculation| speculation.draft_slots);
        let inputs = self.max_num_batched_tokens().saturating_sub(draft_slots);
        inputs.min(self.scheduling.max_num_scheduled_tokens.unwrap_or(inputs))
    }

    /// Returns the largest number of requests that run at once.
    pub(super) fn max_running(&self) -> usize {
        let active = self.scheduling.max_num_active_seqs.unwrap_or(self.max_num_seqs());
        self.max_num_seqs().min(active) as usize
    }
}

/// Converts a number. It saturates at `u32::MAX`, which exceeds the capacity of any device.
fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
