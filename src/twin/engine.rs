//! The engine's state: requests waiting and running, their cache blocks, and what has been counted so far.
//!
//! Time is whatever the caller says it is: [`Engine::step`] at its start, [`Engine::finish`] at its end.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::batch::{Batch, Item};
use super::block::{BlockId, BlockPool};
use super::schedule_v0::Delay;
use super::sequence::{RequestId, Sequence};
use super::settings::{Policy, Settings, SettingsError};

/// A request that this engine can never serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    #[error("a prompt needs at least one token")]
    Empty,
    #[error("{prompt} prompt and {output} output tokens exceed max_model_len {max_model_len}")]
    TooLong { prompt: usize, output: u32, max_model_len: u32 },
    #[error("request {} is still in the engine", .0.0)]
    Duplicate(RequestId),
}

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: RequestId,
    /// Counted from 1 within its request.
    pub token: u32,
    /// Whether it is the request's last, after which the engine forgets the request.
    pub last: bool,
}

/// Totals since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub steps: u64,
    pub preemptions: u64,
    /// Of requests whose first token came.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the cache when a request was first admitted.
    pub prefix_hits: u64,
    /// Prompt tokens looked up when a request was first admitted.
    pub prefix_queries: u64,
    pub generated_tokens: u64,
    pub finished: u64,
    pub aborted: u64,
}

/// The scheduler and the paged cache, without a clock and without a device.
#[derive(Debug)]
pub struct Engine {
    pub(super) settings: Settings,
    pub(super) pool: BlockPool,
    // A slot is reused after its request has left.
    pub(super) sequences: Vec<Sequence>,
    vacant: Vec<usize>,
    slots: HashMap<RequestId, usize>,
    pub(super) waiting: VecDeque<usize>,
    pub(super) running: Vec<usize>,
    pub(super) counters: Counters,
    pub(super) delay: Delay,
}

