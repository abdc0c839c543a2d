//! A question to the study's sampler. It owns all inputs of the answer, so that a model of many trials can be fitted on
//! its own thread while launches continue.

use std::collections::{BTreeMap, BTreeSet};

use super::search::JobSearch;
use super::{Job, defaults};
use crate::config::{Config, Value};
use crate::cost::LaunchCostData;
use crate::facts::{Device, EngineVersion, HostLimits, ModelShape};
use crate::memory::LearnedMemory;
use crate::rule::{self, EngineRules, Facts};
use crate::sampler::{
    self, Explanation, Judgement, KnobBias, KnownOutcome, LiveLooks, ObjectiveTarget, PastTrial, Sampler, SamplerAsk,
    SamplerPrior, SearchAim, Suggestion, is_modelled,
};
use crate::space::Space;
use crate::trial::Origin;

/// A question to a sampler. Equal questions have equal answers.
#[derive(Clone, Debug)]
pub struct SamplerQuestion {
    sampler: &'static dyn Sampler,
    space: Space,
    aim: SearchAim,
    history: Vec<PastTrial>,
    priors: Vec<SamplerPrior>,
    seed: u64,
    /// The number of trials left to the search, if known.
    trials_left: Option<u32>,
    /// The study's own arguments, set in every launch.
    arguments: Config,
    defaults: Config,
    owned_facts: OwnedFacts,
    /// Keys of first points that the sampler's model cannot place. Their outcomes are inconclusive for the sampler.
    unmodelled: BTreeSet<String>,
    /// The costs of earlier launches, if the twin models the start-up of this engine.
    launches: Option<LaunchCostData>,
    /// The live looks of the study; `None` if its engine or its sampler has none.
    live: Option<LiveLooks>,
    /// The configuration that the running server was launched with.
    server: Option<Config>,
}

/// [`Facts`] without borrows.
#[derive(Clone, Debug)]
struct OwnedFacts {
    model: ModelShape,
    version: EngineVersion,
    device: Device,
    env: BTreeMap<String, String>,
    longest_request: Option<u64>,
    host: HostLimits,
    missing_packages: Option<BTreeSet<String>>,
    memory: Option<LearnedMemory>,
    contradicted_rules: Vec<&'static str>,
    engine: Option<&'static dyn EngineRules>,
}

impl OwnedFacts {
    fn new(facts: &Facts<'_>) -> Self {
        Self {
            model: facts.model.clone(),
            version: facts.version,
            device: facts.device,
            env: facts.env.clone(),
            longest_request: facts.longest_request,
            host: facts.host,
            missing_packages: facts.missing_packages.cloned(),
            memory: facts.memory.cloned(),
            contradicted_rules: facts.contradicted_rules.to_vec(),
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
            missing_packages: self.missing_packages.as_ref(),
            memory: self.memory.as_ref(),
            contradicted_rules: &self.contradicted_rules,
            engine: self.engine,
        }
    }
}

/// Returns the keys of the first points that a model over the space cannot place.
fn unmodelled_keys(space: &Space, defaults: &Config, history: &[PastTrial]) -> BTreeSet<String> {
    let is_first = |past: &&PastTrial| matches!(past.origin, Origin::Deployment | Origin::Start);
    let outside = history.iter().filter(is_first).filter(|past| !is_modelled(space, defaults, &past.config));
    outside.map(|past| past.config.key()).collect()
}

/// Hides the outcome of a configuration that the model cannot place, also of its confirmation. The sampler still does
/// not propose the configuration again.
fn without_outcome_of(unmodelled: &BTreeSet<String>, past: PastTrial) -> PastTrial {
    let is_hidden = !unmodelled.is_empty() && unmodelled.contains(&past.config.key());
    if is_hidden { PastTrial { outcome: KnownOutcome::Inconclusive, ..past } } else { past }
}

impl SamplerQuestion {
    pub(super) fn new(
        search: &JobSearch<'_>,
        job: &Job,
        arguments: &Config,
        history: Vec<PastTrial>,
        priors: Vec<SamplerPrior>,
    ) -> Self {
        let defaults = defaults::resolve(&search.space, arguments, &search.facts);
        let unmodelled = unmodelled_keys(&search.space, &defaults, &history);
        let history = history.into_iter().map(|past| without_outcome_of(&unmodelled, past)).collect();
        Self {
            sampler: job.sampler,
            space: search.space.clone(),
            aim: job.aim(),
            history,
            priors,
            seed: job.seed,
            trials_left: None,
            arguments: arguments.clone(),
            defaults,
            unmodelled,
            owned_facts: OwnedFacts::new(&search.facts),
            launches: None,
            live: None,
            server: None,
        }
    }

