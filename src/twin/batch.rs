//! The batch of one step, and the sums over it that determine the step's duration.

use super::sequence::RequestId;

/// One request's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub id: RequestId,
    /// Number of tokens that the step computes.
    pub tokens: u32,
    /// Number of this request's tokens that were in the cache before.
    pub context: u32,
    /// Number of drafts among `tokens`, which the step verifies.
    pub drafts: u32,
    /// Whether the step generates a token of this request.
    pub samples: bool,
    /// Whether the drafts are only padding and none is accepted.
    pub(super) padded: bool,
    pub(super) slot: usize,
    /// The request's serial. It differs from those of other requests with the same id or slot.
    pub(super) serial: u64,
}

/// The requests of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub items: Vec<Item>,
    pub work: BatchWork,
}

/// The sums over a batch that the step time depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchWork {
    pub sequences: u32,
    /// Number of computed tokens, of prompts and decodes.
    pub tokens: u32,
    /// Part of `tokens` that belongs to prompts, or to tokens that are computed again after a preemption.
    pub prompt_tokens: u32,
    /// Number of sequences for which the step samples a token.
    pub samples: u32,
    /// Number of sequences that compute only their newest token and its drafts.
    pub decodes: u32,
    /// Number of tokens in the cache that decodes read, their own new ones included.
    pub decode_context: u64,
    /// The same for the decode with the longest context.
    pub decode_longest: u32,
    /// Number of tokens in the cache that prompt pieces read.
    pub prompt_context: u64,
    /// Number of pairs of a prompt token and a token that it attends to.
    pub prompt_pairs: u64,
    /// Number of drafts among `tokens`. Each also needs the output head for its verification.
    pub drafts: u32,
    /// Number of cache blocks in the block tables of the batch.
    pub blocks: u64,
}

impl Batch {
    pub(super) fn push(&mut self, item: Item, decode: bool, samples: bool, blocks: usize) {
        let (tokens, context) = (u64::from(item.tokens), u64::from(item.context));
        let work = &mut self.work;
        work.sequences += 1;
        work.tokens += item.tokens;
        work.samples += u32::from(samples);
        work.drafts += item.drafts;
        work.blocks += blocks as u64;
        if decode {
            work.decodes += 1;
            work.decode_context += context + tokens;
            work.decode_longest = work.decode_longest.max(item.context + item.tokens);
        } else {
            work.prompt_tokens += item.tokens;
            work.prompt_context += context;
            work.prompt_pairs += tokens * context + tokens * (tokens + 1) / 2;
        }
        self.items.push(item);
    }
}
