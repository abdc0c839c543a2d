//! The end of a step: it counts generated tokens, removes rejected drafts and ends finished requests.

use super::batch::Batch;
use super::engine::{StepEvent, TwinEngine};
use super::sequence::{Sequence, mix};
use super::settings::Speculation;
use crate::stats::to_f64;

impl TwinEngine {
    /// Ends the oldest step under way. Every request whose existing tokens are all computed has generated one token,
    /// and one more per accepted draft.
    pub fn finish(&mut self, batch: &Batch) -> Vec<StepEvent> {
        let mut events = Vec::with_capacity(batch.items.len());
        self.finish_into(batch, &mut events);
        events
    }

    /// Like `finish`, but writes the events to a list of the caller, which is emptied first.
    pub fn finish_into(&mut self, batch: &Batch, events: &mut Vec<StepEvent>) {
        events.clear();
        self.under_way = self.under_way.saturating_sub(1);
        let scheduling = &self.settings.scheduling;
        let (asynchronous, interval) = (scheduling.async_scheduling, scheduling.stream_interval);
        let speculation = scheduling.speculation;
        let mut left = false;
        for item in &batch.items {
            let sequence = &mut self.sequences[item.slot];
            if sequence.serial != item.serial {
                continue;
            }
            sequence.in_flight -= item.tokens;
            // The item was scheduled before a preemption. Its generated tokens count, but the keys and values that it
            // computed are lost.
            let stale = sequence.stale > 0;
            if stale {
                sequence.stale -= item.tokens;
            }
            if !item.samples {
                continue;
            }
            let drafts = if item.padded { 0 } else { item.drafts };
            let accepted = speculation.map_or(0, |speculation| accepted(&speculation, sequence, drafts));
            if item.drafts > 0 {
                self.counters.drafts += 1;
                self.accepted_by_position.iter_mut().take(accepted as usize).for_each(|count| *count += 1);
                self.counters.draft_tokens += u64::from(item.drafts);
                self.counters.accepted_tokens += u64::from(accepted);
                if !stale {
                    let rejected = item.drafts - accepted;
                    sequence.computed -= rejected;
                    sequence.placeholders = sequence.placeholders.saturating_sub(rejected);
                }
            }
            if sequence.generated == 0 {
                self.counters.prompt_tokens += u64::from(sequence.prompt_len);
                self.counters.cached_tokens += u64::from(sequence.cached);
            }
            let tokens = (1 + accepted).min(sequence.output_len - sequence.generated);
            sequence.generated += tokens;
            self.counters.generated_tokens += u64::from(tokens);
            self.counters.reported_preemptions += u64::from(sequence.preemptions - sequence.reported_preemptions);
            sequence.reported_preemptions = sequence.preemptions;
            if !stale {
                sequence.placeholders = sequence.placeholders.saturating_sub(tokens);
            }
            let last = sequence.generated == sequence.output_len;
            // Follows `make_request_output` of vLLM's `v1/engine/output_processor.py`.
            let held = sequence.generated - sequence.sent;
            let sent = if last || sequence.sent == 0 || held >= interval { held } else { 0 };
            sequence.sent += sent;
            events.push(StepEvent { id: item.id, token: sequence.generated, tokens, sent, last });
            let running = sequence.running;
            if running && !asynchronous {
                sequence.drafts = speculation.map_or(0, |speculation| speculation.tokens);
            }
            if running && asynchronous && self.settings.resolved.prefix_caching {
                let known = sequence.computed - sequence.placeholders;
                self.publish(item.slot, known);
            }
            if last {
                left |= running;
                self.counters.finished += 1;
                self.remove(item.slot);
            }
        }
        if left {
            self.remove_ended();
        }
    }
}

/// Returns the number of leading drafts that the model accepts. It depends only on the seed, the request and the
/// position.
fn accepted(speculation: &Speculation, sequence: &Sequence, drafts: u32) -> u32 {
    let stream = mix(speculation.seed, sequence.serial);
    let agrees = |draft: &u32| {
        let drawn = mix(stream, u64::from(sequence.generated + draft)) >> 11;
        let share = to_f64(drawn) / to_f64(1_u64 << 53);
        share < speculation.acceptance
    };
    u32::try_from((0..drafts).take_while(agrees).count()).unwrap_or(drafts)
}
