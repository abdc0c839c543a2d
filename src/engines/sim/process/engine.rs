//! The engines' thread: it owns the schedulers, lets each step take its time, and hands out the tokens.
//!
//! It waits for the absolute instant at which the next step ends; however late it comes to one, the next is due when it
//! was. A request takes part in what is scheduled from the virtual time on at which it arrived.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::clock::Clock;
use super::desk::{Desk, Direct};
use super::fault::StepFault;
use super::metrics::Finish;
use super::stats::StatsLine;
use crate::load::prefer;
use crate::twin::{Ask, Engine, Fleet, RequestId, StepTime, Tokens};

/// How long before an instant the thread stops to sleep: a sleeping thread is woken some 50 microseconds late.
const SPIN: Duration = Duration::from_micros(60);

/// A step that ends later than this by the clock takes in whoever has arrived by then: requests must not wait for an engine
/// that runs behind its schedule.
const BEHIND: Duration = Duration::from_millis(1);

/// How long the thread sleeps at a time in a step without an end.
const MOST_SLEEP: Duration = Duration::from_secs(1);

/// What happens to one request. `choice` is the sender's own number for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    pub(super) choice: u32,
    /// Tokens that the client gets now, and all that it has by then.
    pub(super) sent: u32,
    pub(super) tokens: u32,
    /// Set with the last token, or without one when the engine gave up.
    pub(super) finish: Option<Finish>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) choice: u32,
    pub(super) arrived: Instant,
    pub(super) prompt: Vec<u32>,
    /// Tokens to generate, and how the request is said to end.
    pub(super) output_len: u32,
    pub(super) finish: Finish,
    /// The most tokens that it might have generated.
    pub(super) most_output: u32,
    pub(super) priority: i32,
    pub(super) updates: mpsc::UnboundedSender<Update>,
    pub(super) direct: Option<Direct>,
}

#[derive(Debug)]
pub(super) enum Command {
    Add(Box<Job>),
    Abort(RequestId),
    Metrics(oneshot::Sender<String>),
    ResetPrefixCache,
    /// Whether nothing is to be scheduled until told otherwise; answered once that holds, no step is under way, and what
    /// was asked for before has been read.
    Pause(bool, oneshot::Sender<()>),
    /// Has a step take longer than it should.
    Stall(StepFault),
    /// Ends all streams as aborted.
    Stop,
    /// Ends without a word.
    Die,
}

#[derive(Debug)]
pub(super) struct EngineLoop {
    fleet: Fleet<Engine>,
    step_time: StepTime,
    clock: Clock,
    desk: Desk,
    stats: StatsLine,
    /// Arrived, and not yet in a scheduler.
    pending: VecDeque<Job>,
    /// The virtual time of the last event.
    now: Duration,
    commands: Receiver<Command>,
    written: Instant,
    paused: bool,
    stalled: Option<StepFault>,
    /// Who waits for the steps under way to end, and for requests to be read.
    pausing: Vec<oneshot::Sender<()>>,
    /// Whether the thread is to run before all that have no real-time priority.
    realtime: bool,
}

impl EngineLoop {
    pub(super) fn new(
        engines: Vec<Engine>,
        step_time: StepTime,
        clock: Clock,
        desk: Desk,
        stats: StatsLine,
        realtime: bool,
        commands: Receiver<Command>,
    ) -> Self {
        Self {
            fleet: Fleet::new(engines),
            step_time,
            clock,
            desk,
            stats,
            pending: VecDeque::new(),
            now: Duration::ZERO,
            commands,
            written: Instant::now(),
            paused: false,
            stalled: None,
            pausing: Vec::new(),
            realtime,
        }
    }

