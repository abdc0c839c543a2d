//! The engines' thread. It owns the schedulers, waits for the end of each step, and sends out the tokens.
//!
//! It waits for the absolute instant at which the next step ends, so that a delay at one step does not move the next. A
//! request can be scheduled from the virtual time of its arrival on.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::client_link::{ClientLink, DirectStream};
use super::clock::ServedClock;
use super::fault::StepFault;
use super::live::LiveFolder;
use super::metrics::RequestFinish;
use super::stats::StatsLine;
use crate::load::request_realtime_priority;
use crate::twin::{Fleet, RequestId, StepTime, Tokens, TwinEngine, TwinRequest};

/// The time before an instant during which the thread spins, because the kernel wakes a sleeping thread some 50
/// microseconds late.
const SPIN: Duration = Duration::from_micros(60);

/// The delay of a step's end beyond which the next step includes all requests that have arrived meanwhile. Requests
/// must not wait for an engine that is behind its schedule.
const LATE_STEP_DELAY: Duration = Duration::from_millis(1);

/// The longest single sleep during a step without an end.
const MAX_SLEEP: Duration = Duration::from_secs(1);

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
pub(super) struct QueuedPrompt {
    pub(super) id: RequestId,
    /// The index of the prompt in the HTTP request.
    pub(super) choice: u32,
    pub(super) arrived: Instant,
    pub(super) prompt: Vec<u32>,
    /// The number of tokens to generate, and the reported reason of the end.
    pub(super) output_len: u32,
    pub(super) finish: RequestFinish,
    /// The largest number of tokens that the request allows.
    pub(super) max_output: u32,
    pub(super) priority: i32,
    pub(super) updates: mpsc::UnboundedSender<EngineUpdate>,
    pub(super) direct: Option<DirectStream>,
}

/// A command of the web server to the engines' thread.
#[derive(Debug)]
pub(super) enum EngineCommand {
    Add(Box<QueuedPrompt>),
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
    client_link: ClientLink,
    stats: StatsLine,
    /// Requests that have arrived and are not yet in a scheduler.
    pending: VecDeque<QueuedPrompt>,
    /// The virtual time of the last event.
    now: Duration,
    commands: Receiver<EngineCommand>,
    /// The instant of the last periodic log line.
    last_stats_at: Instant,
    paused: bool,
    /// The long step that is about to begin.
    pending_stall: Option<StepFault>,
    /// Recipients of the answer to a pause.
    pause_waiters: Vec<oneshot::Sender<()>>,
    /// Whether the thread asks for a real-time priority.
    realtime: bool,
    /// The files of live knobs, if the launch has them.
    live: Option<LiveFolder>,
}

impl EngineLoop {
    pub(super) fn new(
        engines: Vec<TwinEngine>,
        step_time: StepTime,
        clock: ServedClock,
        desk: ClientLink,
        stats: StatsLine,
        realtime: bool,
        commands: Receiver<EngineCommand>,
    ) -> Self {
        Self {
            fleet: Fleet::new(engines),
            step_time,
            clock,
            client_link: desk,
            stats,
            pending: VecDeque::new(),
            now: Duration::ZERO,
            commands,
            last_stats_at: Instant::now(),
            paused: false,
            pending_stall: None,
            pause_waiters: Vec::new(),
            realtime,
            live: None,
        }
    }

    /// Sets the files of live knobs.
    pub(super) fn with_live(self, live: Option<LiveFolder>) -> Self {
        Self { live, ..self }
    }

    /// Reads new limits if no request is present.
    fn poll_live_knobs(&mut self) {
        let is_idle = self.pending.is_empty() && self.client_link.has_read_all() && self.fleet.is_idle();
        let Some(live) = self.live.as_mut().filter(|_| is_idle) else { return };
        match live.poll() {
            Ok(Some(limits)) => self.fleet.set_live_limits(limits),
            Ok(None) => {}
            Err(error) => self.stats.warn(&format!("live knobs: {error}")),
        }
    }

