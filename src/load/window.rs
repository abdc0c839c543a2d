//! One phase of a run: sends the requests of the schedule, handles the replies and calls the observer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::clock::Nanos;
use super::exchange::{ExchangeTiming, HttpExchange};
use super::feed::RequestFeed;
use super::processor::usage;
use super::protocol::ServerProtocol;
use super::reactor::{FinishedExchange, LoadReactor};
use super::schedule::{LoadSchedule, NextSend};
use super::signal::ThreadSignal;
use super::{LoadError, LoadEvent, LoadPhase, LoadPlan, Observer, ObserverTick, RequestError, RequestRecord, RunFlow};

/// Pause of a closed loop after a failed connect: 10 ms. Without it the loop would retry as fast as the processor
/// allows.
const REFUSED_PAUSE: Nanos = 10_000_000;

/// Interval of the observer's ticks: 100 ms.
const TICK_INTERVAL: Nanos = 100_000_000;

/// Context of a phase.
pub(super) struct LoadWindow<'a> {
    pub(super) phase: LoadPhase,
    pub(super) reactor: &'a mut LoadReactor,
    pub(super) protocol: &'a ServerProtocol,
    pub(super) plan: &'a LoadPlan,
    pub(super) signal: &'a Arc<ThreadSignal>,
    pub(super) observer: &'a mut Observer,
    pub(super) feed: &'a RequestFeed,
    pub(super) schedule: LoadSchedule,
    /// Origin of the records' instants.
    pub(super) zero: Nanos,
}

/// Results and counters of a phase.
#[derive(Debug, Default)]
pub(super) struct WindowTally {
    pub(super) records: Vec<RequestRecord>,
    sent: u64,
    /// Number of chunk times in `records`.
    kept_chunks: usize,
    pub(super) peak_in_flight: usize,
    /// Whether the observer has ended the run.
    pub(super) ended_by_observer: bool,
    /// Nothing is sent before this instant.
    refused_until: Nanos,
    pub(super) unfinished: usize,
    pub(super) unsent: usize,
    pub(super) starved: u64,
    pub(super) cpu: Duration,
    pub(super) processor_wait: Option<Duration>,
    pub(super) turnaround: Duration,
    /// The instant after the last exchange.
    pub(super) end: Nanos,
}

impl WindowTally {
    /// Returns the tally of a window that was ended before it began.
    pub(super) fn not_run(end: Nanos) -> Self {
        Self { ended_by_observer: true, end, ..Self::default() }
    }
}