    /// Sets the costs of the study's launches. They influence the next configuration only, not [`judge`](Self::judge)
    /// or [`explain`](Self::explain).
    #[must_use]
    pub(crate) fn with_launch_costs(self, launches: Option<LaunchCostData>) -> Self {
        Self { launches, ..self }
    }

    /// Sets the live looks of the study, if its sampler uses them. Knobs whose measured difference from launches is too
    /// large are left out.
    #[must_use]
    pub(crate) fn with_live_looks(self, live: Option<LiveLooks>) -> Self {
        let live = live.filter(|_| self.sampler.uses_live_looks());
        let live = live.map(|live| live.without_refuted(&self.defaults, &self.history));
        Self { live, ..self }
    }

    /// Sets the configuration that the running server was launched with.
    #[must_use]
    pub(crate) fn with_server(self, server: Config) -> Self {
        Self { server: Some(server), ..self }
    }

    /// Returns the measured difference between these live looks and launches for each knob.
    #[must_use]
    pub(crate) fn biases(&self, live: &LiveLooks) -> Vec<KnobBias> {
        live.biases(&self.defaults, &self.history)
    }

    /// Returns the next configuration to look at on the running server. `None` if a launch is worth more for its cost.
    #[must_use]
    pub(crate) fn look(&self) -> Option<Suggestion> {
        let server = self.server.as_ref()?;
        self.with_cost(|ask| self.sampler.look(ask, server))
    }

    /// Sets the number of trials left to the search.
    #[must_use]
    pub fn with_trials_left(self, left: Option<u32>) -> Self {
        Self { trials_left: left, ..self }
    }

    /// Returns the next configuration and its origin; `None` if the sampler has no further one. All but the first, the
    /// engine's defaults, pass the rules.
    #[must_use]
    pub fn next(&self) -> Option<(Origin, Suggestion)> {
        self.with_cost(|ask| sampler::next(self.sampler, ask))
    }

    /// Asks with the costs of launches.
    fn with_cost<T>(&self, then: impl FnOnce(&SamplerAsk<'_>) -> T) -> T {
        let cost = self.launches.as_ref().and_then(|launches| launches.cost(self.owned_facts.facts(), &self.arguments));
        let cost = cost.as_ref().map(|cost| cost as &dyn Fn(&Config) -> f64);
        self.ask(|ask| then(&SamplerAsk { cost, ..*ask }))
    }

    /// Returns the judgement of the measurements so far; `None` if the sampler has no model of them.
    #[must_use]
    pub fn judge(&self) -> Option<Judgement> {
        self.ask(|ask| self.sampler.judge(ask))
    }

    /// Returns the expected value of the objective for each configuration. `None` for one that the sampler's model cannot
    /// place, and from samplers without a model.
    #[must_use]
    pub fn expect(&self, configs: &[Config]) -> Vec<Option<f64>> {
        self.ask(|ask| self.sampler.expect(ask, configs))
    }

    /// Returns the value of a flag that the engine uses if it is not set. `None` if it is not known.
    #[must_use]
    pub fn default_value(&self, flag: &str) -> Option<&Value> {
        self.defaults.get(flag)
    }

    /// Returns the influence of each parameter according to the measurements so far; `None` if it cannot be estimated.
    #[must_use]
    pub fn explain(&self) -> Option<Explanation> {
        self.ask(|ask| sampler::explain(self.sampler, ask))
    }

    /// Returns whether the sampler's model leaves a configuration out: a first point outside of the space.
    #[must_use]
    pub(crate) fn is_unmodelled(&self, config: &Config) -> bool {
        !self.unmodelled.is_empty() && self.unmodelled.contains(&config.key())
    }

    /// Returns the sampler's name.
    #[must_use]
    pub fn sampler_name(&self) -> &'static str {
        self.sampler.name()
    }

    fn ask<T>(&self, then: impl FnOnce(&SamplerAsk<'_>) -> T) -> T {
        let facts = self.owned_facts.facts();
        let allowed = |config: &Config| rule::rejection(&config.merged(&self.arguments), &facts).is_none();
        let ask = SamplerAsk {
            defaults: &self.defaults,
            priors: &self.priors,
            trials_left: self.trials_left,
            live: self.live.as_ref(),
            ..SamplerAsk::new(&self.space, &self.aim, &self.history, self.seed, &allowed)
        };
        then(&ask)
    }
}

impl Job {
    /// Returns the study's objective and constraints in the form that samplers take.
    #[must_use]
    pub fn aim(&self) -> SearchAim {
        let objective = &self.objective;
        SearchAim {
            objectives: vec![ObjectiveTarget { name: objective.value_name(), goal: objective.goal }],
            constraints: objective.constraints.iter().map(ToString::to_string).collect(),
        }
    }
}
