//! The plan of a confirmation within its budget.

use serde::{Deserialize, Serialize};

/// The largest number of finalists that a confirmation compares.
const MAX_FINALISTS: u32 = 3;

/// The number of rounds that select the leader among several finalists.
const SELECTION_ROUNDS: u32 = 2;

/// The smallest number of rounds after a selection. Otherwise only one configuration is confirmed.
const MIN_ROUNDS_AFTER_SELECTION: u32 = 5;

/// The plan of a confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmationPlan {
    /// The largest number of launches.
    pub launches: u32,
    /// The number of configurations that compete. Several are reduced to one after the selection's rounds.
    pub finalists: u32,
    /// Rounds with the finalists alone; 0 for one finalist.
    pub selection_rounds: u32,
    /// Rounds with the leader and the baselines.
    pub rounds: u32,
    /// Whether rounds contain the baselines. A small budget measures only the winner again.
    pub has_baselines: bool,
}

impl ConfirmationPlan {
    /// Plans a confirmation of at most `launches` launches with `baselines` baselines (the defaults, and today's
    /// deployment). `rivals` is the number of configurations that the search cannot distinguish.
    #[must_use]
    pub fn new(launches: u32, baselines: u32, rivals: u32) -> Self {
        let per_round = 1 + baselines;
        let one =
            Self { launches, finalists: 1, selection_rounds: 0, rounds: launches / per_round, has_baselines: true };
        if one.rounds == 0 {
            return Self { rounds: launches, has_baselines: false, ..one };
        }
        let with = |finalists: u32| {
            let selection = SELECTION_ROUNDS * finalists;
            let rounds = launches.saturating_sub(selection) / per_round;
            (rounds >= MIN_ROUNDS_AFTER_SELECTION).then_some(Self {
                finalists,
                selection_rounds: SELECTION_ROUNDS,
                rounds,
                ..one
            })
        };
        (2..=rivals.min(MAX_FINALISTS)).rev().find_map(with).unwrap_or(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_finalists_need_rounds_after_the_selection() {
        let plan = |launches, baselines, rivals| {
            let plan = ConfirmationPlan::new(launches, baselines, rivals);
            (plan.finalists, plan.selection_rounds, plan.rounds)
        };
        assert_eq!(plan(40, 1, 9), (3, 2, 17));
        assert_eq!(plan(40, 1, 2), (2, 2, 18));
        assert_eq!(plan(40, 1, 1), (1, 0, 20));
        assert_eq!(plan(14, 1, 9), (2, 2, 5));
        assert_eq!(plan(12, 1, 9), (1, 0, 6));
        assert_eq!(plan(16, 1, 9), (3, 2, 5));
        assert_eq!(plan(12, 2, 9), (1, 0, 4));
        let small = ConfirmationPlan::new(1, 1, 1);
        assert_eq!((small.rounds, small.has_baselines), (1, false));
    }
}
