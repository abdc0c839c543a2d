//! The engines' thread. It owns the schedulers, waits for the end of each step, and sends out the tokens.
//!
//! It waits for the absolute instant at which the next step ends, so that a delay at one step does not move the next. A
//! request can be scheduled from the virtual time of its arrival on.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::clock::ServedClock;
use super::desk::{DirectStream, EngineDesk};
use super::fault::StepFault;
use super::metrics::RequestFinish;
use super::stats::StatsLine;
use crate::load::prefer;
use crate::twin::{Fleet, RequestId, StepTime, Tokens, TwinEngine, TwinRequest};

/// The time before an instant during which the thread spins, because the kernel wakes a sleeping thread some 50
/// microseconds late.
const SPIN: Duration = Duration::from_micros(60);

/// The delay of a step's end beyond which the next step includes all requests that have arrived meanwhile. Requests
/// must not wait for an engine that is behind its schedule.
const BEHIND: Duration = Duration::from_millis(1);

/// The longest single sleep during a step without an end.
const MOST_SLEEP: Duration = Duration::from_secs(1);

/// New output of one request. `choice` is the index of its prompt in the HTTP request.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineUpdate {
    pub(super) choice: u32,
    /// New tokens for the client, and the total number of tokens including these.
    pub(super) sent: u32,
    pub(super) tokens: u32,
    /// Present with the last token, or without a token if the request was aborted.
    pub(super) finish: Option<RequestFinish>,
}

/// One prompt of an HTTP request, on its way to an engine.
#[derive(Debug)]
pub(super) struct EngineJobs {
    pub(super) id: RequestId,
    /// The index of the prompt in the HTTP request.
    pub(super) choice: u32,
    pub(super) arrived: Instant,
    pub(super) prompt: Vec<u32>,
    /// The number of tokens to generate, and the reported reason of the end.
    pub(super) output_len: u32,
    pub(super) finish: RequestFinish,
    /// The largest number of tokens that the request allows.
    pub(super) most_output: u32,
    pub(super) priority: i32,
    pub(super) updates: mpsc::UnboundedSender<EngineUpdate>,
    pub(super) direct: Option<DirectStream>,
}

/// A command of the web server to the engines' thread.
#[derive(Debug)]
pub(super) enum EngineCommand {
    Add(Box<EngineJobs>),
    Abort(RequestId),
    Metrics(oneshot::Sender<String>),
    ResetPrefixCache,
    /// Stops scheduling (`true`) until it is resumed (`false`). The answer is sent when no step is under way and all
    /// earlier requests have been read; after a resumption, at once.
    Pause(bool, oneshot::Sender<()>),
    /// Suspends all events, like a step that takes too long.
    Stall(StepFault),
    /// Ends all streams as aborted.
    Stop,
    /// Ends without a message to clients.
    Die,
}

/// The loop of the engines' thread.
#[derive(Debug)]
pub(super) struct EngineLoop {
    fleet: Fleet<TwinEngine>,
    step_time: StepTime,
    clock: ServedClock,
    desk: EngineDesk,
    stats: StatsLine,
    /// Requests that have arrived and are not yet in a scheduler.
    pending: VecDeque<EngineJobs>,
    /// The virtual time of the last event.
    now: Duration,
    commands: Receiver<EngineCommand>,
    /// The instant of the last periodic log line.
    written: Instant,
    paused: bool,
    /// The long step that is about to begin.
    stalled: Option<StepFault>,
    /// Recipients of the answer to a pause.
    pausing: Vec<oneshot::Sender<()>>,
    /// Whether the thread asks for a real-time priority.
    realtime: bool,
}

