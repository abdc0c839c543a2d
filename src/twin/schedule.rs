//! V1's scheduler: one token budget per step, for running requests first and then for waiting ones.
//!
//! It follows `Scheduler.schedule` of vLLM 0.32's `v1/core/sched/scheduler.py` and `KVCacheManager.allocate_slots` of
//! `v1/core/kv_cache_manager.py`, for text models with one kind of attention and without connectors to other caches.

use super::batch::Batch;
use super::engine::{TwinEngine, WaitReason};
use super::settings::QueueOrder;
use crate::stats::f64_to_usize;

/// The remaining capacity of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepBudget {
    /// Number of tokens that may still be scheduled.
    pub(super) tokens: u32,
    /// Number of inputs that still fit into the worker's buffers, including those of the drafter.
    pub(super) inputs: u32,
    /// Number of inputs that the drafter adds per request.
    pub(super) draft_slots: u32,
    /// Largest number of tokens of one request.
    pub(super) piece: u32,
}

impl StepBudget {
    /// Returns the number of tokens that one more request may have, 0 if the step is full.
    fn room(&self) -> u32 {
        self.tokens.min(self.inputs.saturating_sub(self.draft_slots)).min(self.piece)
    }

    fn take(&mut self, tokens: u32) {
        self.tokens -= tokens;
        self.inputs -= tokens + self.draft_slots;
    }

    fn restore(&mut self, tokens: u32) {
        self.tokens += tokens;
        self.inputs += tokens + self.draft_slots;
    }
}

/// The conditions of an admission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// Number of blocks that stay unused while other requests run.
    pub(super) watermark: usize,
    /// Whether the free blocks must hold all existing tokens of a request, not only its first piece.
    pub(super) requires_all_blocks: bool,
}

impl TwinEngine {
    /// Schedules one step, possibly an empty one.
    pub(super) fn step_v1(&mut self) -> Batch {
        let mut batch = Batch::default();
        batch.items.reserve(self.running.len() + 1);
        let mut budget = self.budget();
        // After a preemption no request is admitted, because the free blocks are for the preempted requests.
        if self.continue_running(&mut batch, &mut budget) {
            let scheduling = &self.settings.scheduling;
            // The watermark is a share of all blocks, including the one that the engine keeps to itself.
            let blocks = f64::from(self.pool.capacity()) + 1.0;
            let watermark = f64_to_usize(scheduling.watermark * blocks);
            let admission = Admission { watermark, requires_all_blocks: scheduling.reserve_full_isl };
            self.admit(&mut batch, &mut budget, admission);
        } else {
            self.wait_reason = Some(WaitReason::Blocks);
        }
        batch
    }

    pub(super) fn budget(&self) -> StepBudget {
        let (settings, scheduling) = (&self.settings, &self.settings.scheduling);
        let inputs = settings.max_num_batched_tokens();
        // A single request delays no other and has no limit.
        let requests = u32::try_from(self.running.len() + self.waiting.len()).unwrap_or(u32::MAX);
        let piece = match scheduling.long_prefill_token_threshold {
            0 => u32::MAX,
            _ if requests <= 1 => u32::MAX,
            threshold if scheduling.long_prefill_adaptive => threshold.max(inputs / requests),
            threshold => threshold,
        };
        StepBudget {
            tokens: scheduling.max_num_scheduled_tokens.map_or(inputs, |most| most.min(inputs)),
            inputs,
            draft_slots: scheduling.speculation.map_or(0, |speculation| speculation.draft_slots),
            piece,
        }
    }

