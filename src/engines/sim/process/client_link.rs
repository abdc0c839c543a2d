//! The link between engines and clients: open requests, outgoing tokens, and the times of both.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::mpsc;

use super::clock::ServedClock;
use super::engine::{EngineUpdate, QueuedPrompt};
use super::metrics::{LatencyMeter, RequestFinish, SchedulerReport, ServedMetrics};
use super::outlet::TokenOutlet;
use super::schedule::{ScheduleWriter, StepRecord};
use crate::twin::{self, Frontend, RequestId, StepEvent, StepFlight, TwinEngine};

/// The direct way from the engine's thread to a stream, past the web server.
#[derive(Debug)]
pub(super) struct DirectStream {
    pub(super) outlet: Arc<TokenOutlet>,
    /// The bytes for one token, two tokens, and so on, framed for HTTP. The web server itself writes longer pieces and
    /// the last piece of a stream.
    pub(super) pieces: Arc<[Bytes]>,
}

/// A request that an engine has received and that is not yet complete.
#[derive(Debug)]
struct ActiveRequest {
    choice: u32,
    finish: RequestFinish,
    updates: mpsc::UnboundedSender<EngineUpdate>,
    direct: Option<DirectStream>,
    engine: usize,
    prompt_len: u32,
    arrived: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Instant,
    generated: u32,
    sent: u32,
    /// Whether its end is included in the metrics, and whether its last token has been sent.
    counted: bool,
    is_last_sent: bool,
}

impl ActiveRequest {
    /// Adds the finished request to the metrics.
    fn count(&self, finish: RequestFinish, meter: &mut LatencyMeter) {
        let admitted = self.admitted.unwrap_or(self.arrived);
        let first = self.first_token.unwrap_or(admitted);
        let phases = [
            admitted.saturating_duration_since(self.arrived),
            first.saturating_duration_since(admitted),
            self.last_token.saturating_duration_since(first),
        ];
        meter.finish(finish, phases, self.prompt_len, self.generated);
    }

    /// Sends tokens to the client. Returns the time of writing, or `None` if the web server is to write them.
    fn send(&mut self, sent: u32, finish: Option<RequestFinish>) -> Option<Instant> {
        self.sent += sent;
        if let Some(DirectStream { outlet, pieces }) = &self.direct {
            let piece = pieces.get((sent as usize).wrapping_sub(1)).filter(|_| finish.is_none());
            if piece.is_some_and(|piece| outlet.write(piece)) {
                return Some(Instant::now());
            }
            outlet.queue();
        }
        // A client that has disconnected is handled by its abort.
        let _ = self.updates.send(EngineUpdate { choice: self.choice, sent, tokens: self.sent, finish });
        None
    }
}

/// Tokens on their way to a client.
#[derive(Debug)]
struct OutgoingTokens {
    due: Duration,
    event: StepEvent,
}

/// The open requests and the outgoing tokens of all engines.
#[derive(Debug)]
pub(super) struct ClientLink {
    requests: HashMap<RequestId, ActiveRequest>,
    /// The model of the front end's delays for reading requests and writing tokens.
    frontend: twin::FrontendProcess,
    /// Requests whose reading by the front end may not be complete.
    received: VecDeque<(Duration, QueuedPrompt)>,
    /// Ordered by due time.
    outbox: VecDeque<OutgoingTokens>,
    metrics: ServedMetrics,
    schedule: Option<ScheduleWriter>,
    /// Steps whose tokens are not all sent, with the number of missing pieces.
    records: VecDeque<(StepRecord, usize)>,
    /// Steps that ended late by more than their own length.
    pub(super) late: u64,
}

impl ClientLink {
    pub(super) fn new(metrics: ServedMetrics, schedule: Option<ScheduleWriter>, frontend: Frontend) -> Self {
        let (open, frontend) = (HashMap::new(), twin::FrontendProcess::new(frontend));
        let (received, outbox, records) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { requests: open, frontend, received, outbox, metrics, schedule, records, late: 0 }
    }

    /// Sets the factor on the front end's delays.
    pub(super) fn set_slowness(&mut self, slowness: f64) {
        self.frontend.set_slowness(slowness);
    }

    /// Accepts a request that arrived at `at`; the front end now reads it.
    pub(super) fn receive(&mut self, at: Duration, job: QueuedPrompt) {
        let prompt_len = u32::try_from(job.prompt.len()).unwrap_or(u32::MAX);
        self.received.push_back((self.frontend.receive(at, prompt_len), job));
    }

    /// Returns the next request whose reading is complete.
    pub(super) fn read(&mut self, now: Duration) -> Option<QueuedPrompt> {
        self.received.pop_front_if(|(known, _)| *known <= now).map(|(_, job)| job)
    }

    /// Returns whether the front end has read every request that this desk has received.
    pub(super) fn has_read_all(&self) -> bool {
        self.received.is_empty()
    }

    /// Registers a request that an engine has received.
    pub(super) fn register(&mut self, job: QueuedPrompt, engine: usize) {
        let QueuedPrompt { id, choice, arrived, prompt, finish, updates, direct, .. } = job;
        let open = ActiveRequest {
            choice,
            finish,
            updates,
            direct,
            engine,
            prompt_len: u32::try_from(prompt.len()).unwrap_or(u32::MAX),
            arrived,
            admitted: None,
            first_token: None,
            last_token: arrived,
            generated: 0,
            sent: 0,
            counted: false,
            is_last_sent: false,
        };
        self.requests.insert(id, open);
    }

