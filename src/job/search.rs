//! The search of a study: its space without the parts that the rules exclude for this engine, model and device.

use std::collections::BTreeSet;

use super::{Job, SamplerQuestion};
use crate::config::Config;
use crate::facts::{Device, EngineVersion, HostLimits};
use crate::memory::{LearnedMemory, MemoryPrediction};
use crate::rule::{self, Facts, Finding, RangeNarrowing, SpaceRemoval};
use crate::sampler::{KnownOutcome, PastTrial, SamplerPrior, Suggestion};
use crate::space::Space;
use crate::trial::Origin;

/// The space of a study, narrowed by the facts.
#[derive(Clone, Debug)]
pub struct JobSearch<'a> {
    pub(super) job: &'a Job,
    pub facts: Facts<'a>,
    /// The study's own arguments, set in every launch.
    pub(super) arguments: Config,
    /// The study's space with narrowed ranges.
    pub space: Space,
    /// The ranges that the facts narrowed.
    pub narrowings: Vec<RangeNarrowing>,
}

impl Job {
    /// Returns the search of this study for an engine's release and a device.
    #[must_use]
    pub fn search(&self, version: EngineVersion, device: Device, host: HostLimits) -> JobSearch<'_> {
        JobSearch::new(self, self.facts(version, device, host), self.engine.arguments(version))
    }
}

impl<'a> JobSearch<'a> {
    fn new(job: &'a Job, facts: Facts<'a>, arguments: Config) -> Self {
        let (space, narrowings) = rule::narrow(job.search_space(), &arguments, &facts);
        Self { job, facts, arguments, space, narrowings }
    }

    /// Returns this search without the rules that the installed engine contradicts, given by their names.
    #[must_use]
    pub fn without_rules<'b>(&self, distrusted: &'b [&'static str]) -> JobSearch<'b>
    where
        'a: 'b,
    {
        JobSearch::new(self.job, Facts { contradicted_rules: distrusted, ..self.facts }, self.arguments.clone())
    }

    /// Returns this search with the memory learned from launches and the packages that the installed engine lacks. The
    /// ranges keep their earlier narrowing, so that the sampler's sequence continues.
    #[must_use]
    pub fn with_learned<'b>(&self, learned: &'b LearnedMemory, absent: Option<&'b BTreeSet<String>>) -> JobSearch<'b>
    where
        'a: 'b,
    {
        let mut search: JobSearch<'b> = self.clone();
        search.facts.memory = Some(learned);
        search.facts.missing_packages = absent;
        search
    }

    /// Returns the findings for a configuration merged with the study's own arguments, the most severe first.
    #[must_use]
    pub fn findings(&self, config: &Config) -> Vec<Finding> {
        rule::check(&config.merged(&self.arguments), &self.facts)
    }

    /// Returns the predicted memory of a launch of this configuration; `None` if too few facts are known.
    #[must_use]
    pub fn predict_memory(&self, config: &Config) -> Option<MemoryPrediction> {
        self.facts.predict_memory(&config.merged(&self.arguments))
    }

    /// Returns the number of this host's devices that a launch of this configuration computes on.
    #[must_use]
    pub fn devices_needed(&self, config: &Config) -> u64 {
        self.facts.devices_needed(&config.merged(&self.arguments))
    }

    /// Returns the finding that rejects this configuration, if any.
    #[must_use]
    pub fn rejection(&self, config: &Config) -> Option<Finding> {
        rule::rejection(&config.merged(&self.arguments), &self.facts)
    }

    /// Returns the part of the stated space that the rules remove.
    #[must_use]
    pub fn removal(&self) -> SpaceRemoval {
        rule::removal(self.job.search_space(), &self.arguments, &self.facts)
    }

    /// Returns the question to the sampler after these trials.
    #[must_use]
    pub fn question(&self, history: Vec<PastTrial>, priors: Vec<SamplerPrior>) -> SamplerQuestion {
        SamplerQuestion::new(self, self.job, &self.arguments, history, priors)
    }

    /// Returns the next configuration and its origin; `None` if the sampler has no further one. All but the first, the
    /// engine's defaults, pass the rules.
    #[must_use]
    pub fn next(&self, history: &[PastTrial]) -> Option<(Origin, Suggestion)> {
        self.question(history.to_vec(), Vec::new()).next()
    }

    /// Returns whether the rules reject every configuration of a space that has parameters.
    #[must_use]
    pub fn is_empty(&self, removal: &SpaceRemoval) -> bool {
        let defaults = PastTrial::new(Origin::Baseline, self.space.fixed.clone(), KnownOutcome::Pending);
        !self.space.parameters.is_empty() && removal.remaining == 0 && self.next(&[defaults]).is_none()
    }
}
