//! One engine on its devices in virtual time, and the choice of an engine for each request.

use std::borrow::BorrowMut;
use std::collections::VecDeque;
use std::time::Duration;

use super::batch::{Batch, BatchWork};
use super::engine::{TwinEngine, WaitReason};
use crate::stats::to_f64;

/// One step as it was scheduled, with the load of its engine at that time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScheduledStep {
    pub replica: usize,
    /// Virtual times at which the device begins with the step, and at which the step's tokens are available.
    pub start: Duration,
    pub end: Duration,
    pub running: usize,
    pub waiting: usize,
    /// Share of the cache's blocks in use, 0 to 1.
    pub kv_usage: f64,
    /// Why the first waiting request was not admitted.
    pub wait: Option<WaitReason>,
    pub work: BatchWork,
}

/// The load of one engine as it reports it to the front end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ReplicaLoad {
    pub(super) waiting: usize,
    pub(super) running: usize,
    /// Share of the cache's blocks in use.
    pub(super) kv_usage: f64,
}

impl ReplicaLoad {
    fn of(engine: &TwinEngine) -> Self {
        Self { waiting: engine.waiting(), running: engine.running(), kv_usage: engine.kv_usage() }
    }
}

/// A step under way: its batch, and its description for observers.
#[derive(Debug)]
pub(crate) struct StepFlight {
    pub(crate) batch: Batch,
    pub(crate) step: ScheduledStep,
}

/// An engine, owned or borrowed, and the steps that its devices compute.
#[derive(Debug)]
pub(super) struct Replica<E> {
    pub(super) engine: E,
    /// Its place among the replicas.
    pub(super) index: usize,
    steps_in_flight: VecDeque<StepFlight>,
    /// Instant at which the first stage of the pipeline is free.
    free_at: Duration,
    /// Instant at which the newest step ends.
    end: Duration,
    /// The load at the end of the last finished step.
    pub(super) reported: ReplicaLoad,
    /// Whether it may schedule: a step has ended, or a request has arrived while no step was under way.
    ready: bool,
}

impl<E: BorrowMut<TwinEngine>> Replica<E> {
    pub(super) fn new(engine: E) -> Self {
        let reported = ReplicaLoad::of(engine.borrow());
        let (free, end) = (Duration::ZERO, Duration::ZERO);
        Self { engine, index: 0, steps_in_flight: VecDeque::new(), free_at: free, end, reported, ready: true }
    }

    pub(super) fn engine(&self) -> &TwinEngine {
        self.engine.borrow()
    }

    pub(super) fn engine_mut(&mut self) -> &mut TwinEngine {
        self.engine.borrow_mut()
    }

    /// Returns the end of the oldest step under way that is not empty.
    pub(super) fn next_step_end(&self) -> Option<Duration> {
        self.steps_in_flight.iter().find(|flight| !flight.batch.items.is_empty()).map(|flight| flight.step.end)
    }

    /// Schedules steps until the allowed number is under way, or until there is nothing more to schedule. The engine
    /// then waits for the end of a step and ignores arrivals meanwhile (`step_with_batch_queue` of vLLM's
    /// `v1/engine/core.py`).
    pub(super) fn fill(
        &mut self,
        now: Duration,
        mut time: impl FnMut(&BatchWork) -> Duration,
        mut scheduled: impl FnMut(&TwinEngine, &StepFlight),
    ) {
        let scheduling = &self.engine().settings().scheduling;
        let (most, stages) = (scheduling.concurrent_steps(), scheduling.pipeline_stages);
        if !std::mem::take(&mut self.ready) {
            return;
        }
        // After twice as many empty steps as the pipeline holds, further ones would only repeat.
        let mut empty = 0;
        while empty <= 2 * most {
            while self.steps_in_flight.len() < most {
                if let Some(batch) = self.engine_mut().step(now) {
                    let time = time(&batch.work);
                    // Each stage computes an equal share of the step, one after the other.
                    let share = time / stages;
                    let start = now.max(self.free_at);
                    self.free_at = start + share;
                    self.end = (start + time).max(self.end + share);
                    let flight = StepFlight { step: self.describe_step(start, batch.work), batch };
                    scheduled(self.engine(), &flight);
                    self.steps_in_flight.push_back(flight);
                } else if stages > 1 && !self.engine().is_idle() {
                    // An empty step occupies a place in the pipeline as well. It delays the next turn of each request
                    // by one place.
                    let end = self.steps_in_flight.back().map_or(now, |flight| flight.step.end);
                    let seen = ScheduledStep { replica: self.index, start: end, end, ..ScheduledStep::default() };
                    self.steps_in_flight.push_back(StepFlight { batch: Batch::default(), step: seen });
                } else {
                    return;
                }
            }
            if !self.drop_empty() {
                return;
            }
            empty += 1;
        }
    }

