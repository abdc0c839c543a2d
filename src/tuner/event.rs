//! Events of a run, for its observer.

use std::time::Duration;

use super::{Interference, RetryPause, WrongRule};
use crate::config::Config;
use crate::rule::SpaceRemoval;
use crate::store::{Incident, RuleVerdict, ScoredTrial};
use crate::trial::{FlagDifference, LoadKnob, Proposal};

/// Callback for events. The tuner and the load's thread call it, so it must be quick and must not block.
pub type EventObserver = dyn Fn(TunerEvent) + Send + Sync;

/// An event of a run. `number` is always a trial's number.
#[derive(Clone, Debug)]
pub enum TunerEvent {
    /// The study was opened.
    Begin {
        study: String,
        /// Trials that the database already holds.
        stored: usize,
        /// The number of stored trials that count for the budget: they were launched, and are neither probes nor
        /// interference trials.
        launched: u32,
        /// The best feasible value so far.
        best: Option<f64>,
    },
    /// The plan of the budget. Repeated when the plan changes.
    Plan(BudgetPlan),
    /// The part of the search space that the rules remove. Repeated when rules are set aside.
    Space(SpaceRemoval),
    /// Processes that an earlier, killed run had left behind were ended.
    LeftoversEnded {
        processes: usize,
    },
    /// The study's stop command failed.
    StopCommandFailed {
        error: String,
    },
    /// A proposal has passed its checks, has its slots, and is about to be launched.
    Launch(Proposal),
    /// The waiting server of a trial is about to take a live look.
    Look {
        server_of: u32,
        proposal: Proposal,
    },
    /// A notice for the user. Each is reported once.
    Notice {
        text: String,
    },
    /// The engine's preflight has not answered, or is not trusted.
    Preflight {
        text: String,
        /// Whether it is not asked again in this run.
        is_final: bool,
    },
    /// Memory of a device is still in use after a launch, or too little of it is free before one.
    MemoryHeld {
        text: String,
    },
    /// A rule is set aside because the installed engine accepts a configuration that the rule rejects.
    WrongRule(WrongRule),
    /// A launch has tested a rule that only a start can refute.
    RuleTested {
        number: u32,
        rule: &'static str,
        verdict: RuleVerdict,
        config: Config,
        /// The rule's reason to reject `config`.
        message: String,
        /// The failure of the launch, if it failed.
        failure: Option<String>,
    },
    /// A rule is set aside because trial `number` of `study`, in this database, has refuted it.
    RuleSetAside {
        rule: &'static str,
        study: String,
        number: u32,
    },
    /// A trial has entered a phase.
    Phase {
        number: u32,
        phase: TrialPhase,
    },
    /// A load of a search for the highest one was measured.
    LoadProbed {
        number: u32,
        load: f64,
        knob: LoadKnob,
        /// Whether it keeps the limits.
        kept: bool,
    },
    /// The interference between concurrent trials, if it was measured, and the number of trials that will run at a
    /// time.
    Interference {
        found: Option<Interference>,
        at_a_time: usize,
    },
    /// No further launch is placed on these slots, because this trial failed there or left processes behind.
    SlotsSetAside {
        number: u32,
        slots: Vec<usize>,
        why: String,
    },
    /// No further trial begins. The `running` trials are measured to their end before the run ends.
    NoFurtherTrials {
        why: String,
        running: usize,
    },
    /// A further failure after the error that ends the run.
    FurtherError {
        error: String,
    },
    /// The engine is ready, and values that it has resolved differ from those that were requested.
    ResolvedValuesDiffer {
        number: u32,
        differences: Vec<FlagDifference>,
    },
    /// During the measurement other processes used the engine's GPUs, or the GPUs were slowed down.
    Disturbed {
        number: u32,
        reasons: String,
        /// Whether the load is driven again.
        is_repeated: bool,
    },
    /// The load generator was the bottleneck; the load is driven again.
    SampleVoided {
        number: u32,
        reasons: String,
    },
    /// A launch failed because of its environment or its neighbours. The same trial is launched again after `wait`.
    Retry {
        incident: Box<Incident>,
        wait: Duration,
    },
    /// Launches failed too often because of the environment. The run ends.
    Paused(Box<RetryPause>),
    /// Progress of the present phase: the number of requests that have ended. `total` is 0 if it is not known.
    Progress {
        number: u32,
        done: usize,
        total: usize,
        /// The recent output of the server, once it is known.
        tokens_per_s: Option<f64>,
    },
    /// A trial has its outcome and is stored. `best` is the best feasible value by then. `improves` is set if this
    /// trial is the first one of the best configuration. `launched` is the number of finished trials that count for the
    /// budget.
    TrialEnded {
        trial: Box<ScoredTrial>,
        improves: bool,
        best: Option<f64>,
        launched: u32,
    },
    RunEnded(StudyEnding),
}

/// The plan of a run's budget.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetPlan {
    /// The number of launches that the budget allows in all; `None` without a limit.
    pub trials: Option<u32>,
    /// Launches that measure the defaults again during the search.
    pub baseline_repeats: u32,
    /// The largest number of launches of the confirmation at the end.
    pub confirmations: u32,
    /// Launches of the ablation after it. Those that the confirmation does not need are added.
    pub ablations: u32,
    /// Whether the confirmation has rounds with the baselines. A small budget measures only the winner again.
    pub has_rounds: bool,
    /// Whether the confirmation also measures today's deployment.
    pub confirms_deployment: bool,
    /// The budget's time, and the time left.
    pub time: Option<Duration>,
    pub remaining_time: Option<Duration>,
    /// The expected duration of a launch; `None` if neither earlier trials nor the twin give one.
    pub launch: Option<Duration>,
    /// The time that is kept for the confirmation and the ablation.
    pub reserve: Duration,
}

