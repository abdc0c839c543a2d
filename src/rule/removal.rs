//! How much of a search space the rules leave.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Facts, Finding, Severity, check};
use crate::config::Config;
use crate::space::Space;
use crate::stats::to_f64;

/// What the rules remove from a space.
#[derive(Clone, Debug, PartialEq)]
pub struct Removal {
    /// Configurations that were looked at.
    pub configurations: usize,
    /// Whether these are all that the space holds, or a uniform sample.
    pub complete: bool,
    /// Those that no rule rejects.
    pub remaining: usize,
    /// Those of them that fail to start with a probability of at least [`RISK`], for want of memory.
    pub risky: usize,
    /// The rules that reject some, the most effective first. A configuration may break several.
    pub rules: Vec<Removed>,
}

/// What one rule removes.
#[derive(Clone, Debug, PartialEq)]
pub struct Removed {
    pub rule: &'static str,
    /// What must hold.
    pub holds: &'static str,
    pub severity: Severity,
    pub configurations: usize,
    /// One of them: where there is one, a configuration that no other rule says the engine would refuse.
    pub config: Config,
    /// What the rule says of it.
    pub example: String,
    pub(crate) alone: bool,
}

impl Removal {
    /// The share of the space that is left, from 0 to 1.
    #[must_use]
    pub fn remaining_share(&self) -> f64 {
        self.share(self.remaining)
    }

    /// `R2 30.1 %, R1 2.0 %`: the share that each rule rejects.
    #[must_use]
    pub fn by_rule(&self) -> String {
        let one = |removed: &Removed| format!("{} {:.1} %", removed.rule, 100.0 * self.share(removed.configurations));
        self.rules.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    fn count(&mut self, config: &Config, finding: Finding, alone: bool, facts: &Facts<'_>) {
        let Finding { rule, severity, message: example, .. } = finding;
        let Some(removed) = self.rules.iter_mut().find(|removed| removed.rule == rule) else {
            let (holds, config) = (holds(rule, facts), config.clone());
            self.rules.push(Removed { rule, holds, severity, configurations: 1, config, example, alone });
            return;
        };
        removed.configurations += 1;
        if alone && !removed.alone {
            (removed.config, removed.example, removed.alone) = (config.clone(), example, true);
        }
    }

    /// The share that so many configurations are, from 0 to 1.
    #[must_use]
    pub fn share(&self, configurations: usize) -> f64 {
        to_f64(configurations) / to_f64(self.configurations.max(1))
    }
}

/// A start that fails with at least this probability is a risk; for certain ones there are rules.
pub const RISK: f64 = 0.05;

/// Configurations that are drawn where the space holds more.
pub(crate) const SAMPLED: usize = 10_000;

/// Returns every configuration of a small space, or a uniform sample of another, and whether these are all. The same space
/// gives the same ones.
#[must_use]
pub fn configurations(space: &Space) -> (Vec<Config>, bool) {
    if let Some(whole) = space.enumerate(SAMPLED) {
        return (whole, true);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut point = || (0..space.dimensions()).map(|_| rng.random()).collect::<Vec<f64>>();
    ((0..SAMPLED).map(|_| space.decode(&point())).collect(), false)
}

/// Looks at every configuration of a small space, and at a uniform sample of another. `arguments` are set over each. The
/// same space and facts give the same answer.
#[must_use]
pub fn removal(space: &Space, arguments: &Config, facts: &Facts<'_>) -> Removal {
    let (configs, complete) = configurations(space);
    let mut removal = Removal { configurations: configs.len(), complete, remaining: 0, risky: 0, rules: Vec::new() };
    for config in configs {
        let whole = config.merged(arguments);
        let mut findings = check(&whole, facts);
        findings.retain(|finding| finding.severity.rejects());
        if findings.is_empty() {
            let fails = facts.predict_memory(&whole).map_or(0.0, |prediction| prediction.failure_probability());
            removal.remaining += 1;
            removal.risky += usize::from(fails >= RISK);
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

/// What a rule demands in the release at hand.
fn holds(id: &str, facts: &Facts<'_>) -> &'static str {
    facts.rules().find(|rule| rule.id == id && rule.releases.contain(facts.version)).map_or("", |rule| rule.holds)
}
