//! The judgement of the measurements by the sampler's model, and the end of a search that no longer pays.

use std::sync::Arc;

use super::{Scheduler, Spent};
use crate::job::{Enough, Question};
use crate::sampler::{Judgement, Known, Past};
use crate::store::{Expected, Verdict};
use crate::trial::Origin;
use crate::tuner::{Ending, Event, TuneError};

/// Computes the answer to a question on a thread of its own.
pub(super) async fn aside<T: Send + 'static>(question: &Arc<Question>, ask: fn(&Question) -> T) -> T {
    let question = Arc::clone(question);
    match tokio::task::spawn_blocking(move || ask(&question)).await {
        Ok(answer) => answer,
        // Nobody cancels the task, so it has panicked. The panic is passed on.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Returns whether the sampler sees a trial. Probes and tests of rules count only if they were measured: their failures
/// concern the environment or the rule.
fn is_shown(past: &Past) -> bool {
    match past.origin {
        Origin::Probe | Origin::RuleTest => past.measured().is_some(),
        _ => past.origin.is_ranked(),
    }
}

/// Returns whether the last `enough.trials` trials, including the next one, each had an expected gain below
/// `enough.gain`.
fn is_enough(enough: Enough, next_gain: f64, history: &[Past]) -> bool {
    let before = enough.trials.saturating_sub(1) as usize;
    // Only launched trials count.
    let launched = |past: &&Past| past.origin.is_searched() && !matches!(past.known, Known::Rejected);
    let gains = history.iter().rev().filter(launched).map(|past| past.expected_gain);
    let small = gains.take(before).take_while(|gain| gain.is_some_and(|gain| gain < enough.gain)).count();
    next_gain < enough.gain && small == before
}

impl Scheduler<'_> {
    /// Builds the question to the sampler. The history is in the order of numbers, independent of the order of ends.
    pub(super) async fn question(&self) -> Arc<Question> {
        let absent = self.preflighter.absent().await;
        let search = self.scope.search.knowing(&self.known, absent.as_ref());
        let shown = self.history.iter().filter(|past| is_shown(past)).cloned().collect();
        let launches = self.spent.as_ref().map(Spent::launches);
        let left = self.run.job.budget.left(self.launches());
        search.question(shown, self.priors.clone()).costing(launches).ending(left).into()
    }

    /// Judges all measurements, stores the verdict, and reports its new notices.
    pub(in crate::tuner) async fn judge(&mut self) -> Result<(), TuneError> {
        let question = self.question().await;
        self.judge_by(&question).await.map(drop)
    }

    pub(super) async fn judge_by(&mut self, question: &Arc<Question>) -> Result<Option<Verdict>, TuneError> {
        if !self.history.iter().any(|past| is_shown(past) && past.measured().is_some()) {
            return Ok(None);
        }
        let Some(judgement) = aside(question, Question::judge).await else { return Ok(None) };
        for text in &judgement.notes {
            if self.noticed.insert(text.clone()) {
                self.run.tell(Event::Noticed { text: text.clone() });
            }
        }
        let verdict = self.verdict(question.asked(), &judgement);
        self.run.store.judge(self.run.study.id, &verdict).await?;
        Ok(Some(verdict))
    }

    /// Replaces the places in the sampler's history by the trials' numbers.
    fn verdict(&self, sampler: &str, judgement: &Judgement) -> Verdict {
        let shown = self.history.iter().enumerate().filter(|(_, past)| is_shown(past));
        let numbers: Vec<_> = shown.map(|(number, _)| u32::try_from(number).unwrap_or(u32::MAX)).collect();
        let expected = |pick: &crate::sampler::Pick| {
            let (value, deviation) = (*pick.values.first()?)?;
            Some(Expected { trial: *numbers.get(pick.place)?, value, deviation, feasible: pick.feasible })
        };
        Verdict {
            sampler: sampler.to_owned(),
            ranking: judgement.ranking.iter().filter_map(expected).collect(),
            remaining: judgement.remaining,
            next_gain: judgement.next_gain,
        }
    }

    /// Returns the ending of the search if a further trial no longer pays.
    pub(super) fn converged(&self, verdict: &Verdict) -> Option<Ending> {
        let (enough, next_gain) = (self.run.job.budget.enough, verdict.next_gain?);
        let is_enough = is_enough(enough, next_gain, &self.history);
        let (below, trials, remaining) = (enough.gain, enough.trials, verdict.remaining);
        is_enough.then_some(Ending::Converged { next_gain, below, trials, remaining })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_search_ends_after_some_expectations_in_a_row_that_are_all_small() {
        let enough = Enough { gain: 0.01, trials: 3 };
        let past = |origin: &'static str, known, expected_gain| Past {
            expected_gain,
            ..Past::new(origin, Config::new(), known)
        };
        let ends = |trials: &[Past], next| is_enough(enough, next, trials);
        let (small, large) = (past("a", Known::Failed, Some(0.001)), past("a", Known::Failed, Some(0.1)));
        let unknown = past("a", Known::Failed, None);
        let (rejected, confirmed) = (past("a", Known::Rejected, Some(0.1)), past("confirmation", Known::Failed, None));
        let baseline = past("baseline", Known::Pending, None);
        assert!(ends(&[baseline.clone(), large.clone(), small.clone(), small.clone()], 0.001));
        assert!(ends(&[small.clone(), rejected.clone(), small.clone(), rejected.clone(), confirmed.clone()], 0.001));
        assert!(!ends(&[small.clone(), small.clone()], 0.01), "the next one is not below");
        assert!(!ends(&[small.clone(), large, small.clone()], 0.001));
        assert!(!ends(&[small.clone(), unknown, small.clone()], 0.001));
        assert!(!ends(&[baseline, small.clone()], 0.001), "too few");
        assert!(is_enough(Enough { trials: 1, ..enough }, 0.001, &[]));
        assert!(!is_enough(Enough { gain: 0.0, trials: 1 }, 0.0, &[]), "it is switched off");
    }
}
