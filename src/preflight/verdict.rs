//! The decision between rules and engine on one configuration, and their disagreements.

use super::{PreflightVerdict, RefusalStage};
use crate::rule::{Finding, Severity};

/// The identifier in a finding that comes from the engine itself and not from a rule.
pub const ENGINE_FINDING: &str = "ENGINE";

/// A difference between the rules and the engine's parser or configuration classes. It is a defect of the rules.
#[derive(Clone, Debug, PartialEq)]
pub enum Disagreement {
    /// A rule predicts a refusal, but the engine accepts.
    FalseRejection(Finding),
    /// No rule predicts a refusal, but the engine refuses.
    FalseAcceptance(Finding),
}

/// Returns the decisive finding and the disagreement, if any. `findings` begins with the most severe. The engine
/// decides everything that its parser and configuration classes check. Only rules can predict failures in the workers
/// or under load.
#[must_use]
pub fn decide_finding(findings: Vec<Finding>, engine: &PreflightVerdict) -> (Option<Finding>, Option<Disagreement>) {
    let refused = |finding: &Finding| finding.severity.is_refusal();
    let by_rule = findings.iter().find(|finding| refused(finding)).cloned();
    match (by_rule, engine.rejection()) {
        (Some(finding), Some(_)) => (Some(finding), None),
        (None, None) => (findings.into_iter().next(), None),
        (Some(finding), None) => {
            let rest = findings.into_iter().find(|finding| !refused(finding));
            (rest, Some(Disagreement::FalseRejection(finding)))
        }
        (None, Some((stage, message))) => {
            let severity = match stage {
                RefusalStage::Arguments => Severity::Arguments,
                RefusalStage::Configuration => Severity::Configuration,
            };
            let finding = Finding { rule: ENGINE_FINDING, severity, message: message.to_owned(), changes: Vec::new() };
            (Some(finding.clone()), Some(Disagreement::FalseAcceptance(finding)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity) -> Finding {
        Finding { rule: severity.name(), severity, message: String::new(), changes: Vec::new() }
    }

    #[test]
    fn the_engine_decides_on_refusals_and_rules_on_later_failures() {
        use Severity::{Arguments, Configuration, Overridden, Startup};
        let accept = PreflightVerdict::Accept { resolved: serde_json::Map::new(), warnings: Vec::new() };
        let reject = PreflightVerdict::Reject { stage: RefusalStage::Arguments, message: "no".to_owned() };
        for (rules, engine, rule, disagrees) in [
            (&[][..], &accept, None, false),
            (&[Overridden], &accept, Some("overridden"), false),
            (&[Startup, Overridden], &accept, Some("late"), false),
            (&[Configuration, Startup], &accept, Some("late"), true),
            (&[Arguments], &accept, None, true),
            (&[Configuration], &reject, Some("configuration"), false),
            (&[Startup], &reject, Some(ENGINE_FINDING), true),
            (&[], &reject, Some(ENGINE_FINDING), true),
        ] {
            let (found, disagreement) = decide_finding(rules.iter().copied().map(finding).collect(), engine);
            assert_eq!(found.map(|finding| finding.rule), rule, "{rules:?} {engine:?}");
            assert_eq!(disagreement.is_some(), disagrees, "{rules:?} {engine:?}");
        }
    }
}
