//! The gain of a configuration over a baseline: the engine's defaults, or today's deployment.

use crate::decision::{GainInterval, VerdictKind};
use crate::objective::Objective;
use crate::store::RankedConfiguration;

/// The gain of a configuration as a multiple of a baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Gain {
    /// The configuration is the baseline itself.
    None,
    /// The baseline was not measured.
    Unknown,
    Factor {
        /// Above 1 is better for either goal.
        factor: f64,
        /// The reason for which the measurements do not support the gain.
        doubt: Option<GainDoubt>,
        /// Whether the first measurement of the baseline exceeds a limit.
        baseline_over_limit: bool,
        /// The interval of the confirmation, if it was computed.
        interval: Option<GainRange>,
    },
}

/// An interval of a gain, as shares of the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GainRange {
    pub low: f64,
    pub high: f64,
    pub confidence: f64,
}

/// A reason for which a gain is not significant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GainDoubt {
    EachMeasuredOnce,
    ConfigurationMeasuredOnce,
    BaselineMeasuredOnce,
    /// The measured ranges overlap.
    Overlap,
    /// The interval of the confirmation contains 0 and is narrow.
    WithinNoise,
    /// The interval of the confirmation contains 0 and is wide, or launches are too few for an interval.
    Wide,
}

impl Gain {
    /// Returns the gain over the engine's defaults. Trial 0 measures them.
    pub(super) fn over_defaults(
        objective: Option<&Objective>,
        ranked: &RankedConfiguration,
        defaults: Option<&RankedConfiguration>,
    ) -> Self {
        if ranked.first.trial.proposal.number == 0 { Self::None } else { Self::over(objective, ranked, defaults) }
    }

    pub(super) fn over(
        objective: Option<&Objective>,
        ranked: &RankedConfiguration,
        baseline: Option<&RankedConfiguration>,
    ) -> Self {
        let number = ranked.first.trial.proposal.number;
        if baseline.is_some_and(|baseline| baseline.first.trial.proposal.number == number) {
            return Self::None;
        }
        let Some((objective, baseline)) = objective.zip(baseline) else { return Self::Unknown };
        let doubt = match (ranked.measurements, baseline.measurements) {
            (0 | 1, 0 | 1) => Some(GainDoubt::EachMeasuredOnce),
            (0 | 1, _) => Some(GainDoubt::ConfigurationMeasuredOnce),
            (_, 0 | 1) => Some(GainDoubt::BaselineMeasuredOnce),
            _ if ranked.is_disjoint_from(baseline) => None,
            _ => Some(GainDoubt::Overlap),
        };
        let factor = objective.gain(ranked.value, baseline.value);
        let baseline_over_limit = !baseline.first.score.is_feasible();
        Self::Factor { factor, doubt, baseline_over_limit, interval: None }
    }

    /// Replaces factor and doubt by those of the confirmation.
    pub(super) fn confirmed(self, verdict: Option<GainInterval>) -> Self {
        let (Self::Factor { baseline_over_limit, .. }, Some(verdict)) = (self, verdict) else { return self };
        let Some(gain) = verdict.gain else { return self };
        let range = |(low, high)| GainRange { low, high, confidence: verdict.confidence };
        Self::Factor {
            factor: 1.0 + gain,
            doubt: match verdict.kind {
                VerdictKind::Better => None,
                VerdictKind::EqualWithinNoise => Some(GainDoubt::WithinNoise),
                VerdictKind::NoClearWinner => Some(GainDoubt::Wide),
            },
            baseline_over_limit,
            interval: verdict.low.zip(verdict.high).map(range),
        }
    }

    /// Returns the factor, if the baseline was measured.
    #[must_use]
    pub(crate) fn factor(self) -> Option<f64> {
        match self {
            Self::None => Some(1.0),
            Self::Unknown => None,
            Self::Factor { factor, .. } => Some(factor),
        }
    }

    /// Returns whether the measured ranges do not overlap. `None` if the configuration is the baseline, or either of
    /// the two was not measured at least twice.
    #[must_use]
    pub(crate) fn is_significant(self) -> Option<bool> {
        match self {
            Self::Factor { doubt: None, .. } => Some(true),
            Self::Factor { doubt: Some(GainDoubt::Overlap | GainDoubt::WithinNoise | GainDoubt::Wide), .. } => {
                Some(false)
            }
            _ => None,
        }
    }
}