impl Engine {
    /// # Errors
    /// When some request within `max_model_len` could never run with these settings.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self {
            pool: BlockPool::new(settings.num_blocks),
            settings,
            sequences: Vec::new(),
            vacant: Vec::new(),
            slots: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            counters: Counters::default(),
            delay: Delay::default(),
        })
    }

    /// Puts a request at the end of the queue. It will generate exactly `output_len` tokens, at least one.
    /// An id may be used again once its request has finished, but not after an abort.
    ///
    /// # Errors
    /// When the request does not fit into `max_model_len` or its id is in use.
    pub fn add(&mut self, id: RequestId, prompt: &[u32], output_len: u32, now: Duration) -> Result<(), AddError> {
        let max_model_len = self.settings.max_model_len;
        let output = output_len.max(1);
        if prompt.is_empty() {
            return Err(AddError::Empty);
        }
        if prompt.len() as u64 + u64::from(output) > u64::from(max_model_len) {
            return Err(AddError::TooLong { prompt: prompt.len(), output, max_model_len });
        }
        if self.slots.contains_key(&id) {
            return Err(AddError::Duplicate(id));
        }
        let mut sequence = Sequence::new(id, prompt, output, now);
        if self.settings.prefix_caching {
            sequence.hash_prompt(prompt, self.settings.block_size);
        }
        let slot = if let Some(slot) = self.vacant.pop() {
            self.sequences[slot] = sequence;
            slot
        } else {
            self.sequences.push(sequence);
            self.sequences.len() - 1
        };
        self.slots.insert(id, slot);
        self.waiting.push_back(slot);
        Ok(())
    }

    /// Removes a request at once; tokens of it that a step in progress computes are dropped. Costs O(requests).
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(slot) = self.slots.get(&id).copied() else { return false };
        self.waiting.retain(|waiting| *waiting != slot);
        self.running.retain(|running| *running != slot);
        self.remove(slot);
        self.counters.aborted += 1;
        true
    }

    /// Decides what the next step computes. `None` when there is nothing to do.
    pub fn step(&mut self, now: Duration) -> Option<Batch> {
        let batch = match self.settings.policy {
            Policy::V1 => self.step_v1(),
            Policy::V0 => self.step_v0(now),
        };
        (!batch.items.is_empty()).then(|| {
            self.counters.steps += 1;
            batch
        })
    }

    /// Ends a step: every request whose tokens are all computed has generated one more.
    pub fn finish(&mut self, batch: &Batch) -> Vec<Event> {
        let mut events = Vec::with_capacity(batch.items.len());
        let mut left = false;
        for item in &batch.items {
            let sequence = &mut self.sequences[item.slot];
            // Aborted in the meantime.
            if sequence.id != item.id || !sequence.running {
                continue;
            }
            sequence.computed += item.tokens;
            if sequence.pending() > 0 {
                continue;
            }
            if sequence.generated == 0 {
                self.counters.prompt_tokens += u64::from(sequence.prompt_len);
            }
            sequence.generated += 1;
            self.counters.generated_tokens += 1;
            let last = sequence.generated == sequence.output_len;
            events.push(Event { id: item.id, token: sequence.generated, last });
            if last {
                left = true;
                self.counters.finished += 1;
                self.remove(item.slot);
            }
        }
        if left {
            let sequences = &self.sequences;
            self.running.retain(|slot| sequences[*slot].running);
        }
        events
    }

    /// Forgets what is cached and not in use.
    pub fn reset_prefix_cache(&mut self) {
        self.pool.forget();
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Share of the blocks that are in use, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        1.0 - f64::from(self.pool.unused()) / f64::from(self.pool.capacity())
    }

    /// Makes sure that the next `tokens` of a running request have blocks. False, and nothing changes, when too few
    /// are left.
    pub(super) fn reserve(&mut self, slot: usize, tokens: u32) -> bool {
        let sequence = &mut self.sequences[slot];
        let end = sequence.computed + tokens;
        let wanted = end.div_ceil(self.settings.block_size) as usize;
        let missing = wanted.saturating_sub(sequence.blocks.len());
        if missing > self.pool.unused() as usize {
            return false;
        }
        sequence.blocks.extend((0..missing).filter_map(|_| self.pool.take()));
        if self.settings.prefix_caching {
            // As in vLLM, full blocks can be found before their step has ended.
            let full = (end / self.settings.block_size) as usize;
            for block in sequence.published..full {
                let hash = sequence.hash(block);
                self.pool.publish(sequence.blocks[block], hash);
            }
            sequence.published = sequence.published.max(full);
        }
        true
    }

    /// The blocks that already hold the beginning of this request. At least one token is left to compute.
    pub(super) fn cached(&mut self, slot: usize) -> Vec<BlockId> {
        if !self.settings.prefix_caching {
            return Vec::new();
        }
        let sequence = &mut self.sequences[slot];
        let most = ((sequence.len() - 1) / self.settings.block_size) as usize;
        (0..most).map_while(|block| self.pool.find(sequence.hash(block))).collect()
    }

    /// Adds a request with reserved blocks to the batch.
    pub(super) fn include(&self, batch: &mut Batch, slot: usize, tokens: u32) {
        let sequence = &self.sequences[slot];
        let decode = sequence.generated > 0 && sequence.pending() == 1;
        let samples = sequence.pending() == tokens;
        let item = Item { id: sequence.id, tokens, context: sequence.computed, slot };
        batch.push(item, decode, samples, sequence.blocks.len());
    }

    /// Sends a request back to the head of the queue; all of it will be computed again.
    pub(super) fn preempt(&mut self, slot: usize) {
        self.release(slot);
        let sequence = &mut self.sequences[slot];
        sequence.computed = 0;
        sequence.preemptions += 1;
        self.counters.preemptions += 1;
        self.waiting.push_front(slot);
    }

    fn remove(&mut self, slot: usize) {
        self.release(slot);
        self.slots.remove(&self.sequences[slot].id);
        self.vacant.push(slot);
    }

    fn release(&mut self, slot: usize) {
        let sequence = &mut self.sequences[slot];
        sequence.running = false;
        sequence.published = 0;
        // The end goes first, so that beginnings, which others may share, stay findable for longer.
        for block in std::mem::take(&mut sequence.blocks).into_iter().rev() {
            self.pool.release(block);
        }
    }
}
