//! A whole load in virtual time: what clients ask, and what they see of it.
//!
//! Requests and finished steps are events; between them nothing changes. Memory is bounded by the requests under way: a
//! reply goes to the observer once it is whole.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::ask::{AddError, Ask};
use super::batch::Work;
use super::engine::{Engine, Event, Wait};
use super::replica::{Balancer, Flight, Replica};
use super::sequence::RequestId;
use super::source::{Arrival, Arrivals, Asking, Next, Source, Users};
use super::step_time::StepTime;
use crate::workload::Workload;

/// What one client saw of one request, all in virtual time since the start of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The session's index in the workload, or the arrival's number.
    pub index: u64,
    /// The turn of the session, from 0.
    pub turn: u32,
    /// The engine that has answered.
    pub replica: usize,
    pub asked: Duration,
    /// From asking to the first token.
    pub ttft: Duration,
    /// Between one piece of the stream and the next; a piece is a token unless drafts were accepted or pieces are
    /// gathered.
    pub gaps: Vec<Duration>,
    pub prompt_len: u32,
    pub tokens: u32,
}

impl Reply {
    #[must_use]
    pub fn finished(&self) -> Duration {
        self.asked + self.ttft + self.gaps.iter().sum::<Duration>()
    }

    #[must_use]
    pub fn output_len(&self) -> u64 {
        self.tokens.into()
    }
}

/// One step, as it was scheduled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    pub replica: usize,
    /// When the device begins with it, and when its tokens are there.
    pub start: Duration,
    pub end: Duration,
    pub running: usize,
    pub waiting: usize,
    /// Share of the cache's blocks in use, 0 to 1.
    pub kv_usage: f64,
    /// Why those who wait were not let in.
    pub wait: Option<Wait>,
    pub work: Work,
}

/// Sees a load go by.
pub trait Observer {
    /// In the order in which each engine schedules; of several engines not in order of time.
    fn step(&mut self, _seen: &Seen) {}

    /// In the order in which replies end.
    fn reply(&mut self, _reply: Reply) {}
}

/// Keeps all replies.
impl Observer for Vec<Reply> {
    fn reply(&mut self, reply: Reply) {
        self.push(reply);
    }
}

/// What lies between client and engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// From asking until the scheduler knows of the request. Without it a user who asks at once is part of the step that
    /// follows the last one's end, which a real engine does not wait for.
    pub request: Duration,
    /// From the end of a step until the client has its tokens.
    pub token: Duration,
    /// Whether what the step time says of the front end ([`StepTime::before_engine`] and
    /// [`after_engine`](StepTime::after_engine)) comes on top.
    pub front_end: bool,
}

impl Delays {
    fn before(&self, step_time: &StepTime, prompt_len: usize) -> Duration {
        let prompt_len = u32::try_from(prompt_len).unwrap_or(u32::MAX);
        self.request + if self.front_end { step_time.before_engine(prompt_len) } else { Duration::ZERO }
    }

    fn after(&self, step_time: &StepTime, samples: u32) -> Duration {
        self.token + if self.front_end { step_time.after_engine(samples) } else { Duration::ZERO }
    }
}

/// Engines that share a load, each as fast as `step_time` says.
#[derive(Debug)]
pub struct Drive<'a> {
    /// One, or as many as there are data-parallel replicas; each schedules for itself, as vLLM's do for models without
    /// experts.
    pub engines: &'a mut [Engine],
    pub step_time: &'a StepTime,
    pub delays: Delays,
}

impl Drive<'_> {
    /// The first `requests` requests of the workload, asked by at most `concurrency` users at once, each of whom asks the
    /// turns of a session one after the other and then begins the next.
    ///
    /// There is no tokenizer: of a text, every four bytes are a token, equal bytes the same one. Images are none.
    ///
    /// # Errors
    /// When a request of the workload cannot be served with these settings.
    pub fn closed(
        &mut self,
        workload: &dyn Workload,
        requests: u64,
        concurrency: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), AddError> {
        self.run(&mut Users::new(workload, requests, concurrency), observer)
    }

    /// All `arrivals`, which come in order of time, each asked when it is due.
    ///
    /// # Errors
    /// When one of them cannot be served with these settings.
    pub fn open(
        &mut self,
        arrivals: impl Iterator<Item = Arrival>,
        observer: &mut dyn Observer,
    ) -> Result<(), AddError> {
        self.run(&mut Arrivals::new(arrivals), observer)
    }

    /// Whatever a source asks, until it has nothing more and all replies have ended.
    ///
    /// # Errors
    /// When one of the requests cannot be served with these settings.
    pub fn run<S: Source>(&mut self, source: &mut S, observer: &mut dyn Observer) -> Result<(), AddError> {
        let (step_time, delays) = (self.step_time, self.delays);
        let mut replicas: Vec<_> = self.engines.iter_mut().map(Replica::new).collect();
        if replicas.is_empty() {
            return Ok(());
        }
        let mut balancer = Balancer::new(replicas.len());
        let mut open = Open::default();
        let mut coming = Coming::default();
        let mut events = Vec::new();
        let mut now = Duration::ZERO;
        loop {
            let asks = loop {
                match source.next(now) {
                    Next::Ask(asked) => {
                        let due = asked.arrival.at + delays.before(step_time, asked.arrival.prompt.len());
                        coming.push(due, asked);
                    }
                    Next::At(at) => break Some(at),
                    Next::Wait => break None,
                }
            };
            while let Some(asked) = coming.pop(now) {
                let at = balancer.choose();
                open.ask(asked, at, now, replicas[at].engine)?;
                replicas[at].wake();
            }
            for (at, replica) in replicas.iter_mut().enumerate() {
                let time = |work: &Work| step_time.of(work);
                replica.fill(now, time, |engine, flight| observer.step(&seen(at, engine, flight)));
            }
            let ends = replicas.iter().filter_map(Replica::due).min();
            let Some(next) = [ends, asks, coming.due()].into_iter().flatten().min() else { return Ok(()) };
            now = now.max(next);
            balancer.publish(now, &replicas);
            for (at, replica) in replicas.iter_mut().enumerate() {
                while let Some(flight) = replica.ended(now) {
                    replica.engine.finish_into(&flight.batch, &mut events);
                    replica.report();
                    let then = now + delays.after(step_time, flight.batch.work.samples);
                    for event in &events {
                        if let Some((reply, user)) = open.see(event, then) {
                            balancer.ended(at);
                            source.answered(user, &reply, then);
                            observer.reply(reply);
                        }
                    }
                }
            }
        }
    }
}