impl LoadWindow<'_> {
    /// Sends and reads until everything has ended, or the run is stopped.
    ///
    /// # Errors
    /// If the kernel refuses a resource that the loop needs.
    pub(super) fn run(mut self) -> Result<WindowTally, LoadError> {
        let mut tally = WindowTally::default();
        let total = if self.phase == LoadPhase::Warmup { Some(self.plan.warmup) } else { self.plan.requests };
        tally.ended_by_observer = (self.observer)(LoadEvent::Phase { phase: self.phase, total }) == RunFlow::End;
        let before = usage().map_err(LoadError::System)?;
        self.drive(&mut tally).map_err(LoadError::System)?;
        let after = usage().map_err(LoadError::System)?;
        tally.cpu = after.cpu.saturating_sub(before.cpu);
        tally.processor_wait = after.waited.zip(before.waited).map(|(after, before)| after.saturating_sub(before));
        tally.end = self.reactor.loop_state.clock.now();
        tally.unfinished = self.schedule.in_flight;
        tally.unsent = self.schedule.waiting();
        tally.starved = self.schedule.starved;
        Ok(tally)
    }

    fn drive(&mut self, tally: &mut WindowTally) -> io::Result<()> {
        let mut next_tick = self.zero + TICK_INTERVAL;
        loop {
            let next = self.send(tally)?;
            if self.is_stopped(tally) {
                return Ok(());
            }
            let now = self.reactor.loop_state.clock.now();
            let mut until = match next {
                NextSend::Finished if self.schedule.in_flight == 0 => return Ok(()),
                NextSend::WaitUntil(at) => at,
                NextSend::Finished | NextSend::WaitForEvent | NextSend::Send { .. } => Nanos::MAX,
            };
            if now >= next_tick {
                self.tick(now, tally);
                if tally.ended_by_observer {
                    return Ok(());
                }
                next_tick += TICK_INTERVAL * ((now - next_tick) / TICK_INTERVAL + 1);
            }
            until = until.min(next_tick);
            // The wait ends at the next tick at the latest. The stop flag is therefore checked even without an event.
            for event in 0..self.reactor.wait(until.min(now + 10 * TICK_INTERVAL))? {
                if let Some(finished) = self.reactor.handle(event)? {
                    self.finish(finished, tally);
                    self.send(tally)?;
                    // After the observer has ended the run, it receives no further replies of this batch.
                    if tally.ended_by_observer {
                        return Ok(());
                    }
                }
            }
            while !tally.ended_by_observer
                && let Some(finished) = self.reactor.expired()
            {
                self.finish(finished, tally);
            }
        }
    }

    fn is_stopped(&self, tally: &WindowTally) -> bool {
        tally.ended_by_observer || self.signal.is_raised()
    }

    /// Sends all requests that can be sent now, and returns the next action.
    fn send(&mut self, tally: &mut WindowTally) -> io::Result<NextSend> {
        loop {
            if self.is_stopped(tally) {
                return Ok(NextSend::WaitForEvent);
            }
            let now = self.reactor.loop_state.clock.now();
            if now < tally.refused_until {
                return Ok(NextSend::WaitUntil(tally.refused_until));
            }
            match self.schedule.next(now, || self.feed.take()) {
                NextSend::Send { turn, rest, due, queued } => {
                    let timing = ExchangeTiming { due, queued, sent: now, limit: self.plan.request_timeout };
                    let exchange = HttpExchange::new(turn, rest, timing, self.protocol);
                    tally.sent += 1;
                    tally.peak_in_flight = tally.peak_in_flight.max(self.schedule.in_flight);
                    if let Some(finished) = self.reactor.begin(exchange)? {
                        self.finish(finished, tally);
                    }
                }
                next => return Ok(next),
            }
        }
    }

    fn finish(&mut self, finished: FinishedExchange, tally: &mut WindowTally) {
        let now = self.reactor.loop_state.clock.now();
        let FinishedExchange { exchange, status, lost } = finished;
        let waited = now.saturating_sub(exchange.last);
        let (mut record, rest) = exchange.end(status, lost, now, self.zero);
        self.schedule.record_end(rest, now);
        if self.schedule.is_closed() && matches!(record.result, Err(RequestError::Connect(_))) {
            tally.refused_until = now + REFUSED_PAUSE;
        }
        let flow = (self.observer)(LoadEvent::Ended { phase: self.phase, record: &record });
        tally.ended_by_observer |= flow == RunFlow::End;
        if record.chunks.len() > 2 && tally.kept_chunks + record.chunks.len() > self.plan.kept_chunks {
            record.chunks.drain(1..record.chunks.len() - 1);
            record.chunks.shrink_to_fit();
            record.thinned = true;
        }
        tally.kept_chunks += record.chunks.len();
        if record.result.is_ok() {
            tally.turnaround += Duration::from_nanos(waited);
        }
        tally.records.push(record);
    }

    fn tick(&mut self, now: Nanos, tally: &mut WindowTally) {
        let tick = ObserverTick {
            at: Duration::from_nanos(now.saturating_sub(self.zero)),
            sent: tally.sent,
            in_flight: self.schedule.in_flight,
            waiting: self.schedule.waiting(),
            chunks: self.reactor.loop_state.chunks,
        };
        let event = if self.phase == LoadPhase::Measure { LoadEvent::Tick(tick) } else { LoadEvent::WarmupTick(tick) };
        tally.ended_by_observer |= (self.observer)(event) == RunFlow::End;
    }
}
