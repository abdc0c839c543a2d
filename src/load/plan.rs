//! Whom to ask, how, and when.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::protocol::Dialect;

/// Whom to ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// `http://host:port` or `https://host:port`, with an optional path; a trailing `/v1` is accepted.
    pub base_url: String,
    /// The name under which the server serves the model.
    pub model: String,
    pub api: Api,
    pub dialect: Dialect,
    /// Whether replies are streamed. Without it there is no TTFT, TPOT or ITL.
    pub stream: bool,
    /// Sent as `Authorization: Bearer ...`; never shown.
    pub api_key: Option<ApiKey>,
    /// Header lines of every request, beside those that the client sets itself.
    pub headers: Vec<(String, String)>,
    /// Fields of every request's body; they replace those of the same name.
    pub extra_body: Map<String, Json>,
    /// A PEM file of certificates to trust for `https`, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Whether the server is a launch of our own, whose certificate is taken as it is; see
    /// [`own_server_tls`](crate::server::own_server_tls).
    pub own_server: bool,
}

impl Target {
    /// Streaming completions of a vLLM server without a key.
    #[must_use]
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            api: Api::Completions,
            dialect: Dialect::Vllm,
            stream: true,
            api_key: None,
            headers: Vec::new(),
            extra_body: Map::new(),
            ca_file: None,
            own_server: false,
        }
    }
}

/// Which of OpenAI's interfaces is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
}

/// A secret that no debug output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(pub String);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(crate::trial::REDACTED)
    }
}

/// When sessions begin.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    /// As many users as [`Plan::concurrency`], each of whom begins the next session when the one before has ended.
    Closed,
    /// All at once, as far as [`Plan::concurrency`] lets them: a rate of `inf`.
    AtOnce,
    /// Sessions per second. Gaps are drawn from a gamma distribution of this shape (1: Poisson; below 1: bursts;
    /// infinite: constant gaps) and mean `1 / rate`.
    Rate { per_s: f64, burstiness: f64 },
    /// A rate that rises or falls linearly from one value to the other over `over`, and then stays.
    Ramp { from_per_s: f64, to_per_s: f64, over: Duration, burstiness: f64 },
    /// At the workload's own time stamps, counted from that of [`Plan::first`], times this factor: 0.5 is twice as fast.
    Trace { factor: f64 },
}

/// How to ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub arrival: Arrival,
    /// Of the arrivals; the workload has its own.
    pub seed: u64,
    /// Requests (in a closed loop: users) that are under way at the same time at most; a session that is due earlier
    /// waits, and its wait counts, except where all are due at once. In a closed loop it must be given.
    pub concurrency: Option<usize>,
    /// The first session of the measured window. Another run on the same server needs others: the prompts of the first are
    /// in its prefix cache.
    pub first: u64,
    /// Requests of the measured window: the turns of the workload's sessions from there on, the last of them cut where it
    /// reaches beyond.
    pub requests: Option<u64>,
    /// Nothing is sent after this time in the measured window; what is under way then may end.
    pub duration: Option<Duration>,
    /// Requests before the measured window, in a closed loop; the window begins when the last of them has ended. They
    /// come from behind the end of the window, so that no measured prompt is in the server's prefix cache and the
    /// window's requests do not depend on the length of the warm-up.
    pub warmup: u64,
    /// For a whole request, from its send to its last byte.
    pub request_timeout: Duration,
    /// Whether a reply may end before it has as many tokens as asked for.
    pub allow_eos: bool,
    /// Times of chunks that are kept over all records, at 4 bytes each. Once there are so many, a record keeps only its
    /// first and last; the observer still sees all of them.
    pub kept_chunks: usize,
}

/// 64 MB.
const KEPT_CHUNKS: usize = 16_000_000;

impl Plan {
    /// A closed loop of `requests` requests.
    #[must_use]
    pub fn closed(concurrency: usize, requests: u64) -> Self {
        Self {
            arrival: Arrival::Closed,
            seed: 0,
            concurrency: Some(concurrency),
            first: 0,
            requests: Some(requests),
            duration: None,
            warmup: 0,
            request_timeout: Duration::from_mins(10),
            allow_eos: false,
            kept_chunks: KEPT_CHUNKS,
        }
    }
}
