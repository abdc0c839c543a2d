//! The server's own measurements, the reference for those of the clients.

use serde::{Deserialize, Serialize};

use setpoint::stats::{f64_to_usize, to_f64};

/// One answered request. Instants are nanoseconds on the clock of `clock::now`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The instant at which the kernel had the request's last byte. The server's times count from here, its own backlog
    /// included.
    pub arrived_ns: u64,
    /// The instant at which the server had read it.
    pub read_ns: u64,
    /// The instants just before the write of the first token, and of the last.
    pub first_ns: u64,
    pub last_ns: u64,
    pub tokens: u32,
}

/// Measurements since the last query.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Own {
    /// In the order of their ends.
    pub requests: Vec<Seen>,
    /// Lateness of the paced tokens: microseconds from the due instant to the instant just before the write.
    pub late_p50_us: u32,
    pub late_p99_us: u32,
    pub late_max_us: u32,
    /// Tokens that could not be written at once, because the client had not read earlier ones.
    pub blocked: u64,
    /// Requests whose connection broke.
    pub aborted: u64,
    /// Whether the kernel reported the times of arrival. If not, the times of reading are used.
    pub kernel_stamps: bool,
    /// CPU time and largest resident set of the server's process, since its start.
    pub cpu_s: f64,
    pub max_rss_mb: f64,
}

/// Returns the `q`-quantile of ascending values: the smallest value with at least a share `q` of them at or below it. 0
/// without values.
pub(crate) fn quantile(sorted: &[u32], q: f64) -> u32 {
    let rank = f64_to_usize((q * to_f64(sorted.len())).ceil());
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}
