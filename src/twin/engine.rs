//! The engine's state: waiting and running requests, their cache blocks, and counters.
//!
//! The engine has no clock: the caller passes the start of a step to [`TwinEngine::step`], and ends it with
//! [`TwinEngine::finish`]. Steps end in the order of their begin. At most
//! [`Scheduling::concurrent_steps`](super::Scheduling::concurrent_steps) of them may be under way.

use std::collections::HashMap;
use std::time::Duration;

use super::ask::{AddError, Tokens, TwinRequest};
use super::batch::{Batch, Item};
use super::block::{BlockId, BlockPool};
use super::queue::Queue;
use super::schedule_v0::PromptDelay;
use super::sequence::{RequestId, Sequence};
use super::settings::{LiveLimits, QueueOrder, Settings, SettingsError};

/// Output of one step for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepEvent {
    pub id: RequestId,
    /// Index of the newest token, counted from 1 within its request.
    pub token: u32,
    /// Number of tokens that the step generated: 1, or more if drafts were accepted.
    pub tokens: u32,
    /// Number of tokens that are sent to the client now; 0 while the stream interval holds them back.
    pub sent: u32,
    /// Whether this is the request's last token. The engine then removes the request.
    pub last: bool,
}

/// Totals since the engine was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub steps: u64,
    pub preemptions: u64,
    /// Reported preemptions: those after which the request has generated a token. vLLM reports a preemption with the
    /// next output of the request (`update_from_events` of `v1/metrics/stats.py`).
    pub reported_preemptions: u64,
    /// Prompt tokens of requests whose first token was generated.
    pub prompt_tokens: u64,
    /// Part of `prompt_tokens` that was in the cache when the request was first admitted.
    pub cached_tokens: u64,
    /// Prompt tokens found in the cache when a request was first admitted.
    pub prefix_hits: u64,
    /// Prompt tokens looked up when a request was first admitted.
    pub prefix_queries: u64,
    pub generated_tokens: u64,
    /// Number of verifications: one per request and step with drafts. `draft_tokens` counts the verified drafts.
    pub drafts: u64,
    pub draft_tokens: u64,
    pub accepted_tokens: u64,
    pub finished: u64,
    pub aborted: u64,
}

/// The reason why the first waiting request is not in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// The allowed number of requests is running (`max-num-seqs`).
    Sequences,
    /// Too few blocks of the cache are free, or a request was preempted in this step.
    Blocks,
    /// The step's tokens are used up (`max-num-batched-tokens`).
    Budget,
    /// V0 delays prompts in favour of decodes (`scheduler-delay-factor`). Or a step from before the request's
    /// preemption must end first.
    Delay,
}

/// The scheduler and the paged cache, without a clock and without a device.
#[derive(Debug)]
pub struct TwinEngine {
    pub(super) settings: Settings,
    pub(super) pool: BlockPool,
    // Requests by slot. A slot is reused after its request has left.
    pub(super) sequences: Vec<Sequence>,
    /// Slots that can be reused.
    vacant: Vec<usize>,
    slots: HashMap<RequestId, usize>,
    /// Number of requests so far. It is the serial of the newest one.
    serials: u64,
    pub(super) waiting: Queue,
    /// Slots of running requests, in the order of admission.
    pub(super) running: Vec<usize>,
    /// Number of requests in `running` that were aborted since the last step.
    aborted_running: usize,
    /// Number of scheduled batches, empty ones included.
    pub(super) round: u64,
    /// Number of steps that have not ended.
    pub(super) under_way: usize,
    pub(super) counters: Counters,
    /// Number of accepted drafts for each position among the drafts of a request and step.
    pub(super) accepted_by_position: Vec<u64>,
    /// State of `scheduler-delay-factor`; V0 only.
    pub(super) delay: PromptDelay,
    /// Why the last step did not admit the first waiting request.
    pub(super) wait_reason: Option<WaitReason>,
    /// Buffer of `cached`, reused between admissions.
    found: Vec<BlockId>,
}

