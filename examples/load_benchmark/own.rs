//! What the server says of itself: the clients are held against it.

use serde::{Deserialize, Serialize};

use setpoint::stats::{f64_to_usize, to_f64};

/// One answered request. Nanoseconds on the clock of `clock::now`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// When the kernel had the request's last byte: from here the server's times count, its own backlog included.
    pub arrived_ns: u64,
    /// When the server had read it.
    pub read_ns: u64,
    /// Just before the write of the first token, and of the last.
    pub first_ns: u64,
    pub last_ns: u64,
    pub tokens: u32,
}

/// Since the last time that it was asked.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Own {
    /// In the order in which they ended.
    pub requests: Vec<Seen>,
    /// For each paced token: the instant just before its write, after the instant at which it was due. Microseconds.
    pub late_p50_us: u32,
    pub late_p99_us: u32,
    pub late_max_us: u32,
    /// Tokens that could not be written at once, because the client had not read those before.
    pub blocked: u64,
    /// Requests whose connection broke.
    pub aborted: u64,
    /// Whether the kernel gave the time of arrival. Otherwise it is the time of reading.
    pub kernel_stamps: bool,
    /// Of the server's process, since its start.
    pub cpu_s: f64,
    pub max_rss_mb: f64,
}

/// Ascending values in, the smallest that is not below a share `q` of them out; zero of none.
pub(crate) fn quantile(sorted: &[u32], q: f64) -> u32 {
    let rank = f64_to_usize((q * to_f64(sorted.len())).ceil());
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}
