//! Runs a whole load in virtual time: the clients' requests, and the replies that they observe.
//!
//! Only arrivals of requests and ends of steps change the state, so time jumps from one to the next. Memory is bounded
//! by the requests under way, because each complete reply goes to the observer.

use std::collections::VecDeque;
use std::time::Duration;

use super::ask::{AddError, TwinRequest};
use super::engine::{StepEvent, TwinEngine};
use super::fleet::Fleet;
use super::frontend::FrontendProcess;
use super::replica::ScheduledStep;
use super::sequence::RequestId;
use super::source::{Arrivals, NextArrival, RequestSource, SentRequest, TwinArrival, Users};
use super::step_time::StepTime;
use crate::workload::Workload;

/// One request as its client observes it, in virtual time since the start of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualReply {
    /// The session's index in the workload, or the arrival's number.
    pub index: u64,
    /// The turn of the session, from 0.
    pub turn: u32,
    /// Index of the engine that has answered.
    pub replica: usize,
    /// When the front end received the request.
    pub received_at: Duration,
    /// Time from `asked` to the first token.
    pub ttft: Duration,
    /// Times from one chunk of the stream to the next. A chunk is one token, or more if drafts were accepted or if
    /// `stream_interval` is above 1.
    pub gaps: Vec<Duration>,
    pub prompt_len: u32,
    /// Number of output tokens.
    pub tokens: u32,
}

impl VirtualReply {
    /// Returns when the client has received the last token.
    #[must_use]
    pub fn finished(&self) -> Duration {
        self.received_at + self.ttft + self.gaps.iter().sum::<Duration>()
    }

    /// Returns the number of output tokens.
    #[must_use]
    pub fn output_len(&self) -> u64 {
        self.tokens.into()
    }
}

/// Observer of a load.
pub trait DriveObserver {
    /// Receives a step when it is scheduled. The steps of one engine come in order of time, those of several engines
    /// need not.
    fn step(&mut self, _seen: &ScheduledStep) {}

    /// Receives a complete reply. Replies come in the order of their ends.
    fn reply(&mut self, _reply: VirtualReply) {}

    /// Returns whether to end the load early.
    fn is_done(&self) -> bool {
        false
    }
}

/// Collects all replies.
impl DriveObserver for Vec<VirtualReply> {
    fn reply(&mut self, reply: VirtualReply) {
        self.push(reply);
    }
}

/// Engines that share a load and a front end. `step_time` applies to each engine.
#[derive(Debug)]
pub struct Drive<'a> {
    /// One engine, or one per data-parallel replica. Each schedules independently, as in vLLM for models without
    /// experts.
    pub engines: &'a mut [TwinEngine],
    pub step_time: &'a StepTime,
}

impl Drive<'_> {
    /// Runs a closed loop: sends the first `requests` requests of the workload, from at most `concurrency` users at
    /// once. Each user sends the turns of a session one after the other and then begins the next session.
    ///
    /// There is no tokenizer. Every four bytes of a text are a token, and equal bytes give equal tokens. Images have no
    /// tokens.
    ///
    /// # Errors
    /// If a request of the workload cannot be served with these settings.
    pub fn run_closed_loop(
        &mut self,
        workload: &dyn Workload,
        requests: u64,
        concurrency: u64,
        observer: &mut dyn DriveObserver,
    ) -> Result<(), AddError> {
        self.run(&mut Users::new(workload, requests, concurrency), observer)
    }

    /// Runs an open loop: sends all `arrivals` when they are due. They must be in order of time.
    ///
    /// # Errors
    /// If one of them cannot be served with these settings.
    pub fn run_open_loop(
        &mut self,
        arrivals: impl Iterator<Item = TwinArrival>,
        observer: &mut dyn DriveObserver,
    ) -> Result<(), AddError> {
        self.run(&mut Arrivals::new(arrivals), observer)
    }

    /// Sends the requests of a source. It returns when the source is exhausted and all replies have ended, or when the
    /// observer ends it early.
    ///
    /// # Errors
    /// If one of the requests cannot be served with these settings.
    pub fn run<S: RequestSource>(&mut self, source: &mut S, observer: &mut dyn DriveObserver) -> Result<(), AddError> {
        let step_time = self.step_time;
        let mut fleet = Fleet::new(self.engines.iter_mut());
        if fleet.is_empty() {
            return Ok(());
        }
        let mut desk = FrontendProcess::new(step_time.frontend());
        let mut received = VecDeque::new();
        let mut open = OpenRequests::default();
        let mut now = Duration::ZERO;
        loop {
            let due = loop {
                match source.next(now) {
                    NextArrival::Request(asked) => {
                        received.push_back((desk.receive(asked.arrival.at, asked.prompt_len()), asked));
                    }
                    NextArrival::NotBefore(at) => break Some(at),
                    NextArrival::AwaitReply => break None,
                }
            };
            while let Some((_, asked)) = received.pop_front_if(|(known, _)| *known <= now) {
                open.ask(asked, now, &mut fleet)?;
            }
            fleet.fill(now, |work| step_time.step_duration(work), |flight| observer.step(&flight.step));
            let known = received.front().map(|(known, _)| *known);
            let next = [fleet.next_step_end(), known, due].into_iter().flatten().min();
            let Some(next) = next.filter(|_| !observer.is_done()) else { return Ok(()) };
            now = now.max(next);
            fleet.finish_ended_steps(now, |_, _, events| {
                desk.receive_output(now);
                for event in events.iter().filter(|event| event.sent > 0) {
                    let delivered = desk.write();
                    if let Some((reply, user)) = open.record_delivery(event, delivered) {
                        source.answered(user, &reply, delivered);
                        observer.reply(reply);
                    }
                }
            });
        }
    }
}