impl BudgetPlan {
    /// Returns whether the reserve differs by more than a factor of 1.2, or the expected duration of a launch by more
    /// than a factor of two. Always false without a time limit.
    pub(super) fn differs_from(&self, shown: &Self) -> bool {
        let changed = |a: Duration, b: Duration, factor: f64| {
            let (low, high) = (a.min(b).as_secs_f64(), a.max(b).as_secs_f64());
            high > low * factor
        };
        let [launch, before] = [self, shown].map(|plan| plan.launch.unwrap_or_default());
        self.time.is_some() && (changed(self.reserve, shown.reserve, 1.2) || changed(launch, before, 2.0))
    }
}

/// The phases of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialPhase {
    Checking,
    Starting,
    WarmingUp,
    Measuring,
    Stopping,
}

/// The reason why a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum StudyEnding {
    TrialsSpent,
    TimeSpent,
    /// The confirmation has settled the verdict, and too few launches are left for a further search.
    Settled {
        unused: u32,
    },
    /// The confirmation has settled the verdict. The time left is too short for a further search with the confirmation of
    /// its winner.
    SettledEarly {
        unused: Duration,
    },
    /// Several trials in a row had too little expected gain. All gains are shares of the best value.
    Converged {
        /// The expected gain of the next trial, and the threshold that it is below.
        next_gain: f64,
        below: f64,
        /// The number of such trials in a row.
        trials: u32,
        /// The estimated remaining gain in all: the 5th, 50th and 95th percentile.
        remaining: Option<[f64; 3]>,
    },
    /// The configuration of [`Job::repeat`](crate::job::Job) was launched once more.
    Repeated,
    /// Every configuration of the space was tried or rejected.
    SpaceExhausted,
    /// The rules reject every configuration of the space.
    NothingAllowed(SpaceRemoval),
    /// The last `rejected` configurations in a row were rejected: the space seems to hold no valid one.
    NothingValid {
        rejected: usize,
        last: String,
    },
    /// Nothing was measured, and `failures` starts failed for reasons that no configuration causes on its own.
    EngineBroken {
        failures: usize,
        last: String,
    },
    /// The environment failed at several launches in a row. The study waits for a person.
    Paused(Box<RetryPause>),
    /// The user requested a stop.
    Interrupted,
}

/// Describes the estimated remaining gain: how much the best configuration of the space exceeds the best one found.
/// `remaining` holds shares of the latter's value: the 5th, 50th and 95th percentile.
#[must_use]
pub fn remaining_gain_text(remaining: [f64; 3]) -> String {
    let [low, middle, high] = remaining.map(|share| 100.0 * share);
    format!("estimated remaining gain: {middle:.1} % (90 % interval {low:.1} to {high:.1})")
}

impl TrialPhase {
    /// In the order of a trial.
    pub const ALL: [Self; 5] = [Self::Checking, Self::Starting, Self::WarmingUp, Self::Measuring, Self::Stopping];
}

impl std::fmt::Display for TrialPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Checking => "checking",
            Self::Starting => "starting",
            Self::WarmingUp => "warming up",
            Self::Measuring => "measuring",
            Self::Stopping => "stopping",
        })
    }
}

impl std::fmt::Display for StudyEnding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TrialsSpent => f.write_str("the budget of trials is spent"),
            Self::Settled { unused: 0 } => f.write_str("the verdict is settled, and the budget of trials is spent"),
            Self::Settled { unused } => {
                write!(f, "the verdict is settled; {unused} launches of the budget were not needed")
            }
            Self::SettledEarly { unused } => {
                write!(f, "the verdict is settled; {:.0} s of the time budget were not needed", unused.as_secs_f64())
            }
            Self::TimeSpent => f.write_str("the time budget is spent: no further launch fits"),
            Self::Converged { next_gain, below, trials, remaining } => {
                let [next, below] = [next_gain, below].map(|share| 100.0 * share);
                write!(
                    f,
                    "the next trial is expected to gain {next:.2} %; {trials} expected gains in a row were below \
                     {below} % (budget.stop_below)"
                )?;
                remaining.map_or(Ok(()), |remaining| write!(f, "; {}", remaining_gain_text(remaining)))
            }
            Self::Repeated => f.write_str("the configuration was launched again"),
            Self::SpaceExhausted => f.write_str("every configuration of the space has been tried"),
            Self::NothingAllowed(removal) => {
                write!(f, "no configuration of the space passes the rules: {}", removal.by_rule())?;
                removal.rules.first().map_or(Ok(()), |first| write!(f, "; for instance {}", first.example))
            }
            Self::NothingValid { rejected, last } => {
                write!(f, "the last {rejected} configurations were all rejected, most recently by {last}")
            }
            Self::EngineBroken { failures, last } => {
                write!(f, "the engine failed at each of {failures} starts, most recently with {last}")
            }
            Self::Paused(pause) => write!(f, "{pause}"),
            Self::Interrupted => f.write_str("interrupted; run the same command again to go on"),
        }
    }
}
