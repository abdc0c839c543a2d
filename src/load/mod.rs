//! Load: when requests are sent and what came back, one record for each.
//!
//! [`drive`] asks a workload's requests of an OpenAI-compatible server ([`Target`]), in a closed or an open loop
//! ([`Plan`]). What the numbers mean is for `metrics` to say; here only instants and counts are taken.
//!
//! All connections are one loop over `epoll` on a thread of its own (`reactor`): nothing that the tuner does meanwhile
//! (storing, drawing, scraping, sampling) can delay the reading of a chunk, and no chunk is handed from one thread to
//! another. Another thread makes requests ready (`feed`), `schedule` says which is sent when, and a `window` is one phase:
//! the warm-up or what is measured.
//!
//! Nothing is dropped silently: a request is completed, failed in one of the classes of [`Error`], or, after a stop,
//! counted as unfinished; a session that was due and never began is counted as unsent.

mod arrival;
mod clock;
mod connection;
mod endpoint;
mod exchange;
mod feed;
mod files;
mod http;
mod ladder;
mod lag;
#[cfg(test)]
mod misbehaving;
mod plan;
mod processor;
mod protocol;
mod reactor;
mod record;
mod run;
#[cfg(test)]
mod run_tests;
mod schedule;
mod signal;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
mod window;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::workload::Workload;

pub use arrival::{ArrivalError, instants};
pub use ladder::HighestLoad;
pub use plan::{Api, ApiKey, Arrival, Plan, Target};
pub(crate) use processor::prefer;
pub use protocol::Dialect;
#[doc(hidden)]
pub use protocol::read;
pub use record::{Client, End, Error, Record, Run, Warmup};

// The same decisions for a load that is only computed.
pub(crate) use clock::nanos;
pub(crate) use feed::{Progress, Range, Taken};
pub(crate) use ladder::{Ladder, LadderStep, LoadRange};
pub(crate) use run::{check, due, measured, warmup, warmup_places};
pub(crate) use schedule::{Instants, Next, Schedule, Turn};

use signal::Signal;

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
    /// The same in the warm-up.
    Warming(Tick),
}

/// Where the measured window, or the warm-up, stands.
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
    /// Nothing more is to be sent, and what is under way is given up. The observer is not called again.
    End,
}

/// Why no load could be driven at all. A request that fails is a [`Record`].
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{name} must be at least 1")]
    Zero { name: &'static str },
    #[error("cannot use the url {url:?}: {reason}")]
    Url { url: String, reason: String },
    #[error("cannot use TLS: {0}")]
    Tls(String),
    #[error("header {name:?} {reason}")]
    Header { name: String, reason: &'static str },
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    #[error("a closed loop has no number of users")]
    Places,
    #[error("the load has no end")]
    Endless,
    #[error("the workload has no time stamps")]
    NoStamps,
    /// Each connection is an open file.
    #[error("{needed} open files are needed, the limit is {limit}")]
    Files { needed: u64, limit: u64 },
    #[error("a {dialect} server takes no {what} at {path}")]
    Prompt { dialect: &'static str, path: &'static str, what: &'static str },
    #[error("extra body field {field:?}: {reason}")]
    ExtraBody { field: &'static str, reason: &'static str },
    #[error("cannot serialize a request: {0}")]
    Body(std::io::Error),
    #[error("cannot start the load's thread: {0}")]
    Thread(std::io::Error),
    #[error("the load's own loop: {0}")]
    System(std::io::Error),
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
            Self::Places => Some("give the concurrency"),
            Self::Endless => Some("give a number of requests or a duration"),
            Self::NoStamps => Some("give a rate or a concurrency, or a trace with time stamps"),
            Self::Files { .. } => Some("ask for fewer at the same time, or raise the limit (`ulimit -Hn`)"),
            _ => None,
        }
    }
}

/// Called on the load's own thread.
type Observer = Box<dyn FnMut(Event<'_>) -> Flow + Send>;

/// Drives the workload's requests and returns when the last has ended, or soon after `stop` turns true or `observer` has
/// seen enough; then the run holds what had ended by then. Dropping the future stops the load too.
///
/// `observer` is called on the load's thread at the beginning of each phase, at the end of each request and ten times a
/// second: it must be quick and must not block. Requests are made ready on another thread, a bounded amount ahead.
///
/// # Errors
/// When the plan or target cannot be used, never because of what the server does.
pub async fn drive(
    target: Target,
    workload: Arc<dyn Workload>,
    plan: Plan,
    observer: impl FnMut(Event<'_>) -> Flow + Send + 'static,
    mut stop: watch::Receiver<bool>,
) -> Result<Run, LoadError> {
    let signal = Arc::new(Signal::new().map_err(LoadError::System)?);
    // A caller who leaves stops the load as well.
    let _left = Raise(Arc::clone(&signal));
    let (result, mut answer) = oneshot::channel();
    let own = Arc::clone(&signal);
    let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
        let run = run::run(&target, &workload, &plan, Box::new(observer), &own);
        // The caller may have gone; then nobody wants the run.
        drop(result.send(run));
    });
    let thread = thread.map_err(LoadError::Thread)?;
    // What `wait_for` gives is a lock on the signal: its sender would wait for the end of the run.
    let stopped = async { stop.wait_for(|stop| *stop).await.is_ok() };
    let answer = tokio::select! {
        answer = &mut answer => answer,
        // A signal whose sender is gone can no longer come.
        true = stopped => {
            signal.raise();
            answer.await
        }
    };
    match answer {
        Ok(run) => run,
        // The thread ended without an answer: it panicked, and so do we.
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the load's thread answers before it ends"),
        },
    }
}

/// Stops the load when it is dropped.
struct Raise(Arc<Signal>);

impl Drop for Raise {
    fn drop(&mut self) {
        self.0.raise();
    }
}
