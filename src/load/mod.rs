//! Load generator: sends requests on a schedule and records the outcome of each.
//!
//! [`drive`] sends a workload's requests to an OpenAI-compatible server ([`LoadTarget`]), in a closed or an open loop
//! ([`LoadPlan`]). This module records only instants and counts. The module `metrics` interprets them.
//!
//! One `epoll` loop on its own thread serves all connections (`reactor`). The tuner's other work (storing, drawing,
//! scraping, sampling) therefore cannot delay the reading of a chunk. No chunk is handed from one thread to another. A
//! second thread prepares requests (`feed`), `schedule` decides when each is sent, and `window` runs one phase: the
//! warm-up or the measurement window.
//!
//! Nothing is dropped silently. A request completes or fails in one of the classes of [`RequestError`]. If the run is
//! stopped, a request in flight is counted as unfinished. A session that was due and never began is counted as unsent.

mod arrival;
mod clock;
mod connection;
mod endpoint;
mod exchange;
mod feed;
mod open_files;
mod http;
mod ladder;
mod lag;
#[cfg(test)]
mod misbehaving;
mod output_rate;
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
pub use plan::{ArrivalPattern, BearerKey, LoadPlan, LoadTarget, RequestApi};
pub(crate) use processor::request_realtime_priority;
pub use protocol::Dialect;
#[doc(hidden)]
pub use protocol::read;
pub use record::{ClientUse, LoadRun, RequestError, RequestRecord, RunEnd, WarmupSummary};

// Shared with simulated loads, which follow the same schedule.
pub(crate) use clock::nanos;
pub(crate) use feed::{SessionRange, TakenRequest, UserProgress};
pub(crate) use ladder::{LadderStep, LoadLadder, LoadRange};
pub(crate) use output_rate::OutputRate;
pub(crate) use run::{check, due, measured, warmup, warmup_places};
pub(crate) use schedule::{LoadSchedule, NextSend, RequestInstants, ScheduledTurn};

use signal::ThreadSignal;

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// Requests are being generated, and connections opened.
    Prepare,
    Warmup,
    Measure,
}

/// An event that the observer receives.
#[derive(Clone, Copy, Debug)]
pub enum LoadEvent<'a> {
    /// A phase begins. `total` is the number of requests that it will send, if known. For `LoadPhase::Prepare` it is
    /// the sum over the other two phases.
    Phase { phase: LoadPhase, total: Option<u64> },
    /// A request has ended.
    Ended { phase: LoadPhase, record: &'a RequestRecord },
    /// Progress of the measurement window, ten times a second.
    Tick(ObserverTick),
    /// Progress of the warm-up, ten times a second.
    WarmupTick(ObserverTick),
}

/// Progress of the measurement window or of the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObserverTick {
    /// Time since the start of the measurement window or of the warm-up.
    pub at: Duration,
    /// Requests sent so far.
    pub sent: u64,
    pub in_flight: usize,
    /// Sessions that are due and have not begun, for lack of a free place or of a prepared session. A place is the
    /// right to have one request in flight.
    pub waiting: usize,
    /// Content chunks received so far, including those of requests in flight.
    pub chunks: u64,
}

/// An observer's answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunFlow {
    Continue,
    /// Stops sending and abandons the requests in flight. The observer is not called again.
    End,
}

/// The reason that no load could be driven. A failed request is a [`RequestRecord`] instead.
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
    #[error("a closed loop needs a number of users")]
    NoConcurrency,
    #[error("the load has no end")]
    Endless,
    #[error("the workload has no time stamps")]
    NoTimeStamps,
    /// Each connection is an open file.
    #[error("{needed} open files are needed, the limit is {limit}")]
    Files { needed: u64, limit: u64 },
    #[error("a {dialect} server accepts no {what} at {path}")]
    Prompt { dialect: &'static str, path: &'static str, what: &'static str },
    #[error("extra body field {field:?}: {reason}")]
    ExtraBody { field: &'static str, reason: &'static str },
    #[error("cannot serialize a request: {0}")]
    Body(std::io::Error),
    #[error("cannot start the load's thread: {0}")]
    Thread(std::io::Error),
    #[error("the load's event loop failed: {0}")]
    System(std::io::Error),
}

impl LoadError {
    /// Returns the next step for the user, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Prompt { what: protocol::MESSAGE_PROMPTS, .. } => Some("use /v1/chat/completions or prompts of text"),
            Self::Prompt { path: protocol::COMPLETIONS_PATH, .. } => Some("use prompts of text"),
            Self::Prompt { .. } => Some("use /v1/completions, or prompts of text or messages"),
            Self::ExtraBody { .. } => Some("leave the field out"),
            Self::NoConcurrency => Some("set the concurrency"),
            Self::Endless => Some("set a number of requests or a duration"),
            Self::NoTimeStamps => Some("set a rate or a concurrency, or use a trace with time stamps"),
            Self::Files { .. } => Some("reduce the concurrency, or raise the limit (`ulimit -Hn`)"),
            _ => None,
        }
    }
}

/// Observer callback. It runs on the load's own thread.
type Observer = Box<dyn FnMut(LoadEvent<'_>) -> RunFlow + Send>;

/// Sends the workload's requests and returns when the last one has ended. Returns early, soon after `stop` turns true
/// or `observer` returns `RunFlow::End`. The run then contains the requests that had ended. Dropping the future also
/// stops the load.
///
/// `observer` is called on the load's thread at the beginning of each phase, at the end of each request and ten times a
/// second. It must be quick and must not block. Another thread prepares requests, a bounded amount ahead.
///
/// # Errors
/// If the plan or the target cannot be used, or the operating system refuses a resource. Failures of the server are
/// never errors.
pub async fn drive(
    target: LoadTarget,
    workload: Arc<dyn Workload>,
    plan: LoadPlan,
    observer: impl FnMut(LoadEvent<'_>) -> RunFlow + Send + 'static,
    mut stop: watch::Receiver<bool>,
) -> Result<LoadRun, LoadError> {
    let signal = Arc::new(ThreadSignal::new().map_err(LoadError::System)?);
    // Dropping this future stops the load as well.
    let _left = StopOnDrop(Arc::clone(&signal));
    let (result, mut answer) = oneshot::channel();
    let own = Arc::clone(&signal);
    let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
        let run = run::run(&target, &workload, &plan, Box::new(observer), &own);
        // The caller may have dropped the future. The run is then discarded.
        drop(result.send(run));
    });
    let thread = thread.map_err(LoadError::Thread)?;
    // Only the result is kept: `wait_for` returns a lock, and holding it would block the sender until the run ends.
    let stopped = async { stop.wait_for(|stop| *stop).await.is_ok() };
    let answer = tokio::select! {
        answer = &mut answer => answer,
        // If the sender is gone, this branch is disabled: no stop can arrive any more.
        true = stopped => {
            signal.raise();
            answer.await
        }
    };
    match answer {
        Ok(run) => run,
        // The thread ended without an answer, so it panicked. The panic is passed on.
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the load's thread answers before it ends"),
        },
    }
}

/// Guard that stops the load when it is dropped.
struct StopOnDrop(Arc<ThreadSignal>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}
