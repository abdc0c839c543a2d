//! Interference between concurrent trials: the engine's defaults, first measured alone, are measured on all slots at
//! once.

use crate::objective::Goal;
use crate::store::ScoredTrial;

/// The measurements of the defaults, alone and on all slots at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Interference {
    /// The objective's value of the defaults alone.
    pub alone: f64,
    /// The objective's values of the concurrent ones.
    pub together: Vec<f64>,
    /// The number of concurrent ones that failed, or were over a limit that the defaults alone kept.
    pub infeasible: usize,
    /// The share of the objective's value that the neighbours cost, in the median. For example, 0.1 is a tenth less
    /// throughput, or a latency that alone would be nine tenths as long. Negative if there was a gain.
    pub cost: f64,
    /// The largest cost that the study accepts.
    pub limit: f64,
}

impl Interference {
    /// Computes the interference; `None` if the defaults alone have no value.
    #[must_use]
    pub fn of(alone: &ScoredTrial, together: &[ScoredTrial], goal: Goal, limit: f64) -> Option<Self> {
        let value = alone.score.value()?;
        let spoils = |scored: &&ScoredTrial| {
            scored.score.value().is_none() || (alone.score.is_feasible() && !scored.score.is_feasible())
        };
        let spoilt = together.iter().filter(spoils).count();
        let together: Vec<f64> = together.iter().filter_map(|scored| scored.score.value()).collect();
        let mut sorted = together.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).map(|upper| (upper + sorted[(sorted.len() - 1) / 2]) / 2.0);
        let share = median.map(|median| match goal {
            Goal::Maximize => median / value,
            Goal::Minimize => value / median,
        });
        // Without a value the whole objective is lost.
        let cost = share.filter(|share| share.is_finite()).map_or(1.0, |share| 1.0 - share);
        Some(Self { alone: value, together, infeasible: spoilt, cost, limit })
    }

    /// Returns whether trials are to run one at a time.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        self.infeasible > 0 || self.cost > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::Score;
    use crate::trial::{Measurement, Outcome, Trial};

    fn scored(score: Score) -> ScoredTrial {
        ScoredTrial { trial: Trial::example(0, "interference", Outcome::Measured(Measurement::default())), score }
    }

    fn feasible(value: f64) -> ScoredTrial {
        scored(Score::Feasible { value })
    }

    fn judged(alone: f64, together: &[f64], goal: Goal) -> (f64, bool) {
        let together: Vec<_> = together.iter().copied().map(feasible).collect();
        let found = Interference::of(&feasible(alone), &together, goal, 0.1).unwrap();
        assert_eq!((found.alone, found.together.len(), found.infeasible), (alone, together.len(), 0));
        ((found.cost * 1000.0).round() / 1000.0, found.is_too_much())
    }

    #[test]
    fn the_median_of_concurrent_trials_is_compared_with_the_trial_alone() {
        assert_eq!(judged(100.0, &[95.0, 10.0, 96.0], Goal::Maximize), (0.05, false));
        assert_eq!(judged(100.0, &[80.0, 90.0], Goal::Maximize), (0.15, true));
        assert_eq!(judged(100.0, &[104.0], Goal::Maximize), (-0.04, false));
        assert_eq!(judged(100.0, &[125.0, 125.0], Goal::Minimize), (0.2, true));
        assert_eq!(judged(100.0, &[80.0], Goal::Minimize), (-0.25, false));
    }

    #[test]
    fn a_failure_or_a_broken_limit_caused_by_neighbours_is_too_much() {
        let alone = feasible(100.0);
        let over = scored(Score::Infeasible { violation: 0.1, value: 100.0 });
        let of = |alone: &ScoredTrial, other: &ScoredTrial| {
            Interference::of(alone, &[feasible(100.0), other.clone()], Goal::Maximize, 0.1).unwrap()
        };
        for other in [scored(Score::Failed), over.clone()] {
            assert_eq!((of(&alone, &other).infeasible, of(&alone, &other).is_too_much()), (1, true));
        }
        assert!(!of(&over, &over).is_too_much(), "alone they are over the limit as well");
        assert!(Interference::of(&scored(Score::Failed), &[], Goal::Maximize, 0.1).is_none());
        let none = Interference::of(&alone, &[scored(Score::Failed)], Goal::Maximize, 1.0).unwrap();
        assert!(none.is_too_much() && none.cost >= 1.0);
    }
}
