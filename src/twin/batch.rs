//! The work of one step, and its sums that determine the step's duration.

use super::sequence::RequestId;

/// One request's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub id: RequestId,
    /// Tokens computed in this step.
    pub tokens: u32,
    /// Tokens of this request that were in the cache before.
    pub context: u32,
    /// Drafts among `tokens` that the step verifies.
    pub drafts: u32,
    /// Whether the step generates a token of this request.
    pub samples: bool,
    /// Whether the drafts only fill the batch up, and none is accepted.
    pub(super) padded: bool,
    pub(super) slot: usize,
    /// Distinguishes the request from others that have used its id or its slot.
    pub(super) serial: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub items: Vec<Item>,
    pub work: BatchWork,
}

/// The sums over a batch that the step time depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchWork {
    pub sequences: u32,
    /// All tokens computed, prompt and decode.
    pub tokens: u32,
    pub prompt_tokens: u32,
    /// Sequences for which a next token is sampled.
    pub samples: u32,
    /// Sequences that are past their prompt.
    pub decodes: u32,
    /// Cached tokens that decodes read.
    pub decode_context: u64,
    /// Cached tokens that the longest decode reads.
    pub decode_longest: u32,
    /// Cached tokens that prompt pieces read.
    pub prompt_context: u64,
    /// Pairs of a prompt token and a token that it attends to.
    pub prompt_pairs: u64,
    /// Drafts among `tokens`. Each is verified, and the output head is computed for it as well.
    pub drafts: u32,
    /// Blocks of the cache that the batch refers to.
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
