//! The estimate of the longest step of a launch: from the twin, and from the slowest prefill that the study has measured.

use std::sync::{Mutex, PoisonError};

use crate::config::Config;
use crate::predict;
use crate::rule::resolve_config;
use crate::stats::{median, to_f64};
use crate::store::Study;
use crate::trial::{Replies, Trial};
use crate::tuner::believe::twin_question;
use crate::tuner::watchdog::{StepEstimate, largest_step};
use crate::tuner::{TuneError, Tuner};
use crate::twin::Calibration;

/// Measured trials of earlier runs that are looked at: more of them delay the first launch and add little.
const MOST_RECALLED: usize = 32;

/// The slowest prefill of the study's measured launches, in tokens per second.
#[derive(Debug, Default)]
pub struct MeasuredPrefill(Mutex<Option<f64>>);

impl MeasuredPrefill {
    fn slowest(&self) -> Option<f64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, speed: f64) {
        let mut slowest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *slowest = Some(slowest.map_or(speed, |slowest| slowest.min(speed)));
    }
}

impl Tuner<'_> {
    /// Reads the prefill speeds of earlier runs of the study. `trials` are those of the present context.
    pub(in crate::tuner) async fn recall_prefill(&self, study: &Study, trials: &[Trial]) -> Result<(), TuneError> {
        let measured = trials.iter().rev().filter(|trial| trial.outcome.measurement().is_some());
        for trial in measured.take(MOST_RECALLED) {
            if let Some(replies) = self.store.replies(study, trial.proposal.number).await? {
                self.learn_prefill(&trial.proposal.config, &replies);
            }
        }
        Ok(())
    }

    /// Learns from a measured launch how slow a prefill may be. If more requests were under way than the engine runs at once, they
    /// waited for the replies of others, and the launch is no evidence on prefill.
    pub(in crate::tuner) fn learn_prefill(&self, config: &Config, replies: &Replies) {
        // How many requests another engine runs at once is not known, so that waiting would count as slowness.
        if !self.job.engine.engine.has_rules() {
            return;
        }
        let installed = &self.installed;
        let asked = self.job.with_arguments(config, installed.version);
        let facts = self.job.facts(installed.version, installed.device, installed.host);
        if self.requests_at_once() <= resolve_config(&asked, &facts).max_num_seqs
            && let Some(speed) = prefill_speed(replies)
        {
            self.measured_prefill.add(speed);
        }
    }

    /// Estimates the longest step of a launch of this configuration: the longer of the twin's prediction and the
    /// estimate from measured launches.
    pub(in crate::tuner) fn longest_step(&self, config: &Config) -> StepEstimate {
        let (longest, at_once) = (self.job.workload.built.longest(), self.requests_at_once());
        let asked = self.job.with_arguments(config, self.installed.version);
        let budget = asked.get_i64("max-num-batched-tokens").and_then(|tokens| u64::try_from(tokens).ok());
        let calibration = Calibration::none();
        let question = twin_question(self.job, &self.installed, config.clone(), &calibration).ok();
        let twin = question.and_then(|question| predict::longest_step(&question, longest, at_once));
        StepEstimate::new(largest_step(longest, at_once, budget), twin, self.measured_prefill.slowest())
    }

    /// The requests that are under way at once, at most.
    fn requests_at_once(&self) -> u64 {
        let plan = self.job.load.plan(self.job.seed);
        let concurrency = plan.concurrency.and_then(|limit| u64::try_from(limit).ok());
        concurrency.unwrap_or(u64::MAX).min(plan.requests.unwrap_or(u64::MAX))
    }
}

/// The median prefill speed of a launch's longest prompts, in tokens per second: the tokens of all prompts that were completed
/// between the sending of a request and its first token, over that time. So time that a request waits for the prompts of
/// others does not count as slowness. Tokens that an earlier prompt may have left in the cache do not count.
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

    /// Requests as sending and first token in milliseconds, prompt tokens, and those of them that are shared.
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
