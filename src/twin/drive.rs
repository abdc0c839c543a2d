//! A whole load in virtual time: what clients ask, and what they see of it.
//!
//! Requests and finished steps are events; between them nothing changes. Memory is bounded by the requests under way: a
//! reply goes to the observer once it is whole.

use std::collections::VecDeque;
use std::time::Duration;

use super::ask::{AddError, Ask};
use super::engine::{Engine, Event};
use super::fleet::Fleet;
use super::frontend::Desk;
use super::replica::Seen;
use super::sequence::RequestId;
use super::source::{Arrival, Arrivals, Asked, Next, Source, Users};
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

/// Sees a load go by.
pub trait Observer {
    /// In the order in which each engine schedules; of several engines not in order of time.
    fn step(&mut self, _seen: &Seen) {}

    /// In the order in which replies end.
    fn reply(&mut self, _reply: Reply) {}

    /// Whether it has seen enough: then the load is over.
    fn is_done(&self) -> bool {
        false
    }
}

/// Keeps all replies.
impl Observer for Vec<Reply> {
    fn reply(&mut self, reply: Reply) {
        self.push(reply);
    }
}

/// Engines that share a load and a front end, each as fast as `step_time` says.
#[derive(Debug)]
pub struct Drive<'a> {
    /// One, or as many as there are data-parallel replicas; each schedules for itself, as vLLM's do for models without
    /// experts.
    pub engines: &'a mut [Engine],
    pub step_time: &'a StepTime,
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

    /// Whatever a source asks, until it has nothing more and all replies have ended, or until the observer has seen enough.
    ///
    /// # Errors
    /// When one of the requests cannot be served with these settings.
    pub fn run<S: Source>(&mut self, source: &mut S, observer: &mut dyn Observer) -> Result<(), AddError> {
        let step_time = self.step_time;
        let mut fleet = Fleet::new(self.engines.iter_mut());
        if fleet.is_empty() {
            return Ok(());
        }
        let mut desk = Desk::new(step_time.frontend());
        let mut received = VecDeque::new();
        let mut open = Open::default();
        let mut now = Duration::ZERO;
        loop {
            let due = loop {
                match source.next(now) {
                    Next::Ask(asked) => {
                        received.push_back((desk.receive(asked.arrival.at, asked.prompt_len()), asked));
                    }
                    Next::At(at) => break Some(at),
                    Next::Wait => break None,
                }
            };
            while let Some((_, asked)) = received.pop_front_if(|(known, _)| *known <= now) {
                open.ask(asked, now, &mut fleet)?;
            }
            fleet.fill(now, |work| step_time.of(work), |flight| observer.step(&flight.seen));
            let known = received.front().map(|(known, _)| *known);
            let next = [fleet.due(), known, due].into_iter().flatten().min();
            let Some(next) = next.filter(|_| !observer.is_done()) else { return Ok(()) };
            now = now.max(next);
            fleet.ended(now, |_, _, events| {
                desk.take(now);
                for event in events.iter().filter(|event| event.sent > 0) {
                    let delivered = desk.write();
                    if let Some((reply, user)) = open.see(event, delivered) {
                        source.answered(user, &reply, delivered);
                        observer.reply(reply);
                    }
                }
            });
        }
    }
}

/// [`Drive::closed`] on one engine. The replies come in the order in which they finished.
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
    let mut drive = Drive { engines, step_time };
    drive.closed(workload, requests, concurrency, &mut replies)?;
    Ok(replies)
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
    fn ask(&mut self, asked: Asked<U>, now: Duration, fleet: &mut Fleet<&mut Engine>) -> Result<(), AddError> {
        let prompt_len = asked.prompt_len();
        let Asked { arrival, index, turn, user } = asked;
        let place = self.vacant.pop().unwrap_or(self.requests.len());
        let ask = Ask {
            id: RequestId(place as u64),
            prompt: arrival.prompt,
            output_len: arrival.output_len,
            most_output: None,
            priority: arrival.priority,
        };
        let replica = fleet.ask(&ask, now)?;
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