/// Requests between their client and the engine, in the order in which they come to it.
#[derive(Debug)]
struct Coming<U> {
    asked: BinaryHeap<Reverse<Underway<U>>>,
    number: u64,
}

#[derive(Debug)]
struct Underway<U> {
    due: (Duration, u64),
    asked: Asking<U>,
}

impl<U> Default for Coming<U> {
    fn default() -> Self {
        Self { asked: BinaryHeap::new(), number: 0 }
    }
}

impl<U> Coming<U> {
    fn push(&mut self, due: Duration, asked: Asking<U>) {
        self.number += 1;
        self.asked.push(Reverse(Underway { due: (due, self.number), asked }));
    }

    /// When the first is there.
    fn due(&self) -> Option<Duration> {
        self.asked.peek().map(|first| first.0.due.0)
    }

    fn pop(&mut self, now: Duration) -> Option<Asking<U>> {
        self.due().filter(|due| *due <= now)?;
        self.asked.pop().map(|first| first.0.asked)
    }
}

impl<U> PartialEq for Underway<U> {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl<U> Eq for Underway<U> {}

impl<U> PartialOrd for Underway<U> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<U> Ord for Underway<U> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

/// [`Drive::closed`] on one engine without delays. The replies come in the order in which they finished.
///
/// # Errors
/// When a request of the workload cannot be served with these settings.
pub fn drive(
    engine: &mut Engine,
    step_time: &StepTime,
    workload: &dyn Workload,
    requests: u64,
    concurrency: u64,
) -> Result<Vec<Reply>, AddError> {
    let engines = std::slice::from_mut(engine);
    let mut replies = Vec::new();
    let mut drive = Drive { engines, step_time, delays: Delays::default() };
    drive.closed(workload, requests, concurrency, &mut replies)?;
    Ok(replies)
}

fn seen(replica: usize, engine: &Engine, flight: &Flight) -> Seen {
    Seen {
        replica,
        start: flight.start,
        end: flight.end,
        running: engine.running(),
        waiting: engine.waiting(),
        kv_usage: engine.kv_usage(),
        wait: engine.why_waiting(),
        work: flight.batch.work,
    }
}

/// The requests under way; a request's id is its place here.
#[derive(Debug)]
struct Open<U> {
    requests: Vec<Option<Request<U>>>,
    vacant: Vec<usize>,
}

#[derive(Debug)]
struct Request<U> {
    reply: Reply,
    last: Duration,
    user: U,
}

impl<U> Default for Open<U> {
    fn default() -> Self {
        Self { requests: Vec::new(), vacant: Vec::new() }
    }
}

impl<U> Open<U> {
    fn ask(&mut self, asked: Asking<U>, replica: usize, now: Duration, engine: &mut Engine) -> Result<(), AddError> {
        let Asking { arrival, index, turn, user } = asked;
        let place = self.vacant.pop().unwrap_or(self.requests.len());
        let prompt_len = u32::try_from(arrival.prompt.len()).unwrap_or(u32::MAX);
        let ask = Ask {
            id: RequestId(place as u64),
            prompt: arrival.prompt,
            output_len: arrival.output_len,
            most_output: None,
            priority: arrival.priority,
        };
        engine.enqueue(&ask, now)?;
        let (asked, ttft, gaps) = (arrival.at, Duration::ZERO, Vec::new());
        let reply = Reply { index, turn, replica, asked, ttft, gaps, prompt_len, tokens: 0 };
        let request = Some(Request { reply, last: asked, user });
        match self.requests.get_mut(place) {
            Some(vacant) => *vacant = request,
            None => self.requests.push(request),
        }
        Ok(())
    }

    /// Notes what the client has got; the whole reply after the last token.
    fn see(&mut self, event: &Event, now: Duration) -> Option<(Reply, U)> {
        if event.sent == 0 {
            return None;
        }
        let place = usize::try_from(event.id.0).ok()?;
        let request = self.requests.get_mut(place)?.as_mut()?;
        let gap = now.saturating_sub(request.last);
        request.last = now;
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
