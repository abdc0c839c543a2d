//! One request inside the engine: its computed tokens and its blocks.

use std::time::Duration;

use super::block::BlockId;

/// An identifier that the caller chooses, unique among the requests that are not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The state of one request.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: RequestId,
    /// Number of the request, counted from 1 in the order of arrival. It is never reused.
    pub(super) serial: u64,
    pub(super) arrived: Duration,
    pub(super) priority: i32,
    pub(super) prompt_len: u32,
    /// Number of tokens after which it ends.
    pub(super) output_len: u32,
    /// The limit of output tokens that the scheduler knows. At least `output_len`.
    pub(super) max_output: u32,
    pub(super) generated: u32,
    /// Part of `generated` that was sent to the client.
    pub(super) sent: u32,
    /// Number of tokens whose keys and values will be in the cache when the steps under way have ended.
    pub(super) computed: u32,
    /// Largest number of tokens that steps under way can generate. Only with asynchronous scheduling.
    pub(super) placeholders: u32,
    /// Number of tokens that steps under way compute.
    pub(super) in_flight: u32,
    /// Part of `in_flight` that was scheduled before a preemption. These steps still generate tokens, but their keys
    /// and values are lost.
    pub(super) stale: u32,
    /// Number of drafts that the next decode verifies.
    pub(super) drafts: u32,
    /// Whether a part of the prompt, or of the tokens lost by a preemption, is left after its last step.
    pub(super) prefilling: bool,
    /// The first round of the scheduler that may contain its next decode. Only with asynchronous scheduling of a
    /// pipeline.
    pub(super) eligible_round: u64,
    pub(super) blocks: Vec<BlockId>,
    /// The number of `blocks` that other requests can find.
    pub(super) published: usize,
    /// Hashes of the full blocks from the first block on. Empty without prefix caching.
    hashes: Vec<u64>,
    pub(super) preemptions: u32,
    /// Part of `preemptions` that was before its newest token.
    pub(super) reported_preemptions: u32,
    /// Number of prompt tokens that were cached when it was first admitted.
    pub(super) cached: u32,
    pub(super) running: bool,
    /// The ticket of its valid entry in the queue; 0 without an entry.
    pub(super) ticket: u64,
}

impl Sequence {
    pub(super) fn new(id: RequestId, serial: u64, prompt_len: u32, output_len: u32, arrived: Duration) -> Self {
        Self {
            id,
            serial,
            arrived,
            priority: 0,
            prompt_len,
            output_len,
            max_output: output_len,
            generated: 0,
            sent: 0,
            computed: 0,
            placeholders: 0,
            in_flight: 0,
            stale: 0,
            drafts: 0,
            prefilling: false,
            eligible_round: 0,
            blocks: Vec::new(),
            published: 0,
            hashes: Vec::new(),
            preemptions: 0,
            reported_preemptions: 0,
            cached: 0,
            running: false,
            ticket: 0,
        }
    }

    /// Computes the hashes of the prompt's full blocks. Each hash includes all blocks before it.
    pub(super) fn hash_prompt(&mut self, prompt: &[u32], block_size: u32) {
        let mut hash = 0;
        self.hashes = prompt
            .chunks_exact(block_size as usize)
            .map(|block| {
                hash = block.iter().fold(hash, |hash, token| mix(hash, u64::from(*token)));
                hash
            })
            .collect();
    }

    /// Returns the hash of a full block. Blocks with generated tokens get a hash unique to this request, so only this
    /// request finds them again after a preemption.
    pub(super) fn hash(&mut self, block: usize) -> u64 {
        while self.hashes.len() <= block {
            let previous = self.hashes.last().copied().unwrap_or(0);
            self.hashes.push(mix(mix(previous, self.serial), !0));
        }
        self.hashes[block]
    }

    /// Returns the number of tokens that exist so far.
    pub(super) fn len(&self) -> u32 {
        self.prompt_len + self.generated
    }

    /// Returns the number of tokens to schedule: of the prompt, generated tokens, placeholders, and drafts to verify.
    pub(super) fn pending(&self) -> u32 {
        // Without asynchronous scheduling, a pipeline has drafts under way that `computed` includes and that may be
        // rejected. The difference can then be negative.
        (self.len() + self.placeholders + self.drafts).saturating_sub(self.computed)
    }
}

/// Combines two numbers with the finalizer of `SplitMix64`. It is fast, and the result is the same on every machine.
pub(super) fn mix(hash: u64, value: u64) -> u64 {
    let mut z = hash.wrapping_add(value.wrapping_mul(2).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(id: u64, prompt: &[u32], count: usize) -> Vec<u64> {
        let len = u32::try_from(prompt.len()).unwrap();
        let mut sequence = Sequence::new(RequestId(0), id, len, 8, Duration::ZERO);
        sequence.hash_prompt(prompt, 2);
        (0..count).map(|block| sequence.hash(block)).collect()
    }

    #[test]
    fn equal_prefixes_hash_alike_and_what_follows_a_difference_does_not() {
        let (a, b) = (hashes(1, &[1, 2, 3, 4, 5], 4), hashes(2, &[1, 2, 9, 4, 5], 4));
        assert_eq!(a[0], b[0]);
        assert!(a[1..].iter().zip(&b[1..]).all(|(a, b)| a != b));
        assert_eq!(hashes(1, &[1, 2, 3, 4, 5], 4), a);
        assert_ne!(hashes(3, &[1, 2, 3, 4, 5], 4)[2], a[2], "generated tokens belong to one request");
    }
}
