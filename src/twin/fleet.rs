//! Engines that share a load, as one state machine without a clock. A prediction advances it as fast as possible, the
//! simulated server in real time.
//!
//! The caller advances from event to event. It calls [`Fleet::finish_ended_steps`] for steps that are over, [`Fleet::ask`] for
//! requests that have arrived, and then [`Fleet::fill`]. After that, nothing changes until the next request, or until
//! the instant that [`Fleet::next_step_end`] returns.

use std::borrow::BorrowMut;
use std::time::Duration;

use super::ask::{AddError, TwinRequest};
use super::batch::BatchWork;
use super::engine::{StepEvent, TwinEngine};
use super::replica::{Balancer, Replica, StepFlight};
use super::sequence::RequestId;
use super::settings::LiveLimits;

/// One engine, or one per data-parallel replica, and the balancer between them.
#[derive(Debug)]
pub(crate) struct Fleet<E> {
    replicas: Vec<Replica<E>>,
    balancer: Balancer,
    events: Vec<StepEvent>,
}

impl<E: BorrowMut<TwinEngine>> Fleet<E> {
    pub(crate) fn new(engines: impl IntoIterator<Item = E>) -> Self {
        let mut replicas: Vec<_> = engines.into_iter().map(Replica::new).collect();
        replicas.iter_mut().enumerate().for_each(|(index, replica)| replica.index = index);
        Self { balancer: Balancer::new(replicas.len()), replicas, events: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    pub(crate) fn engines(&self) -> impl Iterator<Item = &TwinEngine> {
        self.replicas.iter().map(Replica::engine)
    }

    /// Gives a request to one of the engines, and returns the engine's index.
    ///
    /// # Errors
    /// If that engine can never serve it.
    ///
    /// # Panics
    /// If there is no engine.
    pub(crate) fn ask(&mut self, ask: &TwinRequest<'_>, now: Duration) -> Result<usize, AddError> {
        let at = self.balancer.choose();
        let replica = &mut self.replicas[at];
        if let Err(error) = replica.engine_mut().enqueue(ask, now) {
            self.balancer.ended(at);
            return Err(error);
        }
        replica.wake();
        Ok(at)
    }

    /// Removes a request from engine `at`. Returns whether it was present.
    pub(crate) fn abort(&mut self, at: usize, id: RequestId) -> bool {
        let there = self.replicas.get_mut(at).is_some_and(|replica| replica.engine_mut().abort(id));
        if there {
            self.balancer.ended(at);
        }
        there
    }

    /// Returns whether no engine has a request or a step.
    pub(crate) fn is_idle(&self) -> bool {
        self.next_step_end().is_none() && self.engines().all(TwinEngine::is_idle)
    }

    /// Sets limits of all schedulers while the engines are idle.
    pub(crate) fn set_live_limits(&mut self, limits: LiveLimits) {
        self.replicas.iter_mut().for_each(|replica| replica.engine_mut().set_live_limits(limits));
    }

    pub(crate) fn reset_prefix_caches(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.engine_mut().reset_prefix_cache());
    }

    /// Schedules all steps that can begin now. `time` returns the duration of a step, and `scheduled` receives each
    /// step.
    pub(crate) fn fill(
        &mut self,
        now: Duration,
        mut time: impl FnMut(&BatchWork) -> Duration,
        mut scheduled: impl FnMut(&StepFlight),
    ) {
        for replica in &mut self.replicas {
            replica.fill(now, &mut time, |_, flight| scheduled(flight));
        }
    }

    /// Returns the end of the next step.
    pub(crate) fn next_step_end(&self) -> Option<Duration> {
        self.replicas.iter().filter_map(Replica::next_step_end).min()
    }

    /// Ends all steps that are over by `now`, engine by engine. `ended` receives each step with its engine and its
    /// events.
    pub(crate) fn finish_ended_steps(
        &mut self,
        now: Duration,
        mut ended: impl FnMut(&StepFlight, &TwinEngine, &[StepEvent]),
    ) {
        self.balancer.publish(now, &self.replicas);
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            while let Some(flight) = replica.ended(now) {
                replica.engine_mut().finish_into(&flight.batch, &mut self.events);
                replica.record_step_end();
                for _ in self.events.iter().filter(|event| event.last) {
                    self.balancer.ended(at);
                }
                ended(&flight, replica.engine(), &self.events);
            }
        }
    }
}
