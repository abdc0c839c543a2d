//! The share of a search space that the rules leave.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Facts, Finding, Severity, check};
use crate::config::Config;
use crate::space::Space;
use crate::stats::to_f64;

/// The configurations of a space that the rules remove and leave.
#[derive(Clone, Debug, PartialEq)]
pub struct SpaceRemoval {
    /// The number of configurations that were checked.
    pub configurations: usize,
    /// Whether these are all configurations of the space. Otherwise they are a uniform sample.
    pub complete: bool,
    /// The number of configurations that no rule rejects.
    pub remaining: usize,
    /// The number of remaining configurations that run out of memory at the start with a probability of at least
    /// [`RISKY_PROBABILITY`].
    pub risky: usize,
    /// The rules that reject at least one configuration, the most effective first. A configuration may break several
    /// rules.
    pub rules: Vec<RemovedByRule>,
}

/// The configurations that one rule removes.
#[derive(Clone, Debug, PartialEq)]
pub struct RemovedByRule {
    pub rule: &'static str,
    /// The condition that the rule demands.
    pub condition: &'static str,
    pub severity: Severity,
    /// The number of checked configurations that the rule rejects.
    pub configurations: usize,
    /// One of them as an example. If possible, no other rule predicts that the engine would refuse it.
    pub config: Config,
    /// The rule's message for the example.
    pub example: String,
    /// Whether no other rule predicts that the engine would refuse the example.
    pub(crate) is_sole_rejection: bool,
}

impl SpaceRemoval {
    /// Returns the share of the space that is left, from 0 to 1.
    #[must_use]
    pub fn remaining_share(&self) -> f64 {
        self.share(self.remaining)
    }

    /// Formats the share that each rule rejects: `R2 30.1 %, R1 2.0 %`.
    #[must_use]
    pub fn by_rule(&self) -> String {
        let one =
            |removed: &RemovedByRule| format!("{} {:.1} %", removed.rule, 100.0 * self.share(removed.configurations));
        self.rules.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    fn count(&mut self, config: &Config, finding: Finding, alone: bool, facts: &Facts<'_>) {
        let Finding { rule, severity, message: example, .. } = finding;
        let Some(removed) = self.rules.iter_mut().find(|removed| removed.rule == rule) else {
            let (holds, config) = (rule_condition(rule, facts), config.clone());
            self.rules.push(RemovedByRule {
                rule,
                condition: holds,
                severity,
                configurations: 1,
                config,
                example,
                is_sole_rejection: alone,
            });
            return;
        };
        removed.configurations += 1;
        if alone && !removed.is_sole_rejection {
            (removed.config, removed.example, removed.is_sole_rejection) = (config.clone(), example, true);
        }
    }

    /// Returns the share of this number of configurations, from 0 to 1.
    #[must_use]
    pub fn share(&self, configurations: usize) -> f64 {
        to_f64(configurations) / to_f64(self.configurations.max(1))
    }
}

/// The smallest probability, 0 to 1, of a memory failure for a start to count as risky. Rules reject the certain
/// failures.
pub const RISKY_PROBABILITY: f64 = 0.05;

/// The number of configurations in the sample of a larger space. A space of at most this size is checked completely.
pub(crate) const SAMPLED: usize = 10_000;

/// Returns every configuration of a small space, or a uniform sample of a larger one, and whether these are all. The
/// result is the same for equal spaces.
#[must_use]
pub fn configurations(space: &Space) -> (Vec<Config>, bool) {
    if let Some(whole) = space.enumerate(SAMPLED) {
        return (whole, true);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut point = || (0..space.dimensions()).map(|_| rng.random()).collect::<Vec<f64>>();
    ((0..SAMPLED).map(|_| space.decode(&point())).collect(), false)
}

/// Checks every configuration of a small space, or a uniform sample of a larger one. `arguments` override each
/// configuration. The result is the same for equal spaces and facts.
#[must_use]
pub fn removal(space: &Space, arguments: &Config, facts: &Facts<'_>) -> SpaceRemoval {
    let (configs, complete) = configurations(space);
    let mut removal =
        SpaceRemoval { configurations: configs.len(), complete, remaining: 0, risky: 0, rules: Vec::new() };
    for config in configs {
        let whole = config.merged(arguments);
        let mut findings = check(&whole, facts);
        findings.retain(|finding| finding.severity.rejects());
        if findings.is_empty() {
            let fails = facts.predict_memory(&whole).map_or(0.0, |prediction| prediction.failure_probability());
            removal.remaining += 1;
            removal.risky += usize::from(fails >= RISKY_PROBABILITY);
        }
        let refusals = findings.iter().filter(|finding| finding.severity.is_refusal()).count();
        for finding in findings {
            let alone = refusals <= usize::from(finding.severity.is_refusal());
            removal.count(&config, finding, alone, facts);
        }
    }
    removal.rules.sort_by_key(|removed| std::cmp::Reverse(removed.configurations));
    removal
}

/// Returns the condition that a rule demands in the current release.
fn rule_condition(id: &str, facts: &Facts<'_>) -> &'static str {
    facts.rules().find(|rule| rule.id == id && rule.releases.contains(facts.version)).map_or("", |rule| rule.condition)
}
