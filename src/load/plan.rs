//! Target server and plan of a load.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::protocol::Dialect;

/// The server under load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadTarget {
    /// `http://host:port` or `https://host:port`, with an optional path; a trailing `/v1` is accepted.
    pub base_url: String,
    /// The name under which the server serves the model.
    pub model: String,
    pub api: RequestApi,
    pub dialect: Dialect,
    /// Whether replies are streamed. Without streaming there is no TTFT, TPOT or ITL.
    pub stream: bool,
    /// Sent as `Authorization: Bearer ...`; never shown.
    pub api_key: Option<BearerKey>,
    /// Header lines of every request, as names and values. A line replaces the client's own line of the same name, such
    /// as `user-agent`. `content-length`, `transfer-encoding` and `connection` are errors.
    pub headers: Vec<(String, String)>,
    /// Additional fields of every request's body. They replace fields of the same name. Fields that the workload
    /// decides, such as `prompt` and `max_tokens`, are errors.
    pub extra_body: Map<String, Json>,
    /// A PEM file of certificates to trust for `https`, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Whether this process launched the server. Its certificate is then accepted without verification; see
    /// [`own_server_tls`](crate::server::own_server_tls).
    pub own_server: bool,
}

impl LoadTarget {
    /// Creates a target for streamed completions of a vLLM server without an API key.
    #[must_use]
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            api: RequestApi::Completions,
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

/// An endpoint of OpenAI's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestApi {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
}

/// A secret that no debug output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerKey(pub String);

impl std::fmt::Debug for BearerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(crate::trial::REDACTED)
    }
}

/// The arrival process of sessions.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrivalPattern {
    /// [`LoadPlan::concurrency`] users. Each begins its next session when the previous one has ended.
    Closed,
    /// All at once, limited by [`LoadPlan::concurrency`]. `vllm bench serve` calls this a request rate of `inf`.
    AtOnce,
    /// `per_s` sessions per second. Gaps are drawn from a gamma distribution of mean `1 / per_s` and shape `burstiness`
    /// (1: Poisson; below 1: bursts; infinite: constant gaps).
    Rate { per_s: f64, burstiness: f64 },
    /// A rate that rises or falls linearly from one value to the other over `over`, and then stays.
    Ramp { from_per_s: f64, to_per_s: f64, over: Duration, burstiness: f64 },
    /// At the workload's own time stamps, counted from that of [`LoadPlan::first`] and multiplied by `factor`. A factor
    /// of 0.5 is twice as fast.
    Trace { factor: f64 },
}

/// Arrivals, size and limits of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPlan {
    pub arrival: ArrivalPattern,
    /// Seed of the arrivals. The workload has its own seed.
    pub seed: u64,
    /// Number of places, required in a closed loop. In a closed loop and with `ArrivalPattern::AtOnce`, each user
    /// occupies one, otherwise each request in flight. A session that is due while all places are taken waits for one.
    /// Its wait counts as latency, except with `AtOnce`.
    pub concurrency: Option<usize>,
    /// Index of the first session of the measurement window. A later run on the same server needs other sessions,
    /// because the server's prefix cache holds the prompts of the earlier run.
    pub first: u64,
    /// Number of requests of the measurement window, counted as turns of the sessions from `first` on. The last session
    /// is cut at this number.
    pub requests: Option<u64>,
    /// Length of the measurement window. Nothing is sent afterwards, but requests in flight may end.
    pub duration: Option<Duration>,
    /// Number of warm-up requests, sent in a closed loop. The measurement window begins when the last of them has
    /// ended. Their sessions come after those of the window, so that no measured prompt is in the server's prefix
    /// cache. The window's requests therefore do not depend on the length of the warm-up.
    pub warmup: u64,
    /// Time limit of a request, from its send to its last byte.
    pub request_timeout: Duration,
    /// Whether a reply may end before it has the requested number of tokens.
    pub allow_eos: bool,
    /// Maximum number of chunk times kept over all records, at 4 bytes each. A record that would exceed it keeps only
    /// its first and last time. The observer still sees all of them.
    pub kept_chunks: usize,
}

/// Default of `LoadPlan::kept_chunks`: 64 MB at 4 bytes each.
const DEFAULT_KEPT_CHUNKS: usize = 16_000_000;

impl LoadPlan {
    /// Creates a closed loop of `requests` requests.
    #[must_use]
    pub fn closed(concurrency: usize, requests: u64) -> Self {
        Self {
            arrival: ArrivalPattern::Closed,
            seed: 0,
            concurrency: Some(concurrency),
            first: 0,
            requests: Some(requests),
            duration: None,
            warmup: 0,
            request_timeout: Duration::from_mins(10),
            allow_eos: false,
            kept_chunks: DEFAULT_KEPT_CHUNKS,
        }
    }
}
