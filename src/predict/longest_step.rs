//! The longest step that a configuration can take under a load: the largest prefill at the longest context.

use std::time::Duration;

use super::TwinQuestion;
use super::setup::TwinSetup;
use crate::twin::{BatchWork, Settings};

/// Estimates the longest step of the question's configuration on the clients' clock. Every calibrated factor of the
/// step time is two standard deviations above its expected value. `longest_request` is the largest length of prompt and
/// reply together in tokens, because a preempted request computes both again. `at_once` is the number of requests under
/// way. `None` if the engine would not start with the configuration.
///
/// Decodes in the same step are left out. They read the cache once, which takes a small part of a second.
#[must_use]
pub fn longest_step(question: &TwinQuestion<'_>, longest_request: u64, at_once: u64) -> Option<Duration> {
    let setup = TwinSetup::resolve(question).ok()?;
    let work = largest_prefill(&setup.settings, longest_request, at_once);
    let step = setup.prior.scaled(question.knowledge.slow_factors()).step_duration(&work);
    Duration::try_from_secs_f64(step.as_secs_f64() / setup.time_scale).ok()
}

/// Fills the token budget of a step with the last pieces of prompts, because these have the longest context.
fn largest_prefill(settings: &Settings, longest_request: u64, at_once: u64) -> BatchWork {
    let longest = longest_request.min(settings.max_model_len().into()).max(1);
    let budget =
        settings.scheduling.max_num_scheduled_tokens.unwrap_or(u32::MAX).min(settings.max_num_batched_tokens());
    let budget = if settings.resolved.chunked_prefill { budget.into() } else { longest.max(budget.into()) };
    let sequences = at_once.clamp(1, settings.max_num_seqs().max(1).into());
    let mut left = longest.saturating_mul(sequences).min(budget);
    let mut work = BatchWork::default();
    while left > 0 {
        let tokens = left.min(longest);
        let context = longest - tokens;
        work.sequences += 1;
        work.samples += 1;
        work.tokens = work.tokens.saturating_add(narrow(tokens));
        work.prompt_tokens = work.tokens;
        work.prompt_context += context;
        work.prompt_pairs += tokens * context + tokens * (tokens + 1) / 2;
        work.blocks += longest.div_ceil(settings.block_size().max(1).into());
        left -= tokens;
    }
    work
}

fn narrow(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;

    #[test]
    fn the_largest_prefill_fills_the_budget_at_the_longest_context() {
        let settings = Settings {
            resolved: ResolvedConfig {
                max_model_len: 4096,
                max_num_batched_tokens: 1000,
                ..Settings::default().resolved
            },
            ..Settings::default()
        };
        let of = |settings: &Settings, longest, at_once| {
            let BatchWork { sequences, tokens, prompt_context, prompt_pairs, .. } =
                largest_prefill(settings, longest, at_once);
            (sequences, tokens, prompt_context, prompt_pairs)
        };
        assert_eq!(of(&settings, 3000, 8), (1, 1000, 2000, 1000 * 2000 + 500_500));
        assert_eq!(of(&settings, 9000, 1), (1, 1000, 3096, 1000 * 3096 + 500_500), "no longer than the model takes");
        assert_eq!(of(&settings, 400, 8), (3, 1000, 200, 2 * 80_200 + 200 * 200 + 20_100));
        assert_eq!(of(&settings, 400, 2), (2, 800, 0, 2 * 80_200), "no more requests are under way");
        let one =
            Settings { resolved: ResolvedConfig { max_num_seqs: 1, ..settings.clone().resolved }, ..settings.clone() };
        assert_eq!(of(&one, 400, u64::MAX), (1, 400, 0, 80_200));
        let whole = Settings { resolved: ResolvedConfig { chunked_prefill: false, ..settings.resolved }, ..settings };
        assert_eq!(of(&whole, 3000, 1), (1, 3000, 0, 4_501_500), "a prompt is not divided");
    }
}
