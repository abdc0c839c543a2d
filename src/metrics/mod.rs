//! Records to numbers, with the definitions of `vllm bench serve`, which are written down here and nowhere else.
//!
//! For one completed request, with instants as the client saw them and `out` the output tokens by the server's count:
//!
//! ```text
//! TTFT         = first content chunk - due                 only of streamed replies
//! E2EL         = last content chunk - due
//! TPOT         = (E2EL - TTFT) / (out - 1)                 only of streamed replies, and where out > 1
//! ITL          = chunk[i + 1] - chunk[i]                   one value for each gap between content chunks
//! lateness     = send - due
//! output speed = (out - 1) / (E2EL - TTFT)                 tokens per second; where TPOT is above 0
//! ```
//!
//! A content chunk is an event with at least one choice, whatever its text; it may carry several tokens, so that ITL
//! depends on how the server and the network group tokens, and TPOT does not. `send` is the instant at which the request
//! was handed to the HTTP client: where no connection is open yet, opening it counts. With 1,000 streams that start at once
//! this adds tens of milliseconds of the client's own to the first TTFT of each, which a warm-up of at least the
//! concurrency avoids. `due` is `send` in a closed loop; in an open one it is the instant at which the arrivals wanted the
//! request, so that a wait for a place counts, where `vllm bench serve` leaves it out.
//!
//! Over the window:
//!
//! ```text
//! duration                = its end - its begin            of a whole run: last finish - first send, failed requests included
//! request_throughput      = completed / duration
//! output_throughput       = sum of out / duration
//! total_token_throughput  = sum of (prompt tokens + out) / duration
//! request_goodput         = completed requests that keep every limit / duration
//! cached_prompt_tokens    = prompt tokens that the server had in its prefix cache, where it says so
//! mean, median, std, p90, p95, p99       of TTFT, TPOT, E2EL and lateness over requests, of ITL pooled over the gaps of all
//! mean, median, std, p10, p5, p1         of the output speed over requests; slow is bad, so that its tail is the lower one
//! max_output_tokens_per_s, max_concurrent_requests         in whole seconds from the first send (`series`)
//! ```
//!
//! `std` is that of the population (divided by n). The p-th percentile interpolates linearly: with the n sorted values
//! `x[0..n]` and `r = p / 100 * (n - 1)`, it is `x[floor r] + (r - floor r) * (x[floor r + 1] - x[floor r])`, which is
//! numpy's default. The median is the 50th. A latency without a single value has no distribution.
//!
//! In a steady window (`steady` says how it is found), a request counts by what happened in it: its latencies where it
//! was sent in it, its output tokens where they arrived in it, its prompt where its first chunk did, and it as completed,
//! failed or good where it ended in it.
//!
//! Failed requests give to the duration, to `failed` and to the count of their class, and to nothing else. The warm-up
//! gives to nothing at all. How far a number can be from the truth is written in `confidence`.
//!
//! A run that is too long for the time of every chunk has exact numbers all the same, but for ITL: it comes from the
//! [`Recorder`]'s histogram over the whole run, and the measurement says so.

mod confidence;
mod distribution;
#[cfg(test)]
mod example;
mod errors;
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

use crate::load::{Plan, Record};

pub(crate) use confidence::student;
pub(crate) use errors::outcome;
pub(crate) use recorder::Recorder;
pub(crate) use replies::replies;
pub(crate) use slo::{Latency, Slo, SloError};
pub(crate) use steady::{mser5, steady, whole};
pub(crate) use summary::{summarize, summarize_within};
pub(crate) use validity::validity;
pub(crate) use watch::{Stop, Until, Watch, WatchOptions};

/// Which part of a run counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// From the first send to the last finish, as in `vllm bench serve`.
    #[default]
    Whole,
    /// Without warm-up and drain, where there is a steady state.
    Steady,
}

/// How a run is reduced to numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options<'a> {
    /// Limits of a good request; without one there is no goodput.
    pub goodput: Vec<Slo>,
    pub window: Part,
    /// How the run was driven; without it the load generator's part in it is not judged.
    pub plan: Option<&'a Plan>,
    /// What was kept while it went on; without it a run that could not keep every chunk has no ITL.
    pub recorder: Option<&'a Recorder>,
}

/// TPOT of a completed request in milliseconds; `None` where it has none.
fn tpot_ms(record: &Record) -> Option<f64> {
    let after = record.output_tokens.checked_sub(1).filter(|after| *after > 0)?;
    Some(milliseconds(record.decode()?) / f64::from(after))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
