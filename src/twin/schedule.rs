//! V1's scheduler: one token budget a step, running requests first, then the queue in order of arrival.

use super::batch::Batch;
use super::engine::Engine;

impl Engine {
    pub(super) fn step_v1(&mut self) -> Batch {
        let mut batch = Batch::default();
        let mut budget = self.settings.max_num_batched_tokens;
        // Space was short: what is left belongs to those who were preempted.
        if self.run(&mut batch, &mut budget) {
            self.admit(&mut batch, &mut budget, 0);
        }
        batch
    }

    /// Continues running requests, oldest first. When blocks run out the newest is preempted, if need be the one
    /// that asks. Returns whether nobody was.
    pub(super) fn run(&mut self, batch: &mut Batch, budget: &mut u32) -> bool {
        let before = self.counters.preemptions;
        let mut next = 0;
        'running: while next < self.running.len() && *budget > 0 {
            let slot = self.running[next];
            let tokens = self.sequences[slot].pending().min(*budget);
            while !self.reserve(slot, tokens) {
                let Some(newest) = self.running.pop() else { break 'running };
                self.preempt(newest);
                if newest == slot {
                    break 'running;
                }
            }
            self.include(batch, slot, tokens);
            *budget -= tokens;
            next += 1;
        }
        self.counters.preemptions == before
    }

    /// Admits from the head of the queue while budget, sequences and blocks last, leaving `watermark` blocks unused.
    pub(super) fn admit(&mut self, batch: &mut Batch, budget: &mut u32, watermark: usize) {
        while *budget > 0 && self.running.len() < self.settings.max_num_seqs as usize {
            let Some(slot) = self.waiting.front().copied() else { break };
            let block_size = self.settings.block_size;
            let found = self.cached(slot);
            #[expect(clippy::cast_possible_truncation, reason = "fewer blocks than the u32 number of tokens")]
            let cached = found.len() as u32 * block_size;
            let pending = self.sequences[slot].len() - cached;
            if pending > *budget && !self.settings.chunked_prefill {
                break;
            }
            let tokens = pending.min(*budget);
            let fresh = (cached + tokens).div_ceil(block_size) as usize - found.len();
            let revived = found.iter().filter(|block| self.pool.is_unused(**block)).count();
            // Alone, a request may use every block.
            let watermark = if self.running.is_empty() { 0 } else { watermark };
            if fresh + revived + watermark > self.pool.unused() as usize {
                break;
            }
            self.waiting.pop_front();
            self.running.push(slot);
            for block in &found {
                self.pool.share(*block);
            }
            let sequence = &mut self.sequences[slot];
            sequence.running = true;
            sequence.computed = cached;
            sequence.published = found.len();
            sequence.blocks = found;
            if self.settings.prefix_caching && sequence.preemptions == 0 {
                self.counters.prefix_queries += u64::from(sequence.prompt_len);
                self.counters.prefix_hits += u64::from(cached);
            }
            self.reserve(slot, tokens);
            self.include(batch, slot, tokens);
            *budget -= tokens;
        }
    }
}
