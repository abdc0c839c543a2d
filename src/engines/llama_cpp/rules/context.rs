//! The context of a slot, and the number of slots.

use super::{Candidate, Rule, Severity, Violation, rule};
use crate::config::Value;
use crate::engines::llama_cpp::resolve::SlotContext;

/// The largest number of sequences (`LLAMA_MAX_SEQ` in `src/llama-cparams.h`).
const MAX_SLOTS: u64 = 256;

pub(super) const RULES: &[Rule] = &[
    rule("L5", "there are at most 256 slots", Severity::Startup, slots_within_limit),
    rule("L6", "a slot holds the longest request", Severity::Runtime, slot_holds_a_request),
];

fn slots_within_limit(candidate: &Candidate<'_>) -> Option<Violation> {
    let slots = candidate.effective.max_num_seqs;
    (slots > MAX_SLOTS).then(|| {
        Violation::new(format!("n_seq_max must be <= {MAX_SLOTS}: parallel is {slots}"))
            .set("parallel", Value::Int(256))
    })
}

/// Checks the context of a slot, which is a part of the whole one unless the cache is unified.
fn slot_holds_a_request(candidate: &Candidate<'_>) -> Option<Violation> {
    let longest = candidate.facts.longest_request?;
    let context = SlotContext::of(candidate.config, candidate.facts.model);
    (context.of_slot < longest).then(|| {
        let SlotContext { slots, total, of_slot, .. } = context;
        let message = format!(
            "request ({longest} tokens) exceeds the available context size ({of_slot} tokens): {total} tokens are divided \
             among {slots} slots"
        );
        let violation = Violation::new(message);
        let trained = candidate.facts.model.lengths.stated;
        if trained.is_some_and(|trained| trained < longest) {
            return violation;
        }
        let needed = if context.is_unified { longest } else { longest.saturating_mul(slots) };
        violation.set("ctx-size", i64::try_from(needed).unwrap_or(i64::MAX))
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::llama_cpp::rules::tests::worst;
    use crate::rule::Severity;

    #[test]
    fn the_workloads_longest_request_fits_into_a_slot() {
        let broken = Some(("L6", Severity::Runtime));
        assert_eq!(worst("--ctx-size 2048 --parallel 8", Some(300)), broken);
        assert_eq!(worst("--ctx-size 2048 --parallel 8", Some(256)), None);
        assert_eq!(worst("--ctx-size 2048 --parallel 8 --kv-unified", Some(300)), None);
        assert_eq!(worst("--ctx-size 2048", Some(2048)), None);
        assert_eq!(worst("--ctx-size 20000 --parallel 1", Some(9000)), broken);
        assert_eq!(worst("--parallel 257", None), Some(("L5", Severity::Startup)));
    }
}
