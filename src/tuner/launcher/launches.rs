//! Running launches, each with processes of its own.

use std::collections::VecDeque;
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::{EndedOrder, LaunchOrder, Launcher};

/// Concurrent launches.
pub(in crate::tuner) trait Launches {
    /// Starts a launch. It continues while `wait` or `alongside` is awaited.
    fn start(&mut self, order: LaunchOrder);

    /// Returns the number of running launches.
    fn count(&self) -> usize;

    /// Removes and returns a finished launch.
    fn ended(&mut self) -> Option<EndedOrder>;

    /// Waits until there is a finished launch. Returns whether there is any.
    async fn wait(&mut self) -> bool;

    /// Awaits `work` and returns its result, while the launches continue.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T;
}

/// Launches of real servers.
pub(in crate::tuner) struct ProcessLaunches<'l> {
    launcher: &'l Launcher<'l>,
    running: FuturesUnordered<Pin<Box<dyn Future<Output = EndedOrder> + 'l>>>,
    /// Finished launches that `ended` has not returned yet.
    ended: VecDeque<EndedOrder>,
}

impl<'l> ProcessLaunches<'l> {
    pub(in crate::tuner) fn new(launcher: &'l Launcher<'l>) -> Self {
        Self { launcher, running: FuturesUnordered::new(), ended: VecDeque::new() }
    }
}

impl Launches for ProcessLaunches<'_> {
    fn start(&mut self, order: LaunchOrder) {
        self.running.push(Box::pin(self.launcher.execute(order)));
    }

    fn count(&self) -> usize {
        self.running.len()
    }

    fn ended(&mut self) -> Option<EndedOrder> {
        self.ended.pop_front()
    }

    async fn wait(&mut self) -> bool {
        if self.ended.is_empty() {
            self.ended.extend(self.running.next().await);
        }
        !self.ended.is_empty()
    }

    // Launches continue meanwhile, because one of them may hold a lock that `work` waits for.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                outcome = &mut work => return outcome,
                Some(ended) = self.running.next() => self.ended.push_back(ended),
            }
        }
    }
}
