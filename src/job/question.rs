//! What is asked of a study's sampler: everything that decides the answer, without borrows, so that a model of many trials can
//! be fitted on a thread of its own while launches go on.

use std::collections::{BTreeMap, BTreeSet};

use super::search::Search;
use super::{Job, defaults};
use crate::config::Config;
use crate::cost::LaunchCosts;
use crate::facts::{Device, EngineVersion, HostLimits, ModelShape};
use crate::memory::Learned;
use crate::rule::{self, EngineRules, Facts};
use crate::sampler::{self, Aim, Ask, Explanation, Judgement, Past, Prior, Sampler, Suggestion, Target};
use crate::space::Space;
use crate::trial::Origin;

/// A question to a sampler. Equal questions have equal answers.
#[derive(Clone, Debug)]
pub struct Question {
    sampler: &'static dyn Sampler,
    space: Space,
    aim: Aim,
    history: Vec<Past>,
    priors: Vec<Prior>,
    seed: u64,
    /// Trials of the search that are left, where the number is known.
    left: Option<u32>,
    /// What the study's own arguments set in every launch.
    arguments: Config,
    defaults: Config,
    known: Owned,
    /// What launches have cost, where the twin knows how this engine starts.
    launches: Option<LaunchCosts>,
}

/// [`Facts`] without borrows.
#[derive(Clone, Debug)]
struct Owned {
    model: ModelShape,
    version: EngineVersion,
    device: Device,
    env: BTreeMap<String, String>,
    longest_request: Option<u64>,
    host: HostLimits,
    absent: Option<BTreeSet<String>>,
    memory: Option<Learned>,
    distrusted: Vec<&'static str>,
    engine: Option<&'static dyn EngineRules>,
}

impl Owned {
    fn new(facts: &Facts<'_>) -> Self {
        Self {
            model: facts.model.clone(),
            version: facts.version,
            device: facts.device,
            env: facts.env.clone(),
            longest_request: facts.longest_request,
            host: facts.host,
            absent: facts.absent.cloned(),
            memory: facts.memory.cloned(),
            distrusted: facts.distrusted.to_vec(),
            engine: facts.engine,
        }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            model: &self.model,
            version: self.version,
            device: self.device,
            env: &self.env,
            longest_request: self.longest_request,
            host: self.host,
            absent: self.absent.as_ref(),
            memory: self.memory.as_ref(),
            distrusted: &self.distrusted,
            engine: self.engine,
        }
    }
}

impl Question {
    pub(super) fn new(
        search: &Search<'_>,
        job: &Job,
        arguments: &Config,
        history: Vec<Past>,
        priors: Vec<Prior>,
    ) -> Self {
        Self {
            sampler: job.sampler,
            space: search.space.clone(),
            aim: job.aim(),
            history,
            priors,
            seed: job.seed,
            left: None,
            arguments: arguments.clone(),
            defaults: defaults::resolve(&search.space, arguments, &search.facts),
            known: Owned::new(&search.facts),
            launches: None,
        }
    }

    /// The same with what the study's launches have cost: it decides what is tried next, and nothing else.
    #[must_use]
    pub(crate) fn costing(self, launches: Option<LaunchCosts>) -> Self {
        Self { launches, ..self }
    }

    /// The same with the number of trials that the search has left.
    #[must_use]
    pub fn ending(self, left: Option<u32>) -> Self {
        Self { left, ..self }
    }

    /// The next configuration and its origin. All but the first, the engine's defaults, pass the rules.
    #[must_use]
    pub fn next(&self) -> Option<(Origin, Suggestion)> {
        let cost = self.launches.as_ref().and_then(|launches| launches.cost(self.known.facts(), &self.arguments));
        let cost = cost.as_ref().map(|cost| cost as &dyn Fn(&Config) -> f64);
        self.ask(|ask| sampler::next(self.sampler, &Ask { cost, ..*ask }))
    }

    /// What the measurements say so far; `None` of a sampler that has no model of them.
    #[must_use]
    pub fn judge(&self) -> Option<Judgement> {
        self.ask(|ask| self.sampler.judge(ask))
    }

    /// Which parameters matter by the measurements so far; `None` where nothing can be said of that.
    #[must_use]
    pub fn explain(&self) -> Option<Explanation> {
        self.ask(|ask| sampler::explain(self.sampler, ask))
    }

    /// The name of who is asked.
    #[must_use]
    pub fn asked(&self) -> &'static str {
        self.sampler.name()
    }

    fn ask<T>(&self, then: impl FnOnce(&Ask<'_>) -> T) -> T {
        let facts = self.known.facts();
        let allowed = |config: &Config| rule::rejection(&config.merged(&self.arguments), &facts).is_none();
        let ask = Ask {
            defaults: &self.defaults,
            priors: &self.priors,
            left: self.left,
            ..Ask::new(&self.space, &self.aim, &self.history, self.seed, &allowed)
        };
        then(&ask)
    }
}

impl Job {
    /// What the study wants, as samplers see it.
    #[must_use]
    pub fn aim(&self) -> Aim {
        let objective = &self.objective;
        Aim {
            objectives: vec![Target { name: objective.metric.clone(), goal: objective.goal }],
            constraints: objective.constraints.iter().map(ToString::to_string).collect(),
        }
    }
}
