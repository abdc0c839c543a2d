//! The rules of one engine, with the knowledge of its flags on which rules and models rest.

use std::fmt;

use super::{Facts, Rule};
use crate::config::{Config, ResolvedConfig, Value};
use crate::memory::{Launch, Prediction};
use crate::space::Space;

/// An engine's rules, and the meaning of its flags. Every answer is a pure function.
pub trait EngineRules: Sync + fmt::Debug {
    /// Every rule, by family, in the order in which the engine would notice.
    fn families(&self) -> &'static [&'static [Rule]];

    /// The subject of a rule by its identifier: it decides whether a start may test the rule, and which failures the rule predicts.
    fn subject(&self, rule: &str) -> RuleSubject;

    /// Returns the values that the engine works with: those of `config`, and the defaults of the others.
    fn resolve(&self, config: &Config, facts: &Facts<'_>) -> ResolvedConfig;

    /// Returns the default of a flag that has the same one in every release, model and device.
    fn constant_default(&self, flag: &str) -> Option<Value>;

    /// Returns how many devices a launch computes on.
    fn devices_needed(&self, config: &Config) -> u64;

    /// Returns the properties of a launch that decide its memory. `resolved` are the resolved values of `config`.
    fn memory_launch(&self, config: &Config, facts: &Facts<'_>, resolved: &ResolvedConfig) -> Launch;

    /// Predicts the memory of a launch from the facts and from the starts that they know of. `None` if too little is known of the
    /// model or of the device.
    fn predict_memory(&self, config: &Config, facts: &Facts<'_>) -> Option<Prediction>;

    /// Returns a key that configurations have in common if they share compiled code, within one study. `config` has the study's own
    /// arguments as well.
    fn compile_key(&self, config: &Config, facts: &Facts<'_>, resolved: &ResolvedConfig) -> String;

    /// Says what of a space the rules do not check because a fact of device or host is unknown: a sentence each, without a full
    /// stop.
    fn unchecked(&self, space: &Space, facts: &Facts<'_>) -> Vec<String>;
}

/// The subject of a rule, as far as its test by a start depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSubject {
    /// Memory by the memory model, which has a probability for each failure.
    Memory,
    /// The share of memory that must be free when the engine starts.
    FreeMemory,
    /// Memory that other processes hold at the moment. A start would test these processes, and not the rule.
    MemoryOfOthers,
    /// The host's memory: a test could end other processes of the host.
    HostMemory,
    /// The number of devices. A process that gets none reports a lost device or failed collectives, or waits for it.
    Devices,
    /// The model's files.
    Files,
    Other,
}

impl dyn EngineRules {
    /// Every rule, in the order in which the engine would notice.
    pub fn all(&self) -> impl Iterator<Item = &'static Rule> + use<> {
        self.families().iter().copied().flatten()
    }
}
