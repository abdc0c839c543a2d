//! What a sampler may look at: the space, what is wanted, every earlier proposal with what came of it, and what is believed
//! of the space before anything is measured.

use std::collections::HashSet;

use super::auto::Opinions;
use crate::config::Config;
use crate::objective::Goal;
use crate::space::Space;
use crate::trial::{Origin, Proposal};

/// A question for the next configuration. Everything that decides the answer is in it.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub space: &'a Space,
    pub aim: &'a Aim,
    /// Every configuration that was tried or rejected, in order.
    pub history: &'a [Past],
    pub seed: u64,
    /// Whether a configuration can work at all. It is pure and quick, and what it refuses is never proposed.
    pub allowed: &'a dyn Fn(&Config) -> bool,
    /// What parameters that a configuration does not set stand for, where that is known: the engine's defaults.
    pub defaults: &'a Config,
    /// What others believe of the space, the most trusted first.
    pub priors: &'a [Prior],
    /// Trials that are still to be proposed, this one included, where the number is known.
    pub left: Option<u32>,
    /// What a trial of a configuration is expected to cost, in any one unit; without it that is learnt from what the earlier
    /// ones have cost.
    pub cost: Option<&'a dyn Fn(&Config) -> f64>,
}

impl std::fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("history", &self.history.len()).field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aim {
    /// One, or several where the trade-off between them is wanted.
    pub objectives: Vec<Target>,
    /// Names of the limits.
    pub constraints: Vec<String>,
}

/// One objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub name: String,
    pub goal: Goal,
}

/// One earlier proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    pub origin: Origin,
    pub config: Config,
    /// Expected gain when it was proposed, as a share of the best value; only of samplers with a model.
    pub expected_gain: Option<f64>,
    pub known: Known,
    /// What the trial has cost, in any one unit, where that is known.
    pub cost: Option<f64>,
}

/// What is known of a proposal.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Known {
    /// Nothing yet: it is under way.
    #[default]
    Pending,
    /// Nothing: it has ended, and what happened was not its own doing.
    Lost,
    /// Never launched: the rules or the engine's own check refused it.
    Rejected,
    /// Launched, and it did not serve.
    Failed,
    Measured(Measured),
}

/// The numbers of a measured configuration. Numbers that are not finite count as not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// One for each objective, as measured.
    pub values: Vec<Reading>,
    /// One for each limit: how far it is exceeded. At most 0 where it is kept; `ln(measured / limit)` where both are
    /// positive.
    pub excesses: Vec<Reading>,
}

/// A number and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub value: f64,
    /// Its standard deviation, where that was measured: relative for an objective, absolute for an excess.
    pub deviation: Option<f64>,
}

/// What somebody who does not measure, or has measured elsewhere, says of the space.
#[derive(Clone, Debug, Default)]
pub struct Prior {
    /// Who says it, as sentences have it: `the twin`, or `study NAME`.
    pub name: String,
    /// Configurations and what is said of them. Objectives and excesses are those of the [`Aim`]. What would not start is
    /// [`Known::Failed`].
    points: Vec<(Config, Known)>,
    /// Whether its deviations are of one cause: see [`Prior::computed`].
    computed: bool,
    /// What this says of all others, found out when it is asked for the first time.
    pub(super) opinions: Opinions,
}

/// What is said decides; what is made of it follows from that.
impl PartialEq for Prior {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.points == other.points && self.computed == other.computed
    }
}

impl Prior {
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(Config, Known)>) -> Self {
        Self { name: name.into(), points, computed: false, opinions: Opinions::default() }
    }

    /// Of something that computes and does not measure. The deviations of its limits are not those of noise: they say where it
    /// may be wrong, and where it is wrong in one place, it is wrong in the same direction in others, the more the less it is
    /// sure.
    #[must_use]
    pub fn computed(name: impl Into<String>, points: Vec<(Config, Known)>) -> Self {
        Self { computed: true, ..Self::new(name, points) }
    }

    pub(super) fn is_computed(&self) -> bool {
        self.computed
    }

    #[must_use]
    pub fn points(&self) -> &[(Config, Known)] {
        &self.points
    }
}

/// A configuration to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    pub config: Config,
    /// Why this one, in one line.
    pub why: String,
}

impl Reading {
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self { value, deviation: None }
    }
}

impl Measured {
    /// Whether every limit was kept, as measured.
    #[must_use]
    pub fn is_feasible(&self) -> bool {
        self.excesses.iter().all(|excess| excess.value <= 0.0)
    }
}

impl Past {
    /// One without an expected gain, whose cost is not known.
    #[must_use]
    pub fn new(origin: impl Into<Origin>, config: Config, known: Known) -> Self {
        Self { origin: origin.into(), config, expected_gain: None, known, cost: None }
    }

    /// A proposal that has no outcome yet.
    #[must_use]
    pub fn pending(proposal: Proposal) -> Self {
        let Proposal { origin, expected_gain, config, .. } = proposal;
        Self { expected_gain, ..Self::new(origin, config, Known::Pending) }
    }

    #[must_use]
    pub fn measured(&self) -> Option<&Measured> {
        self.known.measured()
    }
}

impl Known {
    #[must_use]
    pub fn measured(&self) -> Option<&Measured> {
        match self {
            Self::Measured(measured) => Some(measured),
            Self::Pending | Self::Lost | Self::Rejected | Self::Failed => None,
        }
    }
}

impl<'a> Ask<'a> {
    /// A question with nothing but what every question has.
    #[must_use]
    pub fn new(
        space: &'a Space,
        aim: &'a Aim,
        history: &'a [Past],
        seed: u64,
        allowed: &'a dyn Fn(&Config) -> bool,
    ) -> Self {
        static NOTHING: Config = Config::new();
        Self { space, aim, history, seed, allowed, defaults: &NOTHING, priors: &[], left: None, cost: None }
    }

    pub(super) fn seen(&self) -> HashSet<String> {
        self.history.iter().map(|past| past.config.key()).collect()
    }

    /// How many configurations this sampler has proposed: it has consumed at least as many points of its sequence.
    pub(super) fn proposed_by(&self, name: &str) -> usize {
        self.history.iter().filter(|past| matches!(&past.origin, Origin::Sampler(sampler) if sampler == name)).count()
    }
}
