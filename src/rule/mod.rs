//! Pure checks of a configuration against the model, the engine's release and the device, before a launch.
//!
//! A rule's message contains the numbers that decide. It has the engine's own wording if the engine has a message for
//! this case. The rules themselves are in `engines/<engine>/rules`, one file for each family.

mod candidate;
mod engine_rules;
mod narrow;
mod possible;
mod removal;
mod testable;
mod unchecked;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, ResolvedConfig, Value};
use crate::facts::{Device, EngineVersion, HostLimits, ModelShape};
use crate::memory::{LearnedMemory, MemoryLaunch, MemoryPrediction};

pub use engine_rules::{EngineRules, RuleSubject};
pub use narrow::{RangeNarrowing, narrow};
#[cfg(test)]
pub(crate) use removal::SAMPLED;
pub use removal::{RISKY_PROBABILITY, RemovedByRule, SpaceRemoval, configurations, removal};
pub use testable::{TESTED_SHARE, TestableRule, predicts_failure, testable_rules};
pub use unchecked::{list_unchecked, list_unchecked_of_model};

/// The facts that no configuration changes.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub model: &'a ModelShape,
    pub version: EngineVersion,
    pub device: Device,
    /// Environment variables of the launch.
    pub env: &'a BTreeMap<String, String>,
    /// The longest prompt plus output that the workload asks for, in tokens.
    pub longest_request: Option<u64>,
    pub host: HostLimits,
    /// Python packages that the engine's installation lacks. `None` if the installation was not inspected.
    pub missing_packages: Option<&'a BTreeSet<String>>,
    /// The memory observations of earlier starts of this model, on this device and with this release.
    pub memory: Option<&'a LearnedMemory>,
    /// Identifiers of rules that the installed engine contradicts. These rules are ignored.
    pub contradicted_rules: &'a [&'static str],
    /// The engine's rules. Without them, every configuration is allowed and no memory is predicted.
    pub engine: Option<&'static dyn EngineRules>,
}

static NO_VARIABLES: BTreeMap<String, String> = BTreeMap::new();

impl<'a> Facts<'a> {
    /// Returns facts with an engine, a model, a release and a device, and nothing else.
    #[must_use]
    pub fn new(
        engine: impl Into<Option<&'static dyn EngineRules>>,
        model: &'a ModelShape,
        version: EngineVersion,
        device: Device,
    ) -> Self {
        Self {
            model,
            version,
            device,
            env: &NO_VARIABLES,
            longest_request: None,
            host: HostLimits::default(),
            missing_packages: None,
            memory: None,
            contradicted_rules: &[],
            engine: engine.into(),
        }
    }

    /// Returns every rule of the engine.
    pub fn rules(&self) -> impl Iterator<Item = &'static Rule> + use<> {
        self.engine.into_iter().flat_map(<dyn EngineRules>::all)
    }

    /// Returns the number of devices that a launch of this configuration computes on. It is one if there are no rules.
    #[must_use]
    pub fn devices_needed(&self, config: &Config) -> u64 {
        self.engine.map_or(1, |engine| engine.devices_needed(config))
    }

    /// Returns the values that the engine works with. `None` without rules.
    #[must_use]
    pub fn resolve(&self, config: &Config) -> Option<ResolvedConfig> {
        Some(self.engine?.resolve(config, self))
    }

    /// Returns the properties of a launch that decide its memory. `None` without rules.
    #[must_use]
    pub fn memory_launch(&self, config: &Config) -> Option<MemoryLaunch> {
        let engine = self.engine?;
        Some(engine.memory_launch(config, self, &engine.resolve(config, self)))
    }

    /// Predicts the memory of a launch. `None` if too little is known. For a launch that no rule rejects, the
    /// prediction's failure probability is its remaining risk of failing for lack of memory.
    #[must_use]
    pub fn predict_memory(&self, config: &Config) -> Option<MemoryPrediction> {
        self.engine?.predict_memory(config, self)
    }

    /// Returns these facts with the memory and capability of only the devices that a launch of this configuration
    /// uses.
    pub(crate) fn for_launch(&self, config: &Config) -> Self {
        match self.device {
            Device::Cuda(gpu) if !gpu.units.is_empty() => {
                Self { device: Device::Cuda(gpu.first(self.devices_needed(config))), ..*self }
            }
            _ => *self,
        }
    }
}

