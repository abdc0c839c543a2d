//! The token budget, checked against the model's length and the number of sequences: `SchedulerConfig` in vLLM.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::EngineVersion;

const V0_32: ReleaseRange = ReleaseRange::starting_at(EngineVersion::V0_32);

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R1",
        condition: "without chunked prefill the token budget holds the longest prompt",
        releases: ReleaseRange::ALL,
        severity: Severity::Configuration,
        check: budget_holds_a_prompt,
    },
    Rule {
        id: "R2",
        condition: "the token budget holds one token of every sequence",
        releases: ReleaseRange::ALL,
        severity: Severity::Configuration,
        check: budget_holds_a_batch,
    },
    Rule {
        id: "R4b",
        condition: "the threshold of long prompts is within the model's length",
        releases: V0_32,
        severity: Severity::Configuration,
        check: threshold_within_length,
    },
    Rule {
        id: "R4f",
        condition: "max-num-active-seqs is at most max-num-seqs",
        releases: V0_32,
        severity: Severity::Configuration,
        check: active_within_batch,
    },
    Rule {
        id: "R13a",
        condition: "with chunked prefill and prefix caching, the token budget is a multiple of the block size",
        releases: ReleaseRange::until(EngineVersion::V0_12),
        severity: Severity::Degraded,
        check: chunks_align_with_blocks,
    },
];

/// Checks that a prompt fits into one step without chunked prefill.
fn budget_holds_a_prompt(candidate: &Candidate<'_>) -> Option<Violation> {
    let (tokens, length) = (candidate.effective.max_num_batched_tokens, candidate.effective.max_model_len);
    (!candidate.effective.chunked_prefill && tokens < length).then(|| {
        let message = format!(
            "max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This effectively limits the \
             maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase \
             max_num_batched_tokens or decrease max_model_len."
        );
        Violation::new(message).set("max-num-batched-tokens", i64::try_from(length).unwrap_or(i64::MAX))
    })
}

/// Checks that the budget has at least one token for every running sequence.
fn budget_holds_a_batch(candidate: &Candidate<'_>) -> Option<Violation> {
    let (tokens, sequences) = (candidate.effective.max_num_batched_tokens, candidate.effective.max_num_seqs);
    let sequences_given = candidate.config.get("max-num-seqs").is_some();
    (tokens < sequences).then(|| {
        let message =
            format!("max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({sequences}).");
        let repaired = if candidate.config.get("max-num-batched-tokens").is_some() && sequences_given {
            ("max-num-seqs", tokens)
        } else {
            ("max-num-batched-tokens", sequences)
        };
        Violation::new(message).set(repaired.0, i64::try_from(repaired.1).unwrap_or(i64::MAX))
    })
}

fn threshold_within_length(candidate: &Candidate<'_>) -> Option<Violation> {
    const FLAG: &str = "long-prefill-token-threshold";
    let threshold = candidate.number(FLAG).and_then(|threshold| u64::try_from(threshold).ok())?;
    let length = candidate.effective.max_model_len;
    (threshold > length && !candidate.facts.model.encoder_decoder).then(|| {
        let message =
            format!("long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({length}).");
        Violation::new(message).set(FLAG, i64::try_from(length).unwrap_or(i64::MAX))
    })
}

fn active_within_batch(candidate: &Candidate<'_>) -> Option<Violation> {
    const FLAG: &str = "max-num-active-seqs";
    let active = candidate.number(FLAG).and_then(|active| u64::try_from(active).ok())?;
    let most = candidate.effective.max_num_seqs;
    (active > most).then(|| {
        let message = format!("max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({most}).");
        Violation::new(message).set(FLAG, i64::try_from(most).unwrap_or(i64::MAX))
    })
}

/// Warns about chunk sizes that are no multiple of the block size. With prefix caching, some V0 releases crash at the
/// first prefill if a chunk does not end at a block's end. Others do not, so this is only a warning.
fn chunks_align_with_blocks(candidate: &Candidate<'_>) -> Option<Violation> {
    let e = &candidate.effective;
    let aligned = e.max_num_batched_tokens.is_multiple_of(e.block_size);
    let misaligned = e.v0 && e.chunked_prefill && e.prefix_caching && !aligned;
    misaligned.then(|| {
        let message = format!(
            "max_num_batched_tokens ({}) is not a multiple of block_size ({}): some V0 releases fail at the first \
             prefill when prefix caching and chunked prefill are both on",
            e.max_num_batched_tokens, e.block_size
        );
        Violation::new(message)
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::{rule, verdict};
    use crate::facts::Device;

    #[test]
    fn a_budget_below_the_length_needs_chunked_prefill() {
        assert_eq!(rule("0.6.3", "--max-num-batched-tokens 2048"), Some("R1"));
        assert_eq!(rule("0.6.3", "--max-num-batched-tokens 2048 --enable-chunked-prefill"), None);
        assert_eq!(rule("0.32.0", "--max-num-batched-tokens 2048"), None);
        assert_eq!(rule("0.32.0", "--max-num-batched-tokens 2048 --no-enable-chunked-prefill"), Some("R1"));
        assert_eq!(
            rule("0.32.0", "--max-num-batched-tokens 2048 --max-model-len 2048 --no-enable-chunked-prefill"),
            None
        );
    }

    #[test]
    fn a_budget_below_the_batch_is_refused_even_when_one_of_them_is_a_default() {
        assert_eq!(rule("0.32.0", "--max-num-batched-tokens 100 --max-num-seqs 200"), Some("R2"));
        assert_eq!(rule("0.8.5", "--max-num-batched-tokens 512"), Some("R2"));
        assert_eq!(rule("0.32.0", "--max-num-batched-tokens 512"), None);
        assert_eq!(rule("0.32.0", "--max-num-seqs 9000"), Some("R2"));
    }

    #[test]
    fn misaligned_chunks_are_a_warning_in_the_v0_era_only() {
        let line = "--max-num-batched-tokens 5865 --block-size 32 --enable-chunked-prefill --enable-prefix-caching";
        let finding = verdict("0.6.3", Device::UNKNOWN_GPU, line);
        assert!(finding.is_some_and(|(id, rejects, _)| id == "R13a" && !rejects));
        assert_eq!(verdict("0.32.0", Device::UNKNOWN_GPU, line), None);
    }
}
