//! The host: its cores and its memory.

use super::{Candidate, Rule, Severity, Violation, rule};
use crate::engines::llama_cpp::resolve::SlotContext;
use crate::facts::Device;
use crate::stats::gib;

/// The rule about the host's memory.
pub(super) const MEMORY: &str = "L12";

pub(super) const RULES: &[Rule] = &[
    rule("L11", "there are at most as many threads as cores", Severity::Degraded, threads_within_cores),
    rule(MEMORY, "the host's memory holds the KV cache", Severity::Startup, memory_holds_the_cache),
];

/// Bytes of one block and its elements, for each type of the cache (`ggml/src/ggml.c`).
const TYPES: [(&str, u64, u64); 9] = [
    ("f32", 4, 1),
    ("f16", 2, 1),
    ("bf16", 2, 1),
    ("q8_0", 34, 32),
    ("q4_0", 18, 32),
    ("q4_1", 20, 32),
    ("iq4_nl", 18, 32),
    ("q5_0", 22, 32),
    ("q5_1", 24, 32),
];

/// Warns about threads that wait for each other: each of them spins while it waits.
fn threads_within_cores(candidate: &Candidate<'_>) -> Option<Violation> {
    let cores = candidate.facts.host.cores?;
    ["threads", "threads-batch"].into_iter().find_map(|flag| {
        let threads = candidate.config.get_i64(flag).filter(|threads| *threads > i64::from(cores))?;
        Some(
            Violation::new(format!("{flag} is {threads}, and this machine has {cores} cores"))
                .set(flag, i64::from(cores)),
        )
    })
}

/// Checks the KV cache against the host's memory. Without a GPU it lies there, and is filled during the start.
fn memory_holds_the_cache(candidate: &Candidate<'_>) -> Option<Violation> {
    let memory = candidate.facts.host.memory?;
    if candidate.facts.device != Device::Cpu {
        return None;
    }
    let cache = cache_bytes(candidate)?;
    (cache > memory).then(|| {
        let message = format!(
            "failed to allocate buffer for kv cache: it needs {:.1} GiB, and the host has {:.1} GiB",
            gib(cache),
            gib(memory)
        );
        Violation::new(message)
    })
}

/// Returns the bytes of the KV cache. `None` if the model's shape is not known, or its layers cache something else.
fn cache_bytes(candidate: &Candidate<'_>) -> Option<u64> {
    let model = candidate.facts.model;
    let cached = u64::checked_mul(model.kv_heads?, model.head_dim?)?.checked_mul(model.layers?)?;
    if model.irregular_cache || model.latent.is_some() || model.sliding_window.is_some() {
        return None;
    }
    let tokens = SlotContext::of(candidate.config, model).total;
    let of_flag = |flag: &str| {
        let kind = candidate.config.get_str(flag).unwrap_or("f16");
        let (_, bytes, elements) = TYPES.iter().find(|(known, ..)| *known == kind)?;
        tokens.checked_mul(cached)?.checked_mul(*bytes)?.checked_div(*elements)
    };
    of_flag("cache-type-k")?.checked_add(of_flag("cache-type-v")?)
}

#[cfg(test)]
mod tests {
    use crate::engines::llama_cpp::rules::tests::worst;
    use crate::rule::Severity;

    #[test]
    fn more_threads_than_cores_are_slow() {
        assert_eq!(worst("--threads 2", None), None);
        assert_eq!(worst("--threads-batch 4", None), Some(("L11", Severity::Degraded)));
    }

    #[test]
    fn a_cache_beyond_the_hosts_memory_is_not_allocated() {
        // 23,040 bytes a token with f16: 8 GiB hold 372,827 tokens.
        assert_eq!(worst("--ctx-size 372000 --parallel 1", None), None);
        assert_eq!(worst("--ctx-size 380000 --parallel 1", None), Some(("L12", Severity::Startup)));
        let smaller = "--ctx-size 380000 --parallel 1 --cache-type-k q8_0 --cache-type-v q8_0";
        assert_eq!(worst(smaller, None), None);
    }
}