/// A configuration with everything that rules depend on.
#[derive(Debug)]
pub struct Candidate<'a> {
    pub config: &'a Config,
    pub facts: &'a Facts<'a>,
    /// The values that the engine works with.
    pub effective: ResolvedConfig,
    /// `None` inside the cell if the launch does not certainly fail for lack of memory. The first rule that needs it
    /// computes it.
    pub memory_failure: OnceCell<Option<MemoryFailure>>,
}

/// A launch that certainly fails for lack of memory.
#[derive(Debug)]
pub struct MemoryFailure {
    pub prediction: MemoryPrediction,
    /// Whether the launch leaves no KV cache at all. Otherwise its cache cannot hold one request of maximum length.
    pub leaves_no_cache: bool,
}

impl<'a> Candidate<'a> {
    fn new(engine: &dyn EngineRules, config: &'a Config, facts: &'a Facts<'a>) -> Self {
        Self { config, facts, effective: engine.resolve(config, facts), memory_failure: OnceCell::new() }
    }
}

/// The consequence of a broken rule, and the moment at which the engine would report it. Ordered from the least to the
/// most severe: the earlier the engine fails, the more severe. So a failure at run time is below one at start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The engine starts and serves with the given values, but slower than it could.
    Degraded,
    /// The engine starts and serves with another value than the given one.
    Overridden,
    /// The engine would fail while it serves.
    Runtime,
    /// The configuration classes accept the configuration, but the start would fail later, usually in the workers.
    Startup,
    /// The configuration classes would refuse the configuration.
    Configuration,
    /// The argument parser would refuse the configuration.
    Arguments,
}

impl Severity {
    /// Returns whether a rule of this severity rejects the configuration, because its launch would fail.
    #[must_use]
    pub fn rejects(self) -> bool {
        self > Self::Overridden
    }

    /// Returns whether the engine's parser or its configuration classes would refuse. A preflight detects these cases.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        self >= Self::Configuration
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Degraded => "degraded",
            Self::Overridden => "overridden",
            Self::Runtime => "runtime",
            // The name in the output of earlier releases, which scripts read.
            Self::Startup => "late",
            Self::Configuration => "configuration",
            Self::Arguments => "arguments",
        }
    }
}

/// A rule that a configuration breaks.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub rule: &'static str,
    pub severity: Severity,
    /// The message with the numbers that decide. It has the engine's own wording if the engine has a message for this
    /// case.
    pub message: String,
    /// The changes after which the rule holds. Empty if there is no single obvious way.
    pub changes: Vec<RuleChange>,
}

/// A flag and its new value. `None` removes the flag, so that the engine's default applies.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleChange {
    pub flag: String,
    pub value: Option<Value>,
}

/// One check. `id` identifies the rule in messages and in stored rejections. Rules with a common number check related
/// constraints. If the severity differs between releases, each range of releases has its own entry with the same `id`.
#[derive(Debug)]
pub struct Rule {
    pub id: &'static str,
    /// The condition that the rule demands, in one line.
    pub condition: &'static str,
    pub releases: ReleaseRange,
    pub severity: Severity,
    /// Returns the violation. `None` if the rule holds or does not apply.
    pub check: fn(&Candidate<'_>) -> Option<Violation>,
}

/// A range of releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseRange {
    pub first: EngineVersion,
    /// The first release after the range.
    pub end: EngineVersion,
}

impl ReleaseRange {
    pub const ALL: Self = Self { first: EngineVersion::new(0, 0, 0), end: EngineVersion::UNBOUNDED };

    #[must_use]
    pub const fn starting_at(first: EngineVersion) -> Self {
        Self { first, end: EngineVersion::UNBOUNDED }
    }

