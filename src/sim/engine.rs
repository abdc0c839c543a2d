//! The engine's loop: one task that owns the scheduler, lets each step take its time and hands out the tokens.

use std::collections::{HashMap, VecDeque};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use super::clock::Clock;
use super::metrics::{Finish, Metrics, Report};
use super::stats::StatsLine;
use crate::twin::{Batch, Engine, RequestId, StepTime};

/// What happens to one request. `choice` is the sender's own number for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    pub(super) choice: u32,
    /// Set with the last token, or without one when the engine gave up.
    pub(super) finish: Option<Finish>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) choice: u32,
    pub(super) prompt: Vec<u32>,
    /// Tokens to generate, and how the request is said to end.
    pub(super) output_len: u32,
    pub(super) finish: Finish,
    pub(super) updates: mpsc::UnboundedSender<Update>,
}

#[derive(Debug)]
pub(super) enum Command {
    Add(Job),
    Abort(RequestId),
    Metrics(oneshot::Sender<String>),
    ResetPrefixCache,
    /// Whether nothing is to be scheduled until told otherwise; answered once that holds and no step is under way.
    Pause(bool, oneshot::Sender<()>),
    Stop,
}

#[derive(Debug)]
struct Flight {
    choice: u32,
    finish: Finish,
    updates: mpsc::UnboundedSender<Update>,
    prompt_len: u32,
    arrived: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Instant,
    generated: u32,
}

#[derive(Debug)]
pub(super) struct EngineLoop {
    engine: Engine,
    step_time: StepTime,
    clock: Clock,
    metrics: Metrics,
    /// As of the last step's end.
    report: Report,
    paused: bool,
    /// Who waits for the steps under way to end.
    pausing: Vec<oneshot::Sender<()>>,
    stats: StatsLine,
    flights: HashMap<RequestId, Flight>,
    commands: mpsc::UnboundedReceiver<Command>,
    ticker: Interval,
}

impl EngineLoop {
    pub(super) fn new(
        engine: Engine,
        step_time: StepTime,
        clock: Clock,
        metrics: Metrics,
        stats: StatsLine,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let mut ticker = interval_at(Instant::now() + StatsLine::PERIOD, StatsLine::PERIOD);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            engine,
            step_time,
            clock,
            metrics,
            report: Report::default(),
            paused: false,
            pausing: Vec::new(),
            stats,
            flights: HashMap::new(),
            commands,
            ticker,
        }
    }

    /// Runs until told to stop or until nobody can send commands any more.
    pub(super) async fn run(mut self) {
        let most = self.engine.settings().scheduling.concurrent_steps();
        // Steps under way, and when they end.
        let mut flights = VecDeque::with_capacity(most);
        loop {
            while !self.paused
                && flights.len() < most
                && let Some(batch) = self.engine.step(self.clock.now())
            {
                self.admit(&batch);
                let end = self.clock.schedule(self.step_time.of(&batch.work));
                flights.push_back((batch, end));
            }
            if !self.wait(flights.front().map(|(_, end)| *end)).await {
                return;
            }
            let ended = flights.pop_front();
            if let Some((batch, _)) = &ended {
                self.finish(batch);
            }
            if flights.is_empty() {
                self.settle();
            }
            self.clock.catch_up(ended.is_none());
        }
    }

    /// Serves commands until `end`, or until there is one. A step that is already over only lets other tasks run.
    /// Returns false when the loop is to end.
    async fn wait(&mut self, end: Option<Instant>) -> bool {
        loop {
            let timer = async {
                match end {
                    Some(end) if end > Instant::now() => sleep_until(end).await,
                    Some(_) => tokio::task::yield_now().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => if !self.obey(command, end.is_none()) { return false },
                    None => return false,
                },
                () = timer => return true,
                _ = self.ticker.tick() => self.stats.write(&self.report),
            }
            if end.is_none() && !self.paused && !self.engine.is_idle() {
                return true;
            }
        }
    }

    /// Returns false when the loop is to end. `idle`: no step is under way.
    fn obey(&mut self, command: Command, idle: bool) -> bool {
        match command {
            Command::Add(job) => self.add(job),
            Command::Abort(id) => {
                self.engine.abort(id);
                self.drop_flight(id, Finish::Abort);
                // Where none is under way, the engine takes an empty step to tell its worker of it.
                if idle {
                    self.report = Report::of(&self.engine);
                }
            }
            Command::Metrics(reply) => {
                // The asker may be gone.
                let _ = reply.send(self.metrics.render(&self.report));
            }
            Command::ResetPrefixCache => self.engine.reset_prefix_cache(),
            Command::Pause(paused, done) => {
                self.paused = paused;
                self.pausing.push(done);
                if idle || !paused {
                    self.settle();
                }
            }
            Command::Stop => {
                for flight in self.flights.values() {
                    let _ = flight.updates.send(Update { choice: flight.choice, finish: Some(Finish::Abort) });
                }
                return false;
            }
        }
        true
    }

    fn settle(&mut self) {
        for done in self.pausing.drain(..) {
            // The asker may be gone.
            let _ = done.send(());
        }
    }

    fn add(&mut self, job: Job) {
        let now = Instant::now();
        if self.engine.add(job.id, &job.prompt, job.output_len, self.clock.virtual_of(now)).is_err() {
            // The front end checks lengths before; a client learns of an engine's refusal as of an abort.
            let _ = job.updates.send(Update { choice: job.choice, finish: Some(Finish::Abort) });
            return;
        }
        let flight = Flight {
            choice: job.choice,
            finish: job.finish,
            updates: job.updates,
            prompt_len: u32::try_from(job.prompt.len()).unwrap_or(u32::MAX),
            arrived: now,
            admitted: None,
            first_token: None,
            last_token: now,
            generated: 0,
        };
        self.flights.insert(job.id, flight);
    }

    /// Notes when requests leave the queue for the first time.
    fn admit(&mut self, batch: &Batch) {
        for item in batch.items.iter().filter(|item| item.context == 0 || item.tokens > 1) {
            if let Some(flight) = self.flights.get_mut(&item.id) {
                flight.admitted.get_or_insert_with(Instant::now);
            }
        }
    }

    fn finish(&mut self, batch: &Batch) {
        let now = Instant::now();
        let before = self.engine.counters();
        for event in self.engine.finish(batch) {
            let Some(flight) = self.flights.get_mut(&event.id) else { continue };
            let gap = now - flight.last_token;
            if flight.generated == 0 {
                flight.first_token = Some(now);
                self.metrics.first_token(gap);
            } else {
                self.metrics.next_token(gap);
            }
            flight.last_token = now;
            flight.generated += event.tokens;
            let finish = event.last.then_some(flight.finish);
            // A client that went away is noticed by its abort.
            for _ in 1..event.tokens {
                let _ = flight.updates.send(Update { choice: flight.choice, finish: None });
            }
            let _ = flight.updates.send(Update { choice: flight.choice, finish });
            if let Some(finish) = finish {
                self.drop_flight(event.id, finish);
            }
        }
        self.report = Report::of(&self.engine);
        self.metrics.step(&before, &self.report.counters);
    }

    fn drop_flight(&mut self, id: RequestId, finish: Finish) {
        if let Some(flight) = self.flights.remove(&id) {
            let admitted = flight.admitted.unwrap_or(flight.arrived);
            let first = flight.first_token.unwrap_or(admitted);
            let phases =
                [admitted - flight.arrived, first - admitted, flight.last_token.saturating_duration_since(first)];
            self.metrics.finish(finish, phases, flight.prompt_len, flight.generated);
        }
    }
}
