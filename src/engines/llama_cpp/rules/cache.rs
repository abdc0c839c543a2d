//! The types of the KV cache (`llama_init_from_model` in `src/llama-context.cpp`).

use super::{Candidate, Rule, Severity, Violation, rule};

/// Types with blocks, and the elements of a block (`ggml/src/ggml.c`).
const BLOCKS: [(&str, u64); 6] = [("q8_0", 32), ("q4_0", 32), ("q4_1", 32), ("iq4_nl", 32), ("q5_0", 32), ("q5_1", 32)];

pub(super) const RULES: &[Rule] = &[
    rule("L3", "a quantised V cache needs flash attention", Severity::Startup, values_need_flash_attention),
    rule(
        "L4",
        "with flash attention, a head holds whole blocks of the cache's types",
        Severity::Startup,
        heads_hold_blocks,
    ),
];

fn block(kind: Option<&str>) -> Option<u64> {
    let kind = kind?;
    BLOCKS.iter().find(|(known, _)| *known == kind).map(|(_, elements)| *elements)
}

fn is_without_flash_attention(candidate: &Candidate<'_>) -> bool {
    candidate.config.get_str("flash-attn") == Some("off")
}

fn values_need_flash_attention(candidate: &Candidate<'_>) -> Option<Violation> {
    let kind = candidate.config.get_str("cache-type-v");
    block(kind)?;
    is_without_flash_attention(candidate).then(|| {
        let message = format!(
            "quantized V cache requires flash_attn to be enabled: cache-type-v is {}",
            kind.unwrap_or_default()
        );
        Violation::new(message).set("flash-attn", "on")
    })
}

/// Checks the sizes of the heads. With `flash-attn = auto`, the server checks them as well.
fn heads_hold_blocks(candidate: &Candidate<'_>) -> Option<Violation> {
    let head = candidate.facts.model.head_dim?;
    if is_without_flash_attention(candidate) {
        return None;
    }
    ["cache-type-k", "cache-type-v"].into_iter().find_map(|flag| {
        let kind = candidate.config.get_str(flag);
        let elements = block(kind).filter(|elements| !head.is_multiple_of(*elements))?;
        let kind = kind.unwrap_or_default();
        let message =
            format!("cache type {kind} with block size {elements} does not divide the head of {head} elements");
        Some(Violation::new(message).unset(flag))
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::llama_cpp::rules::tests::worst;
    use crate::rule::Severity;

    #[test]
    fn quantised_values_need_flash_attention_and_quantised_keys_do_not() {
        assert_eq!(worst("--cache-type-v q8_0 --flash-attn off", None), Some(("L3", Severity::Startup)));
        assert_eq!(worst("--cache-type-v q8_0", None), None);
        assert_eq!(worst("--cache-type-v bf16 --flash-attn off", None), None);
        assert_eq!(worst("--cache-type-k q8_0 --flash-attn off", None), None);
    }
}
