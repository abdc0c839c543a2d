//! The estimate of the longest step of a launch: from the twin, and from the slowest prefill that the study has measured.

use std::sync::{Mutex, PoisonError};

use crate::config::Config;
use crate::job::LoadJob;
use crate::predict;
use crate::stats::{median, to_f64};
use crate::trial::Replies;
use crate::tuner::TuneError;
use crate::tuner::run::StudyRun;
use crate::tuner::study_priors::twin_question;
use crate::tuner::watchdog::{StepEstimate, largest_step};
use crate::twin::Calibration;

/// The most measured trials that are read from earlier runs. More of them delay the first launch and add little.
const MAX_RECALLED_TRIALS: usize = 32;

/// Estimates the longest step of a launch, and learns from the study's measured launches.
pub(super) struct StepForecast<'r> {
    run: &'r StudyRun<'r>,
    prefill: MeasuredPrefill,
}

/// The slowest prefill of the study's measured launches, in tokens per second; `None` before one was measured.
#[derive(Debug, Default)]
struct MeasuredPrefill(Mutex<Option<f64>>);

impl MeasuredPrefill {
    fn slowest(&self) -> Option<f64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, speed: f64) {
        let mut slowest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *slowest = Some(slowest.map_or(speed, |slowest| slowest.min(speed)));
    }
}

impl<'r> StepForecast<'r> {
    /// Reads the prefill speeds that earlier runs of the study have measured in the present context.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub(super) async fn recall(run: &'r StudyRun<'r>) -> Result<Self, TuneError> {
        let forecast = Self { run, prefill: MeasuredPrefill::default() };
        let stored = run.store.present_trials(&run.study).await?;
        let trials = stored.iter().rev().map(|scored| &scored.trial);
        for trial in trials.filter(|trial| trial.outcome.measurement().is_some()).take(MAX_RECALLED_TRIALS) {
            if let Some(replies) = run.store.replies(&run.study, trial.proposal.number).await? {
                forecast.learn(&trial.proposal.config, &replies);
            }
        }
        Ok(forecast)
    }

    /// Learns from a measured launch how slow a prefill may be. A launch is no evidence if more requests were under way
    /// than the engine runs at once: the others waited for replies.
    pub(super) fn learn(&self, config: &Config, replies: &Replies) {
        // The limit of concurrent requests is not known for other engines, so waiting would count as slowness.
        let Some(resolved) = self.run.facts().resolve(&self.run.with_engine_args(config)) else { return };
        if self.requests_at_once() <= resolved.max_num_seqs
            && let Some(speed) = prefill_speed(replies)
        {
            self.prefill.add(speed);
        }
    }

    /// Estimates the longest step of a launch of this configuration: the longer of the twin's prediction and the
    /// estimate from measured launches.
    pub(super) fn longest_step(&self, config: &Config) -> StepEstimate {
        let parts = self.run.job.parts();
        let longest = parts.iter().map(|part| part.workload.source.longest()).max().unwrap_or(0);
        let at_once = self.requests_at_once();
        let asked = self.run.with_engine_args(config);
        let budget = asked.get_i64("max-num-batched-tokens").and_then(|tokens| u64::try_from(tokens).ok());
        let calibration = Calibration::none();
        let question = twin_question(self.run.job, &self.run.installed, config.clone(), &calibration).ok();
        let twin = question.and_then(|question| predict::longest_step(&question, longest, at_once));
        StepEstimate::new(largest_step(longest, at_once, budget), twin, self.prefill.slowest())
    }

    /// Returns the most requests that are under way at once.
    fn requests_at_once(&self) -> u64 {
        let most = |load: &LoadJob| {
            let [concurrency, requests] =
                [load.concurrency, load.requests].map(|limit| limit.map_or(u64::MAX, u64::from));
            concurrency.min(requests)
        };
        self.run.job.parts().iter().map(|part| most(part.load)).max().unwrap_or(u64::MAX)
    }
}

/// Returns the median prefill speed of a launch's longest prompts, in tokens per second.
///
/// A request's speed is the prompt tokens that were completed between its sending and its first token, divided by that
/// time. These include the prompts of other requests, so waiting for them does not count as slowness. Tokens that an
/// earlier prompt may have left in the cache do not count.
fn prefill_speed(replies: &Replies) -> Option<f64> {
    let request = |place: usize| {
        let first = replies.sent_us[place] + replies.ttft_us[place]?;
        let tokens = replies.prompt_tokens[place].saturating_sub(replies.shared_tokens[place]);
        Some((replies.sent_us[place], first, u64::from(tokens)))
    };
    let requests: Vec<_> = (replies.warmup as usize..replies.len()).filter_map(request).collect();
    let longest = requests.iter().map(|(.., tokens)| *tokens).max()?;
    let speeds = requests.iter().filter(|(.., tokens)| tokens * 2 >= longest).map(|(sent, first, _)| {
        let meanwhile = requests.iter().filter(|(_, at, _)| at > sent && at <= first);
        let tokens: u64 = meanwhile.map(|(.., tokens)| tokens).sum();

        to_f64(tokens) * 1e6 / to_f64((first - sent).max(1))
    });
    median(speeds).filter(|speed| *speed > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds replies from requests: sending and first token in milliseconds, prompt tokens, and the shared ones of
    /// them.
    fn replies(requests: &[(u64, u64, u32, u32)]) -> Replies {
        let of = |read: fn(&(u64, u64, u32, u32)) -> u64| requests.iter().map(read).collect::<Vec<_>>();
        Replies {
            sent_us: of(|request| request.0 * 1000),
            ttft_us: of(|request| (request.1 - request.0) * 1000).into_iter().map(Some).collect(),
            latency_us: vec![None; requests.len()],
            prompt_tokens: requests.iter().map(|request| request.2).collect(),
            output_tokens: vec![1; requests.len()],
            shared_tokens: requests.iter().map(|request| request.3).collect(),
            shared_with: vec![0; requests.len()],
            ..Replies::default()
        }
    }

    #[test]
    fn the_prefill_speed_is_that_of_the_longest_prompts_without_their_queue() {
        let speed = |requests: &[(u64, u64, u32, u32)]| prefill_speed(&replies(requests)).map(f64::round);
        assert_eq!(speed(&[(0, 2000, 1000, 0)]), Some(500.0));
        // Sent together and computed one after the other.
        assert_eq!(speed(&[(0, 2000, 1000, 0), (0, 4000, 1000, 0), (0, 6000, 1000, 0)]), Some(500.0));
        // The overhead of a step dominates the time of a short prompt.
        assert_eq!(speed(&[(0, 2000, 1000, 0), (3000, 3100, 10, 0)]), Some(500.0));
        // The engine had three quarters in its cache.
        assert_eq!(speed(&[(0, 500, 1000, 750)]), Some(500.0));
        assert_eq!(speed(&[]), None);
        assert_eq!(speed(&[(0, 500, 1000, 1000)]), None);
    }

    #[test]
    fn the_warm_up_and_failed_requests_have_no_speed_and_the_slowest_launch_counts() {
        let mut both = replies(&[(0, 0, 5000, 0), (0, 2000, 1000, 0), (0, 1, 9000, 0)]);
        (both.warmup, both.ttft_us[2]) = (1, None);
        assert_eq!(prefill_speed(&both), Some(500.0));
        let measured = MeasuredPrefill::default();
        assert_eq!(measured.slowest(), None);
        for speed in [500.0, 200.0, 800.0] {
            measured.add(speed);
        }
        assert_eq!(measured.slowest(), Some(200.0));
    }
}
