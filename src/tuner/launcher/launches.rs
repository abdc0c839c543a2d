//! Running launches, each with processes of its own.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::{EndedOrder, LaunchEvent, LaunchOrder, Launcher, LookOrder, ServerLink};

/// Concurrent launches.
pub(in crate::tuner) trait Launches {
    /// Starts a launch. It continues while `wait` or `alongside` is awaited.
    fn start(&mut self, order: LaunchOrder);

    /// Starts a live look on the waiting server of a trial.
    fn look(&mut self, server_of: u32, order: LookOrder);

    /// Lets the waiting server of a trial end.
    fn release(&mut self, server_of: u32);

    /// Lets every waiting server end.
    fn release_all(&mut self);

    /// Returns the number of running launches.
    fn count(&self) -> usize;

    /// Removes and returns an event of a launch.
    fn event(&mut self) -> Option<LaunchEvent>;

    /// Waits until there is an event. Returns whether there is any.
    async fn wait(&mut self) -> bool;

    /// Awaits `work` and returns its result, while the launches continue.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T;
}

/// Launches of real servers.
pub(in crate::tuner) struct ProcessLaunches<'l> {
    launcher: &'l Launcher<'l>,
    running: FuturesUnordered<Pin<Box<dyn Future<Output = EndedOrder> + 'l>>>,
    /// Senders to the servers of running launches, by trial.
    servers: BTreeMap<u32, mpsc::UnboundedSender<LookOrder>>,
    sender: mpsc::UnboundedSender<LaunchEvent>,
    receiver: mpsc::UnboundedReceiver<LaunchEvent>,
    /// Events that `event` has not returned yet.
    events: VecDeque<LaunchEvent>,
}

impl<'l> ProcessLaunches<'l> {
    pub(in crate::tuner) fn new(launcher: &'l Launcher<'l>) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (servers, events) = (BTreeMap::new(), VecDeque::new());
        Self { launcher, running: FuturesUnordered::new(), servers, sender, receiver, events }
    }

    /// Waits for the next event of a launch. Never returns if no launch runs. Safe to cancel.
    async fn next_event(&mut self) -> LaunchEvent {
        tokio::select! {
            biased;
            // The channel stays open, because `self` holds a sender.
            Some(event) = self.receiver.recv() => event,
            Some(ended) = self.running.next() => {
                self.servers.remove(&ended.order.place.trial);
                LaunchEvent::Ended(ended)
            }
            else => std::future::pending().await,
        }
    }
}

impl Launches for ProcessLaunches<'_> {
    fn start(&mut self, order: LaunchOrder) {
        let (sender, orders) = mpsc::unbounded_channel();
        self.servers.insert(order.place.trial, sender);
        let link = ServerLink { orders, events: self.sender.clone() };
        self.running.push(Box::pin(self.launcher.execute(order, link)));
    }

    fn look(&mut self, server_of: u32, order: LookOrder) {
        // If the server has ended meanwhile, its launch reports that.
        if let Some(server) = self.servers.get(&server_of) {
            let _ = server.send(order);
        }
    }

    fn release(&mut self, server_of: u32) {
        self.servers.remove(&server_of);
    }

    fn release_all(&mut self) {
        self.servers.clear();
    }

    fn count(&self) -> usize {
        self.running.len()
    }

    fn event(&mut self) -> Option<LaunchEvent> {
        self.events.pop_front()
    }

    async fn wait(&mut self) -> bool {
        if self.events.is_empty() && !self.running.is_empty() {
            let event = self.next_event().await;
            self.events.push_back(event);
        }
        !self.events.is_empty()
    }

    // Launches continue meanwhile, because one of them may hold a lock that `work` waits for.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                outcome = &mut work => return outcome,
                event = self.next_event() => self.events.push_back(event),
            }
        }
    }
}
