//! The input of a sampler: the space, the objectives and constraints, every earlier proposal with its outcome, and
//! priors from before the first measurement.

use std::collections::HashSet;

use super::LiveLooks;
use super::auto::PriorSurrogateCache;
use crate::config::Config;
use crate::objective::Goal;
use crate::space::Space;
use crate::trial::{ExpectedValue, Origin, Proposal};

/// A question for the next configuration. It contains everything that the answer depends on.
#[derive(Clone, Copy)]
pub struct SamplerAsk<'a> {
    pub space: &'a Space,
    pub aim: &'a SearchAim,
    /// Every configuration that was tried or rejected, in order.
    pub history: &'a [PastTrial],
    pub seed: u64,
    /// Returns whether a configuration can work at all. It is pure and quick. A configuration that it refuses is never
    /// proposed.
    pub allowed: &'a dyn Fn(&Config) -> bool,
    /// Values of parameters that a configuration does not set, as far as they are known: the engine's defaults.
    pub defaults: &'a Config,
    /// Predictions for the space from other sources, the most trusted first.
    pub priors: &'a [SamplerPrior],
    /// Number of trials still to be proposed, this one included, if it is known.
    pub trials_left: Option<u32>,
    /// Expected cost of a trial of a configuration, in any one unit. Without it the cost is learnt from the earlier
    /// trials.
    pub cost: Option<&'a dyn Fn(&Config) -> f64>,
    /// The live looks of the study; `None` if its engine has none.
    pub live: Option<&'a LiveLooks>,
}

impl std::fmt::Debug for SamplerAsk<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("history", &self.history.len()).field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// The objectives and constraints of a study.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchAim {
    /// One objective, or several if their trade-off is wanted.
    pub objectives: Vec<ObjectiveTarget>,
    /// Names of the constraints.
    pub constraints: Vec<String>,
}

/// One objective.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectiveTarget {
    pub name: String,
    pub goal: Goal,
}

/// One earlier proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct PastTrial {
    pub origin: Origin,
    pub config: Config,
    /// Expected gain at the time of the proposal, as a share of the best value. `None` for samplers without a model.
    pub expected_gain: Option<f64>,
    pub outcome: KnownOutcome,
    /// Cost of the trial, in any one unit, if it is known.
    pub cost: Option<f64>,
    /// The configuration that the server of a live look was launched with; `None` for a launch.
    pub server: Option<Config>,
}

/// The outcome of a proposal.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum KnownOutcome {
    /// The trial is under way.
    #[default]
    Pending,
    /// The trial has ended for a reason other than its configuration. Nothing was learnt.
    Inconclusive,
    /// The rules or the engine's preflight refused the configuration. It was never launched.
    Rejected,
    /// The configuration was launched and did not serve.
    Failed,
    Measured(MeasuredNumbers),
}

/// The numbers of a measured configuration. Numbers that are not finite count as not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredNumbers {
    /// One reading for each objective, in its own unit.
    pub values: Vec<NumberReading>,
    /// One reading for each constraint, at most 0 if it is kept. It is `ln(measured / limit)` if both are positive.
    pub excesses: Vec<NumberReading>,
}

/// A number and its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberReading {
    pub value: f64,
    /// Standard deviation, if it was measured: relative for an objective, absolute for an excess.
    pub deviation: Option<f64>,
}

/// Predictions for the space from a source that computes (the twin) or has measured elsewhere (an earlier study).
#[derive(Clone, Debug, Default)]
pub struct SamplerPrior {
    /// Name of the source as it appears in sentences: `the twin`, or `study NAME`.
    pub name: String,
    /// Configurations and their predicted outcomes. Objectives and excesses have the order of the [`SearchAim`]. A
    /// configuration that is predicted not to start is [`KnownOutcome::Failed`].
    points: Vec<(Config, KnownOutcome)>,
    /// Whether the deviations of the excesses have a common cause: see [`SamplerPrior::from_computation`].
    is_computed: bool,
    /// Surrogates of the points for all other configurations. They are fitted at first use.
    pub(super) surrogates: PriorSurrogateCache,
}

