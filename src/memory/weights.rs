//! Bytes of a model's weights on one device: from the checkpoint's size if it is known, else from the shape.

use super::MemoryLaunch;
use super::cache::stage_layers;
use crate::facts::ModelShape;
use crate::stats::{GIB, gib, to_f64};

/// Size of the weights on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WeightMemory {
    pub(super) gib: f64,
    /// Standard deviation as a share of `gib`.
    pub(super) relative_deviation: f64,
}

/// Bits of one `mxfp4` weight: 4, and an 8-bit scale for each block of 32 weights.
const MXFP4_BITS: f64 = 4.25;
/// On a GPU, one side of an `mxfp4` matrix is padded to a multiple of this (gpt-oss on an H100: 3072 for 2880).
const MXFP4_MULTIPLE: u64 = 256;

/// Estimates the weights on one device. Returns `None` if neither the checkpoint's size nor the shape is known.
pub(super) fn weights(model: &ModelShape, launch: &MemoryLaunch) -> Option<WeightMemory> {
    let resolved = &launch.resolved;
    let layers = model.layers.unwrap_or(1);
    let stage = to_f64(stage_layers(layers, launch)) / to_f64(layers.max(1));
    let estimate = match (model.checkpoint_bytes, weights_from_shape(model, launch)) {
        // Packed experts are stored without padding, but loaded with it.
        (Some(bytes), _) if !is_mxfp4(model) => {
            let scale = load_size_ratio(model, launch);
            let doubt = if scale.is_some() { 0.01 } else { 0.1 };
            let quantized = if model.quantization.is_some() { 0.02 } else { 0.0 };
            WeightMemory { gib: gib(bytes) * scale.unwrap_or(1.0), relative_deviation: doubt + quantized }
        }
        (_, Some(shaped)) => shaped,
        (Some(bytes), None) => WeightMemory { gib: gib(bytes), relative_deviation: 0.08 },
        (None, None) => return None,
    };
    // The replicas together hold one copy of the experts.
    let spread = to_f64(launch.data_parallel_size);
    let kept = match expert_share(model).filter(|_| spread > 1.0) {
        Some(share) => 1.0 - share + share / spread,
        None => 1.0,
    };
    let share = kept * stage / to_f64(resolved.tensor_parallel_size.max(1));
    // The shares are not exactly equal. Only the first and the last stage hold embeddings, and every tensor-parallel
    // device holds a copy of norms and small projections.
    let uneven = if share < 1.0 { 0.01 } else { 0.0 } + if resolved.pipeline_parallel_size > 1 { 0.05 } else { 0.0 };
    let gib = (estimate.gib * share - gib(launch.offloaded)).max(0.0);
    Some(WeightMemory { gib, relative_deviation: estimate.relative_deviation + uneven })
}

fn is_mxfp4(model: &ModelShape) -> bool {
    model.quantization.as_deref() == Some("mxfp4")
}

/// Returns the bytes of one unquantised weight.
fn plain_bytes(model: &ModelShape, launch: &MemoryLaunch) -> f64 {
    to_f64(launch.element_bytes(model))
}

/// Returns the ratio of the loaded size of the weights to the stored size. `None` if it is not known.
fn load_size_ratio(model: &ModelShape, launch: &MemoryLaunch) -> Option<f64> {
    let cast = plain_bytes(model, launch) / to_f64(model.dtype_bytes.max(1));
    match (&model.quantization, &launch.quantization) {
        (Some(_), _) => Some(1.0),
        (None, None) => Some(cast),
        // The weights are quantised while loading. The embeddings keep their type.
        (None, Some(method)) => {
            let (matrices, embeddings) = parts(model)?;
            let bits = named_bits(method)?;
            let plain = plain_bytes(model, launch);
            Some((matrices * bits / 8.0 + embeddings * plain) / ((matrices + embeddings) * to_f64(model.dtype_bytes)))
        }
    }
}

/// Returns the bits of one quantised weight, scales included.
fn named_bits(method: &str) -> Option<f64> {
    match method {
        text if text.contains("mxfp4") => Some(MXFP4_BITS),
        text if text.contains("awq") || text.contains("gptq") => Some(4.2),
        "bitsandbytes" => Some(4.5),
        text if text.contains("fp8") || text.contains("int8") => Some(8.0),
        text if text.contains("fp4") => Some(4.5),
        _ => None,
    }
}

/// Returns the numbers of quantisable weights and of embeddings.
fn parts(model: &ModelShape) -> Option<(f64, f64)> {
    let (layer, expert) = (layer_weights(model)?, expert_weights(model).unwrap_or(0.0));
    let dense = to_f64(model.experts.map_or(0, |experts| experts.dense_layers.min(model.layers.unwrap_or(0))));
    let layers = to_f64(model.layers?);
    let mlp = mlp_weights(model, model.intermediate_size.unwrap_or(0));
    let all = match model.experts {
        Some(_) => layers * layer + dense * mlp + (layers - dense) * expert,
        None => layers * (layer + mlp),
    };
    let copies = if model.tied_embeddings { 1.0 } else { 2.0 };
    Some((all, copies * to_f64(model.hidden_size?) * to_f64(model.vocab_size?)))
}

