//! Exact arithmetic of the KV cache: bytes, blocks and tokens, as in `vllm/v1/core/kv_cache_utils.py`.

use super::MemoryLaunch;
use crate::facts::{EngineVersion, ModelShape};
use crate::stats::to_f64;

/// Bytes that one token of one layer takes in `fp8_ds_mla`: 512 elements, 4 scales, 64 elements in 16 bits.
const DEEPSEEK_TOKEN: u64 = 656;

/// Division of one device's cache into blocks.
///
/// Layers of one kind form groups with equal numbers of layers. A block belongs to one group and holds `block_size`
/// tokens of each of the group's layers. All groups take their blocks from one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Tokens of one block.
    pub block_size: u64,
    /// Groups of layers with full attention.
    full_groups: u64,
    /// Groups of layers with a sliding window.
    sliding_groups: u64,
    /// Largest number of tokens of one sequence that a layer with a sliding window keeps.
    sliding_tokens: u64,
    /// Number of devices among which the context of one sequence is divided.
    context_parallel_size: u64,
    /// Blocks that the release's check of the longest length leaves out: 1 from 0.32 on, 0 before.
    reserved_blocks: u64,
    /// The number of pipeline stages, for V0 only. V0 divides the number of blocks by it to check whether a sequence
    /// fits.
    v0_stages: Option<u64>,
    /// Whether the release's log computes the cache's tokens as concurrency times `max_model_len` (from 0.20 on).
    /// Otherwise it multiplies blocks by block size.
    logs_concurrency: bool,
}

impl CacheLayout {
    /// Returns `None` if the shape lacks a size, if the model caches more than keys and values, or if the cache's type
    /// is unknown.
    #[must_use]
    pub fn new(model: &ModelShape, launch: &MemoryLaunch) -> Option<Self> {
        // The caches of encoders, recurrent layers and unknown types are not counted here.
        if model.encoder_decoder || model.irregular_cache || launch.unknown_cache_dtype {
            return None;
        }
        let resolved = &launch.resolved;
        let since = |minor| launch.target.version >= EngineVersion::new(0, minor, 0);
        let block_size = resolved.block_size.max(1);
        let layers = stage_layers(model.layers?, launch).max(1);
        let token = token_bytes(model, launch)?;
        // A window longer than the model's length still counts as a window.
        let sliding = match (launch.hybrid, model.sliding_window, model.sliding_layers) {
            (true, Some(_), Some(sliding)) => stage_layers(sliding, launch).min(layers),
            // The number of layers with a window is unknown, and the result depends on it.
            (true, Some(_), None) => return None,
            _ => 0,
        };
        let full = layers - sliding;
        let (fewer, more) = (full.min(sliding), full.max(sliding));
        let group = match fewer {
            0 => more,
            // From 0.12 the larger count is the group size if it is below 1.5 times the smaller. The smaller group is
            // padded.
            fewer if since(12) && 2 * more < 3 * fewer => more,
            fewer => fewer,
        };
        let in_flight = launch.concurrent_batches.saturating_mul(resolved.max_num_batched_tokens);
        Some(Self {
            block_bytes: token.saturating_mul(block_size).saturating_mul(group),
            block_size,
            full_groups: full.div_ceil(group),
            sliding_groups: sliding.div_ceil(group),
            sliding_tokens: model.sliding_window.unwrap_or(0).saturating_sub(1).saturating_add(in_flight),
            context_parallel_size: launch.context_parallel_size.max(1),
            // `BlockPool` never hands out its null block. From 0.32 on, the check of the length takes that into
            // account.
            reserved_blocks: u64::from(since(32)),
            v0_stages: resolved.v0.then_some(resolved.pipeline_parallel_size.max(1)),
            logs_concurrency: since(20),
        })
    }

    /// Returns the number of blocks in `bytes`, the reserved one included.
    #[must_use]
    pub fn blocks(&self, bytes: u64) -> u64 {
        bytes / self.block_bytes.max(1)
    }

    /// Returns the number of blocks that one sequence of this length in tokens takes.
    #[must_use]
    pub fn blocks_per_request(&self, length: u64) -> u64 {
        let full = length.div_ceil(self.context_parallel_size).div_ceil(self.block_size);
        // The window may begin in the middle of a block.
        let sliding = self.sliding_tokens.min(length).div_ceil(self.block_size).saturating_add(1);
        let (full, sliding) = (self.full_groups.saturating_mul(full), self.sliding_groups.saturating_mul(sliding));
        full.saturating_add(sliding)
    }

    /// Returns the size of the smallest cache, in bytes, that holds a sequence of this length.
    #[must_use]
    pub fn bytes_needed(&self, length: u64) -> u64 {
        let stages = self.v0_stages.unwrap_or(1);
        let blocks = self.blocks_per_request(length).saturating_mul(stages).saturating_add(self.reserved_blocks);
        blocks.saturating_mul(self.block_bytes)
    }

