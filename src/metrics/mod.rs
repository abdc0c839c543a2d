//! Reduction of records to numbers, by the definitions of `vllm bench serve`. This page is the only documentation of
//! the definitions.
//!
//! For one completed request, by the client's clock. `out` is its number of output tokens by the server's count.
//!
//! ```text
//! TTFT         = first content chunk - due                 only of streamed replies
//! E2EL         = last content chunk - due
//! TPOT         = (E2EL - TTFT) / (out - 1)                 only of streamed replies with out > 1
//! ITL          = chunk[i + 1] - chunk[i]                   one value for each gap between content chunks
//! lateness     = send - due
//! output speed = (out - 1) / (E2EL - TTFT)                 tokens per second; if TPOT is above 0
//! ```
//!
//! A content chunk is an event with at least one token, even without a text. It may contain several tokens. ITL
//! therefore depends on how the server and the network group tokens, but TPOT does not.
//!
//! `send` is the instant at which the request was sent. If no connection is open yet, the time to open one is part of
//! the latencies. With 1,000 streams that start at once, it adds tens of milliseconds to the first TTFT of each. A
//! warm-up of at least the concurrency avoids it.
//!
//! `due` is `send` in a closed loop. In an open loop it is the scheduled arrival of the request, so that a wait for a
//! place counts as latency (exceptions: `RequestRecord::due`). `vllm bench serve` leaves that wait out.
//!
//! Over the window:
//!
//! ```text
//! duration                = its end - its begin            of a whole run: last finish - first send, failed included
//! request_throughput      = completed / duration
//! output_throughput       = sum of out / duration
//! total_token_throughput  = sum of (prompt tokens + out) / duration
//! request_goodput         = completed requests that keep every limit / duration
//! cached_prompt_tokens    = prompt tokens that the server had in its prefix cache, if it reports them
//! mean, median, std, p90, p95, p99       of TTFT, TPOT, E2EL and lateness over requests, of ITL over all gaps
//! mean, median, std, p10, p5, p1         of the output speed over requests; its lower tail is the bad one
//! max_output_tokens_per_s, max_concurrent_requests         in whole seconds from the first send (`series`)
//! ```
//!
//! `std` is the standard deviation of the population (divided by n). The p-th percentile interpolates linearly, like
//! numpy by default. With the n sorted values `x[0..n]` and `r = p / 100 * (n - 1)`, it is
//! `x[floor r] + (r - floor r) * (x[floor r + 1] - x[floor r])`. The median is the 50th. A latency without a single
//! value has no distribution.
//!
//! In a steady window (found by `steady`), each part of a request counts by its own instant. Its latencies count if it
//! was sent in the window, its output tokens if they arrived in it, and its prompt if its first chunk did. It counts as
//! completed, failed or good if it ended in the window.
//!
//! Failed requests contribute to the duration, to `failed` and to the count of their class, and to nothing else. The
//! warm-up contributes to nothing at all. `confidence` defines the confidence intervals of the numbers.
//!
//! A run that is too long to keep the time of every chunk still has exact TTFT, TPOT and E2EL. ITL comes from the
//! [`WindowRecorder`]'s histogram over the whole run, and the measurement is marked as approximate. Tokens are assumed
//! to arrive evenly between the first and the last chunk. This affects `max_output_tokens_per_s` and a steady window.

mod confidence;
mod distribution;
#[cfg(test)]
mod example;
mod load_outcome;
mod histogram;
mod recorder;
mod replies;
mod series;
mod slo;
mod steady;
mod summary;
#[cfg(test)]
mod tests;
mod validity;
mod watch;

use std::time::Duration;

use crate::load::{LoadPlan, RequestRecord};

pub(crate) use confidence::student;
pub(crate) use load_outcome::outcome;
pub(crate) use recorder::WindowRecorder;
pub(crate) use replies::replies;
pub(crate) use slo::{Latency, Slo, SloError};
pub(crate) use steady::{mser5, steady, whole};
pub(crate) use summary::{summarize, summarize_within};
pub(crate) use validity::validity;
pub(crate) use watch::{LoadWatch, PrecisionTarget, RaceTarget, StopReason, WatchOptions};

/// The part of a run that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunPart {
    /// From the first send to the last finish, as in `vllm bench serve`.
    #[default]
    Whole,
    /// Without warm-up and drain, if there is a steady state.
    Steady,
}

/// Options for the reduction of a run to numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SummaryOptions<'a> {
    /// Limits of a good request; without one there is no goodput.
    pub goodput: Vec<Slo>,
    pub window: RunPart,
    /// The plan of the run. Without it, the measurement has no verdict on the load generator.
    pub plan: Option<&'a LoadPlan>,
    /// The recorder of the run. Without it, a run that could not keep every chunk has no ITL.
    pub recorder: Option<&'a WindowRecorder>,
}

/// Returns the TPOT of a completed request in milliseconds, if it has one.
fn tpot_ms(record: &RequestRecord) -> Option<f64> {
    let after = record.output_tokens.checked_sub(1).filter(|after| *after > 0)?;
    Some(milliseconds(record.decode_time()?) / f64::from(after))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
