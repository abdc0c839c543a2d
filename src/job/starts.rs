//! What a study's starts have shown, and what they have left to further ones.

use std::collections::BTreeSet;

use super::compiled::compile_key;
use crate::config::Config;
use crate::rule::{Effective, Facts, memory_launch};
use crate::trial::{Outcome, PhaseTime, Startup, Trial};
use crate::twin::{DevicePreset, Start, StartupModel, Warm};

/// A launch that has an outcome, as far as further ones learn from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Started {
    /// As the trial has it, without the study's own arguments.
    pub config: Config,
    /// Phases that have ended.
    pub phases: Vec<PhaseTime>,
    /// Seconds until it was ready, where it ever was.
    pub startup_s: Option<f64>,
    /// Seconds from then on, where it was measured.
    pub load_s: Option<f64>,
}

impl Started {
    #[must_use]
    pub fn new(trial: &Trial, startup: Startup) -> Self {
        let (mut phases, startup_s) = (startup.phases, trial.startup_s);
        if startup_s.is_none() {
            // It failed in the last one.
            phases.pop();
        }
        let is_measured = matches!(trial.outcome, Outcome::Measured(_));
        let load_s = startup_s.filter(|_| is_measured).map(|start| trial.elapsed_s - start);
        Self { config: trial.config.clone(), phases, startup_s, load_s }
    }
}

/// What launches run on, and what every one of them sets.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    pub facts: Facts<'a>,
    pub preset: &'static DevicePreset,
    /// The study's own arguments.
    pub arguments: Config,
}

/// What starts have shown and left behind.
#[derive(Clone, Debug, Default)]
pub struct Starts {
    pub model: StartupModel,
    compiled: BTreeSet<String>,
    loaded: bool,
}

impl Starts {
    /// From launches in their order; what the twin does not know the start of shows nothing.
    #[must_use]
    pub fn learn(around: &Surroundings<'_>, started: &[Started]) -> Self {
        let mut starts = Self::default();
        for one in started {
            let Some((start, key)) = starts.start(around, &one.config) else { continue };
            starts.model.learn(&start, &one.phases);
            starts.loaded = true;
            let has_compiled = one.startup_s.is_some() || one.phases.iter().any(|time| time.phase == "compile");
            if start.compiled && has_compiled {
                starts.compiled.insert(key);
            }
        }
        starts
    }

    /// What they have left to a launch of this configuration.
    #[must_use]
    pub fn warm(&self, around: &Surroundings<'_>, config: &Config) -> Warm {
        self.start(around, config).map_or_else(Warm::default, |(start, _)| start.warm)
    }

    /// A launch of this configuration, and the key of what it compiles.
    fn start(&self, around: &Surroundings<'_>, config: &Config) -> Option<(Start, String)> {
        let Surroundings { facts, preset, arguments } = around;
        let config = config.merged(arguments);
        let effective = Effective::resolve(&config, facts);
        let key = compile_key(&config, facts, &effective);
        let warm = Warm { weights: self.loaded, compiled: self.compiled.contains(&key) };
        let start = Start::new(facts.model, &memory_launch(&config, facts, &effective), preset, warm);
        Some((start.ok()?, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_failed_start_the_last_phase_did_not_end() {
        let outcome = Outcome::Rejected(crate::trial::Rejection { rule: String::new(), message: String::new() });
        let trial = Trial::example(3, "auto", outcome);
        let time = |phase: &str| PhaseTime { phase: phase.to_owned(), duration_s: 1.0 };
        let phases = ["import", "weights", "compile", "kv_cache", "graphs"].map(time).to_vec();
        let of = |startup_s| {
            Started::new(
                &Trial { startup_s, ..trial.clone() },
                Startup { phases: phases.clone(), ..Startup::default() },
            )
        };
        assert_eq!((of(None).phases.len(), of(Some(1.0)).phases.len()), (4, 5));
    }
}