impl TwinEngine {
    /// # Errors
    /// If some request within `max_model_len` could never run with these settings, or a setting is out of range.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let drafts = settings.scheduling.speculation.map_or(0, |speculation| speculation.tokens as usize);
        let order = if settings.resolved.v0 { QueueOrder::Arrival } else { settings.scheduling.order };
        Ok(Self {
            pool: BlockPool::new(settings.num_blocks),
            settings,
            sequences: Vec::new(),
            vacant: Vec::new(),
            slots: HashMap::new(),
            serials: 0,
            waiting: Queue::new(order),
            running: Vec::new(),
            aborted_running: 0,
            round: 0,
            under_way: 0,
            counters: Counters::default(),
            accepted_by_position: vec![0; drafts],
            delay: PromptDelay::default(),
            wait_reason: None,
            found: Vec::new(),
        })
    }

    /// Puts a request into the queue. It will generate exactly `output_len` tokens, at least one. An id may be used
    /// again once its request has ended.
    ///
    /// # Errors
    /// If the request does not fit into `max_model_len` or its id is in use.
    pub fn add(&mut self, id: RequestId, prompt: &[u32], output_len: u32, now: Duration) -> Result<(), AddError> {
        let prompt = Tokens::Ids(prompt.into());
        self.enqueue(&TwinRequest { id, prompt, output_len, most_output: None, priority: 0 }, now)
    }

    /// Like [`TwinEngine::add`], with all properties of a request.
    ///
    /// # Errors
    /// The same as those of [`TwinEngine::add`].
    pub fn enqueue(&mut self, ask: &TwinRequest<'_>, now: Duration) -> Result<(), AddError> {
        let max_model_len = self.settings.max_model_len();
        let (id, output) = (ask.id, ask.output_len.max(1));
        let prompt = ask.prompt.len();
        if prompt == 0 {
            return Err(AddError::Empty);
        }
        if prompt as u64 + u64::from(output) > u64::from(max_model_len) {
            return Err(AddError::TooLong { prompt, output, max_model_len });
        }
        if self.slots.contains_key(&id) {
            return Err(AddError::Duplicate(id));
        }
        self.serials += 1;
        let prompt_len = u32::try_from(prompt).unwrap_or(u32::MAX);
        let mut sequence = Sequence::new(id, self.serials, prompt_len, output, now);
        sequence.priority = ask.priority;
        // vLLM limits the requested tokens to the rest of `max_model_len`.
        let most = ask.most_output.unwrap_or(output).min(max_model_len - prompt_len);
        sequence.max_output = most.max(output);
        if self.settings.resolved.prefix_caching
            && let Tokens::Ids(ids) = &ask.prompt
        {
            sequence.hash_prompt(ids, self.settings.block_size());
        }
        let slot = if let Some(slot) = self.vacant.pop() {
            self.sequences[slot] = sequence;
            slot
        } else {
            self.sequences.push(sequence);
            self.sequences.len() - 1
        };
        self.slots.insert(id, slot);
        self.waiting.push_back(slot, &mut self.sequences);
        Ok(())
    }

    /// Removes a request at once, and returns whether it was present. Steps under way discard the tokens that they
    /// compute for it. The cost is O(1) amortized, plus the number of the request's blocks.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(slot) = self.slots.get(&id).copied() else { return false };
        self.aborted_running += usize::from(self.sequences[slot].running);
        self.remove(slot);
        self.counters.aborted += 1;
        true
    }

    /// Schedules the next step. Returns `None` if nothing can be scheduled, at least until a step under way has ended.
    pub fn step(&mut self, now: Duration) -> Option<Batch> {
        if self.aborted_running > 0 {
            self.remove_ended();
        }
        loop {
            self.round += 1;
            self.wait_reason = None;
            let before = self.counters.preemptions;
            let batch = if self.settings.resolved.v0 { self.step_v0(now) } else { self.step_v1() };
            if !batch.items.is_empty() {
                self.counters.steps += 1;
                self.under_way += 1;
                self.advance(&batch);
                return Some(batch);
            }
            // A request that preempts itself can leave the batch empty while others could run. If no step is under way,
            // none will end and call this again, so it schedules again at once.
            if self.under_way > 0 || self.counters.preemptions == before {
                return None;
            }
        }
    }

    /// Removes aborted and finished requests from the running ones.
    pub(super) fn remove_ended(&mut self) {
        let sequences = &self.sequences;
        self.running.retain(|slot| sequences[*slot].running);
        self.aborted_running = 0;
    }

    /// Prepares the requests of a scheduled step for the next one: `_update_after_schedule` of vLLM's
    /// `v1/core/sched/scheduler.py`, and of `async_scheduler.py` next to it.
    fn advance(&mut self, batch: &Batch) {
        let scheduling = &self.settings.scheduling;
        let drafts = scheduling.speculation.map_or(0, |speculation| speculation.tokens);
        for item in &batch.items {
            let sequence = &mut self.sequences[item.slot];
            sequence.computed += item.tokens;
            sequence.in_flight += item.tokens;
            sequence.drafts = 0;
            sequence.prefilling = !item.samples;
            if scheduling.async_scheduling && item.samples {
                sequence.placeholders += 1 + item.drafts;
                sequence.drafts = drafts;
                sequence.eligible_round = self.round + u64::from(scheduling.pipeline_stages);
            }
        }
    }

    /// Forgets the contents of all cache blocks that no request uses.
    pub fn reset_prefix_cache(&mut self) {
        self.pool.forget_contents();
    }

    /// Sets limits of the scheduler, and forgets the contents of the cache. No request is present.
    pub(crate) fn set_live_limits(&mut self, limits: LiveLimits) {
        self.settings.set_live_limits(limits);
        self.reset_prefix_cache();
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of accepted drafts for each position among the drafts of a request and step. Empty without
    /// speculation.
    #[must_use]
    pub fn accepted_by_position(&self) -> &[u64] {
        &self.accepted_by_position
    }

    /// Returns the number of running requests.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len() - self.aborted_running
    }

    /// Returns whether no request is running or waiting.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of waiting requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns why the last step did not admit the first waiting request. `None` if no request waits.
    #[must_use]
    pub fn wait_reason(&self) -> Option<WaitReason> {
        self.wait_reason.filter(|_| self.waiting() > 0)
    }

    /// Returns the share of the blocks that are in use, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        1.0 - f64::from(self.pool.unused()) / f64::from(self.pool.capacity())
    }

    /// Reserves blocks for the next `tokens` of a running request. If too few are left, it returns false and changes
    /// nothing.
    pub(super) fn reserve(&mut self, slot: usize, tokens: u32) -> bool {
        let wanted = self.blocks_until(self.sequences[slot].computed + tokens);
        let sequence = &mut self.sequences[slot];
        let missing = wanted.saturating_sub(sequence.blocks.len());
        if missing > self.pool.unused() as usize {
            return false;
        }
        sequence.blocks.extend((0..missing).filter_map(|_| self.pool.take()));
        if self.settings.resolved.prefix_caching {
            // As in vLLM, full blocks can be found before their step has ended. Drafts are excluded, because they may
            // be rejected.
            let known = (sequence.computed + tokens).min(sequence.len());
            self.publish(slot, known);
        }
        true
    }

    /// Returns the number of blocks for the first `tokens` of a request and for the drafter's lookahead behind them.
    pub(super) fn blocks_until(&self, tokens: u32) -> usize {
        let lookahead = self.settings.scheduling.speculation.map_or(0, |speculation| speculation.lookahead);
        (tokens + lookahead).min(self.settings.max_model_len()).div_ceil(self.settings.block_size()) as usize
    }

    /// Makes the full blocks among the first `tokens` of a request findable.
    pub(super) fn publish(&mut self, slot: usize, tokens: u32) {
        let sequence = &mut self.sequences[slot];
        let full = (tokens / self.settings.block_size()) as usize;
        for block in sequence.published..full {
            let hash = sequence.hash(block);
            self.pool.publish(sequence.blocks[block], hash);
        }
        sequence.published = sequence.published.max(full);
    }

    /// Returns the cached blocks that hold the beginning of this request. The block of its last token is never
    /// included, because at least that token has to be computed.
    pub(super) fn find_cached(&mut self, slot: usize) -> Vec<BlockId> {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        if self.settings.resolved.prefix_caching {
            let sequence = &mut self.sequences[slot];
            let most = ((sequence.len() - 1) / self.settings.block_size()) as usize;
            found.extend((0..most).map_while(|block| self.pool.find(sequence.hash(block))));
        }
        found
    }

    /// Returns a list of [`TwinEngine::cached`](Self::find_cached), so that its memory is reused.
    pub(super) fn give_back(&mut self, found: Vec<BlockId>) {
        self.found = found;
    }

    /// Adds a request with reserved blocks to the batch.
    pub(super) fn add_to_batch(&self, batch: &mut Batch, slot: usize, tokens: u32) {
        let sequence = &self.sequences[slot];
        let known = sequence.len() + sequence.placeholders;
        let end = sequence.computed + tokens;
        let drafts = end.saturating_sub(known);
        let decode = sequence.computed >= sequence.prompt_len && tokens == 1 + drafts;
        let samples = end >= known;
        let (id, serial, context) = (sequence.id, sequence.serial, sequence.computed);
        let item = Item { id, tokens, context, drafts, samples, padded: false, slot, serial };
        batch.push(item, decode, samples, sequence.blocks.len());
    }

    /// Releases the blocks of a request and puts it at the head of the queue. The caller has already removed it from
    /// `running`. All of its tokens will be computed again, but tokens that steps under way generate for it still
    /// count.
    pub(super) fn preempt(&mut self, slot: usize) {
        self.release(slot);
        let sequence = &mut self.sequences[slot];
        sequence.computed = 0;
        sequence.drafts = 0;
        sequence.placeholders = 0;
        sequence.stale = sequence.in_flight;
        sequence.preemptions += 1;
        self.counters.preemptions += 1;
        self.waiting.push_front(slot, &mut self.sequences);
    }

    /// Removes a request from the queue and the index, and frees its blocks and its slot. `running` is not changed.
    pub(super) fn remove(&mut self, slot: usize) {
        if self.sequences[slot].ticket != 0 {
            self.waiting.remove(slot, &mut self.sequences);
        }
        self.release(slot);
        let sequence = &mut self.sequences[slot];
        self.slots.remove(&sequence.id);
        // Steps under way compare serials, so they ignore this slot from now on.
        sequence.serial = 0;
        self.vacant.push(slot);
    }

    fn release(&mut self, slot: usize) {
        let sequence = &mut self.sequences[slot];
        sequence.running = false;
        sequence.published = 0;
        // The last blocks are released first, so they are reclaimed first. Other requests may share the first blocks.
        for block in std::mem::take(&mut sequence.blocks).into_iter().rev() {
            self.pool.release(block);
        }
    }
}