    #[must_use]
    pub const fn until(end: EngineVersion) -> Self {
        Self { first: EngineVersion::new(0, 0, 0), end }
    }

    #[must_use]
    pub const fn between(first: EngineVersion, end: EngineVersion) -> Self {
        Self { first, end }
    }

    #[must_use]
    pub fn contains(self, version: EngineVersion) -> bool {
        self.first <= version && version < self.end
    }
}

/// The violation of a rule: the message, and the changes that repair it.
#[derive(Debug)]
pub struct Violation {
    pub message: String,
    pub changes: Vec<RuleChange>,
}

impl Violation {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), changes: Vec::new() }
    }

    /// Adds `flag` with its new value to the repair.
    #[must_use]
    pub fn set(mut self, flag: &str, value: impl Into<Value>) -> Self {
        self.changes.push(RuleChange { flag: flag.to_owned(), value: Some(value.into()) });
        self
    }

    /// Adds the removal of `flag` to the repair, so that the engine's default applies.
    #[must_use]
    pub fn unset(mut self, flag: &str) -> Self {
        self.changes.push(RuleChange { flag: flag.to_owned(), value: None });
        self
    }
}

/// Returns every finding about a configuration, the most severe first. A rule that needs an unknown property finds
/// nothing. If the device is not fully known, only findings that hold on every possible device remain.
#[must_use]
pub fn check(config: &Config, facts: &Facts<'_>) -> Vec<Finding> {
    let Some(engine) = facts.engine else { return Vec::new() };
    let facts = &facts.for_launch(config);
    let candidate = Candidate::new(engine, config, facts);
    let mut broken: Vec<_> = engine
        .all()
        .filter(|rule| rule.releases.contains(facts.version) && !facts.contradicted_rules.contains(&rule.id))
        .filter_map(|rule| Some((rule, (rule.check)(&candidate)?)))
        .collect();
    if !broken.is_empty() {
        // The defaults of an unknown device are assumed values, so a rule can be broken only because of them.
        for device in possible::devices(facts) {
            let facts = Facts { device, ..*facts };
            let candidate = Candidate::new(engine, config, &facts);
            broken.retain(|(rule, _)| (rule.check)(&candidate).is_some());
        }
    }
    let finding = |(rule, violation): (&Rule, Violation)| Finding {
        rule: rule.id,
        severity: rule.severity,
        message: violation.message,
        changes: violation.changes,
    };
    let mut findings: Vec<_> = broken.into_iter().map(finding).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Returns the most severe finding that rejects the configuration, if there is one.
#[must_use]
pub fn rejection(config: &Config, facts: &Facts<'_>) -> Option<Finding> {
    check(config, facts).into_iter().next().filter(|finding| finding.severity.rejects())
}

/// The maximum number of rounds of [`repair`]. Each round applies the changes of one finding. A repair can break another rule, which needs its own repair.
const MAX_REPAIR_ROUNDS: usize = 16;

/// Returns a configuration near `config` that no rule rejects. It applies the changes of the rejecting rules one after
/// the other. `None` if a rejecting rule has no changes to offer, or after `MAX_REPAIR_ROUNDS` rounds.
#[must_use]
pub fn repair(config: &Config, facts: &Facts<'_>) -> Option<Config> {
    repair_rejection(config, rejection(config, facts).as_ref(), facts)
}

/// Like [`repair`], for callers that already know the result of [`rejection`].
#[must_use]
pub fn repair_rejection(config: &Config, rejection: Option<&Finding>, facts: &Facts<'_>) -> Option<Config> {
    let mut repaired = config.clone();
    let Some(first) = rejection else { return Some(repaired) };
    let mut changes = first.changes.clone();
    for _ in 0..MAX_REPAIR_ROUNDS {
        if changes.is_empty() {
            return None;
        }
        for change in changes {
            match change.value {
                Some(value) => repaired.set(change.flag, value),
                None => repaired.remove(&change.flag),
            }
        }
        match self::rejection(&repaired, facts) {
            None => return Some(repaired),
            Some(finding) => changes = finding.changes,
        }
    }
    None
}
