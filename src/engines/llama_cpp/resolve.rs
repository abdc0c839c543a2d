//! The values that the server works with, from a configuration and the model (`llama_context` in `src/llama-context.cpp`,
//! `llama_server` in `tools/server/server.cpp`).
//!
//! They are reported under the common names: the context of a slot is `max_model_len`, the logical batch
//! `max_num_batched_tokens`, and the number of slots `max_num_seqs`.

use crate::config::{Config, ResolvedConfig, Value};
use crate::facts::ModelShape;

/// The context is a multiple of this number of tokens.
const PADDING: u64 = 256;

/// The number of slots with `--parallel -1`, which also unifies the cache.
const AUTOMATIC_SLOTS: u64 = 4;

/// The context of a model whose metadata is not known.
const UNKNOWN_CONTEXT: u64 = 4096;

/// Values of `common_params` without a flag.
const BATCH: u64 = 2048;
pub(super) const UBATCH: u64 = 512;

/// The division of the context among the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotContext {
    pub(super) slots: u64,
    /// Whether all slots share one cache, so that one request may fill it.
    pub(super) is_unified: bool,
    /// Tokens of the context before padding. A batch is at most as large.
    pub(super) unpadded: u64,
    /// Tokens of the whole cache.
    pub(super) total: u64,
    /// Tokens that one slot can hold: prompt and output.
    pub(super) of_slot: u64,
}

impl SlotContext {
    pub(super) fn of(config: &Config, model: &ModelShape) -> Self {
        let is_automatic = config.get_i64("parallel").is_none_or(|slots| slots < 0);
        let slots = slots_of(config);
        let is_unified = is_automatic || is_on(config, "kv-unified", false);
        let trained = model.lengths.stated;
        let per_slot = number(config, "kv-unified-per-slot").filter(|tokens| *tokens > 0);
        // Without a size, every slot has the length of the training, or the cap. An explicit 0 ignores the cap.
        let divided = if is_unified { 1 } else { slots };
        let of_cap = per_slot.filter(|_| config.get("ctx-size").is_none()).map(|cap| slots.saturating_mul(cap));
        let automatic = || of_cap.unwrap_or_else(|| divided.saturating_mul(trained.unwrap_or(UNKNOWN_CONTEXT)));
        let unpadded = number(config, "ctx-size").filter(|tokens| *tokens > 0).unwrap_or_else(automatic);
        let total = pad(unpadded);
        let (total, of_slot) = if is_unified {
            (total, total)
        } else {
            let of_slot = pad(total / slots);
            (of_slot.saturating_mul(slots), of_slot)
        };
        // A slot does not exceed the length that the model was trained with.
        let limits = [per_slot, trained].into_iter().flatten();
        Self { slots, is_unified, unpadded, total, of_slot: limits.fold(of_slot, u64::min) }
    }
}

/// Returns the number of slots, at least one.
pub(super) fn slots_of(config: &Config) -> u64 {
    match config.get_i64("parallel") {
        Some(slots @ 0..) => slots.unsigned_abs().max(1),
        _ => AUTOMATIC_SLOTS,
    }
}

fn pad(tokens: u64) -> u64 {
    tokens.div_ceil(PADDING).saturating_mul(PADDING)
}

/// Returns the value of a flag that is a number and not negative.
pub(super) fn number(config: &Config, flag: &str) -> Option<u64> {
    config.get_i64(flag).and_then(|number| u64::try_from(number).ok())
}

/// Returns whether a switch is on. `default` holds without the flag.
pub(super) fn is_on(config: &Config, flag: &str, default: bool) -> bool {
    config.get(flag).and_then(Value::as_bool).unwrap_or(default)
}

/// Returns the logical and the physical batch: the tokens of one call, and those of one computation.
pub(super) fn batches(config: &Config, context: SlotContext) -> (u64, u64) {
    let asked = |flag: &str, default: u64| number(config, flag).unwrap_or(default);
    let batch = asked("batch-size", BATCH).min(context.unpadded);
    let ubatch = match asked("ubatch-size", UBATCH) {
        0 => batch,
        tokens => tokens.min(batch),
    };
    (batch, ubatch)
}