/// Returns the experts' share of the weights.
fn expert_share(model: &ModelShape) -> Option<f64> {
    let experts = model.experts?;
    let (matrices, embeddings) = parts(model)?;
    let layers = to_f64(model.layers?.saturating_sub(experts.dense_layers));
    Some((layers * expert_weights(model)? / (matrices + embeddings)).min(1.0))
}

/// Returns the number of attention weights of one layer.
fn layer_weights(model: &ModelShape) -> Option<f64> {
    let heads = 2 * model.attention_heads? + 2 * model.kv_heads?;
    Some(to_f64(model.hidden_size?) * to_f64(model.head_dim?) * to_f64(heads))
}

/// Returns the number of weights of one feed-forward block of this inner size.
fn mlp_weights(model: &ModelShape, intermediate: u64) -> f64 {
    let matrices = if model.gated_mlp { 3.0 } else { 2.0 };
    matrices * to_f64(model.hidden_size.unwrap_or(0)) * to_f64(intermediate)
}

/// Returns the number of weights of all experts of one layer, shared experts included.
fn expert_weights(model: &ModelShape) -> Option<f64> {
    let experts = model.experts?;
    let one = mlp_weights(model, experts.intermediate_size.or(model.intermediate_size)?);
    Some(to_f64(experts.count.saturating_add(experts.shared)) * one)
}

/// Estimates the weights of the whole model from its shape.
fn weights_from_shape(model: &ModelShape, launch: &MemoryLaunch) -> Option<WeightMemory> {
    if model.experts.is_none() && model.intermediate_size.is_none() {
        return None;
    }
    let (matrices, embeddings) = parts(model)?;
    let plain = plain_bytes(model, launch);
    let method = model.quantization.as_deref().or(launch.quantization.as_deref());
    let (quantized, known) = if is_mxfp4(model) {
        // Only the experts are packed.
        let experts = to_f64(model.layers?) * expert_weights(model)?;
        let hidden = model.hidden_size?;
        let padded = to_f64(hidden.next_multiple_of(MXFP4_MULTIPLE)) / to_f64(hidden);
        let padded = if launch.target.cpu { 1.0 } else { padded };
        (experts * MXFP4_BITS / 8.0 * padded + (matrices - experts) * plain, true)
    } else {
        let stored = model.quantization_bits.map(|bits| to_f64(bits) + if bits < 8 { 0.2 } else { 0.0 });
        let bits = method.and_then(|method| stored.or_else(|| named_bits(method)));
        (matrices * bits.map_or(plain, |bits| bits / 8.0), method.is_none() || bits.is_some())
    };
    let doubt = [
        // Contributions to the relative standard deviation, each if its condition holds.
        (true, 0.005),
        (method.is_some(), 0.01),
        (!known, 0.3),
        (model.experts.is_some() && !is_mxfp4(model), 0.03),
        (model.latent.is_some(), 0.03),
        (model.multimodal || model.encoder_decoder, 0.05),
        (!is_modelled_family(model), 0.04),
    ];
    let doubt = doubt.iter().filter(|(applies, _)| *applies).map(|(_, doubt)| doubt).sum();
    Some(WeightMemory { gib: (quantized + embeddings * plain) / to_f64(GIB), relative_deviation: doubt })
}

/// Returns whether the formulas were made for the model's family.
fn is_modelled_family(model: &ModelShape) -> bool {
    let plain = [
        "llama",
        "mistral",
        "mistral3",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "phi3",
        "gemma",
        "gemma2",
        "gpt_oss",
    ];
    model.model_type.as_deref().is_some_and(|kind| plain.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::memory::{test_launch, test_model};

    fn of(model: &ModelShape, launch: &MemoryLaunch) -> f64 {
        weights(model, launch).unwrap().gib
    }

    #[test]
    fn eight_billion_weights_take_what_the_engine_reports() {
        // Reported by 0.9.0.1 and 0.11: 14.99 GiB.
        let gib = of(&test_model(), &test_launch());
        assert!((gib - 14.99).abs() < 0.05, "{gib}");
    }

    #[test]
    fn the_checkpoint_is_believed_and_its_type_can_be_changed() {
        let model = ModelShape { checkpoint_bytes: Some(16 << 30), ..test_model() };
        assert!((of(&model, &test_launch()) - 16.0).abs() < 1e-9);
        assert!((of(&model, &MemoryLaunch { dtype_bytes: Some(4), ..test_launch() }) - 32.0).abs() < 1e-9);
        let eight_bits = of(&model, &MemoryLaunch { quantization: Some("fp8".to_owned()), ..test_launch() });
        assert!((8.5..9.5).contains(&eight_bits), "the embeddings stay: {eight_bits}");
    }

    #[test]
    fn devices_share_the_weights() {
        let launch = test_launch();
        let resolved = ResolvedConfig { tensor_parallel_size: 4, pipeline_parallel_size: 2, ..launch.resolved };
        let share = weights(&test_model(), &MemoryLaunch { resolved, data_parallel_size: 2, ..launch }).unwrap().gib;
        assert!((share - 14.99 / 8.0).abs() < 0.01, "{share}");
    }
}
