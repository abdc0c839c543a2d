//! The best configuration and the value of the engine's defaults, by the trials so far.

use std::collections::BTreeMap;

use crate::decision::Decision;
use crate::objective::{Goal, LaunchResult, LaunchedTrial, Objective, config_value, rank};
use crate::stats::median;
use crate::store::{ListedTrial, StoredJudgement, TrialMark};
use crate::trial::{FailureKind, MeasuredBy, is_configuration_failure};

/// The best configuration so far. The order is that of `setpoint best`: the confirmed winner, then the ranking of the
/// sampler's judgement, then the means.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BestSoFar {
    /// The number of its first measured trial.
    pub number: u32,
    /// Mean of the objective over its measurements, or the value of the confirmation.
    pub value: f64,
    pub measurements: usize,
    pub is_confirmed: bool,
    /// The gain over the engine's defaults as a factor; above 1 is better. `None` if they were not measured.
    pub gain: Option<f64>,
    /// Whether the confirmation has settled the verdict.
    pub is_settled: bool,
}

/// The expected seconds of a launch: the medians of the measured launches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpectedLaunch {
    pub start_s: f64,
    /// From the readiness of the server to the outcome.
    pub rest_s: f64,
}

impl ExpectedLaunch {
    /// `None` without a measured launch.
    pub(super) fn of(trials: &[ListedTrial]) -> Option<Self> {
        let launched = || trials.iter().filter(|trial| trial.state == "measured").filter_map(times);
        Some(Self { start_s: median(launched().map(|time| time.0))?, rest_s: median(launched().map(|time| time.1))? })
    }
}

/// Returns the seconds of the start and of the rest of a launch.
fn times(trial: &ListedTrial) -> Option<(f64, f64)> {
    let start_s = trial.startup_s.filter(|_| !matches!(trial.measured_by, MeasuredBy::LiveLook(_)))?;
    Some((start_s, (trial.elapsed_s - start_s).max(0.0)))
}

/// The launched trials of the study's present context, as input of the ranking.
#[derive(Debug, Default)]
pub(super) struct Standing(BTreeMap<u32, LaunchedTrial>);

impl Standing {
    /// Replaces the trials of these numbers, and removes those that have lost their outcome.
    pub(super) fn update(&mut self, trials: &[ListedTrial], marks: &BTreeMap<u32, TrialMark>, changed: &[u32]) {
        self.0.retain(|number, _| marks.get(number).is_some_and(|mark| !mark.is_running && !mark.is_earlier));
        for trial in trials.iter().filter(|trial| changed.binary_search(&trial.number).is_ok()) {
            let mark = marks.get(&trial.number);
            match mark.and_then(|mark| launched(trial, mark)) {
                Some(launched) => drop(self.0.insert(trial.number, launched)),
                None => drop(self.0.remove(&trial.number)),
            }
        }
    }

    /// Returns the best configuration and the value of the defaults.
    pub(super) fn best_and_baseline(
        &self,
        objective: Option<&Objective>,
        judgement: Option<&StoredJudgement>,
        decision: Option<&Decision>,
    ) -> (Option<BestSoFar>, Option<f64>) {
        let trials: Vec<_> = self.0.values().cloned().collect();
        let goal = objective.map_or(Goal::Maximize, |objective| objective.goal);
        let defaults = self.0.get(&0).and_then(|defaults| config_value(&trials, &defaults.config_key));
        let confirmed = decision.and_then(|decision| decision.defaults_value);
        let baseline = confirmed.or(defaults.as_ref().map(|defaults| defaults.mean));

        let judged = judgement.map_or(&[][..], |judgement| &judgement.ranking);
        let place = |first: u32| judged.iter().position(|expected| expected.trial == first).unwrap_or(usize::MAX);
        let key = |number: u32| self.0.get(&number).map(|trial| trial.config_key.as_str());
        let winner = decision.map(|decision| decision.winner.as_str());
        let is_winner = |first: u32| winner.is_some() && key(first) == winner;
        let ranked = rank(&trials, goal);
        let best = ranked.iter().min_by_key(|config| (!is_winner(config.first), place(config.first)));
        let best = best.map(|config| {
            let decided = decision.filter(|_| is_winner(config.first));
            let value = decided.and_then(|decision| decision.value);
            let verdict = decided.and_then(|decision| decision.verdict.over_defaults.gain);
            let measured = baseline.zip(objective).filter(|_| Some(config.first) != defaults.as_ref().map(|d| d.first));
            let measured = measured.map(|(baseline, objective)| objective.gain(config.mean, baseline));
            BestSoFar {
                number: config.first,
                value: value.unwrap_or(config.mean),
                measurements: config.trials.len(),
                is_confirmed: value.is_some(),
                gain: verdict.map(|share| 1.0 + share).or(measured),
                is_settled: decided.is_some_and(|decision| decision.is_settled),
            }
        });
        (best, baseline)
    }
}

/// Returns a trial as input of the ranking. `None` if it was not launched, or if it does not count.
fn launched(trial: &ListedTrial, mark: &TrialMark) -> Option<LaunchedTrial> {
    if trial.is_earlier || matches!(trial.measured_by, MeasuredBy::LiveLook(_)) {
        return None;
    }
    let result = match trial.state.as_str() {
        "measured" => LaunchResult::Measured(trial.score),
        "failed" => {
            let kind = trial.reason_code.as_deref().and_then(FailureKind::from_name);
            let kind = kind.unwrap_or(FailureKind::StartupExit);
            LaunchResult::Failed { is_own: is_configuration_failure(kind, mark.probe) }
        }
        _ => return None,
    };
    let (number, origin) = (trial.number, trial.origin.clone());
    Some(LaunchedTrial { number, origin, config_key: trial.config.key(), result })
}