    /// Continues running requests in the order of their admission. If blocks run out, the last request of the
    /// scheduling order is preempted, which can be the one that needs blocks. Returns whether no request was preempted.
    pub(super) fn continue_running(&mut self, batch: &mut Batch, budget: &mut StepBudget) -> bool {
        let before = self.counters.preemptions;
        let mut next = 0;
        while next < self.running.len() && budget.room() > 0 {
            let slot = self.running[next];
            let tokens = self.continuation(slot).min(budget.room());
            if tokens == 0 {
                next += 1;
                continue;
            }
            let mut fits = self.reserve(slot, tokens);
            while !fits {
                let victim = self.victim();
                let preempted = self.running.remove(victim);
                if victim < next {
                    // The victim is already in the batch. This only happens with priorities.
                    next -= 1;
                    budget.restore(self.exclude(batch, preempted));
                }
                self.preempt(preempted);
                if preempted == slot {
                    break;
                }
                fits = self.reserve(slot, tokens);
            }
            if !fits {
                break;
            }
            self.add_to_batch(batch, slot, tokens);
            budget.take(tokens);
            next += 1;
        }
        self.counters.preemptions == before
    }

    /// Returns the number of tokens that a running request has to schedule, without regard to the budget.
    fn continuation(&self, slot: usize) -> u32 {
        let sequence = &self.sequences[slot];
        // The steps under way generate the last token even if all of their drafts are rejected.
        let certain = sequence.computed + 2 - sequence.placeholders;
        if sequence.placeholders > 0 && certain >= sequence.prompt_len + sequence.max_output {
            return 0;
        }
        // In a pipeline, the next decode has to wait for steps of other requests.
        if self.round < sequence.eligible_round {
            return 0;
        }
        // The last token is generated, but its keys and values are never computed.
        sequence.pending().min(self.settings.max_model_len() - 1 - sequence.computed)
    }

    /// Returns the index in `running` of the next request to preempt.
    fn victim(&self) -> usize {
        let last = self.running.len() - 1;
        if self.settings.scheduling.order == QueueOrder::Arrival {
            return last;
        }
        let key = |at: usize| {
            let sequence = &self.sequences[self.running[at]];
            (sequence.priority, sequence.arrived)
        };
        // Among equals, the request admitted first, like Python's `max`.
        (0..last).rev().fold(last, |worst, at| if key(at) >= key(worst) { at } else { worst })
    }

    /// Removes a request from the batch and returns its number of tokens, 0 if it is not in the batch.
    fn exclude(&self, batch: &mut Batch, slot: usize) -> u32 {
        let items = std::mem::take(batch).items;
        let mut tokens = 0;
        for item in items {
            if item.slot == slot {
                tokens = item.tokens;
            } else {
                self.add_to_batch(batch, item.slot, item.tokens);
            }
        }
        tokens
    }

    /// Admits requests from the head of the queue while budget, sequences and blocks last.
    pub(super) fn admit(&mut self, batch: &mut Batch, budget: &mut StepBudget, admission: Admission) {
        let mut skipped = Vec::new();
        let pads = self.needs_padding(batch);
        let continued = !batch.items.is_empty();
        while budget.room() > 0 && self.running.len() < self.settings.max_running() {
            let Some(slot) = self.waiting.first(&self.sequences) else { break };
            // A step from before its preemption is still under way and will generate a token. If admitted now, the
            // request would generate that token twice.
            if self.sequences[slot].stale > 0 {
                skipped.extend(self.waiting.pop(&mut self.sequences));
                continue;
            }
            let found = self.find_cached(slot);
            let padded = pads && (continued || !found.is_empty()) && self.is_decode(slot, &found);
            let tokens = self.first_piece(slot, &found, budget, admission, padded);
            if tokens > 0 {
                self.waiting.pop(&mut self.sequences);
                self.start_running(slot, &found, tokens);
                self.add_to_batch(batch, slot, tokens);
                if let Some(item) = batch.items.last_mut() {
                    item.padded = padded;
                }
                budget.take(tokens);
            }
            self.give_back(found);
            if tokens == 0 {
                break;
            }
        }
        self.wait_reason = Some(self.admission_obstacle(budget, !skipped.is_empty()));
        for slot in skipped.into_iter().rev() {
            self.waiting.push_front(slot, &mut self.sequences);
        }
    }

