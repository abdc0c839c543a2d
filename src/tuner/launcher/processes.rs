//! Launches under way, each with processes of its own.

use std::collections::VecDeque;
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::{EndedOrder, LaunchOrder, Launcher};

/// Launches that are under way at the same time.
pub(in crate::tuner) trait Launches {
    /// Starts a launch. It goes on while `wait` or `alongside` is awaited.
    fn start(&mut self, order: LaunchOrder);

    /// The number of launches that are under way.
    fn count(&self) -> usize;

    /// Hands out a launch that is over.
    fn ended(&mut self) -> Option<EndedOrder>;

    /// Waits until a launch is over that was not handed out yet. Returns whether there is any.
    async fn wait(&mut self) -> bool;

    /// Returns what comes of `work`, while the launches go on.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T;
}

/// Launches of real servers.
pub(in crate::tuner) struct ProcessLaunches<'l> {
    launcher: &'l Launcher<'l>,
    running: FuturesUnordered<Pin<Box<dyn Future<Output = EndedOrder> + 'l>>>,
    /// Launches that are over and not yet handed out.
    ended: VecDeque<EndedOrder>,
}

impl<'l> ProcessLaunches<'l> {
    pub(in crate::tuner) fn new(launcher: &'l Launcher<'l>) -> Self {
        Self { launcher, running: FuturesUnordered::new(), ended: VecDeque::new() }
    }
}

impl Launches for ProcessLaunches<'_> {
    fn start(&mut self, order: LaunchOrder) {
        self.running.push(Box::pin(self.launcher.carry_out(order)));
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

    // A launch may hold what `work` waits for.
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
