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
    /// The session's index in the workload.
    pub session: u64,
    /// The turn of the session, from 0.
    pub turn: u32,
    /// When it should have been sent. In a closed loop and where all begin at once, that is when it was sent; so it is for
    /// a later turn of a session, unless it had to wait for a place.
    pub due: Duration,
    /// When it was sent, or its connection was opened for it; after a retry, when it was sent again.
    pub sent: Duration,
    /// When each content chunk arrived, in microseconds after `sent`; the first is the first token.
    pub chunks: Vec<u32>,
    /// Content chunks that arrived.
    pub chunk_count: u32,
    /// Only the first and the last chunk's time were kept, because of [`Plan::kept_chunks`](super::Plan::kept_chunks).
    pub thinned: bool,
    /// Whether it had to wait for a place: its lateness is the server's, not the load's.
    pub queued: bool,
    /// When the response was complete, or failed.
    pub end: Duration,
    /// Whether the reply was asked for as a stream. Otherwise its only chunk is the whole of it.
    pub streamed: bool,
    /// Tokens that were asked for.
    pub asked_tokens: u32,
    /// Prompt tokens by the server's count; 0 where it gave none.
    pub prompt_tokens: u32,
    /// Of them, those that the server says it had in its prefix cache.
    pub cached_tokens: Option<u32>,
    /// Output tokens by the server's count. Where it gave none: the number of content chunks for a dialect whose servers
    /// do not always count (TGI, llama.cpp, OpenAI), otherwise 0.
    pub output_tokens: u32,
    pub result: Result<(), Error>,
}

impl Record {
    /// How much later than due it was sent.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.sent.saturating_sub(self.due)
    }

    /// Time to the first token, from the instant at which the request was due.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        self.chunks.first().filter(|_| self.streamed).map(|at| self.lateness() + micros(*at))
    }

    /// Time to the last content chunk, from the instant at which the request was due.
    #[must_use]
    pub fn e2el(&self) -> Option<Duration> {
        self.chunks.last().map(|at| self.lateness() + micros(*at))
    }

    /// From the first content chunk to the last.
    #[must_use]
    pub fn decode(&self) -> Option<Duration> {
        let (first, last) = (self.chunks.first()?, self.chunks.last()?);
        self.streamed.then(|| micros(last - first))
    }

    /// The gaps between successive content chunks.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.chunks.windows(2).map(|pair| micros(pair[1] - pair[0]))
    }
}

fn micros(at: u32) -> Duration {
    Duration::from_micros(u64::from(at))
}

/// How the requests of the warm-up ended; their latencies are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmup {
    pub completed: usize,
    pub failed: usize,
}

/// How a run came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Every request was sent and has ended.
    Complete,
    /// The caller stopped it.
    Stopped,
    /// The observer ended it ([`Flow::End`](super::Flow::End)).
    Observer,
}

/// What the load generator measured of itself in the measured window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Client {
    /// Processor time of the load's own thread.
    pub cpu: Duration,
    /// How long that thread was ready to run while other threads held the processors; `None` where the kernel does not count
    /// it.
    pub processor_wait: Option<Duration>,
    /// Whether it runs ahead of all threads without a real-time priority.
    pub realtime: bool,
    /// The window's length.
    pub wall: Duration,
    /// For each read: how long the bytes had been here before the load saw them or, without the kernel's stamps, how long
    /// the load had known of them. Microseconds, ascending; a fair sample of at most 10,000 of the reads.
    pub lags_us: Vec<u32>,
    /// The largest of all.
    pub max_lag_us: u32,
    /// For how long in all the last bytes of completed replies had been here before the load saw them. In a closed loop every
    /// user's next request is late by it.
    pub turnaround: Duration,
    /// Whether the kernel says when bytes arrive. Where it does not, the load's own lag is part of the latencies.
    pub kernel_stamps: bool,
    /// How often a session was due and its requests were not yet generated.
    pub starved: u64,
    /// The most requests that were under way at one time.
    pub peak_in_flight: usize,
    /// Connections that were opened, the warm-up's included.
    pub connections: u64,
    /// Requests that were sent a second time, because a kept connection had been closed by the server.
    pub resent: u64,
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
    /// Sessions that were due when the run ended and had not begun, because it was stopped, its time was up, or both.
    pub unsent: usize,
    pub end: End,
    pub client: Client,
}
