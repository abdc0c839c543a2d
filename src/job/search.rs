//! What a study can try: its space without what the rules know cannot work on this engine, model and device.

use std::collections::BTreeSet;

use super::{Job, Question};
use crate::config::Config;
use crate::facts::{Device, EngineVersion, HostLimits};
use crate::memory::{Learned, Prediction};
use crate::rule::{self, Facts, Finding, Narrowing, Removal};
use crate::sampler::{Known, Past, Prior, Suggestion};
use crate::space::Space;
use crate::trial::Origin;

/// The space of a study, seen with the facts.
#[derive(Clone, Debug)]
pub struct Search<'a> {
    pub(super) job: &'a Job,
    pub facts: Facts<'a>,
    /// What the study's own arguments set in every launch.
    pub(super) arguments: Config,
    /// The study's space with narrowed ranges.
    pub space: Space,
    pub narrowings: Vec<Narrowing>,
}

impl Job {
    /// The search space of this study for an engine's release and a device.
    #[must_use]
    pub fn search(&self, version: EngineVersion, device: Device, host: HostLimits) -> Search<'_> {
        Search::new(self, self.facts(version, device, host), self.engine.arguments(version))
    }
}

impl<'a> Search<'a> {
    fn new(job: &'a Job, facts: Facts<'a>, arguments: Config) -> Self {
        let (space, narrowings) = rule::narrow(job.parameters(), &arguments, &facts);
        Self { job, facts, arguments, space, narrowings }
    }

    /// The same without rules that the installed engine contradicts.
    #[must_use]
    pub fn distrusting<'b>(&self, distrusted: &'b [&'static str]) -> Search<'b>
    where
        'a: 'b,
    {
        Search::new(self.job, Facts { distrusted, ..self.facts }, self.arguments.clone())
    }

    /// The same with what starts have taught of the memory, and with the packages that the installed engine lacks. Ranges
    /// stay as they were narrowed without it, so that the sampler's sequence goes on.
    #[must_use]
    pub fn knowing<'b>(&self, learned: &'b Learned, absent: Option<&'b BTreeSet<String>>) -> Search<'b>
    where
        'a: 'b,
    {
        let mut search: Search<'b> = self.clone();
        search.facts.memory = Some(learned);
        search.facts.absent = absent;
        search
    }

    /// What the rules say of a configuration together with the study's own arguments, the most severe first.
    #[must_use]
    pub fn findings(&self, config: &Config) -> Vec<Finding> {
        rule::check(&config.merged(&self.arguments), &self.facts)
    }

    /// What a launch of this configuration would spend its memory on; `None` where too little is known.
    #[must_use]
    pub fn memory(&self, config: &Config) -> Option<Prediction> {
        self.facts.predict_memory(&config.merged(&self.arguments))
    }

    /// How many devices of this host a launch of this configuration computes on.
    #[must_use]
    pub fn devices_needed(&self, config: &Config) -> u64 {
        self.facts.devices_needed(&config.merged(&self.arguments))
    }

    /// Why a launch of this configuration would be wasted.
    #[must_use]
    pub fn rejection(&self, config: &Config) -> Option<Finding> {
        rule::rejection(&config.merged(&self.arguments), &self.facts)
    }

    /// What the rules remove from the space as the study states it.
    #[must_use]
    pub fn removal(&self) -> Removal {
        rule::removal(self.job.parameters(), &self.arguments, &self.facts)
    }

    /// What is asked of the sampler after these trials.
    #[must_use]
    pub fn question(&self, history: Vec<Past>, priors: Vec<Prior>) -> Question {
        Question::new(self, self.job, &self.arguments, history, priors)
    }

    /// The next configuration and its origin. All but the first, the engine's defaults, pass the rules.
    #[must_use]
    pub fn next(&self, history: &[Past]) -> Option<(Origin, Suggestion)> {
        self.question(history.to_vec(), Vec::new()).next()
    }

    /// Whether the rules reject every configuration that the space, which has parameters, could propose.
    #[must_use]
    pub fn is_empty(&self, removal: &Removal) -> bool {
        let defaults = Past::new(Origin::Baseline, self.space.fixed.clone(), Known::Pending);
        !self.space.parameters.is_empty() && removal.remaining == 0 && self.next(&[defaults]).is_none()
    }
}
