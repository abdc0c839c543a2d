//! The launches of a study as blocks: launches of different configurations close in time.

use crate::objective::{Goal, LaunchResult, LaunchedTrial};
use crate::trial::Origin;

/// A launch of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BlockLaunch<'a> {
    pub(super) config: &'a str,
    /// The logarithm of the objective's value, negative for a goal to minimise: larger is better. `None` if the launch
    /// was not measured, or its value is not positive.
    pub(super) score: Option<f64>,
}

/// Launches close in time.
pub(super) type LaunchBlock<'a> = Vec<BlockLaunch<'a>>;

/// The blocks of a study.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StudyBlocks<'a> {
    /// Launches of one configuration directly after each other, outside of the confirmation.
    pub(super) repeats: Vec<LaunchBlock<'a>>,
    /// The rounds of each confirmation. Launches of the search separate two confirmations.
    pub(super) confirmations: Vec<Vec<LaunchBlock<'a>>>,
    /// The number of the first trial of the last confirmation.
    pub(super) began_at: Option<u32>,
    /// Whether the search has launched a trial after the last confirmation.
    pub(super) is_search_last: bool,
}

impl<'a> StudyBlocks<'a> {
    /// Groups launches in the order of their numbers. A round ends before the first configuration that it already has.
    pub(super) fn of(launches: &'a [LaunchedTrial], goal: Goal) -> Self {
        let mut blocks = Self { is_search_last: true, ..Self::default() };
        let mut before: Option<&LaunchedTrial> = None;
        for trial in launches.iter().filter(|trial| trial.origin.is_ranked()) {
            let launch = BlockLaunch { config: &trial.config_key, score: score(trial, goal) };
            if trial.origin == Origin::Confirmation {
                blocks.add_to_confirmation(trial.number, launch);
            } else if trial.origin == Origin::Ablation {
                // Its pairs are blocks of their own (`ablation`).
            } else if let Some(first) = before.filter(|first| first.config_key == trial.config_key) {
                blocks.repeats.push(vec![BlockLaunch { config: &first.config_key, score: score(first, goal) }, launch]);
            }
            blocks.is_search_last |= trial.origin.is_search_trial() || trial.origin == Origin::Start;
            before = (!matches!(trial.origin, Origin::Confirmation | Origin::Ablation)).then_some(trial);
        }
        blocks
    }

    /// Returns the rounds of the present confirmation. Further trials of the search end it.
    pub(super) fn present_rounds(&self) -> &[LaunchBlock<'a>] {
        if self.is_search_last { &[] } else { self.confirmations.last().map_or(&[], Vec::as_slice) }
    }

    fn add_to_confirmation(&mut self, number: u32, launch: BlockLaunch<'a>) {
        if self.is_search_last {
            self.confirmations.push(Vec::new());
            self.began_at = Some(number);
            self.is_search_last = false;
        }
        let Some(rounds) = self.confirmations.last_mut() else { return };
        match rounds.last_mut().filter(|round| round.iter().all(|other| other.config != launch.config)) {
            Some(round) => round.push(launch),
            None => rounds.push(vec![launch]),
        }
    }
}

/// Returns the score of a launch: see [`BlockLaunch::score`].
pub(super) fn score(trial: &LaunchedTrial, goal: Goal) -> Option<f64> {
    let LaunchResult::Measured(score) = trial.result else { return None };
    let value = score.value().filter(|value| *value > 0.0)?;
    Some(match goal {
        Goal::Maximize => libm::log(value),
        Goal::Minimize => -libm::log(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::Score;

    fn launch(number: u32, origin: &'static str, config: &str, value: f64) -> LaunchedTrial {
        let result = LaunchResult::Measured(Score::Feasible { value });
        LaunchedTrial { number, origin: origin.into(), config_key: config.to_owned(), result }
    }

    fn configs<'a>(rounds: &[LaunchBlock<'a>]) -> Vec<Vec<&'a str>> {
        rounds.iter().map(|round| round.iter().map(|launch| launch.config).collect()).collect()
    }

    #[test]
    fn rounds_end_at_a_repeated_configuration_and_the_search_separates_confirmations() {
        let order = [
            (0, "baseline", "d"),
            (1, "baseline_repeat", "d"),
            (2, "auto", "a"),
            (3, "confirmation", "a"),
            (4, "confirmation", "d"),
            (5, "confirmation", "d"),
            (6, "confirmation", "a"),
            (7, "auto", "b"),
            (8, "confirmation", "b"),
        ];
        let launches = order.map(|(number, origin, config)| launch(number, origin, config, 10.0));
        let blocks = StudyBlocks::of(&launches, Goal::Maximize);
        assert_eq!(configs(&blocks.repeats), [["d", "d"]]);
        assert_eq!(configs(&blocks.confirmations[0]), [["a", "d"], ["d", "a"]]);
        assert_eq!(configs(&blocks.confirmations[1]), [["b"]]);
        assert_eq!((blocks.is_search_last, blocks.began_at), (false, Some(8)));
        let until_search = StudyBlocks::of(&launches[..8], Goal::Maximize);
        assert!(until_search.is_search_last && until_search.confirmations.len() == 1);
    }

    #[test]
    fn a_larger_score_is_better_for_both_goals() {
        let [low, high] = [launch(0, "auto", "a", 2.0), launch(1, "auto", "a", 4.0)];
        for (goal, is_better) in [(Goal::Maximize, true), (Goal::Minimize, false)] {
            assert_eq!(score(&high, goal) > score(&low, goal), is_better);
        }
        assert_eq!(score(&launch(0, "auto", "a", 0.0), Goal::Minimize), None);
    }
}
