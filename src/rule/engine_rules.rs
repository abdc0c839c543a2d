//! The rules of one engine, with the meaning of its flags for rules and models.

use std::fmt;

use super::{Facts, Rule};
use crate::config::{Config, ResolvedConfig, Value};
use crate::memory::{MemoryLaunch, MemoryPrediction};
use crate::space::Space;

/// An engine's rules, and the meaning of its flags. Every function is pure.
pub trait EngineRules: Sync + fmt::Debug {
    /// Returns every rule, by family, in the order of the engine's own checks.
    fn families(&self) -> &'static [&'static [Rule]];

    /// Returns the subject of a rule by the rule's identifier. The subject decides whether a start may test the rule,
    /// and which failures the rule predicts.
    fn subject(&self, rule: &str) -> RuleSubject;

    /// Returns the values that the engine works with: those of `config`, and defaults for the other flags.
    fn resolve(&self, config: &Config, facts: &Facts<'_>) -> ResolvedConfig;

    /// Returns the value of a flag that `config` leaves to the engine, if it is not among the resolved ones and is known.
    fn default_value(&self, flag: &str, config: &Config, facts: &Facts<'_>) -> Option<Value>;

    /// Returns the number of devices that a launch computes on.
    fn devices_needed(&self, config: &Config) -> u64;

    /// Returns the properties of a launch that decide its memory. `resolved` contains the resolved values of `config`.
    fn memory_launch(&self, config: &Config, facts: &Facts<'_>, resolved: &ResolvedConfig) -> MemoryLaunch;

    /// Predicts the memory of a launch from the facts and from the earlier starts among them. `None` if too little is
    /// known about the model or the device.
    fn predict_memory(&self, config: &Config, facts: &Facts<'_>) -> Option<MemoryPrediction>;

    /// Returns a key that is equal for configurations that share compiled code, within one study. `config` includes
    /// the study's own arguments.
    fn compile_key(&self, config: &Config, facts: &Facts<'_>, resolved: &ResolvedConfig) -> String;

    /// Lists the parts of a space that the rules do not check because a fact of the device or host is unknown. Each
    /// entry is a sentence without a full stop.
    fn list_unchecked(&self, space: &Space, facts: &Facts<'_>) -> Vec<String>;
}

/// The subject of a rule, as far as a test by a start depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSubject {
    /// Memory according to the memory model, which estimates a probability for each failure.
    Memory,
    /// The share of memory that must be free at the engine's start.
    FreeMemory,
    /// Memory that other processes hold at the moment. A start would test these processes, not the rule.
    MemoryOfOthers,
    /// The host's memory. A test could end other processes of the host.
    HostMemory,
    /// The number of devices. A process without a device reports a lost device or failed collectives, or waits for a
    /// device.
    Devices,
    /// The model's files.
    Files,
    /// Anything else.
    Other,
}

impl dyn EngineRules {
    /// Returns every rule, in the order of the engine's own checks.
    pub fn all(&self) -> impl Iterator<Item = &'static Rule> + use<> {
        self.families().iter().copied().flatten()
    }
}
