//! The waiting requests, in the order of their admission.
//!
//! A request that leaves from the middle only invalidates the ticket of its entry. Invalid entries are dropped at the
//! head, and all at once when they are the majority. An abort therefore costs O(1) amortized.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::sequence::Sequence;
use super::settings::QueueOrder;

/// With fewer entries, invalid ones are not removed all at once.
const MIN_COMPACTED: usize = 32;

/// A place in the queue. It is valid while the sequence in `slot` has the same ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    slot: usize,
    ticket: u64,
}

impl Entry {
    fn is_valid(self, sequences: &[Sequence]) -> bool {
        sequences[self.slot].ticket == self.ticket
    }
}

/// Priority, time of arrival, and serial, as in `Request.__lt__` of vLLM's `v1/request.py`. vLLM breaks the last tie by
/// the id, the twin by the order of arrival.
type Key = (i32, Duration, u64);

#[derive(Debug)]
enum QueueStorage {
    Arrival(VecDeque<Entry>),
    Priority(BinaryHeap<Reverse<(Key, Entry)>>),
}

#[derive(Debug)]
pub(super) struct Queue {
    storage: QueueStorage,
    /// The number of valid entries.
    valid_entries: usize,
    tickets: u64,
}

impl Queue {
    pub(super) fn new(order: QueueOrder) -> Self {
        let line = match order {
            QueueOrder::Arrival => QueueStorage::Arrival(VecDeque::new()),
            QueueOrder::Priority => QueueStorage::Priority(BinaryHeap::new()),
        };
        Self { storage: line, valid_entries: 0, tickets: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.valid_entries
    }

    pub(super) fn push_back(&mut self, slot: usize, sequences: &mut [Sequence]) {
        self.push(slot, sequences, false);
    }

    /// Adds a request at the head of the queue. A priority queue puts it at its own place instead.
    pub(super) fn push_front(&mut self, slot: usize, sequences: &mut [Sequence]) {
        self.push(slot, sequences, true);
    }

    fn push(&mut self, slot: usize, sequences: &mut [Sequence], front: bool) {
        self.tickets += 1;
        self.valid_entries += 1;
        let sequence = &mut sequences[slot];
        sequence.ticket = self.tickets;
        let entry = Entry { slot, ticket: self.tickets };
        match &mut self.storage {
            QueueStorage::Arrival(line) if front => line.push_front(entry),
            QueueStorage::Arrival(line) => line.push_back(entry),
            QueueStorage::Priority(line) => {
                line.push(Reverse(((sequence.priority, sequence.arrived, sequence.serial), entry)));
            }
        }
    }

    /// Returns the request that is admitted next.
    pub(super) fn first(&mut self, sequences: &[Sequence]) -> Option<usize> {
        loop {
            let entry = match &self.storage {
                QueueStorage::Arrival(line) => *line.front()?,
                QueueStorage::Priority(line) => line.peek()?.0.1,
            };
            if entry.is_valid(sequences) {
                return Some(entry.slot);
            }
            self.drop_head();
        }
    }

    /// Removes the request that is admitted next.
    pub(super) fn pop(&mut self, sequences: &mut [Sequence]) -> Option<usize> {
        let slot = self.first(sequences)?;
        self.drop_head();
        self.valid_entries -= 1;
        sequences[slot].ticket = 0;
        Some(slot)
    }

    fn drop_head(&mut self) {
        match &mut self.storage {
            QueueStorage::Arrival(line) => _ = line.pop_front(),
            QueueStorage::Priority(line) => _ = line.pop(),
        }
    }

    /// Removes a waiting request from any place.
    pub(super) fn remove(&mut self, slot: usize, sequences: &mut [Sequence]) {
        sequences[slot].ticket = 0;
        self.valid_entries -= 1;
        let entries = match &self.storage {
            QueueStorage::Arrival(line) => line.len(),
            QueueStorage::Priority(line) => line.len(),
        };
        if entries < MIN_COMPACTED || entries < 2 * self.valid_entries {
            return;
        }
        match &mut self.storage {
            QueueStorage::Arrival(line) => line.retain(|entry| entry.is_valid(sequences)),
            QueueStorage::Priority(line) => line.retain(|Reverse((_, entry))| entry.is_valid(sequences)),
        }
    }

    /// Returns the earliest arrival of all waiting requests. Only preempted requests can be ahead of an earlier
    /// arrival, so the search ends at the first request without preemptions. A priority queue is searched whole.
    pub(super) fn earliest(&self, sequences: &[Sequence]) -> Option<Duration> {
        let mut earliest = None;
        let mut look = |entry: Entry| {
            let sequence = &sequences[entry.slot];
            if !entry.is_valid(sequences) {
                return true;
            }
            earliest = Some(earliest.map_or(sequence.arrived, |before: Duration| before.min(sequence.arrived)));
            sequence.preemptions > 0
        };
        match &self.storage {
            QueueStorage::Arrival(line) => line.iter().copied().take_while(|entry| look(*entry)).for_each(|_| ()),
            QueueStorage::Priority(line) => line.iter().for_each(|Reverse((_, entry))| _ = look(*entry)),
        }
        earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::RequestId;

    /// Returns the slots in the order of the queue.
    fn drain(queue: &mut Queue, sequences: &mut [Sequence]) -> Vec<usize> {
        std::iter::from_fn(|| queue.pop(sequences)).collect()
    }

    fn sequences(priorities: &[i32]) -> Vec<Sequence> {
        let of = |(serial, priority): (u64, &i32)| {
            let mut sequence = Sequence::new(RequestId(serial), serial, 1, 1, Duration::from_secs(serial));
            sequence.priority = *priority;
            sequence
        };
        (0..).zip(priorities).map(of).collect()
    }

    #[test]
    fn priorities_come_before_arrivals_only_under_the_priority_policy() {
        for (order, expected) in [(QueueOrder::Arrival, [0, 1, 2, 3]), (QueueOrder::Priority, [2, 1, 3, 0])] {
            let mut sequences = sequences(&[5, 1, 0, 1]);
            let mut queue = Queue::new(order);
            (0..4).for_each(|slot| queue.push_back(slot, &mut sequences));
            assert_eq!(drain(&mut queue, &mut sequences), expected);
        }
    }

    #[test]
    fn a_request_that_leaves_is_skipped_and_does_not_stay_in_memory() {
        for order in [QueueOrder::Arrival, QueueOrder::Priority] {
            let mut sequences = sequences(&[0; 1000]);
            let mut queue = Queue::new(order);
            (0..1000).for_each(|slot| queue.push_back(slot, &mut sequences));
            (0..1000).filter(|slot| slot % 100 != 7).for_each(|slot| queue.remove(slot, &mut sequences));
            let entries = match &queue.storage {
                QueueStorage::Arrival(line) => line.len(),
                QueueStorage::Priority(line) => line.len(),
            };
            assert!(entries <= MIN_COMPACTED, "{entries}");
            assert_eq!(queue.earliest(&sequences), Some(Duration::from_secs(7)));
            // Back again after a preemption, and not served twice.
            queue.remove(107, &mut sequences);
            sequences[107].preemptions = 1;
            queue.push_front(107, &mut sequences);
            assert_eq!(queue.len(), 10);
            let head = if order == QueueOrder::Arrival { 107 } else { 7 };
            assert_eq!(queue.first(&sequences), Some(head));
            assert_eq!(drain(&mut queue, &mut sequences).len(), 10);
        }
    }
}
