//! Between the engines and their clients: who waits for what, and when he got it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::mpsc;

use super::clock::Clock;
use super::engine::{Job, Update};
use super::metrics::{Finish, Metrics};
use super::outlet::Outlet;
use super::schedule::{Record, Schedule};
use crate::twin::{Engine, Event, Flight, RequestId};

/// The way around the web server for the tokens of a stream.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) outlet: Arc<Outlet>,
    /// What is written for one token, two, and so on, framed for HTTP. For more, and for the last, the web server is asked.
    pub(super) pieces: Arc<[Bytes]>,
}

#[derive(Debug)]
struct Open {
    choice: u32,
    finish: Finish,
    updates: mpsc::UnboundedSender<Update>,
    direct: Option<Direct>,
    engine: usize,
    prompt_len: u32,
    arrived: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Instant,
    sent: u32,
}

impl Open {
    /// Sends tokens to the client. When they were written, unless that is left to the web server.
    fn send(&mut self, sent: u32, finish: Option<Finish>) -> Option<Instant> {
        self.sent += sent;
        if let Some(Direct { outlet, pieces }) = &self.direct {
            let piece = pieces.get((sent as usize).wrapping_sub(1)).filter(|_| finish.is_none());
            if piece.is_some_and(|piece| outlet.write(piece)) {
                return Some(Instant::now());
            }
            outlet.queue();
        }
        // A client that went away is noticed by its abort.
        let _ = self.updates.send(Update { choice: self.choice, sent, tokens: self.sent, finish });
        None
    }
}

#[derive(Debug)]
pub(super) struct Desk {
    open: HashMap<RequestId, Open>,
    metrics: Metrics,
    schedule: Option<Schedule>,
    /// Steps that ended, and those that ended late by more than their own length.
    pub(super) steps: u64,
    pub(super) late: u64,
}

impl Desk {
    pub(super) fn new(metrics: Metrics, schedule: Option<Schedule>) -> Self {
        Self { open: HashMap::new(), metrics, schedule, steps: 0, late: 0 }
    }

    /// A request has been given to an engine.
    pub(super) fn open(&mut self, job: Job, engine: usize) {
        let Job { id, choice, arrived, prompt, finish, updates, direct, .. } = job;
        let open = Open {
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
            sent: 0,
        };
        self.open.insert(id, open);
    }

    /// Tells the client of a request that no engine has that there will be nothing.
    pub(super) fn refuse(job: &Job) {
        let abort = Update { choice: job.choice, sent: 0, tokens: 0, finish: Some(Finish::Abort) };
        let _ = job.updates.send(abort);
    }

    /// Notes when requests leave the queue for the first time.
    pub(super) fn scheduled(&mut self, flight: &Flight) {
        let now = Instant::now();
        for item in flight.batch.items.iter().filter(|item| item.context == 0 || item.tokens > 1) {
            if let Some(open) = self.open.get_mut(&item.id) {
                open.admitted.get_or_insert(now);
            }
        }
    }

    /// A step has ended: the tokens go out first, everything else can wait.
    pub(super) fn ended(&mut self, clock: &Clock, flight: &Flight, events: &[Event]) {
        let (seen, now) = (&flight.seen, Instant::now());
        let mut chunks = Vec::with_capacity(if self.schedule.is_some() { events.len() } else { 0 });
        for event in events.iter().filter(|event| event.sent > 0) {
            let Some(open) = self.open.get_mut(&event.id) else { continue };
            let finish = event.last.then_some(open.finish);
            let written = open.send(event.sent, finish);
            if self.schedule.is_some() {
                chunks.push((event.id.0, event.sent, written.map(|at| clock.monotonic_ns(at))));
            }
        }
        let due = clock.real_of(seen.end).unwrap_or(now);
        let length = clock.real_of(seen.start).map_or(Duration::ZERO, |start| due - start);
        self.steps += 1;
        self.late += u64::from(now.saturating_duration_since(due) > length);
        if let Some(schedule) = &self.schedule {
            let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
            let times = [clock.monotonic_ns(due), clock.monotonic_ns(now), length_ns];
            schedule.write(Record::new(seen, times, chunks));
        }
        self.account(now, flight, events);
    }

    /// What `/metrics` is to say of a step.
    fn account(&mut self, now: Instant, flight: &Flight, events: &[Event]) {
        let engine = flight.seen.replica;
        self.metrics.of(engine).step(flight.seen.work.tokens);
        for event in events {
            let Some(open) = self.open.get_mut(&event.id) else { continue };
            let gap = now.saturating_duration_since(open.last_token);
            open.last_token = now;
            if open.first_token.is_none() {
                open.first_token = Some(now);
                self.metrics.of(engine).first_token(gap);
            } else {
                self.metrics.of(engine).next_token(gap);
            }
            if event.last {
                let finish = open.finish;
                self.close(event.id, finish);
            }
        }
    }

    fn close(&mut self, id: RequestId, finish: Finish) -> Option<usize> {
        let open = self.open.remove(&id)?;
        let admitted = open.admitted.unwrap_or(open.arrived);
        let first = open.first_token.unwrap_or(admitted);
        let phases = [
            admitted.saturating_duration_since(open.arrived),
            first.saturating_duration_since(admitted),
            open.last_token.saturating_duration_since(first),
        ];
        self.metrics.of(open.engine).finish(finish, phases, open.prompt_len, open.sent);
        Some(open.engine)
    }

    /// Forgets a request whose client is gone, and says which engine has it.
    pub(super) fn abort(&mut self, id: RequestId) -> Option<usize> {
        self.close(id, Finish::Abort)
    }

    /// The page of `/metrics`.
    pub(super) fn page<'a>(&self, engines: impl Iterator<Item = &'a Engine>) -> String {
        self.metrics.render(engines, self.late)
    }

    /// Ends all streams.
    pub(super) fn stop(&mut self) {
        for open in self.open.values_mut() {
            open.send(0, Some(Finish::Abort));
        }
    }
}
