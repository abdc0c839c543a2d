//! Load: when requests are sent and what came back, one record for each.
//!
//! [`drive`] asks a workload's requests of an OpenAI-compatible server over streaming `/v1/completions`, in a closed loop
//! of fixed concurrency. What the numbers mean is for `metrics` to say; here only instants and counts are taken.
//!
//! The streams run on a current-thread runtime on a thread of their own, not on the caller's: nothing that the tuner does
//! meanwhile (storing, drawing, scraping, sampling) can delay the reading of a chunk, and no chunk has to be handed from
//! one thread to another. One thread carries about a hundred thousand chunks per second.
//!
//! A request is one of three things and nothing is dropped silently: completed, failed in one of the classes of
//! [`Error`], or, after a stop, counted as unfinished.

mod arrival;
mod body;
mod chunk;
mod client;
mod closed;
mod dialect;
mod glance;
#[cfg(test)]
mod misbehaving;
mod plan;
mod protocol;
mod record;
mod reply;
mod sse;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::workload::Workload;

pub use arrival::{ArrivalError, instants};
pub use dialect::Dialect;
pub use plan::{Api, ApiKey, Arrival, Plan, Target};
#[doc(hidden)]
pub use protocol::read;
pub use record::{Client, End, Error, Record, Run, Warmup};

use body::Job;
use client::Slot;
use closed::{Loop, Observer};

/// The part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Requests are being generated, and connections opened.
    Prepare,
    Warmup,
    Measure,
}

/// What an observer is told of.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A phase begins. `total`: requests that it will send, where that is known.
    Phase { phase: Phase, total: Option<u64> },
    /// A request has ended.
    Ended { phase: Phase, record: &'a Record },
    /// Ten times a second, in the measured window.
    Tick(Tick),
}

/// Where the measured window stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Since the window's start.
    pub at: Duration,
    /// Sent so far.
    pub sent: u64,
    pub in_flight: usize,
    /// Sessions that are due and wait for a place.
    pub waiting: usize,
    /// Content chunks so far, those of requests under way included.
    pub chunks: u64,
}

/// What an observer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    /// Nothing more is to be sent, and what is under way is given up.
    End,
}

/// Why no load could be driven at all. A request that fails is a [`Record`].
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{name} must be at least 1")]
    Zero { name: &'static str },
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    #[error("cannot use the url {url:?}: {reason}")]
    Url { url: String, reason: String },
    #[error("cannot build the http client: {0}")]
    Client(String),
    #[error("a {dialect} server takes no {what} at {path}")]
    Prompt { dialect: &'static str, path: &'static str, what: &'static str },
    #[error("extra body field {field:?}: {reason}")]
    ExtraBody { field: &'static str, reason: &'static str },
    #[error("cannot serialize a request: {0}")]
    Body(std::io::Error),
    #[error("cannot start the load's thread: {0}")]
    Thread(std::io::Error),
}

impl LoadError {
    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Prompt { what: protocol::MESSAGES, .. } => Some("ask /v1/chat/completions, or use prompts of text"),
            Self::Prompt { path: protocol::COMPLETIONS, .. } => Some("use prompts of text"),
            Self::Prompt { .. } => Some("use prompts of text or messages, or ask /v1/completions"),
            Self::ExtraBody { .. } => Some("leave the field out"),
            _ => None,
        }
    }
}

/// Drives the workload's requests and returns when the last has ended, or soon after `stop` turns true; then the run
/// holds what had ended by then. Dropping the future stops the load too.
///
/// `observer` is called on the load's thread at the beginning of each phase and at the end of each request: it must be
/// quick and must not block. All bodies are in memory at once, at about 6 bytes per prompt token.
///
/// # Errors
/// When the plan or target cannot be used, never because of what the server does.
pub async fn drive(
    target: Target,
    workload: Arc<dyn Workload>,
    plan: Plan,
    observer: impl FnMut(Event<'_>) -> Flow + Send + 'static,
    stop: watch::Receiver<bool>,
) -> Result<Run, LoadError> {
    for (name, value) in
        [("concurrency", plan.concurrency.map_or(1, |n| n as u64)), ("requests", plan.requests.unwrap_or(1))]
    {
        if value == 0 {
            return Err(LoadError::Zero { name });
        }
    }
    plan.arrival.check()?;
    let observer: Arc<Observer> = Arc::new(Mutex::new(Box::new(observer)));
    let (mut result, answer) = oneshot::channel();
    let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let run = runtime.map_err(LoadError::Thread).and_then(|runtime| {
            let stopped = Stop { signal: stop, caller: &mut result };
            runtime.block_on(run(&target, &*workload, &plan, &observer, stopped))
        });
        // The caller may have gone; then nobody wants the run.
        drop(result.send(run));
    });
    let thread = thread.map_err(LoadError::Thread)?;
    match answer.await {
        Ok(run) => run,
        // The thread ended without an answer: it panicked, and so do we.
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the load's thread answers before it ends"),
        },
    }
}

/// The two ways to be stopped: the signal, and a caller who no longer waits.
struct Stop<'a> {
    signal: watch::Receiver<bool>,
    caller: &'a mut oneshot::Sender<Result<Run, LoadError>>,
}

impl Stop<'_> {
    fn is_set(&self) -> bool {
        *self.signal.borrow() || self.caller.is_closed()
    }

    /// What `future` gives, or nothing when it was stopped.
    async fn or<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let Self { signal, caller } = self;
        let signalled = async {
            // A signal whose sender is gone can no longer come.
            if signal.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            value = future => Some(value),
            () = signalled => None,
            () = caller.closed() => None,
        }
    }
}

async fn run(
    target: &Target,
    workload: &dyn Workload,
    plan: &Plan,
    observer: &Arc<Observer>,
    mut stop: Stop<'_>,
) -> Result<Run, LoadError> {
    let client = client::Client::new(target, plan)?;
    let requests = usize::try_from(plan.requests.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let total = requests as u64 + plan.warmup;
    let mut measured = Vec::with_capacity(requests);
    for index in 0..total {
        if stop.is_set() {
            break;
        }
        measured.push(Job::new(client.protocol(), index, &workload.session(index).turns[0].request)?);
    }
    let warmup = measured.split_off(requests.min(measured.len()));

    let slots = (0..plan.concurrency.unwrap_or(1)).map(|_| Slot::new()).collect::<Result<Vec<_>, _>>()?;

    let phase = Loop::new(client.clone(), Arc::clone(observer), Phase::Warmup, warmup);
    let slots = if stop.is_set() { None } else { stop.or(phase.drive(slots)).await };
    let (records, _) = phase.take();
    let completed = records.iter().filter(|record| record.result.is_ok()).count();
    let warmup = Warmup { completed, failed: records.len() - completed };

    let phase = Loop::new(client, Arc::clone(observer), Phase::Measure, measured);
    let slots = match slots {
        Some(slots) => stop.or(phase.drive(slots)).await,
        None => None,
    };
    let (records, unfinished) = phase.take();
    let (began, ended) = (phase.began, Instant::now());
    let end = if slots.is_none() { End::Stopped } else { End::Complete };
    Ok(Run { records, warmup, began, ended, unfinished, unsent: 0, end, client: Client::default() })
}
