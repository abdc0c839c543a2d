//! Multi-step scheduling (`num_scheduler_steps`). Only the V0 engine supports it.
//!
//! Sources: `create_engine_config` in `vllm/engine/arg_utils.py`, `vllm/attention/selector.py` and
//! `vllm/worker/multi_step_model_runner.py` of 0.6.3; `vllm/platforms/cuda.py` of 0.8.5.

use super::v0::uses_drafting;
use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::engines::vllm::defaults::engine::uses_window;
use crate::facts::EngineVersion;

/// Releases with the flag. It was removed in 0.10.
const WITH_FLAG: ReleaseRange = ReleaseRange::until(EngineVersion::V0_10);

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R4e",
        condition: "num-scheduler-steps is at least 1",
        releases: WITH_FLAG,
        severity: Severity::Configuration,
        check: at_least_one,
    },
    Rule {
        id: "R13c",
        condition: "multi-step scheduling excludes speculative decoding",
        releases: WITH_FLAG,
        severity: Severity::Configuration,
        check: excludes_speculative_decoding,
    },
    Rule {
        id: "R13d",
        condition: "multi-step scheduling with chunked prefill excludes pipeline parallelism",
        releases: WITH_FLAG,
        severity: Severity::Configuration,
        check: excludes_pipeline_parallel,
    },
    Rule {
        id: "R13b",
        condition: "multi-step scheduling needs an attention backend that supports it",
        releases: WITH_FLAG,
        severity: Severity::Startup,
        check: needs_supported_backend,
    },
];

/// Returns the number of steps, if it is more than one.
fn steps(candidate: &Candidate<'_>) -> Option<i64> {
    candidate.config.get_i64("num-scheduler-steps").filter(|steps| *steps > 1)
}

fn at_least_one(candidate: &Candidate<'_>) -> Option<Violation> {
    let steps = candidate.config.get_i64("num-scheduler-steps").filter(|steps| *steps < 1)?;
    let message = format!("num_scheduler_steps ({steps}) must be greater than or equal to 1.");
    Some(Violation::new(message).unset("num-scheduler-steps"))
}

fn excludes_speculative_decoding(candidate: &Candidate<'_>) -> Option<Violation> {
    let steps = steps(candidate).filter(|_| uses_drafting(candidate.config))?;
    let message = format!("Speculative decoding is not supported with multi-step (--num-scheduler-steps > 1): {steps}");
    Some(Violation::new(message).unset("num-scheduler-steps"))
}

fn excludes_pipeline_parallel(candidate: &Candidate<'_>) -> Option<Violation> {
    let stages = candidate.effective.pipeline_parallel_size;
    steps(candidate).filter(|_| candidate.effective.chunked_prefill && stages > 1)?;
    let message = format!("Multi-Step Chunked-Prefill is not supported for pipeline-parallel-size > 1: it is {stages}");
    Some(Violation::new(message).unset("num-scheduler-steps"))
}

fn needs_supported_backend(candidate: &Candidate<'_>) -> Option<Violation> {
    steps(candidate)?;
    let asked = candidate.facts.env.get("VLLM_ATTENTION_BACKEND").map(String::as_str);
    let (backend, reason) = match asked {
        // The V0 engine falls back to XFORMERS if FLASH_ATTN cannot be used.
        None | Some("FLASH_ATTN") => ("XFORMERS", flash_attention_obstacle(candidate)?),
        Some("FLASHINFER") if candidate.effective.chunked_prefill => {
            ("FLASHINFER", "chunked prefill needs FLASH_ATTN".to_owned())
        }
        Some("XFORMERS") => ("XFORMERS", "set by VLLM_ATTENTION_BACKEND".to_owned()),
        Some(_) => return None,
    };
    let message = format!("Multi-Step not supported for attention backend: {backend} ({reason})");
    Some(Violation::new(message).unset("num-scheduler-steps"))
}

/// Head sizes of the `FLASH_ATTN` kernels of the V0 engine.
const HEAD_SIZES: [u64; 8] = [32, 64, 96, 128, 160, 192, 224, 256];

