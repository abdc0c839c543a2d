//! One request inside the engine: what of it is computed and which blocks it holds.

use std::time::Duration;

use super::block::BlockId;

/// Chosen by the caller, unique among the requests that are not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: RequestId,
    pub(super) arrived: Duration,
    pub(super) prompt_len: u32,
    pub(super) output_len: u32,
    pub(super) generated: u32,
    /// Tokens whose keys and values are in the cache.
    pub(super) computed: u32,
    pub(super) blocks: Vec<BlockId>,
    /// How many of `blocks` others can find.
    pub(super) published: usize,
    /// Of the full blocks from the first on; empty without prefix caching.
    hashes: Vec<u64>,
    pub(super) preemptions: u32,
    pub(super) running: bool,
}

impl Sequence {
    pub(super) fn new(id: RequestId, prompt: &[u32], output_len: u32, arrived: Duration) -> Self {
        let prompt_len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        Self {
            id,
            arrived,
            prompt_len,
            output_len,
            generated: 0,
            computed: 0,
            blocks: Vec::new(),
            published: 0,
            hashes: Vec::new(),
            preemptions: 0,
            running: false,
        }
    }

    /// Hashes the full blocks of the prompt, each together with all before it.
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

    /// The hash of a full block. Generated tokens are no other request's, but this one finds them again after a
    /// preemption.
    pub(super) fn hash(&mut self, block: usize) -> u64 {
        while self.hashes.len() <= block {
            let previous = self.hashes.last().copied().unwrap_or(0);
            self.hashes.push(mix(mix(previous, self.id.0), !0));
        }
        self.hashes[block]
    }

    /// Tokens that exist so far.
    pub(super) fn len(&self) -> u32 {
        self.prompt_len + self.generated
    }

    /// Tokens still to compute before the next one can be generated; 1 is a plain decode.
    pub(super) fn pending(&self) -> u32 {
        self.len() - self.computed
    }
}

/// The finalizer of `SplitMix64` over the sum: fast, and equal on every machine.
fn mix(hash: u64, value: u64) -> u64 {
    let mut z = hash.wrapping_add(value.wrapping_mul(2).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(id: u64, prompt: &[u32], count: usize) -> Vec<u64> {
        let mut sequence = Sequence::new(RequestId(id), prompt, 8, Duration::ZERO);
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
