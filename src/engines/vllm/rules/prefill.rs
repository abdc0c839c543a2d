//! Concurrent partial prefills. Only the V0 engine ever supported them.
//!
//! Sources: `SchedulerConfig._verify_args` of 0.8.5; `_check_feature_supported` of 0.12 and 0.20 in `arg_utils.py`.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::EngineVersion;

/// The flags were removed in 0.32.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R4i",
        condition: "partial prefills need chunked prefill and consistent limits",
        releases: ReleaseRange::between(EngineVersion::V0_8, EngineVersion::V0_12),
        severity: Severity::Configuration,
        check: consistent,
    },
    Rule {
        id: "R4c",
        condition: "partial prefills are limited to one at a time",
        releases: ReleaseRange::between(EngineVersion::V0_12, EngineVersion::V0_32),
        severity: Severity::Configuration,
        check: one_partial_prefill,
    },
];

const MAX_PARTIAL_FLAG: &str = "max-num-partial-prefills";
const LONG: &str = "max-long-partial-prefills";
const THRESHOLD: &str = "long-prefill-token-threshold";

fn consistent(candidate: &Candidate<'_>) -> Option<Violation> {
    let number = |name: &str| candidate.config.get_i64(name).unwrap_or(1);
    let (all, long) = (number(MAX_PARTIAL_FLAG), number(LONG));
    let length = candidate.effective.max_model_len;
    let threshold = candidate.config.get_i64(THRESHOLD).and_then(|given| u64::try_from(given).ok()).unwrap_or(0);
    if all < 1 {
        let message = format!("max_num_partial_prefills ({all}) must be greater than or equal to 1.");
        return Some(Violation::new(message).unset(MAX_PARTIAL_FLAG));
    }
    if all > 1 && !candidate.effective.chunked_prefill {
        let message = format!("Chunked prefill must be enabled to set max_num_partial_prefills > 1: it is {all}.");
        return Some(Violation::new(message).unset(MAX_PARTIAL_FLAG).unset(LONG));
    }
    if all > 1 && threshold > length {
        let message =
            format!("long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({length}).");
        return Some(Violation::new(message).set(THRESHOLD, i64::try_from(length).unwrap_or(i64::MAX)));
    }
    (long < 1 || long > all).then(|| {
        let message = format!(
            "max_long_partial_prefills ({long}) must be greater than or equal to 1 and less than or equal to \
             max_num_partial_prefills ({all})."
        );
        Violation::new(message).set(LONG, long.clamp(1, all))
    })
}

fn one_partial_prefill(candidate: &Candidate<'_>) -> Option<Violation> {
    let other =
        [MAX_PARTIAL_FLAG, LONG].into_iter().any(|name| candidate.config.get_i64(name).is_some_and(|given| given != 1));
    other.then(|| {
        let message = "Concurrent Partial Prefill is not supported. We recommend to remove Concurrent Partial Prefill \
                       from your config.";
        Violation::new(message).unset(MAX_PARTIAL_FLAG).unset(LONG)
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::rule;

    #[test]
    fn v0_accepts_several_partial_prefills_if_they_are_consistent() {
        let chunked = "--enable-chunked-prefill --max-num-partial-prefills 4";
        for version in ["0.8.5", "0.10.2"] {
            assert_eq!(rule(version, chunked), None);
            assert_eq!(rule(version, &format!("{chunked} --max-long-partial-prefills 4")), None);
            assert_eq!(rule(version, &format!("{chunked} --max-long-partial-prefills 5")), Some("R4i"));
            assert_eq!(rule(version, &format!("{chunked} --long-prefill-token-threshold 4096")), None);
            assert_eq!(rule(version, &format!("{chunked} --long-prefill-token-threshold 4097")), Some("R4i"));
            assert_eq!(rule(version, "--max-num-partial-prefills 4"), Some("R4i"), "not chunked by default");
            assert_eq!(rule(version, "--max-num-partial-prefills 0"), Some("R4i"));
        }
    }

    #[test]
    fn v1_accepts_one_partial_prefill() {
        for version in ["0.12.0", "0.20.2"] {
            assert_eq!(rule(version, "--max-num-partial-prefills 1 --max-long-partial-prefills 1"), None);
            assert_eq!(rule(version, "--max-num-partial-prefills 2"), Some("R4c"));
        }
    }
}
