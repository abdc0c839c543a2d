//! Rules that only a start can refute: the choice of those that are worth a launch, and the failures that they
//! predict.

use super::{EngineRules, Finding, RuleSubject, Severity, SpaceRemoval};
use crate::trial::FailureKind;

/// The share of the space, 0 to 1, that a rule has to exceed to be worth a test, unless it removes the defaults.
pub const TESTED_SHARE: f64 = 0.1;

/// A rule that only a start can refute. It removes the engine's defaults or a large share of the space.
#[derive(Clone, Debug, PartialEq)]
pub struct TestableRule {
    pub rule: &'static str,
    /// Whether the rule rejects the engine's defaults.
    pub removes_defaults: bool,
    /// The share of the space that the rule removes, from 0 to 1.
    pub removed_share: f64,
}

impl std::fmt::Display for TestableRule {
    /// Formats the effect: `removes the engine's defaults and 30.0 % of the space`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let share = 100.0 * self.removed_share;
        match (self.removes_defaults, self.removed_share > 0.0) {
            (true, true) => write!(f, "removes the engine's defaults and {share:.1} % of the space"),
            (true, false) => f.write_str("removes the engine's defaults"),
            (false, _) => write!(f, "removes {share:.1} % of the space"),
        }
    }
}

/// Returns whether a start, and nothing else, can refute the rule without a danger for the host.
fn is_testable(subject: RuleSubject, severity: Severity) -> bool {
    severity == Severity::Startup && !matches!(subject, RuleSubject::HostMemory | RuleSubject::MemoryOfOthers)
}

/// Returns the rules of an engine that are worth a launch. Rules that remove the defaults come first, then those that
/// remove the most. `defaults` are the findings about the defaults.
#[must_use]
pub fn testable_rules(engine: &dyn EngineRules, removal: &SpaceRemoval, defaults: &[Finding]) -> Vec<TestableRule> {
    let share = |rule: &str| {
        let removed = removal.rules.iter().find(|removed| removed.rule == rule);
        removed.map_or(0.0, |removed| removal.share(removed.configurations))
    };
    let of_defaults = defaults.iter().filter(|finding| is_testable(engine.subject(finding.rule), finding.severity));
    let mut rules: Vec<_> = of_defaults
        .map(|finding| {
            let removed_share = share(finding.rule);
            TestableRule { rule: finding.rule, removes_defaults: true, removed_share }
        })
        .collect();
    for removed in &removal.rules {
        let removed_share = removal.share(removed.configurations);
        let is_known = rules.iter().any(|rule| rule.rule == removed.rule);
        if is_testable(engine.subject(removed.rule), removed.severity) && removed_share > TESTED_SHARE && !is_known {
            rules.push(TestableRule { rule: removed.rule, removes_defaults: false, removed_share });
        }
    }
    rules
}

/// Returns whether a failed start of this kind matches the prediction of a rule on this subject.
#[must_use]
pub fn predicts_failure(subject: RuleSubject, kind: FailureKind) -> bool {
    let is_of_memory = matches!(
        kind,
        FailureKind::NoKvMemory
            | FailureKind::OutOfMemory
            | FailureKind::OutOfMemoryProfile
            | FailureKind::OutOfMemoryKvCache
            | FailureKind::OutOfMemorySampler
            | FailureKind::OutOfMemoryGraphs
    );
    let is_refusal = matches!(kind, FailureKind::InvalidArgument | FailureKind::Unsupported | FailureKind::StartupExit);
    match subject {
        RuleSubject::Memory => is_of_memory,
        RuleSubject::FreeMemory => is_of_memory || kind == FailureKind::DeviceBusy,
        RuleSubject::Devices => {
            is_refusal || matches!(kind, FailureKind::DeviceLost | FailureKind::Network | FailureKind::StartupTimeout)
        }
        RuleSubject::Files => is_refusal || kind == FailureKind::ModelUnavailable,
        // For instance, a size of 0 makes the start fail with an empty KV cache.
        RuleSubject::MemoryOfOthers | RuleSubject::HostMemory | RuleSubject::Other => {
            is_refusal || kind == FailureKind::NoKvMemory
        }
    }
}
