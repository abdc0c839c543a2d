//! Rules that only a start can refute: which of them are worth a launch, and the failures that they predict.

use super::{Finding, Removal, Severity};
use crate::trial::FailureKind;

/// A rule is tested if it removes more than this share of the space.
pub const TESTED_SHARE: f64 = 0.1;

/// Rules whose violation takes the host's memory: a test could end other processes of the host.
const ENDANGERS_THE_HOST: [&str; 3] = ["R12c", "R5c", "R5d"];

/// Rules on memory that other processes hold at the moment. A start would test these processes, and not the rule.
const OF_THE_MOMENT: [&str; 1] = ["R5e"];

/// Rules that rest on the memory model.
const OF_MEMORY: [&str; 2] = ["R6", "R7"];

/// The rule on the share of memory that must be free when the engine starts.
const OF_FREE_MEMORY: &str = "R5b";

/// Rules on the number of devices. A process that gets none reports a lost device or failed collectives, or waits for it.
const OF_DEVICES: [&str; 3] = ["R10a", "R10b", "R10c"];

/// Rules on the model's files.
const OF_FILES: [&str; 2] = ["R20n", "R20o"];

/// A rule that only a start can refute and that removes much.
#[derive(Clone, Debug, PartialEq)]
pub struct TestableRule {
    pub rule: &'static str,
    pub removes_defaults: bool,
    /// From 0 to 1.
    pub removed_share: f64,
}

impl std::fmt::Display for TestableRule {
    /// `removes the engine's defaults and 30.0 % of the space`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let share = 100.0 * self.removed_share;
        match (self.removes_defaults, self.removed_share > 0.0) {
            (true, true) => write!(f, "removes the engine's defaults and {share:.1} % of the space"),
            (true, false) => f.write_str("removes the engine's defaults"),
            (false, _) => write!(f, "removes {share:.1} % of the space"),
        }
    }
}

/// Whether a start can refute the rule, and nothing else can, without a danger for the host.
fn is_testable(rule: &str, severity: Severity) -> bool {
    severity == Severity::Late && !ENDANGERS_THE_HOST.contains(&rule) && !OF_THE_MOMENT.contains(&rule)
}

/// The rules that are worth a launch: first those that remove the defaults, then those that remove the most. `defaults` are
/// the findings about the defaults.
#[must_use]
pub fn testable(removal: &Removal, defaults: &[Finding]) -> Vec<TestableRule> {
    let share = |rule: &str| {
        let removed = removal.rules.iter().find(|removed| removed.rule == rule);
        removed.map_or(0.0, |removed| removal.share(removed.configurations))
    };
    let of_defaults = defaults.iter().filter(|finding| is_testable(finding.rule, finding.severity));
    let mut rules: Vec<_> = of_defaults
        .map(|finding| {
            let removed_share = share(finding.rule);
            TestableRule { rule: finding.rule, removes_defaults: true, removed_share }
        })
        .collect();
    for removed in &removal.rules {
        let removed_share = removal.share(removed.configurations);
        let is_known = rules.iter().any(|rule| rule.rule == removed.rule);
        if is_testable(removed.rule, removed.severity) && removed_share > TESTED_SHARE && !is_known {
            rules.push(TestableRule { rule: removed.rule, removes_defaults: false, removed_share });
        }
    }
    rules
}

/// Whether the rule rests on the memory model, which has a probability for each failure.
#[must_use]
pub fn rests_on_memory(rule: &str) -> bool {
    OF_MEMORY.contains(&rule)
}

/// Whether a start that fails in this way fails as the rule predicts.
#[must_use]
pub fn predicts(rule: &str, kind: FailureKind) -> bool {
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
    if rests_on_memory(rule) {
        is_of_memory
    } else if rule == OF_FREE_MEMORY {
        is_of_memory || kind == FailureKind::DeviceBusy
    } else if OF_DEVICES.contains(&rule) {
        let is_of_devices =
            matches!(kind, FailureKind::DeviceLost | FailureKind::Network | FailureKind::StartupTimeout);
        is_refusal || is_of_devices
    } else if OF_FILES.contains(&rule) {
        is_refusal || kind == FailureKind::ModelUnavailable
    } else {
        // Sizes of 0 end in an empty cache.
        is_refusal || kind == FailureKind::NoKvMemory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::rule::{Removed, rules};

    fn removed(rule: &'static str, severity: Severity, configurations: usize) -> Removed {
        let (config, example) = (Config::new(), String::new());
        Removed { rule, holds: "", severity, configurations, config, example, alone: true }
    }

    #[test]
    fn late_rules_that_remove_the_defaults_or_more_than_a_tenth_are_tested() {
        let rules = vec![
            removed("R2", Severity::Configuration, 60),
            removed("R12c", Severity::Late, 50),
            removed("R6", Severity::Late, 40),
            removed("R15a", Severity::Late, 11),
            removed("R8b", Severity::Late, 10),
            removed("R7", Severity::Late, 2),
        ];
        let removal = Removal { configurations: 100, complete: true, remaining: 5, risky: 0, rules };
        let finding = |rule, severity| Finding { rule, severity, message: String::new(), changes: vec![] };
        let defaults = [finding("R2", Severity::Configuration), finding("R7", Severity::Late)];
        let testable = testable(&removal, &defaults);
        let names: Vec<_> = testable.iter().map(|rule| rule.rule).collect();
        assert_eq!(names, ["R7", "R6", "R15a"]);
        assert_eq!(testable[0].to_string(), "removes the engine's defaults and 2.0 % of the space");
        assert_eq!(testable[1].to_string(), "removes 40.0 % of the space");
    }

    #[test]
    fn the_named_rules_exist_and_predict_what_they_are_about() {
        let named =
            ENDANGERS_THE_HOST.iter().chain(&OF_MEMORY).chain(&OF_DEVICES).chain(&OF_FILES).chain([&OF_FREE_MEMORY]);
        for id in named {
            assert!(rules().any(|rule| rule.id == *id && rule.severity == Severity::Late), "{id}");
        }
        assert!(predicts("R6", FailureKind::NoKvMemory) && !predicts("R6", FailureKind::StartupExit));
        assert!(predicts("R5b", FailureKind::DeviceBusy) && !predicts("R6", FailureKind::DeviceBusy));
        assert!(predicts("R15f", FailureKind::Unsupported) && !predicts("R15f", FailureKind::OutOfMemory));
        for rule in rules().filter(|rule| rule.severity == Severity::Late) {
            assert!(!predicts(rule.id, FailureKind::Killed) && !predicts(rule.id, FailureKind::Disk), "{}", rule.id);
        }
    }
}
