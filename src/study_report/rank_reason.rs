//! The reason for the place of each configuration in a ranking.

use crate::objective::Goal;
use crate::store::{ExpectedConfiguration, RankedConfiguration};

/// The reason for a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RankReason {
    /// The confirmation has launched it again, and has chosen it.
    Decided,
    /// Measured `times` times. The model expects `rival` to be better, but not by more than the uncertainty of the
    /// difference, and the rival was measured less often.
    Confirmed { times: u32, rival: ExpectedConfiguration, rival_times: u32 },
    /// Ranked by the expectation of a model of all measurements.
    Expected,
    /// The model does not rank it, so it comes after all configurations that the model ranks.
    Unranked,
    /// Ranked by the mean of its measurements, because there is no model.
    Mean,
}

impl RankReason {
    /// Returns the reason for each place of a ranking.
    #[must_use]
    pub(crate) fn of(goal: Goal, ranking: &[RankedConfiguration]) -> Vec<Self> {
        let is_judged = ranking.iter().any(|ranked| ranked.expected.is_some());
        let is_better = |one: ExpectedConfiguration, other: ExpectedConfiguration| match goal {
            Goal::Maximize => one.value > other.value,
            Goal::Minimize => one.value < other.value,
        };
        let order = |(place, ranked): (usize, &RankedConfiguration)| {
            let Some(own) = ranked.expected else { return if is_judged { Self::Unranked } else { Self::Mean } };
            let rivals = ranking.iter().skip(1).filter_map(|other| Some((other, other.expected?)));
            let better =
                rivals.filter(|(other, rival)| is_better(*rival, own) && other.measurements < ranked.measurements);
            let best = better.reduce(|best, next| if is_better(next.1, best.1) { next } else { best });
            match best {
                Some((rival, expected)) if place == 0 => {
                    Self::Confirmed { times: ranked.measurements, rival: expected, rival_times: rival.measurements }
                }
                _ => Self::Expected,
            }
        };
        ranking.iter().enumerate().map(order).collect()
    }

    /// Returns one word for a column.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Decided | Self::Confirmed { .. } => "confirmed",
            Self::Expected => "expected",
            Self::Unranked => "unranked",
            Self::Mean => "mean",
        }
    }
}
