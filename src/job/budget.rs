//! The budget of a study, and its split into the search, the baselines and the confirmation.

use std::time::Duration;

use crate::document::{DocumentError, Section};
use crate::stats::f64_to_u32;

/// The limits of a study. Trials that are rejected before launch do not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StudyBudget {
    /// The largest number of launches of every kind. Probes and interference trials do not count.
    pub trials: Option<u32>,
    /// Wall-clock time of one `tune`, including the confirmation and the last stop.
    pub time: Option<Duration>,
    /// The number of confirmation rounds. Each round measures the winner, the engine's defaults and today's deployment
    /// again. They are the last of `trials`, and end early once the verdict is final.
    pub confirm: Option<u32>,
    /// The number of launches that find the flags of the winner without an effect. Launches that the confirmation does
    /// not need are added. `None`: those that are left after a search that expects too little of further trials.
    pub ablation: Option<u32>,
    /// The number of search trials after which the defaults are measured again; 0 never measures them again.
    pub repeat_baseline: u32,
    /// The condition for an early end of the search, for samplers that report an expected gain.
    pub stop_rule: StopRule,
}

/// Early end of the search: the last `trials` trials, including the next one, each had an expected gain below `gain`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StopRule {
    /// A share of the best value; 0 disables the condition.
    pub gain: f64,
    pub trials: u32,
}

impl Default for StopRule {
    fn default() -> Self {
        Self { gain: 0.005, trials: 5 }
    }
}

impl Default for StudyBudget {
    fn default() -> Self {
        Self {
            trials: None,
            time: None,
            confirm: None,
            ablation: None,
            repeat_baseline: DEFAULT_REPEAT_BASELINE,
            stop_rule: StopRule::default(),
        }
    }
}

const DEFAULT_REPEAT_BASELINE: u32 = 10;

/// A smaller number of launches has no repeated baseline, and its confirmation is one launch of the winner.
const MIN_LAUNCHES_OF_ROUNDS: u32 = 10;

/// The share of the launches that the confirmation takes, and the largest share for its second round.
const CONFIRMATION_SHARE: f64 = 0.3;
const MAX_CONFIRMATION_SHARE: f64 = 0.4;

/// The largest number of launches of a confirmation, unless the study file requests more rounds.
const MAX_CONFIRMATION: u32 = 40;

impl StudyBudget {
    /// Returns the number of launches of the confirmation, in a study of `launches` launches in all. A round has
    /// `per_round` launches. `None`: the number of launches is not limited and not known yet.
    #[must_use]
    pub fn confirmation_launches(&self, launches: Option<u32>, per_round: u32) -> u32 {
        let Some(launches) = launches else { return self.confirm.unwrap_or(2) * per_round };
        if let Some(rounds) = self.confirm {
            // The baselines and at least one launch of the search come first.
            return rounds.min(launches.saturating_sub(per_round) / per_round) * per_round;
        }
        if launches < MIN_LAUNCHES_OF_ROUNDS {
            return u32::from(launches >= 3);
        }
        let rounds = f64_to_u32((CONFIRMATION_SHARE * f64::from(launches) / f64::from(per_round)).round());
        let has_second = f64::from(2 * per_round) <= MAX_CONFIRMATION_SHARE * f64::from(launches);
        (rounds.max(1 + u32::from(has_second)) * per_round).min(MAX_CONFIRMATION)
    }

    /// Returns the number of launches of the ablation, in a study of `launches` launches in all. `None`: the number of
    /// launches is not limited and not known yet.
    #[must_use]
    pub fn ablation_launches(&self, launches: Option<u32>) -> u32 {
        if self.confirm == Some(0) {
            return 0;
        }
        match (self.ablation, launches) {
            (Some(own), Some(launches)) => own.min(launches / 2),
            (Some(own), None) => own,
            (None, _) => 0,
        }
    }

    /// Returns the number of launches of the defaults that are due after `searched` search trials, in a study of
    /// `launches` launches in all.
    #[must_use]
    pub fn baseline_launches(&self, launches: Option<u32>, searched: u32) -> u32 {
        if self.repeat_baseline == 0 || launches.is_none_or(|launches| launches < MIN_LAUNCHES_OF_ROUNDS) {
            return 1;
        }
        2 + searched / self.repeat_baseline
    }
}