    /// Runs until told to stop or until nobody can send commands any more.
    pub(super) fn run(mut self) {
        // Where this is not allowed, the thread is woken some 50 microseconds later.
        let _ = nix::sys::prctl::set_timerslack(1);
        if self.realtime && !prefer() {
            self.stats.warn("The engine's thread gets no real-time priority: it takes CAP_SYS_NICE or `ulimit -r`.");
        }
        loop {
            if let Some(step) = self.stalled.take()
                && self.stall(step).is_break()
            {
                return;
            }
            let event = self.next();
            let due = event.and_then(|event| self.clock.real_of(event));
            let stats = self.written + StatsLine::PERIOD;
            let until = due.map_or(stats, |due| due.min(stats));
            let left = until.saturating_duration_since(Instant::now());
            // Short waits are slept whole: an engine that is many times as fast as its device would only spin.
            let sleep = left.saturating_sub(SPIN.min(left / 8));
            match self.commands.recv_timeout(sleep) {
                Ok(command) => match self.obey(command) {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(()) => return,
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            match (event, due) {
                (Some(event), Some(due)) if due <= until => self.reach(event, due),
                _ => {
                    self.written = Instant::now();
                    self.stats.write(self.desk.reports(), self.desk.late);
                }
            }
        }
    }

    /// Lets time pass without a step that begins or ends. Commands are obeyed: vLLM's front end answers during a long step, too.
    fn stall(&mut self, step: StepFault) -> ControlFlow<()> {
        let end = step.lasts.and_then(|lasts| Instant::now().checked_add(lasts));
        while end.is_none_or(|end| Instant::now() < end) {
            let left = end.map_or(MOST_SLEEP, |end| end.saturating_duration_since(Instant::now()).min(MOST_SLEEP));
            // Without time to wait the loop spins.
            match self.commands.recv_timeout(if step.busy { Duration::ZERO } else { left }) {
                Ok(command) => self.obey(command)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    }

    /// The virtual time at which something happens next.
    fn next(&self) -> Option<Duration> {
        let asked = self.pending.front().map(|job| self.clock.virtual_of(job.arrived));
        let next = [asked, self.fleet.due(), self.desk.due()].into_iter().flatten().min();
        next.map(|next| next.max(self.now))
    }

    /// Ends and begins what is due at a virtual time, which should have been at `due`.
    fn reach(&mut self, event: Duration, due: Instant) {
        self.now = event;
        let (desk, clock, fleet) = (&mut self.desk, &mut self.clock, &mut self.fleet);
        fleet.ended(event, |flight, engine, events| desk.ended(clock, flight, engine, events));
        desk.send(event, clock);
        let lag = due.elapsed();
        let taken = if lag > BEHIND { clock.virtual_of(Instant::now()) } else { event };
        while let Some(job) = self.pending.pop_front_if(|job| clock.virtual_of(job.arrived) <= taken) {
            desk.receive(clock.virtual_of(job.arrived).min(event), job);
        }
        while let Some(job) = desk.read(event) {
            let ask = Ask {
                id: job.id,
                prompt: Tokens::Ids(job.prompt.as_slice().into()),
                output_len: job.output_len,
                most_output: Some(job.most_output),
                priority: job.priority,
            };
            match fleet.ask(&ask, event) {
                Ok(engine) => desk.open(job, engine),
                // The front end checks lengths before; a client learns of an engine's refusal as of an abort.
                Err(_) => Desk::refuse(&job),
            }
        }
        if !self.paused {
            let step_time = &self.step_time;
            fleet.fill(event, |work| clock.length(step_time.of(work)), |flight| desk.scheduled(flight));
        }
        clock.catch_up(lag);
        self.settle();
    }

    /// A break ends the loop.
    fn obey(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Add(job) => self.pending.push_back(*job),
            Command::Abort(id) => {
                self.pending.retain(|job| job.id != id);
                if let Some(at) = self.desk.abort(id) {
                    self.fleet.abort(at, id);
                    // Where no step is under way, the engine takes an empty one to tell its worker of it.
                    if self.fleet.due().is_none()
                        && let Some(engine) = self.fleet.engines().nth(at)
                    {
                        self.desk.report(at, engine);
                    }
                }
                self.settle();
            }
            Command::Metrics(reply) => {
                // The asker may be gone.
                let _ = reply.send(self.desk.page());
            }
            Command::Stall(step) => self.stalled = Some(step),
            Command::ResetPrefixCache => self.fleet.reset_prefix_caches(),
            Command::Pause(paused, done) => {
                self.paused = paused;
                self.pausing.push(done);
                self.settle();
                if !paused {
                    let now = Instant::now();
                    self.reach(self.clock.virtual_of(now).max(self.now), now);
                }
            }
            Command::Stop => {
                self.pending.iter().for_each(Desk::refuse);
                self.desk.stop();
                return ControlFlow::Break(());
            }
            Command::Die => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Tells those who wait for the steps under way to end and for requests to be read, once that is so.
    fn settle(&mut self) {
        let is_read = self.pending.is_empty() && self.desk.is_read();
        if !self.paused || (is_read && self.fleet.due().is_none()) {
            for done in self.pausing.drain(..) {
                // The asker may be gone.
                let _ = done.send(());
            }
        }
    }
}
