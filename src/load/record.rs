//! Results of a load: one record for each request, successful or not.

use std::time::{Duration, Instant};

/// The reason that a request failed, with a short detail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("cannot connect: {0}")]
    Connect(String),
    /// An HTTP status other than 200. `seen` is the server's message or the beginning of the body.
    #[error("http status {status}: {seen}")]
    Http { status: u16, seen: String },
    /// The limit covers the whole request, from its send.
    #[error("not complete after {limit_ms} ms, {chunks} chunks had arrived")]
    Timeout { limit_ms: u64, chunks: usize },
    /// The connection broke before the response was whole.
    #[error("connection lost: {0}")]
    Reset(String),
    /// The response ended properly, but lacks required parts.
    #[error("stream ended without {0}")]
    Truncated(String),
    /// The server sent an error event after it had answered with status 200.
    #[error("server error in the stream: {0}")]
    Server(String),
    /// The number of output tokens is not the requested one.
    #[error("{got} output tokens, {asked} requested")]
    WrongLength { asked: u32, got: u32 },
    /// An event or response that cannot be parsed.
    #[error("invalid response: {0}")]
    Protocol(String),
}

impl RequestError {
    /// Returns the name of the class. Failures are counted by class.
    #[must_use]
    pub fn class(&self) -> String {
        let name = match self {
            Self::Connect(_) => "connect",
            Self::Http { status, .. } => return format!("http_{status}"),
            Self::Timeout { .. } => "timeout",
            Self::Reset(_) => "reset",
            Self::Truncated(_) => "truncated",
            Self::Server(_) => "server_error",
            Self::WrongLength { .. } => "wrong_length",
            Self::Protocol(_) => "protocol",
        };
        name.to_owned()
    }
}

/// One request. Instants are durations since [`LoadRun::began`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The session's index in the workload.
    pub session: u64,
    /// The turn of the session, from 0.
    pub turn: u32,
    /// When the request should have been sent. Equal to `sent` in a closed loop, if all sessions begin at once, and for
    /// a later turn that did not wait for a place.
    pub due: Duration,
    /// When the request was sent, or a connection was opened for it. After a resend: when it was sent again.
    pub sent: Duration,
    /// Arrival of each content chunk, in microseconds after `sent`. The first is the first token.
    pub chunks: Vec<u32>,
    /// Number of content chunks that arrived.
    pub chunk_count: u32,
    /// Whether only the times of the first and the last chunk were kept, because of
    /// [`LoadPlan::kept_chunks`](super::LoadPlan::kept_chunks).
    pub thinned: bool,
    /// Whether the request was due but had to wait, because the largest number of requests was in flight. The server,
    /// not the load, then caused its lateness.
    pub queued: bool,
    /// When the response was complete or failed.
    pub end: Duration,
    /// Whether a streamed reply was requested. Otherwise the whole reply is one chunk.
    pub streamed: bool,
    /// Number of requested output tokens.
    pub requested_tokens: u32,
    /// Prompt tokens by the server's count, or 0 if it sent none.
    pub prompt_tokens: u32,
    /// Prompt tokens in the server's prefix cache, if the server reports them.
    pub cached_tokens: Option<u32>,
    /// Output tokens by the server's count. Without a count, this is the number of content chunks of a streamed reply
    /// if the dialect's servers do not always count (TGI, llama.cpp, OpenAI). Otherwise it is 0.
    pub output_tokens: u32,
    pub result: Result<(), RequestError>,
}

impl RequestRecord {
    /// Returns the delay of the send after the due instant.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.sent.saturating_sub(self.due)
    }

    /// Returns the time from the due instant to the first token, if the reply was streamed.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        self.chunks.first().filter(|_| self.streamed).map(|at| self.lateness() + micros(*at))
    }

    /// Returns the time from the due instant to the last content chunk.
    #[must_use]
    pub fn e2el(&self) -> Option<Duration> {
        self.chunks.last().map(|at| self.lateness() + micros(*at))
    }

    /// Returns the time from the first content chunk to the last, if the reply was streamed.
    #[must_use]
    pub fn decode_time(&self) -> Option<Duration> {
        let (first, last) = (self.chunks.first()?, self.chunks.last()?);
        self.streamed.then(|| micros(last - first))
    }

    /// Returns the gaps between successive content chunks.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.chunks.windows(2).map(|pair| micros(pair[1] - pair[0]))
    }
}

fn micros(at: u32) -> Duration {
    Duration::from_micros(u64::from(at))
}

/// Numbers of completed and failed requests of the warm-up. Their latencies are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmupSummary {
    pub completed: usize,
    pub failed: usize,
}

/// The cause of a run's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The plan was carried out: no request is left to send or in flight, or the duration is over and the last request
    /// has ended.
    Complete,
    /// The caller stopped the run.
    Stopped,
    /// The observer ended the run ([`RunFlow::End`](super::RunFlow::End)).
    Observer,
}

/// Measurements of the load generator itself in the measurement window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientUse {
    /// Processor time of the load's own thread.
    pub cpu: Duration,
    /// Time that the load's thread was ready to run while other threads held the processors. `None` if the kernel does
    /// not count it.
    pub processor_wait: Option<Duration>,
    /// Whether the load's thread has a real-time priority, ahead of all threads without one.
    pub realtime: bool,
    /// The window's length.
    pub wall: Duration,
    /// Delay of each read: the time since its bytes arrived or, without kernel timestamps, since `epoll` reported them.
    /// Microseconds, ascending; a fair sample of at most 10,000 reads.
    pub lags_us: Vec<u32>,
    /// The largest delay of all reads, in microseconds.
    pub max_lag_us: u32,
    /// Sum over completed replies of the delay between the arrival of the last bytes and their handling. In a closed
    /// loop each user's next request is late by its reply's delay.
    pub turnaround: Duration,
    /// Whether the kernel timestamps arriving bytes. Otherwise the latencies include the load's own lag.
    pub kernel_stamps: bool,
    /// Number of times that a session was due before its requests were generated.
    pub starved: u64,
    /// Maximum number of requests in flight.
    pub peak_in_flight: usize,
    /// Number of opened connections, including those of the warm-up.
    pub connections: u64,
    /// Requests that were sent a second time, because the server had closed a kept connection. Includes those of the
    /// warm-up.
    pub resent: u64,
}

/// Result of one driven load.
#[derive(Clone, Debug)]
pub struct LoadRun {
    /// The requests that ended within the measurement window, in the order of their ends.
    pub records: Vec<RequestRecord>,
    pub warmup: WarmupSummary,
    /// The start of the measurement window, just before its first send. Origin of the records' instants.
    pub began: Instant,
    /// The end of the measurement window, after its last request.
    pub ended: Instant,
    /// Requests of the measurement window that were in flight when the caller or the observer ended the run.
    pub unfinished: usize,
    /// Sessions that were due but had not begun when the run ended, because it was stopped or its time was up.
    pub unsent: usize,
    pub end: RunEnd,
    pub client: ClientUse,
}
