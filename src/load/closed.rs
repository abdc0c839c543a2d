//! Closed loop: a fixed number of slots, each of which sends its next request when the one before has ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::task::JoinSet;

use super::body::Job;
use super::client::{Client, Slot};
use super::{Event, Flow, Phase, Record};

/// Called on the load's own thread, once for each request that ends.
pub(super) type Observer = Mutex<Box<dyn FnMut(Event<'_>) -> Flow + Send>>;

/// One phase of a run, shared by its slots and its owner.
pub(super) struct Loop {
    client: Client,
    observer: Arc<Observer>,
    phase: Phase,
    total: usize,
    pub(super) began: Instant,
    state: Mutex<State>,
}

/// Locked once or twice per request, by slots that all run on one thread.
struct State {
    jobs: std::vec::IntoIter<Job>,
    sent: usize,
    records: Vec<Record>,
}

impl Loop {
    pub(super) fn new(client: Client, observer: Arc<Observer>, phase: Phase, jobs: Vec<Job>) -> Arc<Self> {
        let total = jobs.len();
        let records = Vec::with_capacity(total);
        let state = Mutex::new(State { jobs: jobs.into_iter(), sent: 0, records });
        Arc::new(Self { client, observer, phase, total, began: Instant::now(), state })
    }

    /// Drives every job and gives the slots back. Dropping the future ends the requests under way; `take` still has
    /// the others.
    pub(super) async fn drive(self: &Arc<Self>, slots: Vec<Slot>) -> Vec<Slot> {
        self.report(Event::Phase { phase: self.phase, total: Some(self.total as u64) });
        let mut tasks = JoinSet::new();
        for slot in slots {
            tasks.spawn(Arc::clone(self).serve(slot));
        }
        tasks.join_all().await
    }

    async fn serve(self: Arc<Self>, mut slot: Slot) -> Slot {
        loop {
            let due = Instant::now();
            let Some(job) = self.next() else { return slot };
            let record = self.client.exchange(&job, &mut slot, due, self.began).await;
            self.finish(record);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let job = state.jobs.next()?;
        state.sent += 1;
        Some(job)
    }

    fn finish(&self, record: Record) {
        self.report(Event::Ended { phase: self.phase, record: &record });
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.records.push(record);
    }

    fn report(&self, event: Event<'_>) {
        let mut observer = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = observer(event);
    }

    /// The records so far and the number of requests that had been sent and had not ended.
    pub(super) fn take(&self) -> (Vec<Record>, usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let records = std::mem::take(&mut state.records);
        let unfinished = state.sent - records.len();
        (records, unfinished)
    }
}
