//! The paged key/value cache: blocks with reference counts, found again by the hash of what they hold.
//!
//! A block that nobody uses stays findable until it is needed for something else; the one unused for longest goes
//! first. Every operation costs O(1).

use std::collections::HashMap;

pub(super) type BlockId = u32;

const NONE: BlockId = BlockId::MAX;

#[derive(Debug)]
struct Block {
    users: u32,
    /// Of the tokens in this block and all before it in its sequence; set once the block is full.
    hash: Option<u64>,
    // Neighbours in the list of unused blocks.
    previous: BlockId,
    next: BlockId,
}

#[derive(Debug)]
pub(super) struct BlockPool {
    capacity: u32,
    // Grows on first use: vLLM hands out blocks that were never used before it reclaims others.
    blocks: Vec<Block>,
    by_hash: HashMap<u64, BlockId>,
    oldest: BlockId,
    newest: BlockId,
    unused: u32,
}

impl BlockPool {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, blocks: Vec::new(), by_hash: HashMap::new(), oldest: NONE, newest: NONE, unused: capacity }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that can be handed out, findable ones included.
    pub(super) fn unused(&self) -> u32 {
        self.unused
    }

    /// An empty block with one user. `None` when all are in use.
    pub(super) fn take(&mut self) -> Option<BlockId> {
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
            self.by_hash.remove(&hash);
        }
        Some(id)
    }

    /// The block that holds what hashes to this, in use or not.
    pub(super) fn find(&self, hash: u64) -> Option<BlockId> {
        self.by_hash.get(&hash).copied()
    }

    pub(super) fn is_unused(&self, id: BlockId) -> bool {
        self.blocks[id as usize].users == 0
    }

    /// One user more for a block that was found.
    pub(super) fn share(&mut self, id: BlockId) {
        if self.is_unused(id) {
            self.unlink(id);
        }
        self.blocks[id as usize].users += 1;
    }

    /// Lets others find this full block. Of two blocks with the same content, the first stays the findable one.
    pub(super) fn publish(&mut self, id: BlockId, hash: u64) {
        let block = &mut self.blocks[id as usize];
        if block.hash.is_none() && !self.by_hash.contains_key(&hash) {
            block.hash = Some(hash);
            self.by_hash.insert(hash, id);
        }
    }

    /// One user less; without users the block joins the unused ones as the newest.
    pub(super) fn release(&mut self, id: BlockId) {
        let newest = self.newest;
        let block = &mut self.blocks[id as usize];
        block.users -= 1;
        if block.users > 0 {
            return;
        }
        (block.previous, block.next) = (newest, NONE);
        match newest {
            NONE => self.oldest = id,
            newest => self.blocks[newest as usize].next = id,
        }
        self.newest = id;
        self.unused += 1;
    }

    /// Forgets what the unused blocks hold.
    pub(super) fn forget(&mut self) {
        let blocks = &mut self.blocks;
        self.by_hash.retain(|_, id| {
            let keep = blocks[*id as usize].users > 0;
            if !keep {
                blocks[*id as usize].hash = None;
            }
            keep
        });
    }

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
        pool.forget();
        assert_eq!((pool.find(8), pool.unused()), (None, 1));
    }

    #[test]
    fn sharing_from_the_middle_keeps_the_list_whole() {
        let mut pool = BlockPool::new(3);
        let ids: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        for id in &ids {
            pool.release(*id);
        }
        pool.share(ids[1]);
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some(ids[0]), Some(ids[2]), None));
    }
}
