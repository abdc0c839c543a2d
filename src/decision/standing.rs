//! The decision that counts among those of several confirmations.

use super::Decision;

/// Returns the decision that counts among those of successive confirmations: the settled one with the largest gain over
/// the defaults, else the last one. Gains compare winners that were measured at different times, because each is relative
/// to launches of the defaults beside them. Without a gain (the defaults were not measured) the later one counts.
pub(crate) fn standing_decision(decisions: &[Decision]) -> Option<&Decision> {
    let gain = |decision: &Decision| decision.verdict.over_defaults.gain;
    let is_beaten = |standing: &Decision, later: &Decision| match (gain(standing), gain(later)) {
        (Some(standing), Some(later)) => later > standing,
        _ => true,
    };
    let settled = decisions.iter().filter(|decision| decision.is_settled);
    let standing = settled.reduce(|standing, later| if is_beaten(standing, later) { later } else { standing });
    standing.or(decisions.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{GainInterval, MeasuredNoise, Verdict, VerdictKind};

    fn decision(winner: &str, gain: Option<f64>, is_settled: bool) -> Decision {
        let over_defaults = GainInterval { kind: VerdictKind::Better, gain, low: None, high: None, confidence: 0.98 };
        Decision {
            winner: winner.to_owned(),
            value: None,
            defaults_value: None,
            today_value: None,
            verdict: Verdict { over_defaults, over_today: None },
            noise: MeasuredNoise::default(),
            launches: 4,
            rounds: 2,
            is_settled,
            ablation: None,
        }
    }

    #[test]
    fn a_later_winner_replaces_a_settled_one_only_with_a_larger_gain() {
        let standing = |decisions: &[Decision]| standing_decision(decisions).map(|decision| decision.winner.clone());
        let (a, b) = (decision("a", Some(0.05), true), decision("b", Some(0.04), true));
        let (unsettled, unknown) = (decision("c", Some(0.09), false), decision("d", None, true));
        assert_eq!(standing(&[]), None);
        assert_eq!(standing(&[a.clone(), b.clone(), unsettled.clone()]).as_deref(), Some("a"));
        assert_eq!(standing(&[b.clone(), a.clone()]).as_deref(), Some("a"));
        assert_eq!(standing(&[a, unknown]).as_deref(), Some("d"));
        assert_eq!(standing(&[decision("e", Some(0.1), false), unsettled]).as_deref(), Some("c"));
    }
}
