//! What came back: one record for each request, successful or not.

use std::time::{Duration, Instant};

/// Why a request failed, with a short text of what was seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot connect: {0}")]
    Connect(String),
    /// An HTTP status other than 200.
    #[error("http status {status}: {seen}")]
    Http { status: u16, seen: String },
    /// Counts from the send, over the whole request.
    #[error("no end after {limit_ms} ms, {chunks} chunks had arrived")]
    Timeout { limit_ms: u64, chunks: usize },
    /// The connection broke before the response was whole.
    #[error("connection lost: {0}")]
    Reset(String),
    /// The response ended in order, but parts of it are missing.
    #[error("stream ended without {0}")]
    Truncated(String),
    /// The server sent an error event after it had answered with status 200.
    #[error("server error in the stream: {0}")]
    Server(String),
    /// Another number of output tokens than was asked for.
    #[error("{got} output tokens, {asked} asked for")]
    WrongLength { asked: u32, got: u32 },
    /// An event or response that cannot be parsed.
    #[error("not understood: {0}")]
    Protocol(String),
}

impl Error {
    /// The name of the class, under which failures are counted.
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

/// One request. Instants are durations since [`Run::began`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The index in the workload.
    pub index: u64,
    /// When it should have been sent; in a closed loop, when its slot became free.
    pub due: Duration,
    /// When it was sent; after a retry, when it was sent again.
    pub sent: Duration,
    /// When each content chunk arrived, in microseconds after `sent`; the first is the first token.
    pub chunks: Vec<u32>,
    /// When the response was complete, or failed.
    pub end: Duration,
    /// Prompt tokens by the server's count; 0 where it gave none.
    pub prompt_tokens: u32,
    /// Output tokens by the server's count, never by the number of chunks; 0 where it gave none.
    pub output_tokens: u32,
    pub result: Result<(), Error>,
}

impl Record {
    /// Time to the first token.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        self.chunks.first().map(|at| Duration::from_micros(u64::from(*at)))
    }

    /// Time to the last content chunk.
    #[must_use]
    pub fn e2el(&self) -> Option<Duration> {
        self.chunks.last().map(|at| Duration::from_micros(u64::from(*at)))
    }

    /// The gaps between successive content chunks.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.chunks.windows(2).map(|pair| Duration::from_micros(u64::from(pair[1] - pair[0])))
    }
}

/// How the warm-up ended; its latencies are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmup {
    pub completed: usize,
    pub failed: usize,
}

/// One driven load.
#[derive(Clone, Debug)]
pub struct Run {
    /// The requests that ended within the measured window, in the order in which they ended.
    pub records: Vec<Record>,
    pub warmup: Warmup,
    /// The measured window's start, just before its first send; zero on the clock of the records.
    pub began: Instant,
    /// The measured window's end, after its last request.
    pub ended: Instant,
    /// Requests of the measured window that were under way when the run was stopped.
    pub unfinished: usize,
    /// Whether the run was stopped before its last request.
    pub stopped: bool,
}
