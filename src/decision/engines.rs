//! The comparison of engines: the ones that can no longer win, and the verdict on two of them.

use super::verdict::{CONFIDENCE, EQUAL_HALF_WIDTH};
use super::{GainInterval, VerdictKind};
use crate::objective::Goal;
use crate::stats::student::two_sided_quantile;

/// The noise of a launch, as a share of the value, of a study that has not repeated one.
const ASSUMED_NOISE: f64 = 0.05;

/// The quantile of the normal distribution at 95 %.
const NORMAL_95: f64 = 1.645;

/// The result of an engine's search so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStanding {
    /// The best value that keeps every limit. `None` if there is none.
    pub value: Option<f64>,
    /// The 95th percentile of the remaining gain, as a share of `value`. `None` without a model.
    pub remaining: Option<f64>,
    /// The standard deviation between launches, as a share of the value.
    pub noise: Option<f64>,
}

/// Returns the logarithm of a value, negative for a goal to minimise: larger is better.
fn score(value: f64, goal: Goal) -> Option<f64> {
    let logarithm = (value > 0.0).then(|| value.ln())?;
    Some(match goal {
        Goal::Maximize => logarithm,
        Goal::Minimize => -logarithm,
    })
}

impl EngineStanding {
    /// Returns the score of the best configuration that the search may still find.
    fn possible(&self, goal: Goal) -> Option<f64> {
        let gain = self.remaining?.max(0.0);
        let score = score(self.value?, goal)?;
        Some(match goal {
            Goal::Maximize => score + gain.ln_1p(),
            // A gain of 100 % or more is a time of zero.
            Goal::Minimize => score - (-gain.min(1.0 - 1e-9)).ln_1p(),
        })
    }

    /// Returns whether the other engine is better, even if this one still finds its largest gain: by more than the noise
    /// of both values, with a probability of 95 %.
    #[must_use]
    pub fn loses_to(&self, other: &Self, goal: Goal) -> bool {
        let noise = |standing: &Self| standing.noise.unwrap_or(ASSUMED_NOISE);
        let margin = NORMAL_95 * noise(self).hypot(noise(other));
        let best = other.value.and_then(|value| score(value, goal));
        self.possible(goal).zip(best).is_some_and(|(possible, best)| possible + margin < best)
    }
}

/// Returns the gain of one engine over another. Each pair has their values of one round, whose launches were close in
/// time. The interval is Student's, of the logarithms of the ratios.
#[must_use]
pub fn compare_engines(rounds: &[(f64, f64)], goal: Goal) -> GainInterval {
    let ratios = rounds.iter().filter_map(|(own, other)| Some(score(*own, goal)? - score(*other, goal)?));
    let ratios: Vec<f64> = ratios.collect();
    let count = crate::stats::to_f64(ratios.len());
    let unclear =
        GainInterval { kind: VerdictKind::NoClearWinner, gain: None, low: None, high: None, confidence: CONFIDENCE };
    if ratios.is_empty() {
        return unclear;
    }
    let mean = ratios.iter().sum::<f64>() / count;
    let gain = Some(mean.exp_m1());
    if ratios.len() < 2 {
        return GainInterval { gain, ..unclear };
    }
    let variance = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = two_sided_quantile(1.0 - CONFIDENCE, count - 1.0) * (variance / count).sqrt();
    let kind = if mean - half > 0.0 {
        VerdictKind::Better
    } else if half <= EQUAL_HALF_WIDTH.ln_1p() {
        VerdictKind::EqualWithinNoise
    } else {
        VerdictKind::NoClearWinner
    };
    GainInterval { kind, gain, low: Some((mean - half).exp_m1()), high: Some((mean + half).exp_m1()), ..unclear }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(value: f64, remaining: f64) -> EngineStanding {
        EngineStanding { value: Some(value), remaining: Some(remaining), noise: Some(0.02) }
    }

    #[test]
    fn an_engine_is_out_if_its_largest_gain_does_not_reach_the_other() {
        let best = standing(100.0, 0.1);
        assert!(standing(60.0, 0.3).loses_to(&best, Goal::Maximize), "78 at most");
        assert!(!standing(60.0, 0.65).loses_to(&best, Goal::Maximize), "99 at most");
        assert!(!standing(80.0, 0.21).loses_to(&best, Goal::Maximize), "96.8 at most, within the noise");
        assert!(!best.loses_to(&standing(60.0, 0.3), Goal::Maximize));
        // A latency of 100 ms with a gain of 30 % is 70 ms.
        assert!(standing(100.0, 0.3).loses_to(&standing(50.0, 0.0), Goal::Minimize));
        assert!(!standing(100.0, 0.5).loses_to(&standing(50.0, 0.0), Goal::Minimize));
        assert!(!standing(100.0, 2.0).loses_to(&standing(1.0, 0.0), Goal::Minimize));
    }

    #[test]
    fn an_engine_without_a_value_or_a_model_stays() {
        let best = standing(100.0, 0.1);
        for unknown in [
            EngineStanding::default(),
            EngineStanding { remaining: None, ..standing(1.0, 0.0) },
            EngineStanding { value: None, ..standing(1.0, 0.0) },
        ] {
            assert!(!unknown.loses_to(&best, Goal::Maximize));
            assert!(!standing(1.0, 0.0).loses_to(&EngineStanding { value: None, ..best }, Goal::Maximize));
        }
    }

    #[test]
    fn the_verdict_follows_from_the_rounds() {
        let found = compare_engines(&[(20.0, 10.0), (22.0, 11.0), (18.0, 9.0)], Goal::Maximize);
        assert_eq!(found.kind, VerdictKind::Better);
        assert!((found.gain.unwrap() - 1.0).abs() < 1e-9, "{found:?}");
        let equal = compare_engines(&[(10.0, 10.01), (10.0, 9.99), (10.0, 10.01), (10.0, 9.99)], Goal::Maximize);
        assert_eq!(equal.kind, VerdictKind::EqualWithinNoise);
        let noisy = compare_engines(&[(10.0, 15.0), (15.0, 10.0)], Goal::Maximize);
        assert_eq!(noisy.kind, VerdictKind::NoClearWinner);
        let faster = compare_engines(&[(5.0, 10.0), (5.1, 10.2)], Goal::Minimize);
        assert_eq!(faster.kind, VerdictKind::Better);
        let single = compare_engines(&[(20.0, 10.0)], Goal::Maximize);
        assert_eq!((single.kind, single.low), (VerdictKind::NoClearWinner, None));
        assert_eq!(compare_engines(&[], Goal::Maximize).gain, None);
    }
}
