//! The judgement of the measurements by the sampler's model, and the end of a search whose expected gain is too small.

use std::sync::Arc;

use super::{LaunchCostHistory, Scheduler};
use crate::job::{SamplerQuestion, StopRule};
use crate::sampler::{Judgement, KnownOutcome, PastTrial};
use crate::store::{ExpectedConfiguration, StoredJudgement};
use crate::trial::Origin;
use crate::tuner::{StudyEnding, TuneError, TunerEvent};

/// Computes the answer to a question on a thread of its own.
pub(super) async fn ask_on_thread<T: Send + 'static>(
    question: &Arc<SamplerQuestion>,
    ask: fn(&SamplerQuestion) -> T,
) -> T {
    let question = Arc::clone(question);
    match tokio::task::spawn_blocking(move || ask(&question)).await {
        Ok(answer) => answer,
        // Nobody cancels the task, so it has panicked. The panic is passed on.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Returns whether a trial belongs to the sampler's history. Probes and tests of rules count only if they were
/// measured: their failures concern the environment or the rule.
fn is_in_history(past: &PastTrial) -> bool {
    match past.origin {
        Origin::Probe | Origin::RuleTest => past.measured().is_some(),
        Origin::LiveLook => true,
        _ => past.origin.is_ranked(),
    }
}

/// Returns whether the last `enough.trials` trials, including the next one, each had an expected gain below
/// `enough.gain`.
fn has_converged(enough: StopRule, next_gain: f64, history: &[PastTrial]) -> bool {
    let before = enough.trials.saturating_sub(1) as usize;
    // Only launched trials count.
    let launched = |past: &&PastTrial| past.origin.is_search_trial() && !matches!(past.outcome, KnownOutcome::Rejected);
    let gains = history.iter().rev().filter(launched).map(|past| past.expected_gain);
    let small = gains.take(before).take_while(|gain| gain.is_some_and(|gain| gain < enough.gain)).count();
    next_gain < enough.gain && small == before
}

impl Scheduler<'_> {
    /// Builds the question to the sampler. The history is in the order of numbers, independent of the order of ends.
    pub(super) async fn question(&self) -> Arc<SamplerQuestion> {
        let absent = self.preflighter.missing_packages().await;
        let search = self.scope.search.with_learned(&self.learned_memory, absent.as_ref());
        let shown = self.history.iter().filter(|past| is_in_history(past)).cloned().collect();
        let launches = self.launch_costs.as_ref().map(LaunchCostHistory::launches);
        let left = self.search_launches_left();
        let question = search.question(shown, self.priors.clone()).with_launch_costs(launches).with_trials_left(left);
        question.with_live_looks(self.live_looks()).into()
    }

    /// Judges all measurements, stores the judgement, and reports its new notices.
    pub(in crate::tuner) async fn judge(&mut self) -> Result<(), TuneError> {
        let question = self.question().await;
        self.judge_by(&question).await.map(drop)
    }

    /// Like `judge`, with a question that is already built. Returns `None` if nothing was measured or the sampler has
    /// no model.
    pub(super) async fn judge_by(
        &mut self,
        question: &Arc<SamplerQuestion>,
    ) -> Result<Option<StoredJudgement>, TuneError> {
        if !self.history.iter().any(|past| is_in_history(past) && past.measured().is_some()) {
            return Ok(None);
        }
        let Some(judgement) = ask_on_thread(question, SamplerQuestion::judge).await else { return Ok(None) };
        for text in &judgement.notes {
            if self.noticed.insert(text.clone()) {
                self.run.emit(TunerEvent::Notice { text: text.clone() });
            }
        }
        let mut judgement = self.judgement(question.sampler_name(), &judgement);
        self.add_unmodelled(&mut judgement, question);
        self.run.store.store_judgement(self.run.study.id, &judgement).await?;
        Ok(Some(judgement))
    }

    /// Converts a judgement for the database. Indices in the sampler's history become numbers of trials.
    pub(super) fn judgement(&self, sampler: &str, judgement: &Judgement) -> StoredJudgement {
        let shown = self.history.iter().enumerate().filter(|(_, past)| is_in_history(past));
        let numbers: Vec<_> = shown.map(|(number, _)| u32::try_from(number).unwrap_or(u32::MAX)).collect();
        let expected = |pick: &crate::sampler::Pick| {
            let (value, deviation) = (*pick.values.first()?)?;
            Some(ExpectedConfiguration {
                trial: *numbers.get(pick.history_index)?,
                value,
                deviation,
                feasible: pick.feasible,
            })
        };
        StoredJudgement {
            sampler: sampler.to_owned(),
            ranking: judgement.ranking.iter().filter_map(expected).collect(),
            remaining: judgement.remaining_gain,
            next_gain: judgement.next_gain,
        }
    }

    /// Returns the ending of the search if enough trials in a row had too little expected gain.
    pub(super) fn converged(&self, judgement: &StoredJudgement) -> Option<StudyEnding> {
        let (enough, next_gain) = (self.run.job.budget.stop_rule, judgement.next_gain?);
        let is_enough = has_converged(enough, next_gain, &self.history);
        let (below, trials, remaining) = (enough.gain, enough.trials, judgement.remaining);
        is_enough.then_some(StudyEnding::Converged { next_gain, below, trials, remaining })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_search_ends_after_several_small_expected_gains_in_a_row() {
        let enough = StopRule { gain: 0.01, trials: 3 };
        let past = |origin: &'static str, known, expected_gain| PastTrial {
            expected_gain,
            ..PastTrial::new(origin, Config::new(), known)
        };
        let ends = |trials: &[PastTrial], next| has_converged(enough, next, trials);
        let (small, large) = (past("a", KnownOutcome::Failed, Some(0.001)), past("a", KnownOutcome::Failed, Some(0.1)));
        let unknown = past("a", KnownOutcome::Failed, None);
        let (rejected, confirmed) =
            (past("a", KnownOutcome::Rejected, Some(0.1)), past("confirmation", KnownOutcome::Failed, None));
        let baseline = past("baseline", KnownOutcome::Pending, None);
        assert!(ends(&[baseline.clone(), large.clone(), small.clone(), small.clone()], 0.001));
        assert!(ends(&[small.clone(), rejected.clone(), small.clone(), rejected.clone(), confirmed.clone()], 0.001));
        assert!(!ends(&[small.clone(), small.clone()], 0.01), "the next one is not below");
        assert!(!ends(&[small.clone(), large, small.clone()], 0.001));
        assert!(!ends(&[small.clone(), unknown, small.clone()], 0.001));
        assert!(!ends(&[baseline, small.clone()], 0.001), "too few");
        assert!(has_converged(StopRule { trials: 1, ..enough }, 0.001, &[]));
        assert!(!has_converged(StopRule { gain: 0.0, trials: 1 }, 0.0, &[]), "it is switched off");
    }
}