/// Returns the reason why the V0 engine cannot use its `FLASH_ATTN` kernel for this configuration, model and GPU, in the
/// engine's wording. `None` if it can, or if the device is no GPU.
pub(super) fn flash_attention_obstacle(candidate: &Candidate<'_>) -> Option<String> {
    let (config, facts) = (candidate.config, candidate.facts);
    let capability = facts.device.gpu()?.capability;
    let block_size = config.get_i64("block-size").filter(|size| size % 16 != 0);
    // From 0.8 on, FlashAttention 3 is used at capability 9.x, and it supports FP8 caches. An unknown GPU may be one.
    let flash_attention_3 = facts.version >= EngineVersion::V0_8 && capability.is_none_or(|known| known.0 == 9);
    let cache = config.get_str("kv-cache-dtype").filter(|kind| kind.starts_with("fp8") && !flash_attention_3);
    let dtype = config.get_str("dtype").filter(|dtype| ["float", "float32"].contains(dtype));
    let window =
        facts.model.sliding_window.filter(|_| facts.version < EngineVersion::V0_8 && uses_window(config, facts));
    let head = facts.model.head_dim.filter(|size| facts.model.latent.is_none() && !HEAD_SIZES.contains(size));
    [
        capability.filter(|known| known.0 < 8).map(|(major, minor)| format!("for compute capability {major}.{minor}")),
        dtype.map(|dtype| format!("for dtype {dtype}")),
        cache.map(|kind| format!("for FP8 KV cache, which is {kind}")),
        block_size.map(|size| format!("for block size {size}, which is not divisible by 16")),
        window.map(|tokens| format!("due to the sliding window of {tokens} tokens")),
        head.map(|size| format!("for head size {size}")),
    ]
    .into_iter()
    .flatten()
    .next()
    .map(|reason| format!("Cannot use FlashAttention-2 backend {reason}"))
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::{rule, verdict};
    use crate::facts::{Device, Gpu};

    #[test]
    fn steps_at_once_do_not_mix_with_drafting_and_staged_chunks() {
        let steps = "--num-scheduler-steps 8";
        for version in ["0.6.3", "0.8.5"] {
            assert_eq!(rule(version, steps), None);
            assert_eq!(rule(version, "--num-scheduler-steps 0"), Some("R4e"));
            let staged = format!("{steps} --enable-chunked-prefill --pipeline-parallel-size 2");
            assert_eq!(rule(version, &staged), Some("R13d"));
            assert_eq!(rule(version, &format!("{steps} --enable-chunked-prefill")), None);
        }
        assert_eq!(rule("0.6.3", &format!("{steps} --speculative-model draft")), Some("R13c"));
        assert_eq!(rule("0.8.5", &format!("{steps} --speculative-config {{\"method\":\"ngram\"}}")), Some("R13c"));
    }

    #[test]
    fn steps_at_once_need_a_kernel_for_the_block_the_cache_and_the_device() {
        let steps = "--num-scheduler-steps 8";
        assert_eq!(rule("0.6.3", &format!("{steps} --block-size 8")), Some("R13b"));
        assert_eq!(rule("0.6.3", &format!("{steps} --block-size 16")), None);
        assert_eq!(rule("0.6.3", &format!("{steps} --kv-cache-dtype fp8")), Some("R13b"));
        let of = |version, capability, line: &str| {
            let device = Device::Cuda(Gpu { capability: Some(capability), ..Gpu::default() });
            verdict(version, device, line).filter(|(_, rejects, _)| *rejects).map(|(id, _, message)| (id, message))
        };
        let message = "Multi-Step not supported for attention backend: XFORMERS (Cannot use FlashAttention-2 backend \
                       for compute capability 7.5)";
        assert_eq!(of("0.6.3", (7, 5), steps), Some(("R13b", message.to_owned())));
        assert_eq!(of("0.6.3", (8, 0), steps), None);
        let fp8 = format!("{steps} --kv-cache-dtype fp8");
        assert_eq!(of("0.8.5", (9, 0), &fp8), None);
        assert!(of("0.8.5", (8, 0), &fp8).is_some());
    }
}
