//! The paged KV cache: blocks with reference counts, indexed by the hash of their contents.
//!
//! The contents of an unused block can be found until its space is needed. Blocks without findable contents are taken
//! first, then the block that has been unused for longest (`BlockPool.free_blocks` of vLLM's `v1/core/block_pool.py`).
//! Every operation costs O(1).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

pub(super) type BlockId = u32;

/// No block, as the end of a list.
const NONE: BlockId = BlockId::MAX;

#[derive(Debug)]
struct Block {
    /// Number of running requests that use it.
    users: u32,
    /// Hash of the tokens in this block and of all tokens before it in its sequence. It is set when the block is
    /// published.
    hash: Option<u64>,
    // Neighbours in the list of unused blocks.
    previous: BlockId,
    next: BlockId,
}

type Map<V> = HashMap<u64, V, BuildHasherDefault<IdentityHasher>>;

/// Hasher for keys that are hashes already.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// All blocks of one engine's cache.
#[derive(Debug)]
pub(super) struct BlockPool {
    capacity: u32,
    // Grows on first use: vLLM hands out blocks that were never used before it reclaims others.
    blocks: Vec<Block>,
    /// The block that is found for each hash.
    by_hash: Map<BlockId>,
    /// Further blocks with the same hash as the one in `by_hash`, in the order of their publication.
    duplicates: Map<Vec<BlockId>>,
    /// Unused blocks without findable contents.
    empty: Vec<BlockId>,
    /// Ends of the list of unused blocks with findable contents.
    oldest: BlockId,
    newest: BlockId,
    unused: u32,
}

impl BlockPool {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            blocks: Vec::new(),
            by_hash: Map::default(),
            duplicates: Map::default(),
            empty: Vec::new(),
            oldest: NONE,
            newest: NONE,
            unused: capacity,
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of blocks that can be handed out, findable ones included.
    pub(super) fn unused(&self) -> u32 {
        self.unused
    }

    /// Takes an empty block for one user. `None` if all are in use.
    pub(super) fn take(&mut self) -> Option<BlockId> {
        if let Some(id) = self.empty.pop() {
            self.blocks[id as usize].users = 1;
            self.unused -= 1;
            return Some(id);
        }
        let fresh = u32::try_from(self.blocks.len()).unwrap_or(NONE);
        if fresh < self.capacity {
            self.blocks.push(Block { users: 1, hash: None, previous: NONE, next: NONE });
            self.unused -= 1;
            return Some(fresh);
        }
        let id = self.oldest;
        if id == NONE {
            return None;
        }
        self.unlink(id);
        let block = &mut self.blocks[id as usize];
        block.users = 1;
        if let Some(hash) = block.hash.take() {
            self.unpublish(id, hash);
        }
        Some(id)
    }

    /// Returns the block whose contents have this hash, in use or not.
    pub(super) fn find(&self, hash: u64) -> Option<BlockId> {
        self.by_hash.get(&hash).copied()
    }

    pub(super) fn is_unused(&self, id: BlockId) -> bool {
        self.blocks[id as usize].users == 0
    }

    /// Adds a user to a block that was found.
    pub(super) fn share(&mut self, id: BlockId) {
        if self.is_unused(id) {
            // Only blocks with a hash are found, and these are in the list while unused.
            self.unlink(id);
        }
        self.blocks[id as usize].users += 1;
    }

    /// Adds a full block to the index. Among blocks with equal contents, the first one is found until it is reclaimed.
    pub(super) fn publish(&mut self, id: BlockId, hash: u64) {
        let block = &mut self.blocks[id as usize];
        if block.hash.is_some() {
            return;
        }
        block.hash = Some(hash);
        match self.by_hash.entry(hash) {
            Entry::Occupied(_) => self.duplicates.entry(hash).or_default().push(id),
            Entry::Vacant(vacant) => _ = vacant.insert(id),
        }
    }

    /// Removes a block from the index, because it loses these contents.
    fn unpublish(&mut self, id: BlockId, hash: u64) {
        let first = self.by_hash.get(&hash) == Some(&id);
        let Some(twins) = self.duplicates.get_mut(&hash) else {
            self.by_hash.remove(&hash);
            return;
        };
        if first {
            self.by_hash.insert(hash, twins.remove(0));
        } else {
            twins.retain(|twin| *twin != id);
        }
        if twins.is_empty() {
            self.duplicates.remove(&hash);
        }
    }

    /// Removes a user. A block without users becomes the newest unused block.
    pub(super) fn release(&mut self, id: BlockId) {
        let newest = self.newest;
        let block = &mut self.blocks[id as usize];
        block.users -= 1;
        if block.users > 0 {
            return;
        }
        self.unused += 1;
        if block.hash.is_none() {
            self.empty.push(id);
            return;
        }
        (block.previous, block.next) = (newest, NONE);
        match newest {
            NONE => self.oldest = id,
            newest => self.blocks[newest as usize].next = id,
        }
        self.newest = id;
    }

    /// Forgets the contents of all unused blocks.
    pub(super) fn forget_contents(&mut self) {
        // The blocks stay in the list of findable ones. This only changes the order of their reuse.
        let mut id = self.oldest;
        while id != NONE {
            let next = self.blocks[id as usize].next;
            if let Some(hash) = self.blocks[id as usize].hash.take() {
                self.unpublish(id, hash);
            }
            id = next;
        }
    }

    /// Removes a block from the list of unused blocks with findable contents.
    fn unlink(&mut self, id: BlockId) {
        let Block { previous, next, .. } = self.blocks[id as usize];
        match previous {
            NONE => self.oldest = next,
            previous => self.blocks[previous as usize].next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.blocks[next as usize].previous = previous,
        }
        self.unused -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_block_is_found_again_until_the_space_is_needed() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!(pool.take(), None);
        pool.publish(a, 7);
        pool.publish(b, 8);
        pool.release(a);
        pool.release(b);
        assert_eq!((pool.find(7), pool.unused()), (Some(a), 2));
        assert_eq!(pool.take(), Some(a), "the one unused for longest");
        assert_eq!((pool.find(7), pool.find(8)), (None, Some(b)));
        pool.share(b);
        assert_eq!(pool.unused(), 0);
        pool.release(b);
        pool.forget_contents();
        assert_eq!((pool.find(8), pool.unused()), (None, 1));
    }

    #[test]
    fn sharing_from_the_middle_keeps_the_list_whole() {
        let mut pool = BlockPool::new(3);
        let ids: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        for id in &ids {
            pool.publish(*id, u64::from(*id));
            pool.release(*id);
        }
        pool.share(ids[1]);
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some(ids[0]), Some(ids[2]), None));
    }

    #[test]
    fn blocks_without_content_are_taken_before_unused_and_before_cached_ones() {
        let mut pool = BlockPool::new(3);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        pool.publish(a, 7);
        pool.release(a);
        pool.release(b);
        assert_eq!((pool.take(), pool.take(), pool.find(7)), (Some(b), Some(2), Some(a)));
        assert_eq!((pool.take(), pool.find(7)), (Some(a), None));
    }

    #[test]
    fn a_second_copy_is_found_once_the_first_is_gone() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        pool.publish(a, 7);
        pool.publish(b, 7);
        pool.release(a);
        assert_eq!(pool.find(7), Some(a));
        assert_eq!((pool.take(), pool.find(7)), (Some(a), Some(b)));
        pool.release(b);
        assert_eq!((pool.take(), pool.find(7)), (Some(b), None));
    }
}