    /// Returns the reason why the admission ended. It is meaningful only if a request still waits.
    fn admission_obstacle(&mut self, budget: &StepBudget, skipped: bool) -> WaitReason {
        if self.running.len() >= self.settings.max_running() {
            return WaitReason::Sequences;
        }
        let Some(slot) = self.waiting.first(&self.sequences) else { return WaitReason::Delay };
        let unsplit = || !self.settings.resolved.chunked_prefill && self.sequences[slot].len() > budget.room();
        match budget.room() {
            0 => WaitReason::Budget,
            _ if skipped => WaitReason::Delay,
            _ if unsplit() => WaitReason::Budget,
            _ => WaitReason::Blocks,
        }
    }

    /// Returns whether requests that are admitted with a single token left get padding drafts. A batch of decodes then
    /// has equal numbers of tokens per request.
    fn needs_padding(&self, batch: &Batch) -> bool {
        let prefills = || batch.items.iter().any(|item| self.sequences[item.slot].prefilling);
        self.settings.scheduling.speculation.is_some_and(|speculation| speculation.tokens > 0) && !prefills()
    }

    /// Returns whether all tokens of a request except one are cached, and drafts behind it stay within `max_model_len`.
    fn is_decode(&self, slot: usize, found: &[u32]) -> bool {
        let cached = self.tokens_of(found);
        let drafts = self.settings.scheduling.speculation.map_or(0, |speculation| speculation.tokens);
        self.sequences[slot].len() - cached == 1 && cached + drafts + 2 <= self.settings.max_model_len()
    }

    /// Returns the number of tokens that a waiting request can schedule now, 0 if it has to wait. `found` contains the
    /// blocks of its cached beginning.
    fn first_piece(&self, slot: usize, found: &[u32], budget: &StepBudget, admission: Admission, padded: bool) -> u32 {
        let sequence = &self.sequences[slot];
        let cached = self.tokens_of(found);
        let drafts =
            self.settings.scheduling.speculation.filter(|_| padded).map_or(0, |speculation| speculation.tokens);
        let wanted = (sequence.len() - cached + drafts).min(budget.piece);
        // Without chunked prefill a prompt is scheduled whole or not at all, and so are padding drafts.
        if wanted > budget.room() && (padded || !self.settings.resolved.chunked_prefill) {
            return 0;
        }
        let tokens = wanted.min(budget.room());
        // Found blocks without users become used, so they reduce the number of unused blocks.
        let revived = found.iter().filter(|block| self.pool.is_unused(**block)).count();
        // A request that runs alone may use every block.
        let watermark = if self.running.is_empty() { 0 } else { admission.watermark };
        let unused = self.pool.unused() as usize;
        let fits = |blocks: usize| blocks.saturating_sub(found.len()) + revived + watermark <= unused;
        let whole = sequence.len().div_ceil(self.settings.block_size()) as usize;
        if (admission.requires_all_blocks && !fits(whole)) || !fits(self.blocks_until(cached + tokens)) {
            return 0;
        }
        tokens
    }

    /// Returns the number of tokens in these blocks.
    fn tokens_of(&self, found: &[u32]) -> u32 {
        u32::try_from(found.len()).unwrap_or(u32::MAX).saturating_mul(self.settings.block_size())
    }

    /// Adds a request to `running` and gives it its first blocks.
    fn start_running(&mut self, slot: usize, found: &[u32], tokens: u32) {
        let cached = self.tokens_of(found);
        self.running.push(slot);
        for block in found {
            self.pool.share(*block);
        }
        let sequence = &mut self.sequences[slot];
        sequence.running = true;
        sequence.computed = cached;
        sequence.published = found.len();
        sequence.blocks.extend_from_slice(found);
        if sequence.preemptions == 0 {
            sequence.cached = cached;
            if self.settings.resolved.prefix_caching {
                self.counters.prefix_queries += u64::from(sequence.prompt_len);
                self.counters.prefix_hits += u64::from(cached);
            }
        }
        self.reserve(slot, tokens);
    }
}
