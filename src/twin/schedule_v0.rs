//! V0's scheduler: prompts go before decodes and never share a batch with them, unless chunked prefill is on.

use std::time::Duration;

use super::batch::Batch;
use super::engine::{TwinEngine, WaitReason};
use super::schedule::{Admission, StepBudget};
use crate::stats::f64_to_usize;

/// Share of the blocks that admissions leave unused, so that the next decodes do not run out of blocks.
const WATERMARK: f64 = 0.01;

/// Start of the last step, and duration of the last step with a prompt. `scheduler_delay_factor` multiplies that
/// duration.
#[derive(Debug, Default)]
pub(super) struct PromptDelay {
    last_step: Duration,
    last_had_prompt: bool,
    prompt_latency: Duration,
}

impl TwinEngine {
    /// Schedules one step, possibly an empty one.
    pub(super) fn step_v0(&mut self, now: Duration) -> Batch {
        let admits = self.delay_passed(now);
        let watermark = f64_to_usize(WATERMARK * f64::from(self.pool.capacity()));
        // V0's block manager gives a prompt all its blocks at once (`can_allocate` of `core/block_manager.py`).
        let admission = Admission { watermark, requires_all_blocks: true };
        let mut batch = Batch::default();
        let tokens = self.settings.max_num_batched_tokens();
        let mut budget = StepBudget { tokens, inputs: tokens, draft_slots: 0, piece: u32::MAX };
        self.wait_reason = (!admits).then_some(WaitReason::Delay);
        if self.settings.resolved.chunked_prefill {
            if self.continue_running(&mut batch, &mut budget) && admits {
                self.admit(&mut batch, &mut budget, admission);
            }
        } else {
            if admits {
                self.admit(&mut batch, &mut budget, admission);
            }
            if batch.items.is_empty() {
                self.continue_running(&mut batch, &mut budget);
            }
        }
        self.delay.last_had_prompt = batch.work.prompt_tokens > 0;
        batch
    }

    /// Returns whether requests may be admitted: there is no delay, or the earliest waiting request has waited for
    /// longer than it.
    fn delay_passed(&mut self, now: Duration) -> bool {
        if self.delay.last_had_prompt {
            self.delay.prompt_latency = now.saturating_sub(self.delay.last_step);
        }
        self.delay.last_step = now;
        let factor = self.settings.resolved.scheduler_delay_factor;
        if factor <= 0.0 || self.running.is_empty() {
            return true;
        }
        // Preempted requests return to the head of the queue, so the earliest arrival may be elsewhere.
        let Some(earliest) = self.waiting.earliest(&self.sequences) else { return true };
        now.saturating_sub(earliest).as_secs_f64() > factor * self.delay.prompt_latency.as_secs_f64()
    }
}