    /// Reports an abort to the client of a request that no engine has.
    pub(super) fn report_abort(job: &QueuedPrompt) {
        let abort = EngineUpdate { choice: job.choice, sent: 0, tokens: 0, finish: Some(RequestFinish::Abort) };
        let _ = job.updates.send(abort);
    }

    /// Records the time at which requests first leave the queue.
    pub(super) fn record_scheduling(&mut self, flight: &StepFlight) {
        let now = Instant::now();
        for item in flight.batch.items.iter().filter(|item| item.context == 0 || item.tokens > 1) {
            if let Some(open) = self.requests.get_mut(&item.id) {
                open.admitted.get_or_insert(now);
            }
        }
    }

    /// Processes the end of a step.
    pub(super) fn process_step_end(
        &mut self,
        clock: &ServedClock,
        flight: &StepFlight,
        engine: &TwinEngine,
        events: &[StepEvent],
    ) {
        let (seen, now) = (&flight.step, Instant::now());
        let due = clock.to_real_time(seen.end).unwrap_or(now);
        let length =
            clock.to_real_time(seen.start).map_or(Duration::ZERO, |start| due.saturating_duration_since(start));
        self.late += u64::from(now.saturating_duration_since(due) > length);
        self.metrics.of(seen.replica).step(engine);
        self.frontend.receive_output(seen.end);
        let before = self.outbox.len();
        for event in events.iter().filter(|event| event.sent > 0) {
            self.outbox.push_back(OutgoingTokens { due: self.frontend.write(), event: *event });
        }
        if self.schedule.is_some() {
            let count = self.outbox.len() - before;
            let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
            let times = [clock.monotonic_ns(due), clock.monotonic_ns(now), length_ns];
            self.records.push_back((StepRecord::new(seen, times, count), count));
        }
        // Tokens that are already due are sent before the latency metrics are updated.
        self.send(seen.end, clock);
        for event in events {
            self.count_output(event, now);
        }
    }

    /// Returns the time of the next event: tokens to send, or a request that has been read.
    pub(super) fn next_event_time(&self) -> Option<Duration> {
        let out = self.outbox.front().map(|out| out.due);
        let read = self.received.front().map(|(known, _)| *known);
        [out, read].into_iter().flatten().min()
    }

    /// Sends all tokens that are due.
    pub(super) fn send(&mut self, now: Duration, clock: &ServedClock) {
        while let Some(OutgoingTokens { due, event }) = self.outbox.pop_front_if(|out| out.due <= now) {
            let written = self.send_event(&event);
            let Some((record, missing)) = self.records.iter_mut().find(|(_, missing)| *missing > 0) else { continue };
            *missing -= 1;
            let due = clock.to_real_time(due).map_or(record.due_ns, |due| clock.monotonic_ns(due));
            record.chunks.push((event.id.0, event.sent, due, written.map(|at| clock.monotonic_ns(at))));
        }
        if let Some(schedule) = &self.schedule {
            while let Some((record, _)) = self.records.pop_front_if(|(_, missing)| *missing == 0) {
                schedule.write(record);
            }
        }
    }

    /// Updates the metrics for the output of a step. vLLM counts it when the front end receives it, not when the tokens
    /// are written.
    fn count_output(&mut self, event: &StepEvent, now: Instant) {
        let Some(open) = self.requests.get_mut(&event.id) else { return };
        let gap = now.saturating_duration_since(open.last_token);
        (open.last_token, open.generated) = (now, event.token);
        let meter = self.metrics.of(open.engine);
        if open.first_token.is_none() {
            open.first_token = Some(now);
            meter.first_token(gap);
        } else {
            meter.next_token(gap);
        }
        if event.last {
            open.count(open.finish, meter);
            open.counted = true;
            if open.is_last_sent {
                self.requests.remove(&event.id);
            }
        }
    }

    /// Sends the tokens of an event. Returns the time of writing, or `None` if the web server is to write them or the
    /// client has disconnected.
    fn send_event(&mut self, event: &StepEvent) -> Option<Instant> {
        let open = self.requests.get_mut(&event.id)?;
        let written = open.send(event.sent, event.last.then_some(open.finish));
        if event.last {
            open.is_last_sent = true;
            if open.counted {
                self.requests.remove(&event.id);
            }
        }
        written
    }

    /// Removes a request whose client has disconnected. Returns the engine that has it.
    pub(super) fn abort(&mut self, id: RequestId) -> Option<usize> {
        self.received.retain(|(_, job)| job.id != id);
        let open = self.requests.remove(&id)?;
        if !open.counted {
            open.count(RequestFinish::Abort, self.metrics.of(open.engine));
        }
        Some(open.engine)
    }

    /// Updates the page and the log to the present state of an engine.
    pub(super) fn update_report(&mut self, at: usize, engine: &TwinEngine) {
        self.metrics.of(at).report = SchedulerReport::of(engine);
    }

    pub(super) fn reports(&self) -> impl Iterator<Item = &SchedulerReport> {
        self.metrics.reports()
    }

    /// Returns the page of `/metrics`.
    pub(super) fn page(&self) -> String {
        self.metrics.render(self.late)
    }

    /// Ends all streams as aborted.
    pub(super) fn abort_all(&mut self) {
        self.received.iter().for_each(|(_, job)| Self::report_abort(job));
        for open in self.requests.values_mut() {
            open.send(0, Some(RequestFinish::Abort));
        }
    }
}
