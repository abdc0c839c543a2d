//! The verdict on a winner: its gain with an interval, and the noise of a launch.

use serde::{Deserialize, Serialize};

use super::AblationResult;

/// The confidence of every reported interval.
pub(super) const CONFIDENCE: f64 = 0.98;

/// The largest half-width of an interval around 0 that counts as equality, unless launches are noisier.
pub(super) const EQUAL_HALF_WIDTH: f64 = 0.03;

/// The kind of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The interval excludes 0, or the baseline fails or breaks a limit.
    Better,
    /// The interval contains 0, and its half-width is at most the larger of 3 % and the noise of a launch.
    EqualWithinNoise,
    /// The interval contains 0 and is wider, because the budget has ended.
    NoClearWinner,
}

/// The gain over a baseline, as a share of it: 0.05 is 5 % better, for either goal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GainInterval {
    pub kind: VerdictKind,
    /// `None` if the baseline was not measured.
    pub gain: Option<f64>,
    /// The ends of the interval. `None` if launches are too few for an interval.
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub confidence: f64,
}

/// The verdict of a study.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The gain over the engine's defaults.
    #[serde(flatten)]
    pub over_defaults: GainInterval,
    /// The gain over today's deployment, if there is one besides the defaults.
    pub over_today: Option<GainInterval>,
}

/// The noise between launches of one configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredNoise {
    /// The standard deviation between launches, as a share of the value, without drift. `None` without repeated
    /// launches.
    pub between_launches: Option<f64>,
    /// The degrees of freedom of this estimate.
    pub freedom: usize,
}

/// The result of a confirmation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The identifier of the winner ([`Config::key`](crate::config::Config::key)).
    pub winner: String,
    /// The winner's value in the confirmation: the geometric mean of its launches.
    pub value: Option<f64>,
    pub defaults_value: Option<f64>,
    pub today_value: Option<f64>,
    pub verdict: Verdict,
    pub noise: MeasuredNoise,
    /// Finished launches and complete rounds of the confirmation.
    pub launches: u32,
    pub rounds: u32,
    /// Whether the verdict is final: more launches are not needed.
    pub is_settled: bool,
    /// The findings about the winner's flags. `None` unless the winner is better than the defaults, and before the verdict
    /// is final.
    #[serde(default)]
    pub ablation: Option<AblationResult>,
}

impl VerdictKind {
    /// Returns the name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::EqualWithinNoise => "equal_within_noise",
            Self::NoClearWinner => "no_clear_winner",
        }
    }
}

impl GainInterval {
    /// The winner's gain over itself.
    pub(super) const NONE: Self = Self {
        kind: VerdictKind::EqualWithinNoise,
        gain: Some(0.0),
        low: Some(0.0),
        high: Some(0.0),
        confidence: CONFIDENCE,
    };

    /// The gain over a baseline without a value.
    pub(super) fn unmeasured(kind: VerdictKind) -> Self {
        Self { kind, gain: None, low: None, high: None, confidence: CONFIDENCE }
    }

    /// Creates the interval of a difference of logarithms with this half-width; `None` if no width is known. `noise` is
    /// that of a launch.
    pub(super) fn of(difference: f64, half: Option<f64>, noise: Option<f64>) -> Self {
        let ends = half.filter(|half| half.is_finite()).map(|half| (difference - half, difference + half));
        let [low, high] = [ends.map(|ends| libm::expm1(ends.0)), ends.map(|ends| libm::expm1(ends.1))];
        let kind = match low.zip(high) {
            Some((low, high)) if low > 0.0 || high < 0.0 => VerdictKind::Better,
            Some((low, high)) if (high - low) / 2.0 <= noise.unwrap_or(0.0).max(EQUAL_HALF_WIDTH) => {
                VerdictKind::EqualWithinNoise
            }
            _ => VerdictKind::NoClearWinner,
        };
        Self { kind, gain: Some(libm::expm1(difference)), low, high, confidence: CONFIDENCE }
    }

    /// Returns whether the whole interval is below 0.
    pub(super) fn is_loss(&self) -> bool {
        self.high.is_some_and(|high| high < 0.0)
    }

    /// Returns whether the interval excludes 0, or is narrow around it.
    pub(super) fn is_decided(&self) -> bool {
        let excludes = self.low.zip(self.high).is_some_and(|(low, high)| low > 0.0 || high < 0.0);
        excludes || self.kind == VerdictKind::EqualWithinNoise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_follows_from_the_interval_and_the_noise() {
        let kind = |difference, half, noise| GainInterval::of(difference, half, noise).kind;
        assert_eq!(kind(0.05, Some(0.04), Some(0.01)), VerdictKind::Better);
        assert_eq!(kind(0.02, Some(0.029), Some(0.01)), VerdictKind::EqualWithinNoise);
        assert_eq!(kind(0.02, Some(0.05), Some(0.01)), VerdictKind::NoClearWinner);
        assert_eq!(kind(0.02, Some(0.05), Some(0.06)), VerdictKind::EqualWithinNoise, "launches are that noisy");
        assert_eq!(kind(0.5, None, None), VerdictKind::NoClearWinner);
        assert_eq!(kind(0.5, Some(f64::INFINITY), None), VerdictKind::NoClearWinner);
    }

    #[test]
    fn a_gain_is_a_share_of_the_baseline() {
        let gain = GainInterval::of(1.1_f64.ln(), Some(0.01), None);
        assert!((gain.gain.unwrap() - 0.1).abs() < 1e-12);
        assert!(gain.low.unwrap() < 0.1 && gain.high.unwrap() > 0.1 && !gain.is_loss());
        assert!(GainInterval::of(-0.1, Some(0.01), None).is_loss());
    }

    #[test]
    fn a_verdict_has_the_fields_of_the_command_line_s_contract() {
        let verdict = Verdict { over_defaults: GainInterval::of(0.0, Some(0.01), None), over_today: None };
        let json = serde_json::to_value(verdict).unwrap();
        assert_eq!((&json["kind"], &json["confidence"]), (&"equal_within_noise".into(), &0.98.into()));
        assert!(json["low"].as_f64().unwrap() < 0.0 && json["over_today"].is_null());
        assert_eq!(serde_json::from_value::<Verdict>(json).unwrap(), verdict);
    }
}