/// Compares the predictions only: `opinions` is derived from them.
impl PartialEq for SamplerPrior {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.points == other.points && self.is_computed == other.is_computed
    }
}

impl SamplerPrior {
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(Config, KnownOutcome)>) -> Self {
        Self { name: name.into(), points, is_computed: false, surrogates: PriorSurrogateCache::default() }
    }

    /// Creates a prior of a source that computes and does not measure. The deviations of its excesses are not noise but
    /// possible errors of the computation. These errors share a direction. If one prediction is too low, the others are
    /// too low as well, each in proportion to its own deviation.
    #[must_use]
    pub fn from_computation(name: impl Into<String>, points: Vec<(Config, KnownOutcome)>) -> Self {
        Self { is_computed: true, ..Self::new(name, points) }
    }

    pub(super) fn is_computed(&self) -> bool {
        self.is_computed
    }

    #[must_use]
    pub fn points(&self) -> &[(Config, KnownOutcome)] {
        &self.points
    }
}

/// A configuration to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    pub config: Config,
    /// The reason for this configuration, in one line.
    pub why: String,
    /// The first objective's value that the sampler's model expects. `None` without a model of it.
    pub expected: Option<ExpectedValue>,
}

impl Suggestion {
    /// Creates a suggestion without an expectation.
    #[must_use]
    pub fn new(config: Config, why: impl Into<String>) -> Self {
        Self { config, why: why.into(), expected: None }
    }
}

impl NumberReading {
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self { value, deviation: None }
    }
}

impl MeasuredNumbers {
    /// Returns whether every constraint was kept, as measured.
    #[must_use]
    pub fn is_feasible(&self) -> bool {
        self.excesses.iter().all(|excess| excess.value <= 0.0)
    }
}

impl PastTrial {
    /// Creates an entry without an expected gain and of unknown cost.
    #[must_use]
    pub fn new(origin: impl Into<Origin>, config: Config, known: KnownOutcome) -> Self {
        Self { origin: origin.into(), config, expected_gain: None, outcome: known, cost: None, server: None }
    }

    /// Creates an entry for a proposal that has no outcome yet.
    #[must_use]
    pub fn pending(proposal: Proposal) -> Self {
        let Proposal { origin, expected_gain, config, .. } = proposal;
        Self { expected_gain, ..Self::new(origin, config, KnownOutcome::Pending) }
    }

    #[must_use]
    pub fn measured(&self) -> Option<&MeasuredNumbers> {
        self.outcome.measured()
    }
}

impl KnownOutcome {
    #[must_use]
    pub fn measured(&self) -> Option<&MeasuredNumbers> {
        match self {
            Self::Measured(measured) => Some(measured),
            Self::Pending | Self::Inconclusive | Self::Rejected | Self::Failed => None,
        }
    }
}

impl<'a> SamplerAsk<'a> {
    /// Creates a question with the required parts only.
    #[must_use]
    pub fn new(
        space: &'a Space,
        aim: &'a SearchAim,
        history: &'a [PastTrial],
        seed: u64,
        allowed: &'a dyn Fn(&Config) -> bool,
    ) -> Self {
        static NOTHING: Config = Config::new();
        Self {
            space,
            aim,
            history,
            seed,
            allowed,
            defaults: &NOTHING,
            priors: &[],
            trials_left: None,
            cost: None,
            live: None,
        }
    }

    /// Returns the keys of the configurations that were launched or rejected. One that was only looked at may still be
    /// launched.
    pub(super) fn history_keys(&self) -> HashSet<String> {
        self.history.iter().filter(|past| past.server.is_none()).map(|past| past.config.key()).collect()
    }

    /// Returns the number of configurations that this sampler has proposed. The sampler has consumed at least as many
    /// points of its sequence.
    pub(super) fn proposed_by(&self, name: &str) -> usize {
        self.history.iter().filter(|past| matches!(&past.origin, Origin::Sampler(sampler) if sampler == name)).count()
    }
}
