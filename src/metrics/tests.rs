//! Tests of the definitions, each on records whose numbers can be worked out by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use super::example::{record, run};
use super::*;
use crate::load::{LoadEvent, LoadPhase, RequestError};
use crate::trial::{Interval, Measurement};

/// Summarizes these records as a whole run.
fn summarize(records: &[RequestRecord]) -> Measurement {
    super::summarize(&run(records.to_vec()), &SummaryOptions::default())
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
    for error in [
        RequestError::Reset("a".into()),
        RequestError::Reset("b".into()),
        RequestError::Http { status: 500, seen: "c".into() },
    ] {
        all.push(RequestRecord { result: Err(error), ..record(20, &[5, 6, 7]) });
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

#[test]
fn a_wait_for_a_place_counts_in_latencies_and_as_lateness() {
    let late = RequestRecord { due: Duration::from_millis(400), ..record(500, &[50, 70]) };
    let measurement = summarize(&[late, record(600, &[30, 50])]);
    assert!(close(measurement.ttft_ms.unwrap().mean, 90.0) && close(measurement.e2el_ms.unwrap().mean, 110.0));
    assert!(close(measurement.tpot_ms.unwrap().mean, 20.0));
    assert!(close(measurement.lateness_ms.unwrap().mean, 50.0));
    assert_eq!(summarize(&[record(0, &[1])]).lateness_ms, None);
}

#[test]
fn the_output_speed_is_that_of_each_request_and_its_tail_the_slow_end() {
    let measurement = summarize(&[record(0, &[50, 70, 90]), record(0, &[50, 60, 70]), record(0, &[50])]);
    let speed = measurement.output_speed.unwrap();
    assert!(close(speed.mean, 75.0) && close(speed.p1, 50.5) && speed.p1 < speed.p10, "{speed:?}");
    assert_eq!(measurement.metric("p1_output_speed"), Some(speed.p1));
    // All tokens in one read: there is no speed, rather than an infinite one.
    assert_eq!(summarize(&[record(0, &[50, 50])]).output_speed, None);
}

#[test]
fn goodput_counts_requests_that_keep_every_limit() {
    let records = vec![record(0, &[50, 70]), record(0, &[50, 110]), record(0, &[90]), record(0, &[210, 220])];
    let of = |records: &[RequestRecord], limits: &[&str]| {
        let goodput = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        super::summarize(&run(records.to_vec()), &SummaryOptions { goodput, ..SummaryOptions::default() })
    };
    let measurement = of(&records, &["ttft:200", "tpot:50"]);
    assert_eq!(measurement.good_requests, Some(2), "a reply of one token keeps every tpot");
    assert!(close(measurement.metric("request_goodput").unwrap(), 2.0 / 0.22));
    assert_eq!((of(&records, &["e2el:90"]).good_requests, of(&records, &[]).good_requests), (Some(2), None));
    let unstreamed = RequestRecord { streamed: false, ..record(0, &[90]) };
    assert_eq!(of(std::slice::from_ref(&unstreamed), &["ttft:200"]).good_requests, None);
    assert_eq!(of(&[unstreamed], &["e2el:200"]).good_requests, Some(1));
}

#[test]
fn a_reply_that_is_not_streamed_has_only_its_whole_latency() {
    let whole = RequestRecord { streamed: false, output_tokens: 8, ..record(0, &[90]) };
    let measurement = summarize(&[whole]);
    assert!(close(measurement.e2el_ms.unwrap().mean, 90.0));
    assert_eq!((measurement.ttft_ms, measurement.tpot_ms, measurement.output_speed), (None, None, None));
    assert_eq!(measurement.total_output_tokens, 8);
}

#[test]
fn cached_prompt_tokens_are_known_if_the_server_reports_them() {
    let told = RequestRecord { cached_tokens: Some(4), ..record(0, &[90]) };
    assert_eq!(summarize(&[told, record(0, &[90])]).cached_prompt_tokens, Some(4));
    assert_eq!(summarize(&[record(0, &[90])]).cached_prompt_tokens, None);
}

/// Returns the records of eight users without a pause. Each request takes 500 ms and has five tokens. Each user starts
/// 70 ms after the previous one.
fn closed_loop(requests: u64) -> Vec<RequestRecord> {
    let sent = |i: u64| i % 8 * 70 + i / 8 * 500;
    (0..requests).map(|i| record(sent(i), &[100, 200, 300, 400, 500])).collect()
}

#[test]
fn headline_numbers_have_intervals_if_there_are_enough_requests() {
    let measurement = summarize(&closed_loop(400));
    for (name, interval) in &measurement.confidence {
        let value = measurement.metric(name).unwrap();
        assert!(interval.low.is_none_or(|low| low <= value + 1e-9), "{name}: {value} {interval:?}");
        assert!(interval.high.is_none_or(|high| high >= value - 1e-9), "{name}: {value} {interval:?}");
    }
    for name in ["output_throughput", "request_throughput", "mean_ttft_ms", "p99_e2el_ms", "mean_itl_ms"] {
        assert!(measurement.confidence.contains_key(name), "{name}");
    }
    let few = summarize(&closed_loop(100)).confidence;
    assert_eq!((few["p99_ttft_ms"].high, few["p99_ttft_ms"].low.is_some()), (None, true));
    assert!(!summarize(&closed_loop(40)).confidence.contains_key("mean_ttft_ms"));
}

#[test]
fn a_steady_window_counts_what_happened_in_it() {
    let records = closed_loop(400);
    let steady = super::summarize(
        &run(records.clone()),
        &SummaryOptions { window: RunPart::Steady, ..SummaryOptions::default() },
    );
    let window = steady.window.clone().unwrap();
    assert!(window.steady, "{}", window.reason);
    // Eight users with five tokens in half a second each.
    let throughput = steady.metric("output_throughput").unwrap();
    assert!((throughput / 80.0 - 1.0).abs() < 0.02, "{throughput}");
    assert!((steady.metric("request_throughput").unwrap() / 16.0 - 1.0).abs() < 0.03, "{steady:?}");
    // The throughput of the whole run is lower: it begins and ends with fewer users.
    assert!(summarize(&records).metric("output_throughput").unwrap() < throughput);
    assert!(close(steady.ttft_ms.unwrap().mean, 100.0));
}

#[test]
fn a_run_with_thinned_chunks_takes_itl_from_the_recorder_and_marks_it() {
    let records = closed_loop(64);
    let mut recorder = WindowRecorder::new();
    for record in &records {
        recorder.on(&LoadEvent::Ended { phase: LoadPhase::Measure, record });
    }
    let thinned: Vec<_> = records
        .iter()
        .map(|record| RequestRecord {
            thinned: true,
            chunks: vec![record.chunks[0], record.chunks[4]],
            ..record.clone()
        })
        .collect();
    let (exact, lost) = (summarize(&records), summarize(&thinned));
    assert_eq!((lost.itl_ms, lost.approximate), (None, false));
    let options = SummaryOptions { recorder: Some(&recorder), ..SummaryOptions::default() };
    let told = super::summarize(&run(thinned), &options);
    assert!(told.approximate && !exact.approximate);
    assert!((told.itl_ms.unwrap().p99 / exact.itl_ms.unwrap().p99 - 1.0).abs() < 0.0005);
    let rest = |measurement: Measurement| Measurement {
        itl_ms: None,
        approximate: false,
        max_output_tokens_per_s: None,
        confidence: BTreeMap::new(),
        ..measurement
    };
    assert_eq!(rest(told), rest(exact));
}

#[test]
fn the_client_is_checked_if_the_plan_is_known() {
    let plan = LoadPlan::closed(8, 64);
    let options = SummaryOptions { plan: Some(&plan), ..SummaryOptions::default() };
    assert!(super::summarize(&run(closed_loop(64)), &options).client.unwrap().valid);
    assert_eq!(summarize(&closed_loop(64)).client, None);
}

#[test]
fn throughputs_that_differ_by_a_constant_factor_have_equally_wide_intervals() {
    // 16 users whose replies of 8 tokens end together, each round some milliseconds later than the one before.
    let round = |n: u64| (0..16).map(move |_| record(n * 100 + n * n % 7, &[10, 20, 30, 40, 50, 60, 70, 80]));
    let records: Vec<_> = (0..12).flat_map(round).collect();
    let measurement = summarize(&records);
    let width = |name: &str| {
        let Interval { low, high } = measurement.confidence[name];
        (high.unwrap() - low.unwrap()) / measurement.metric(name).unwrap()
    };
    let output = width("output_throughput");
    for name in ["request_throughput", "total_token_throughput"] {
        assert!((width(name) / output - 1.0).abs() < 1e-9, "{name}: {} {output}", width(name));
    }
}