impl EngineLoop {
    pub(super) fn new(
        engines: Vec<TwinEngine>,
        step_time: StepTime,
        clock: ServedClock,
        desk: EngineDesk,
        stats: StatsLine,
        realtime: bool,
        commands: Receiver<EngineCommand>,
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

    /// Runs until a command ends the loop or no sender is left.
    pub(super) fn run(mut self) {
        // By default the kernel delays each wake-up by up to 50 microseconds (`PR_SET_TIMERSLACK`, `prctl(2)`).
        let _ = nix::sys::prctl::set_timerslack(1);
        if self.realtime && !prefer() {
            self.stats.warn("The engine's thread gets no real-time priority: it needs CAP_SYS_NICE or `ulimit -r`.");
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
            // At most an eighth of a short wait is spent spinning. With a large `--sim-time-scale`, all waits are
            // short.
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

    /// Waits without beginning or ending a step. Commands are still executed, because vLLM's front end answers during a
    /// long step.
    fn stall(&mut self, step: StepFault) -> ControlFlow<()> {
        let end = step.lasts.and_then(|lasts| Instant::now().checked_add(lasts));
        while end.is_none_or(|end| Instant::now() < end) {
            let left = end.map_or(MOST_SLEEP, |end| end.saturating_duration_since(Instant::now()).min(MOST_SLEEP));
            // With a timeout of zero the loop spins.
            match self.commands.recv_timeout(if step.busy { Duration::ZERO } else { left }) {
                Ok(command) => self.obey(command)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the virtual time of the next event.
    fn next(&self) -> Option<Duration> {
        let asked = self.pending.front().map(|job| self.clock.virtual_of(job.arrived));
        let next = [asked, self.fleet.due(), self.desk.due()].into_iter().flatten().min();
        next.map(|next| next.max(self.now))
    }

    /// Ends and begins the steps that are due at a virtual time; `due` is its real instant.
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
            let ask = TwinRequest {
                id: job.id,
                prompt: Tokens::Ids(job.prompt.as_slice().into()),
                output_len: job.output_len,
                most_output: Some(job.most_output),
                priority: job.priority,
            };
            match fleet.ask(&ask, event) {
                Ok(engine) => desk.open(job, engine),
                // The front end has checked the lengths before. If the engine still refuses, the client receives an
                // abort.
                Err(_) => EngineDesk::refuse(&job),
            }
        }
        if !self.paused {
            let step_time = &self.step_time;
            fleet.fill(event, |work| clock.length(step_time.of(work)), |flight| desk.scheduled(flight));
        }
        clock.catch_up(lag);
        self.settle();
    }

    /// Executes a command. A break ends the loop.
    fn obey(&mut self, command: EngineCommand) -> ControlFlow<()> {
        match command {
            EngineCommand::Add(job) => self.pending.push_back(*job),
            EngineCommand::Abort(id) => {
                self.pending.retain(|job| job.id != id);
                if let Some(at) = self.desk.abort(id) {
                    self.fleet.abort(at, id);
                    // If no step is under way, vLLM's engine executes an empty one to inform its worker, and thus
                    // updates its metrics.
                    if self.fleet.due().is_none()
                        && let Some(engine) = self.fleet.engines().nth(at)
                    {
                        self.desk.report(at, engine);
                    }
                }
                self.settle();
            }
            EngineCommand::Metrics(reply) => {
                // The receiver may have been dropped.
                let _ = reply.send(self.desk.page());
            }
            EngineCommand::Stall(step) => self.stalled = Some(step),
            EngineCommand::ResetPrefixCache => self.fleet.reset_prefix_caches(),
            EngineCommand::Pause(paused, done) => {
                self.paused = paused;
                self.pausing.push(done);
                self.settle();
                if !paused {
                    let now = Instant::now();
                    self.reach(self.clock.virtual_of(now).max(self.now), now);
                }
            }
            EngineCommand::Stop => {
                self.pending.iter().for_each(EngineDesk::refuse);
                self.desk.stop();
                return ControlFlow::Break(());
            }
            EngineCommand::Die => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Answers a pause as soon as no step is under way and all earlier requests have been read.
    fn settle(&mut self) {
        let is_read = self.pending.is_empty() && self.desk.is_read();
        if !self.paused || (is_read && self.fleet.due().is_none()) {
            for done in self.pausing.drain(..) {
                // The receiver may have been dropped.
                let _ = done.send(());
            }
        }
    }
}
