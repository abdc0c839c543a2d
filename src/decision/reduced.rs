//! The decision after an ablation: the winner without the flags that have no effect.

use super::ablation::block;
use super::blocks::StudyBlocks;
use super::confirmation::interval;
use super::least_squares::BlockFit;
use super::{Ablation, Confirmation, Decision, FlagFinding, GainInterval, VerdictKind};
use crate::objective::Goal;

impl Confirmation<'_> {
    /// Replaces the winner of the confirmation's decision by its configuration without the flags that have no effect. The
    /// rounds of the confirmation and the pairs of the ablation together give its gain. The winner keeps its flags if the
    /// gain would no longer be proven.
    #[must_use]
    pub fn reduce(&self, full: Decision, ablation: &Ablation<'_>) -> Decision {
        let progress = ablation.progress();
        let reduced = progress.config.key();
        let mut result = progress.result;
        if let [flag] = result.flags.as_mut_slice() {
            // The gain over the defaults is the effect of the only flag.
            let gain = full.verdict.over_defaults;
            flag.finding = if gain.gain.is_some() { FlagFinding::Proven } else { FlagFinding::Required };
            (flag.effect, flag.low, flag.high, flag.pairs) = (gain.gain, gain.low, gain.high, full.rounds);
        }
        if reduced == full.winner {
            return Decision { ablation: Some(result), ..full };
        }
        let blocks = StudyBlocks::of(self.launches, self.goal);
        let rounds = self.split(blocks.present_rounds());
        let level = self.level(rounds, &full.winner);
        let pairs = progress.pairs.iter().map(|(present, without, scores)| block(present, without, *scores));
        let all: Vec<_> = rounds.effective().iter().cloned().chain(pairs).collect();
        let feasible = self.feasible();
        let Some(fit) = BlockFit::of(&all, &reduced) else { return Decision { ablation: Some(result), ..full } };
        let gain = |baseline: &str| {
            let found = fit.difference(&reduced, baseline);
            let gain = found.map_or_else(
                || GainInterval::unmeasured(VerdictKind::NoClearWinner),
                |difference| interval(difference, progress.noise, level),
            );
            if feasible.contains(&baseline) { gain } else { GainInterval { kind: VerdictKind::Better, ..gain } }
        };
        let over_defaults = gain(self.defaults);
        let difference = fit.difference(&reduced, &full.winner);
        let (Some(difference), VerdictKind::Better) = (difference, over_defaults.kind) else {
            let dropped = result.flags.iter_mut().filter(|flag| flag.finding == FlagFinding::NoEffect);
            dropped.for_each(|flag| flag.finding = FlagFinding::Unsettled);
            return Decision { ablation: Some(result), ..full };
        };
        let factor = libm::exp(match self.goal {
            Goal::Maximize => difference.value,
            Goal::Minimize => -difference.value,
        });
        let over_today = self.today.map(|today| if today == reduced { GainInterval::NONE } else { gain(today) });
        let mut decision = Decision { winner: reduced, value: full.value.map(|value| value * factor), ..full };
        decision.verdict.over_defaults = over_defaults;
        decision.verdict.over_today = over_today;
        decision.noise = progress.noise;
        decision.ablation = Some(result);
        decision
    }
}