    /// Returns whether this number of blocks holds one sequence of this length.
    #[must_use]
    pub fn holds(&self, blocks: u64, length: u64) -> bool {
        let usable = blocks.saturating_sub(self.reserved_blocks) / self.v0_stages.unwrap_or(1);
        blocks > 0 && self.blocks_per_request(length) <= usable
    }

    /// Returns the largest length up to `most` that this number of blocks holds, 0 if none.
    #[must_use]
    pub fn largest_length(&self, blocks: u64, most: u64) -> u64 {
        let (mut fits, mut fails) = (0, most.saturating_add(1));
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.holds(blocks, middle) { fits = middle } else { fails = middle }
        }
        fits
    }

    /// Returns the number of sequences of this length that fit at the same time.
    #[must_use]
    pub fn concurrency(&self, blocks: u64, length: u64) -> f64 {
        to_f64(blocks) / to_f64(self.blocks_per_request(length).max(1))
    }

    /// Returns the tokens of the cache as the release's log reports them.
    #[must_use]
    pub fn tokens(&self, blocks: u64, length: u64) -> u64 {
        if self.logs_concurrency {
            let tokens = u128::from(blocks) * u128::from(length) / u128::from(self.blocks_per_request(length).max(1));
            return u64::try_from(tokens).unwrap_or(u64::MAX);
        }
        let groups = (self.full_groups + self.sliding_groups).max(1);
        (blocks / groups).saturating_mul(self.block_size).saturating_mul(self.context_parallel_size)
    }

    /// Returns the number of blocks if the release's log reports this number of tokens. It inverts `tokens`, up to
    /// rounding.
    #[must_use]
    pub fn blocks_of_tokens(&self, tokens: u64, length: u64) -> u64 {
        if self.logs_concurrency {
            let blocks = u128::from(tokens) * u128::from(self.blocks_per_request(length)) / u128::from(length.max(1));
            return u64::try_from(blocks).unwrap_or(u64::MAX);
        }
        let groups = self.full_groups + self.sliding_groups;
        (tokens / self.block_size / self.context_parallel_size).saturating_mul(groups)
    }
}

/// Returns the number of layers in the pipeline's largest stage.
pub(super) fn stage_layers(layers: u64, launch: &MemoryLaunch) -> u64 {
    let stages = launch.resolved.pipeline_parallel_size.clamp(1, layers.max(1));
    // 0.6 assigns all remaining layers to the last stage. Later releases assign one each to several stages.
    if launch.target.version.is_v0() { layers / stages + layers % stages } else { layers.div_ceil(stages) }
}

/// Returns the bytes of one token in one layer on one device.
fn token_bytes(model: &ModelShape, launch: &MemoryLaunch) -> Option<u64> {
    let element = launch.cache_dtype_bytes.unwrap_or_else(|| launch.element_bytes(model));
    let parallel = launch.resolved.tensor_parallel_size.max(1);
    // 0.6 does not support latent attention. It caches whole keys and values, with heads padded to 256 elements.
    if let Some(latent) = model.latent.filter(|_| !launch.target.version.is_v0()) {
        if launch.deepseek_cache {
            return Some(DEEPSEEK_TOKEN);
        }
        return Some(latent.elements().saturating_mul(element));
    }
    // If there are more devices than heads, each device holds a copy of one head.
    let heads = (model.kv_heads? / parallel).max(1);
    let head_dim = if model.latent.is_some() { 256 } else { model.head_dim? };
    Some(plain_token_bytes(heads, head_dim, element))
}

/// Returns the bytes of one token in all layers of a model on one device. `None` if the shape lacks a size.
#[must_use]
pub fn cache_token_bytes(model: &ModelShape, cache_dtype_bytes: Option<u64>) -> Option<u64> {
    let element = cache_dtype_bytes.unwrap_or(model.dtype_bytes.min(2));
    let token = match model.latent {
        Some(latent) => latent.elements().saturating_mul(element),
        None => plain_token_bytes(model.kv_heads?, model.head_dim?, element),
    };
    token.checked_mul(model.layers?)
}