pub(super) fn resolve_config(config: &Config, model: &ModelShape) -> ResolvedConfig {
    let context = SlotContext::of(config, model);
    ResolvedConfig {
        v0: false,
        max_model_len: context.of_slot,
        max_num_batched_tokens: batches(config, context).0,
        max_num_seqs: context.slots,
        block_size: 1,
        chunked_prefill: true,
        prefix_caching: is_on(config, "cache-prompt", true),
        scheduler_delay_factor: 0.0,
        gpu_memory_utilization: 1.0,
        tensor_parallel_size: 1,
        pipeline_parallel_size: 1,
    }
}

/// Returns the default of a flag that spaces have as a parameter, if it does not depend on the machine.
pub(super) fn constant_default(flag: &str) -> Option<Value> {
    Some(match flag {
        "batch-size" => Value::Int(2048),
        "ubatch-size" => Value::Int(512),
        "parallel" | "gpu-layers" => Value::Int(-1),
        "ctx-size" | "cache-reuse" | "prio" | "n-cpu-moe" => Value::Int(0),
        "poll" => Value::Int(50),
        "cache-ram" => Value::Int(8192),
        "flash-attn" => Value::Text("auto".to_owned()),
        "cache-type-k" | "cache-type-v" => Value::Text("f16".to_owned()),
        "split-mode" => Value::Text("layer".to_owned()),
        "spec-type" => Value::Text("none".to_owned()),
        "spec-draft-n-max" => Value::Int(3),
        "spec-draft-p-min" => Value::Float(0.0),
        "spec-ngram-simple-size-n" | "spec-ngram-map-k-size-n" => Value::Int(12),
        "spec-ngram-simple-size-m" | "spec-ngram-map-k-size-m" | "spec-ngram-mod-n-min" => Value::Int(48),
        "spec-ngram-mod-n-match" => Value::Int(24),
        "cont-batching" | "repack" | "cache-prompt" | "kv-offload" | "op-offload" => Value::Bool(true),
        "swa-full" | "cpu-moe" => Value::Bool(false),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ContextLengths;

    fn model(trained: u64) -> ModelShape {
        let shape = ModelShape::from_json(&serde_json::json!({}));
        ModelShape { lengths: ContextLengths::of(trained), ..shape }
    }

    fn slots(config: &Config) -> (u64, u64, u64) {
        let context = SlotContext::of(config, &model(8192));
        (context.slots, context.total, context.of_slot)
    }

    #[test]
    fn the_context_is_divided_among_the_slots_unless_they_share_one_cache() {
        let config = Config::new();
        assert_eq!(slots(&config), (4, 8192, 8192));
        assert_eq!(slots(&config.clone().with("parallel", 8_i64)), (8, 65_536, 8192));
        let sized = config.clone().with("parallel", 8_i64).with("ctx-size", 8192_i64);
        assert_eq!(slots(&sized), (8, 8192, 1024));
        let shared = config.clone().with("parallel", 8_i64).with("kv-unified", true);
        assert_eq!(slots(&shared), (8, 8192, 8192));
        // Each slot is padded, so that the cache becomes larger than the requested context.
        let padded = config.clone().with("parallel", 3_i64).with("ctx-size", 1000_i64);
        assert_eq!(slots(&padded), (3, 1536, 512));
        // A slot does not exceed the length of the training, and a cap sizes the cache.
        assert_eq!(slots(&config.clone().with("parallel", 1_i64).with("ctx-size", 20_000_i64)), (1, 20_224, 8192));
        let capped = config.with("parallel", 2_i64).with("kv-unified-per-slot", 512_i64);
        assert_eq!(slots(&capped), (2, 1024, 512));
        assert_eq!(slots(&capped.with("ctx-size", 0_i64)), (2, 16_384, 512));
    }

    #[test]
    fn the_physical_batch_is_within_the_logical_one_and_that_within_the_context() {
        let of = |config: Config| batches(&config, SlotContext::of(&config, &model(8192)));
        assert_eq!(of(Config::new()), (2048, 512));
        assert_eq!(of(Config::new().with("batch-size", 256_i64)), (256, 256));
        assert_eq!(of(Config::new().with("ubatch-size", 0_i64)), (2048, 2048));
        assert_eq!(of(Config::new().with("ctx-size", 1024_i64)), (1024, 512));
    }
}