    fn describe_step(&self, start: Duration, work: BatchWork) -> ScheduledStep {
        let ReplicaLoad { waiting, running, kv_usage } = ReplicaLoad::of(self.engine());
        let wait = self.engine().wait_reason();
        ScheduledStep { replica: self.index, start, end: self.end, running, waiting, kv_usage, wait, work }
    }

    /// Removes empty steps from the head, because they take no time. Returns whether there was one.
    fn drop_empty(&mut self) -> bool {
        let before = self.steps_in_flight.len();
        while self.steps_in_flight.pop_front_if(|flight| flight.batch.items.is_empty()).is_some() {}
        self.steps_in_flight.len() < before
    }

    /// Lets the engine schedule after the arrival of a request, if no step is under way.
    pub(super) fn wake(&mut self) {
        self.ready |= self.next_step_end().is_none();
    }

    /// Removes the oldest step if it has ended.
    pub(super) fn ended(&mut self, now: Duration) -> Option<StepFlight> {
        self.drop_empty();
        self.steps_in_flight.pop_front_if(|flight| flight.step.end <= now)
    }

    /// Records the end of a step: the engine may schedule, and its reported load is updated.
    pub(super) fn record_step_end(&mut self) {
        self.ready = true;
        self.reported = ReplicaLoad::of(self.engine());
    }
}

/// The choice of an engine for each request: `get_core_engine_for_request` of vLLM 0.32's `v1/engine/core_client.py`,
/// for one front end. Older releases add four times the waiting to the running requests.
#[derive(Debug)]
pub(super) struct Balancer {
    /// Last published load of each engine, plus the requests that it has received since.
    loads: Vec<ReplicaLoad>,
    /// Requests of each engine that have not ended.
    in_flight: Vec<usize>,
    /// Engine that is preferred among equal scores. It rotates with each request.
    preferred: usize,
    /// End of the current report period.
    next_report: Duration,
}

/// Period of the coordinator's reports on the engines' load to the front end (`v1/engine/coordinator.py`).
const PERIOD: Duration = Duration::from_millis(100);

impl Balancer {
    pub(super) fn new(engines: usize) -> Self {
        Self {
            loads: vec![ReplicaLoad::default(); engines],
            in_flight: vec![0; engines],
            preferred: 0,
            next_report: PERIOD,
        }
    }

    /// Takes over the engines' last reports if a period has ended by `now`.
    pub(super) fn publish<E>(&mut self, now: Duration, replicas: &[Replica<E>]) {
        if now < self.next_report || replicas.len() < 2 {
            return;
        }
        for (load, replica) in self.loads.iter_mut().zip(replicas) {
            *load = replica.reported;
        }
        let periods = now.as_nanos() / PERIOD.as_nanos() + 1;
        self.next_report = PERIOD * u32::try_from(periods).unwrap_or(u32::MAX);
    }

    /// Chooses the engine with the lowest score for the next request, and counts the request there.
    pub(super) fn choose(&mut self) -> usize {
        let engines = self.loads.len();
        if engines < 2 {
            return 0;
        }
        let score = |engine: usize| {
            let ReplicaLoad { waiting, running, kv_usage } = self.loads[engine];
            // A queue drains slowly if the cache is more than half full.
            let penalty = to_f64(waiting) * 6.0 * (kv_usage - 0.5).max(0.0);
            to_f64(self.in_flight[engine].max(waiting + running)) + penalty
        };
        let mut chosen = self.preferred;
        for offset in 1..engines {
            let engine = (self.preferred + offset) % engines;
            if score(engine) < score(chosen) {
                chosen = engine;
            }
        }
        self.loads[chosen].waiting += 1;
        self.in_flight[chosen] += 1;
        self.preferred = (self.preferred + 1) % engines;
        chosen
    }

    pub(super) fn ended(&mut self, engine: usize) {
        if self.loads.len() > 1 {
            self.in_flight[engine] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_engines_take_turns_and_a_loaded_one_is_spared() {
        let mut balancer = Balancer::new(3);
        assert_eq!([(); 6].map(|()| balancer.choose()), [0, 1, 2, 0, 1, 2]);
        (0..2).for_each(|_| balancer.ended(1));
        balancer.loads = vec![ReplicaLoad::default(); 3];
        // Scores 2, 0, 2; then 2, 1, 2; then all 2, and the scan starts at the third engine.
        assert_eq!([(); 3].map(|()| balancer.choose()), [1, 1, 2]);
    }

    #[test]
    fn a_queue_before_a_full_cache_counts_more_than_running_requests() {
        let load = |waiting, running, kv_usage| ReplicaLoad { waiting, running, kv_usage };
        let mut balancer = Balancer::new(2);
        // 10 + 4 * 6 * 0.5 = 22 against 20: the engine with more requests in all is chosen.
        balancer.loads = vec![load(4, 6, 1.0), load(0, 20, 1.0)];
        assert_eq!(balancer.choose(), 1);
        balancer.loads = vec![load(4, 6, 0.4), load(0, 20, 0.4)];
        assert_eq!(balancer.choose(), 0);
    }
}