    /// Runs until a command ends the loop or no sender is left.
    pub(super) fn run(mut self) {
        // By default the kernel delays each wake-up by up to 50 microseconds (`PR_SET_TIMERSLACK`, `prctl(2)`).
        let _ = nix::sys::prctl::set_timerslack(1);
        if self.realtime && !request_realtime_priority() {
            self.stats.warn("The engine's thread gets no real-time priority: it needs CAP_SYS_NICE or `ulimit -r`.");
        }
        loop {
            if let Some(step) = self.pending_stall.take()
                && self.stall(step).is_break()
            {
                return;
            }
            let event = self.next();
            let due = event.and_then(|event| self.clock.to_real_time(event));
            let stats = self.last_stats_at + StatsLine::PERIOD;
            let until = due.map_or(stats, |due| due.min(stats));
            let left = until.saturating_duration_since(Instant::now());
            // At most an eighth of a short wait is spent spinning. With a large `--sim-time-scale`, all waits are
            // short.
            let sleep = left.saturating_sub(SPIN.min(left / 8));
            match self.commands.recv_timeout(sleep) {
                Ok(command) => match self.execute(command) {
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
                (Some(event), Some(due)) if due <= until => self.advance_to(event, due),
                _ => {
                    self.last_stats_at = Instant::now();
                    self.stats.write(self.client_link.reports(), self.client_link.late);
                }
            }
        }
    }

    /// Waits without beginning or ending a step. Commands are still executed, because vLLM's front end answers during a
    /// long step.
    fn stall(&mut self, step: StepFault) -> ControlFlow<()> {
        let end = step.duration.and_then(|lasts| Instant::now().checked_add(lasts));
        while end.is_none_or(|end| Instant::now() < end) {
            let left = end.map_or(MAX_SLEEP, |end| end.saturating_duration_since(Instant::now()).min(MAX_SLEEP));
            // With a timeout of zero the loop spins.
            match self.commands.recv_timeout(if step.busy { Duration::ZERO } else { left }) {
                Ok(command) => self.execute(command)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the virtual time of the next event.
    fn next(&self) -> Option<Duration> {
        let asked = self.pending.front().map(|job| self.clock.to_virtual_time(job.arrived));
        let next = [asked, self.fleet.next_step_end(), self.client_link.next_event_time()].into_iter().flatten().min();
        next.map(|next| next.max(self.now))
    }

    /// Ends and begins the steps that are due at a virtual time; `due` is its real instant.
    fn advance_to(&mut self, event: Duration, due: Instant) {
        self.now = event;
        let (desk, clock, fleet) = (&mut self.client_link, &mut self.clock, &mut self.fleet);
        let slowness = clock.slowness(event) * self.live.as_ref().map_or(1.0, |live| live.slowness);
        desk.set_slowness(slowness);
        fleet.finish_ended_steps(event, |flight, engine, events| desk.process_step_end(clock, flight, engine, events));
        desk.send(event, clock);
        let lag = due.elapsed();
        let taken = if lag > LATE_STEP_DELAY { clock.to_virtual_time(Instant::now()) } else { event };
        while let Some(job) = self.pending.pop_front_if(|job| clock.to_virtual_time(job.arrived) <= taken) {
            desk.receive(clock.to_virtual_time(job.arrived).min(event), job);
        }
        while let Some(job) = desk.read(event) {
            let ask = TwinRequest {
                id: job.id,
                prompt: Tokens::Ids(job.prompt.as_slice().into()),
                output_len: job.output_len,
                most_output: Some(job.max_output),
                priority: job.priority,
            };
            match fleet.ask(&ask, event) {
                Ok(engine) => desk.register(job, engine),
                // The front end has checked the lengths before. If the engine still refuses, the client receives an
                // abort.
                Err(_) => ClientLink::report_abort(&job),
            }
        }
        if !self.paused {
            let step_time = &self.step_time;
            fleet.fill(
                event,
                |work| clock.noisy_length(step_time.step_duration(work), slowness),
                |flight| desk.record_scheduling(flight),
            );
        }
        clock.catch_up(lag);
        self.answer_pauses();
    }

    /// Executes a command. A break ends the loop.
    fn execute(&mut self, command: EngineCommand) -> ControlFlow<()> {
        match command {
            EngineCommand::Add(job) => {
                self.poll_live_knobs();
                self.pending.push_back(*job);
            }
            EngineCommand::Abort(id) => {
                self.pending.retain(|job| job.id != id);
                if let Some(at) = self.client_link.abort(id) {
                    self.fleet.abort(at, id);
                    // If no step is under way, vLLM's engine executes an empty one to inform its worker, and thus
                    // updates its metrics.
                    if self.fleet.next_step_end().is_none()
                        && let Some(engine) = self.fleet.engines().nth(at)
                    {
                        self.client_link.update_report(at, engine);
                    }
                }
                self.answer_pauses();
            }
            EngineCommand::Metrics(reply) => {
                // The receiver may have been dropped.
                let _ = reply.send(self.client_link.page());
            }
            EngineCommand::Stall(step) => self.pending_stall = Some(step),
            EngineCommand::ResetPrefixCache => self.fleet.reset_prefix_caches(),
            EngineCommand::Pause(paused, done) => {
                self.paused = paused;
                self.pause_waiters.push(done);
                self.answer_pauses();
                if !paused {
                    let now = Instant::now();
                    self.advance_to(self.clock.to_virtual_time(now).max(self.now), now);
                }
            }
            EngineCommand::Stop => {
                self.pending.iter().for_each(ClientLink::report_abort);
                self.client_link.abort_all();
                return ControlFlow::Break(());
            }
            EngineCommand::Die => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Answers a pause as soon as no step is under way and all earlier requests have been read.
    fn answer_pauses(&mut self) {
        let is_read = self.pending.is_empty() && self.client_link.has_read_all();
        if !self.paused || (is_read && self.fleet.next_step_end().is_none()) {
            for done in self.pause_waiters.drain(..) {
                // The receiver may have been dropped.
                let _ = done.send(());
            }
        }
    }
}