/// Runs [`Drive::run_closed_loop`] on one engine. The replies are in the order of their ends.
///
/// # Errors
/// If a request of the workload cannot be served with these settings.
pub fn drive(
    engine: &mut TwinEngine,
    step_time: &StepTime,
    workload: &dyn Workload,
    requests: u64,
    concurrency: u64,
) -> Result<Vec<VirtualReply>, AddError> {
    let engines = std::slice::from_mut(engine);
    let mut replies = Vec::new();
    let mut drive = Drive { engines, step_time };
    drive.run_closed_loop(workload, requests, concurrency, &mut replies)?;
    Ok(replies)
}

/// The requests under way. A request's id in the engine is its index here.
#[derive(Debug)]
struct OpenRequests<U> {
    requests: Vec<Option<Request<U>>>,
    vacant: Vec<usize>,
}

/// A request under way, its reply so far, and the time of its last delivery.
#[derive(Debug)]
struct Request<U> {
    reply: VirtualReply,
    last_delivery: Duration,
    user: U,
}

impl<U> Default for OpenRequests<U> {
    fn default() -> Self {
        Self { requests: Vec::new(), vacant: Vec::new() }
    }
}

impl<U> OpenRequests<U> {
    /// Gives a request to one of the engines and stores it.
    fn ask(
        &mut self,
        asked: SentRequest<U>,
        now: Duration,
        fleet: &mut Fleet<&mut TwinEngine>,
    ) -> Result<(), AddError> {
        let prompt_len = asked.prompt_len();
        let SentRequest { arrival, index, turn, user } = asked;
        let place = self.vacant.pop().unwrap_or(self.requests.len());
        let ask = TwinRequest {
            id: RequestId(place as u64),
            prompt: arrival.prompt,
            output_len: arrival.output_len,
            most_output: None,
            priority: arrival.priority,
        };
        let replica = fleet.ask(&ask, now)?;
        let (asked, ttft, gaps) = (arrival.at, Duration::ZERO, Vec::new());
        let reply = VirtualReply { index, turn, replica, received_at: asked, ttft, gaps, prompt_len, tokens: 0 };
        let request = Some(Request { reply, last_delivery: asked, user });
        match self.requests.get_mut(place) {
            Some(vacant) => *vacant = request,
            None => self.requests.push(request),
        }
        Ok(())
    }

    /// Records a delivery to the client. Returns the whole reply after the last token.
    fn record_delivery(&mut self, event: &StepEvent, now: Duration) -> Option<(VirtualReply, U)> {
        let place = usize::try_from(event.id.0).ok()?;
        let request = self.requests.get_mut(place)?.as_mut()?;
        let gap = now.saturating_sub(request.last_delivery);
        request.last_delivery = now;
        if request.reply.tokens == 0 {
            request.reply.ttft = gap;
        } else {
            request.reply.gaps.push(gap);
        }
        request.reply.tokens += event.sent;
        if !event.last {
            return None;
        }
        let Request { reply, user, .. } = self.requests[place].take()?;
        self.vacant.push(place);
        Some((reply, user))
    }
}
