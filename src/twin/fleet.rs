//! Engines that share a load, as one state machine without a clock: a prediction steps it as fast as it can, the simulated
//! server when its clock says so.
//!
//! Whoever drives it goes from event to event: [`Fleet::ended`] at the end of a step, [`Fleet::ask`] for what is asked by
//! then, [`Fleet::fill`] last. Between the end that [`Fleet::due`] gives and the next request nothing changes.

use std::borrow::BorrowMut;
use std::time::Duration;

use super::ask::{AddError, Ask};
use super::batch::Work;
use super::engine::{Engine, Event};
use super::replica::{Balancer, Flight, Replica};
use super::sequence::RequestId;

/// One engine, or as many as there are data-parallel replicas.
#[derive(Debug)]
pub(crate) struct Fleet<E> {
    replicas: Vec<Replica<E>>,
    balancer: Balancer,
    events: Vec<Event>,
}

impl<E: BorrowMut<Engine>> Fleet<E> {
    pub(crate) fn new(engines: impl IntoIterator<Item = E>) -> Self {
        let mut replicas: Vec<_> = engines.into_iter().map(Replica::new).collect();
        replicas.iter_mut().enumerate().for_each(|(index, replica)| replica.index = index);
        Self { balancer: Balancer::new(replicas.len()), replicas, events: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    pub(crate) fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.replicas.iter().map(Replica::engine)
    }

    /// Gives a request to one of the engines, and says to which.
    ///
    /// # Errors
    /// When that engine can never serve it.
    ///
    /// # Panics
    /// When there is no engine.
    pub(crate) fn ask(&mut self, ask: &Ask<'_>, now: Duration) -> Result<usize, AddError> {
        let at = self.balancer.choose();
        let replica = &mut self.replicas[at];
        if let Err(error) = replica.engine_mut().enqueue(ask, now) {
            self.balancer.ended(at);
            return Err(error);
        }
        replica.wake();
        Ok(at)
    }

    /// Removes a request from the engine that has it.
    pub(crate) fn abort(&mut self, at: usize, id: RequestId) -> bool {
        let there = self.replicas.get_mut(at).is_some_and(|replica| replica.engine_mut().abort(id));
        if there {
            self.balancer.ended(at);
        }
        there
    }

    pub(crate) fn reset_prefix_caches(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.engine_mut().reset_prefix_cache());
    }

    /// Schedules all steps that can begin now. `time` says how long each takes, `scheduled` gets it at once.
    pub(crate) fn fill(
        &mut self,
        now: Duration,
        mut time: impl FnMut(&Work) -> Duration,
        mut scheduled: impl FnMut(&Flight),
    ) {
        for replica in &mut self.replicas {
            replica.fill(now, &mut time, |_, flight| scheduled(flight));
        }
    }

    /// When the next step ends.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.replicas.iter().filter_map(Replica::due).min()
    }

    /// Ends all steps that are over by `now`, engine by engine; `ended` gets each with its engine and what it has
    /// generated.
    pub(crate) fn ended(&mut self, now: Duration, mut ended: impl FnMut(&Flight, &Engine, &[Event])) {
        self.balancer.publish(now, &self.replicas);
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            while let Some(flight) = replica.ended(now) {
                replica.engine_mut().finish_into(&flight.batch, &mut self.events);
                replica.report();
                for _ in self.events.iter().filter(|event| event.last) {
                    self.balancer.ended(at);
                }
                ended(&flight, replica.engine(), &self.events);
            }
        }
    }
}
