//! Records to numbers, with the definitions of `vllm bench serve`, which are written down here and nowhere else.
//!
//! For one completed request, with instants as the client saw them and `out` the output tokens by the server's count:
//!
//! ```text
//! TTFT = first content chunk - send
//! E2EL = last content chunk - send
//! TPOT = (E2EL - TTFT) / (out - 1)                 only where out > 1
//! ITL  = chunk[i + 1] - chunk[i]                   one value for each gap between content chunks
//! ```
//!
//! A content chunk is an event with at least one choice, whatever its text; it may carry several tokens, so that ITL
//! depends on how the server and the network group tokens, and TPOT does not. `send` is the instant at which the request
//! was handed to the HTTP client: where no connection is open yet, opening it counts. With 1,000 streams that start at once
//! this adds tens of milliseconds of the client's own to the first TTFT of each, which a warm-up of at least the
//! concurrency avoids.
//!
//! Over the window:
//!
//! ```text
//! duration               = last finish - first send        over all requests, failed ones included
//! request_throughput     = completed / duration
//! output_throughput      = sum of out / duration
//! total_token_throughput = sum of (prompt tokens + out) / duration
//! mean, median, std, p90, p95, p99   of TTFT, TPOT, E2EL over requests, of ITL pooled over the gaps of all requests
//! ```
//!
//! `std` is that of the population (divided by n). The p-th percentile interpolates linearly: with the n sorted values
//! `x[0..n]` and `r = p / 100 * (n - 1)`, it is `x[floor r] + (r - floor r) * (x[floor r + 1] - x[floor r])`, which is
//! numpy's default. The median is the 50th. A latency without a single value has no distribution.
//!
//! Failed requests give to the duration, to `failed` and to the count of their class, and to nothing else. The warm-up
//! gives to nothing at all.

mod distribution;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::load::Record;
use crate::trial::Measurement;

pub use distribution::{distribution, percentile};

/// Reduces the records of one measured window.
#[must_use]
pub fn summarize(records: &[Record]) -> Measurement {
    let mut measurement = Measurement { duration_s: duration(records).as_secs_f64(), ..Measurement::default() };
    let mut errors = BTreeMap::new();
    let (mut ttft, mut tpot, mut itl, mut e2el) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for record in records {
        if let Err(error) = &record.result {
            measurement.failed += 1;
            *errors.entry(error.class()).or_default() += 1;
            continue;
        }
        measurement.completed += 1;
        measurement.total_input_tokens += u64::from(record.prompt_tokens);
        measurement.total_output_tokens += u64::from(record.output_tokens);
        let (Some(first), Some(last)) = (record.ttft(), record.e2el()) else { continue };
        ttft.push(milliseconds(first));
        e2el.push(milliseconds(last));
        if record.output_tokens > 1 {
            tpot.push((milliseconds(last) - milliseconds(first)) / f64::from(record.output_tokens - 1));
        }
        itl.extend(record.gaps().map(milliseconds));
    }
    measurement.ttft_ms = distribution(ttft);
    measurement.tpot_ms = distribution(tpot);
    measurement.itl_ms = distribution(itl);
    measurement.e2el_ms = distribution(e2el);
    measurement.errors = errors;
    measurement
}

fn duration(records: &[Record]) -> Duration {
    let first = records.iter().map(|record| record.sent).min().unwrap_or_default();
    let last = records.iter().map(|record| record.end).max().unwrap_or_default();
    last.saturating_sub(first)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Error;

    /// A request sent at `sent` ms whose chunks arrive at the given milliseconds after it, one token each.
    fn record(sent: u64, chunks: &[u32]) -> Record {
        let sent = Duration::from_millis(sent);
        let chunks: Vec<u32> = chunks.iter().map(|at| at * 1000).collect();
        let end = sent + Duration::from_micros(chunks.last().copied().unwrap_or_default().into());
        let output_tokens = u32::try_from(chunks.len()).unwrap();
        Record {
            session: 0,
            turn: 0,
            due: sent,
            sent,
            chunk_count: output_tokens,
            thinned: false,
            queued: false,
            chunks,
            end,
            streamed: true,
            asked_tokens: output_tokens,
            prompt_tokens: 10,
            cached_tokens: None,
            output_tokens,
            result: Ok(()),
        }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn each_latency_follows_its_formula() {
        let measurement = summarize(&[record(500, &[50, 70, 100]), record(1500, &[100, 120, 130, 140])]);
        let (ttft, tpot) = (measurement.ttft_ms.unwrap(), measurement.tpot_ms.unwrap());
        let (itl, e2el) = (measurement.itl_ms.unwrap(), measurement.e2el_ms.unwrap());
        assert!(close(ttft.mean, 75.0) && close(ttft.median, 75.0) && close(ttft.std, 25.0), "{ttft:?}");
        assert!(close(ttft.p90, 95.0) && close(ttft.p99, 99.5), "{ttft:?}");
        assert!(close(tpot.mean, f64::midpoint(25.0, 40.0 / 3.0)), "{tpot:?}");
        assert!(close(itl.mean, 18.0) && close(itl.median, 20.0), "{itl:?}");
        assert!(close(e2el.mean, 120.0), "{e2el:?}");
        assert!(close(measurement.duration_s, 1.14));
        assert!(close(measurement.metric("output_throughput").unwrap(), 7.0 / 1.14));
        assert!(close(measurement.metric("total_token_throughput").unwrap(), 27.0 / 1.14));
    }

    #[test]
    fn a_chunk_of_several_tokens_changes_itl_and_not_tpot() {
        let mut merged = record(0, &[50, 110]);
        merged.output_tokens = 4;
        let measurement = summarize(&[merged]);
        assert!(close(measurement.tpot_ms.unwrap().mean, 20.0));
        assert!(close(measurement.itl_ms.unwrap().mean, 60.0));
        assert_eq!(measurement.total_output_tokens, 4);
    }

    #[test]
    fn one_token_replies_have_no_tpot_and_no_itl() {
        let measurement = summarize(&[record(0, &[50]), record(0, &[60])]);
        assert!(close(measurement.ttft_ms.unwrap().mean, 55.0));
        assert_eq!((measurement.tpot_ms, measurement.itl_ms), (None, None));
    }

    #[test]
    fn failed_requests_are_counted_by_class_and_distort_nothing() {
        let good = [record(0, &[50, 70]), record(100, &[50, 70])];
        let mut all = good.to_vec();
        for error in [Error::Reset("a".into()), Error::Reset("b".into()), Error::Http { status: 500, seen: "c".into() }]
        {
            all.push(Record { result: Err(error), ..record(20, &[5, 6, 7]) });
        }
        let mut measurement = summarize(&all);
        assert_eq!(measurement.failed, 3);
        assert_eq!(measurement.errors, BTreeMap::from([("reset".to_owned(), 2), ("http_500".to_owned(), 1)]));
        (measurement.failed, measurement.errors) = (0, BTreeMap::new());
        assert_eq!(measurement, summarize(&good));
    }

    #[test]
    fn no_records_give_no_numbers() {
        let measurement = summarize(&[]);
        assert_eq!(measurement, Measurement::default());
        assert_eq!(measurement.metric("request_throughput"), None);
    }
}