/// Returns the bytes of the keys and values of one token in one layer.
fn plain_token_bytes(heads: u64, head_dim: u64, element: u64) -> u64 {
    heads.saturating_mul(2).saturating_mul(head_dim).saturating_mul(element)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::memory::{LaunchTarget, test_launch, test_model};
    use serde_json::json;

    /// Returns a launch of a release of vLLM without flags.
    fn launch(version: &str, change: impl Fn(ResolvedConfig) -> ResolvedConfig) -> MemoryLaunch {
        let MemoryLaunch { target, resolved, .. } = test_launch();
        let version: EngineVersion = version.parse().unwrap();
        let plain = MemoryLaunch::from_resolved(LaunchTarget { version, ..target }, change(resolved));
        let concurrent_batches = if version >= EngineVersion::V0_32 { 2 } else { 1 };
        MemoryLaunch { hybrid: version >= EngineVersion::V0_10, concurrent_batches, ..plain }
    }

    fn layout(
        json: &serde_json::Value,
        version: &str,
        change: impl Fn(ResolvedConfig) -> ResolvedConfig,
    ) -> CacheLayout {
        let model = ModelShape::from_json(json);
        CacheLayout::new(&model, &launch(version, change)).unwrap()
    }

    fn tiny() -> serde_json::Value {
        json!({"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64})
    }

    #[test]
    fn blocks_and_tokens_are_those_of_the_real_0_32() {
        let layout = |size, length| {
            layout(&tiny(), "0.32.0", |resolved| ResolvedConfig { block_size: size, max_model_len: length, ..resolved })
        };
        let whole = layout(128, 4096);
        assert_eq!((whole.blocks(1 << 30), whole.tokens(4096, 4096)), (4096, 524_288));
        assert_eq!((whole.largest_length(8, 4096), whole.holds(8, 896), whole.holds(8, 897)), (896, true, false));
        let wide = layout(96, 1000);
        assert_eq!((wide.blocks(1 << 30), wide.tokens(5461, 1000)), (5461, 496_454));
        let odd = layout(48, 512);
        assert_eq!((odd.blocks(1 << 30), odd.tokens(10_922, 512)), (10_922, 508_369));
        assert_eq!(odd.blocks_of_tokens(508_369, 512), 10_921, "the log's number is rounded down");
    }

    #[test]
    fn tensor_parallel_devices_share_the_heads_and_then_copy_them() {
        let block = |parallel| {
            layout(&tiny(), "0.12.0", |r| ResolvedConfig { tensor_parallel_size: parallel, ..r }).block_bytes / 128 / 4
        };
        assert_eq!([block(1), block(2), block(4)], [512, 256, 256]);
    }

    #[test]
    fn latent_attention_is_not_divided_and_0_6_does_not_know_it() {
        let deepseek = json!({"num_hidden_layers": 1, "num_attention_heads": 128, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "hidden_size": 7168});
        let two = |resolved| ResolvedConfig { tensor_parallel_size: 2, block_size: 1, ..resolved };
        assert_eq!(layout(&deepseek, "0.12.0", two).block_bytes, 1152);
        assert_eq!(layout(&deepseek, "0.6.3", two).block_bytes, 64 * 2 * 256 * 2);
        let special = MemoryLaunch { deepseek_cache: true, cache_dtype_bytes: Some(1), ..launch("0.20.2", two) };
        let special = CacheLayout::new(&ModelShape::from_json(&deepseek), &special);
        assert_eq!(special.map(|layout| layout.block_bytes), Some(656));
    }

    #[test]
    fn sliding_layers_keep_only_their_window() {
        // 4 full and 20 sliding layers: one group and five, of four layers each.
        let gemma = json!({"num_hidden_layers": 24, "num_attention_heads": 4, "num_key_value_heads": 1,
            "head_dim": 256, "sliding_window": 512, "sliding_window_pattern": 6});
        let of =
            |version| layout(&gemma, version, |r| ResolvedConfig { max_num_batched_tokens: 2048, block_size: 16, ..r });
        assert_eq!(of("0.12.0").block_bytes, 4 * 16 * 1024);
        assert_eq!(of("0.12.0").blocks_per_request(32_768), 2048 + 5 * (160 + 1));
        assert_eq!(of("0.32.0").blocks_per_request(32_768), 2048 + 5 * (288 + 1), "two steps are in flight");
        assert_eq!(of("0.8.5").block_bytes, 24 * 16 * 1024);
        assert_eq!(of("0.12.0").tokens(600, 32_768), 1600);
        let unknown = ModelShape { sliding_layers: None, ..ModelShape::from_json(&gemma) };
        assert_eq!(CacheLayout::new(&unknown, &launch("0.12.0", |resolved| resolved)), None);
    }

    #[test]
    fn the_cache_follows_its_type_and_the_stage() {
        let model = test_model();
        let bytes =
            |launch: &MemoryLaunch| CacheLayout::new(&model, launch).unwrap().block_bytes / launch.resolved.block_size;
        assert_eq!(bytes(&test_launch()), 131_072);
        assert_eq!(bytes(&MemoryLaunch { cache_dtype_bytes: Some(1), ..launch("0.11.0", |r| r) }), 65_536);
        let three = |resolved| ResolvedConfig { pipeline_parallel_size: 3, ..resolved };
        assert_eq!(bytes(&launch("0.12.0", three)), 11 * 4096);
        assert_eq!(bytes(&launch("0.6.3", three)), 12 * 4096);
    }

    proptest::proptest! {
        #[test]
        fn the_largest_length_fits_and_one_token_more_does_not(blocks in 0_u64..5000, size in 1_u64..300) {
            let layout = layout(&tiny(), "0.32.0", |resolved| ResolvedConfig { block_size: size, ..resolved });
            let length = layout.largest_length(blocks, u64::MAX - 1);
            proptest::prop_assert!(length == 0 || layout.holds(blocks, length));
            proptest::prop_assert!(!layout.holds(blocks, length + 1));
            proptest::prop_assert_eq!(length, blocks.saturating_sub(1) * size);
        }
    }
}
