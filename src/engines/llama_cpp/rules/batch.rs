//! The batches, which the server limits without a message (`llama_context` in `src/llama-context.cpp`).

use super::{Candidate, Rule, Severity, Violation, rule};
use crate::engines::llama_cpp::resolve::{SlotContext, UBATCH, batches, is_on, number, slots_of};

pub(super) const RULES: &[Rule] = &[
    rule("L7", "the logical batch holds two tokens, and one of each slot", Severity::Startup, batch_holds_all_slots),
    rule("L8", "the physical batch is at most the logical one", Severity::Overridden, physical_within_logical),
    rule("L9", "the logical batch is at most the context", Severity::Overridden, logical_within_context),
    rule("L10", "cache-reuse needs the prompt cache", Severity::Overridden, reuse_needs_cache),
];

/// Compares the batch with the slots. The server aborts in its warm-up: a generated token of each slot is one output
/// (`llama_context::graph_reserve`), and the warm-up has two tokens (`common_init_from_params` in `common/common.cpp`).
fn batch_holds_all_slots(candidate: &Candidate<'_>) -> Option<Violation> {
    let slots = slots_of(candidate.config);
    let least = slots.max(2);
    if let Some(batch) = number(candidate.config, "batch-size").filter(|batch| *batch < least) {
        let message = format!("n_outputs_max <= cparams.n_outputs_max: batch-size is {batch}, and parallel is {slots}");
        return Some(Violation::new(message).set("batch-size", i64::try_from(least).unwrap_or(i64::MAX)));
    }
    let context = SlotContext::of(candidate.config, candidate.facts.model);
    (context.unpadded < 2)
        .then(|| Violation::new("get_sub_batch: failed to add token: the context has 1 token").set("ctx-size", 256_i64))
}

fn physical_within_logical(candidate: &Candidate<'_>) -> Option<Violation> {
    let asked = number(candidate.config, "ubatch-size")?;
    let context = SlotContext::of(candidate.config, candidate.facts.model);
    let (batch, ubatch) = batches(candidate.config, context);
    (asked > ubatch).then(|| {
        Violation::new(format!(
            "ubatch-size ({asked}) is larger than the logical batch ({batch}), and is reduced to it"
        ))
        .set("ubatch-size", i64::try_from(ubatch).unwrap_or(i64::MAX))
    })
}

fn logical_within_context(candidate: &Candidate<'_>) -> Option<Violation> {
    let asked = number(candidate.config, "batch-size")?;
    let context = SlotContext::of(candidate.config, candidate.facts.model);
    (asked > context.unpadded).then(|| {
        let total = context.unpadded;
        Violation::new(format!(
            "batch-size ({asked}) is larger than the context ({total} tokens), and is reduced to it"
        ))
        .set("batch-size", i64::try_from(total.max(UBATCH)).unwrap_or(i64::MAX))
    })
}

fn reuse_needs_cache(candidate: &Candidate<'_>) -> Option<Violation> {
    let chunk = number(candidate.config, "cache-reuse").filter(|chunk| *chunk > 0)?;
    (!is_on(candidate.config, "cache-prompt", true)).then(|| {
        Violation::new(format!("cache-reuse ({chunk}) has no effect without the prompt cache")).unset("cache-reuse")
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::llama_cpp::rules::tests::worst;
    use crate::rule::Severity;

    #[test]
    fn batches_that_the_server_reduces_are_reported() {
        assert_eq!(worst("--batch-size 256 --ubatch-size 512", None), Some(("L8", Severity::Overridden)));
        assert_eq!(worst("--batch-size 512 --ubatch-size 512", None), None);
        assert_eq!(worst("--ctx-size 1024 --batch-size 2048", None), Some(("L9", Severity::Overridden)));
        assert_eq!(worst("--no-cache-prompt --cache-reuse 64", None), Some(("L10", Severity::Overridden)));
    }

    #[test]
    fn the_batch_holds_a_token_of_each_slot_and_two_at_least() {
        let broken = Some(("L7", Severity::Startup));
        assert_eq!(worst("--batch-size 0 --ubatch-size 0", None), broken);
        assert_eq!(worst("--batch-size 1 --ubatch-size 1 --parallel 1", None), broken);
        assert_eq!(worst("--batch-size 2 --ubatch-size 2 --parallel 1", None), None);
        assert_eq!(worst("--ctx-size 1 --parallel 1 --batch-size 2 --ubatch-size 2", None), broken);
        assert_eq!(worst("--kv-unified-per-slot 1 --parallel 1 --batch-size 2 --ubatch-size 2", None), broken);
        // Without a number there are four slots.
        assert_eq!(worst("--batch-size 3 --ubatch-size 2", None), broken);
        assert_eq!(worst("--ctx-size 8192 --batch-size 63 --ubatch-size 2 --parallel 64", None), broken);
        assert_eq!(worst("--ctx-size 8192 --batch-size 64 --ubatch-size 2 --parallel 64", None), None);
    }
}