/// Reads the section `budget` of a study file.
pub(super) fn read(section: &Section<'_>) -> Result<StudyBudget, DocumentError> {
    let budget = StudyBudget {
        trials: section.optional("trials")?,
        time: section.optional("time")?,
        confirm: section.optional("confirm")?,
        ablation: section.optional("ablation")?,
        repeat_baseline: section.optional_or("repeat_baseline", DEFAULT_REPEAT_BASELINE)?,
        stop_rule: read_stop_rule(section)?,
    };
    if budget.trials == Some(0) {
        return Err(section.error("trials", "must be at least 1", None));
    }
    if budget.trials.is_none() && budget.time.is_none() {
        return Err(section.error(
            "trials",
            "is missing, and so is budget.time: set one of them, so that the study ends",
            None,
        ));
    }
    Ok(budget)
}

fn read_stop_rule(section: &Section<'_>) -> Result<StopRule, DocumentError> {
    let default = StopRule::default();
    let enough = StopRule {
        gain: section.optional_or("stop_below", default.gain)?,
        trials: section.optional_or("stop_after", default.trials)?,
    };
    if !(0.0..1.0).contains(&enough.gain) {
        let problem = format!("{} is not a share from 0 to 1 of the best value", enough.gain);
        return Err(section.error("stop_below", problem, Some("0.005 is half a percent; 0 never stops".to_owned())));
    }
    if enough.trials == 0 {
        return Err(section.error("stop_after", "must be at least 1", None));
    }
    Ok(enough)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;

    #[test]
    fn a_search_stops_below_half_a_percent_of_gain_by_default() {
        let read = |text: &str| Document::from_text("study.toml", text).parse(read).map(|budget| budget.stop_rule);
        assert_eq!(read("trials = 9").unwrap(), StopRule { gain: 0.005, trials: 5 });
        assert_eq!(read("trials = 9\nstop_below = 0\nstop_after = 2").unwrap(), StopRule { gain: 0.0, trials: 2 });
        for (text, key, problem) in [
            ("trials = 9\nstop_below = 5", "stop_below", "5 is not a share from 0 to 1 of the best value"),
            ("trials = 9\nstop_below = -0.1", "stop_below", "-0.1 is not a share"),
            ("trials = 9\nstop_after = 0", "stop_after", "must be at least 1"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.key.ends_with(key) && error.problem.contains(problem), "{error:?}");
        }
    }

    #[test]
    fn a_third_of_the_launches_confirms_the_winner() {
        let launches = |launches, per_round| StudyBudget::default().confirmation_launches(Some(launches), per_round);
        assert_eq!([2, 3, 9].map(|all| launches(all, 2)), [0, 1, 1], "a small budget measures the winner once more");
        assert_eq!([10, 12, 20, 40, 60, 500].map(|all| launches(all, 2)), [4, 4, 6, 12, 18, 40]);
        assert_eq!([10, 15, 20, 40].map(|all| launches(all, 3)), [3, 6, 6, 12]);
    }

    #[test]
    fn requested_rounds_leave_launches_for_the_search() {
        let budget = StudyBudget { confirm: Some(20), ..StudyBudget::default() };
        assert_eq!(budget.confirmation_launches(Some(60), 2), 40);
        assert_eq!(budget.confirmation_launches(Some(8), 2), 6);
        assert_eq!(budget.confirmation_launches(None, 2), 40);
        let none = StudyBudget { confirm: Some(0), ..budget };
        assert_eq!(none.confirmation_launches(Some(60), 2), 0);
    }

    #[test]
    fn an_ablation_takes_the_requested_launches_and_at_most_half() {
        let budget = StudyBudget::default();
        assert_eq!(budget.ablation_launches(Some(500)), 0, "none by default");
        let own = |ablation, confirm| StudyBudget { ablation: Some(ablation), confirm, ..budget };
        assert_eq!(own(30, None).ablation_launches(Some(100)), 30);
        assert_eq!(own(30, None).ablation_launches(Some(40)), 20);
        assert_eq!(own(30, Some(0)).ablation_launches(Some(100)), 0, "nothing is confirmed");
        assert_eq!(own(0, None).ablation_launches(None), 0);
    }

    #[test]
    fn the_baseline_is_repeated_at_once_and_at_intervals() {
        let budget = StudyBudget::default();
        assert_eq!([0, 9, 10, 25].map(|searched| budget.baseline_launches(Some(40), searched)), [2, 2, 3, 4]);
        assert_eq!(budget.baseline_launches(Some(9), 5), 1);
        assert_eq!(StudyBudget { repeat_baseline: 0, ..budget }.baseline_launches(Some(40), 30), 1);
    }
}
