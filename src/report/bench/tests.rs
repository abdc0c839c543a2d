//! Tests of every format with a made-up run and with the nightly benchmarks' own numbers.

use std::collections::BTreeMap;

use super::markdown::format_general;
use super::*;
use crate::trial::Distribution;

pub(super) fn run() -> BenchResult {
    let distribution = |mean: f64| Distribution {
        mean,
        median: mean - 0.5,
        std: 1.0,
        p90: mean + 1.0,
        p95: mean + 2.0,
        p99: mean + 3.0,
    };
    BenchResult {
        test: BenchTest::Serving,
        request_timeout_s: 30.0,
        output_len: Some(200),
        memory: Some(GpuMemoryUse { used_mib: 19_344, total_mib: 46_068 }),
        name: "random_inf".to_owned(),
        date: "20260131-235959".to_owned(),
        backend: "vllm".to_owned(),
        model: "model".to_owned(),
        tokenizer: None,
        device: "1xMade Up".to_owned(),
        requests: Some(200),
        rate: f64::INFINITY,
        burstiness: 1.0,
        ramp: None,
        concurrency: Some(64),
        seed: 0,
        steady: false,
        measurement: Measurement {
            completed: 198,
            failed: 2,
            duration_s: 45.757,
            total_input_tokens: 42_659,
            total_output_tokens: 42_733,
            ttft_ms: Some(distribution(970.551)),
            tpot_ms: Some(distribution(78.2115)),
            itl_ms: Some(distribution(66.5477)),
            e2el_ms: Some(distribution(17_000.0)),
            errors: BTreeMap::from([("http_500".to_owned(), 1), ("timeout".to_owned(), 1)]),
            ..Measurement::default()
        },
        end: "complete".to_owned(),
        unfinished: 0,
        unsent: 0,
        saturated: None,
        invalid: Vec::new(),
        series: None,
        server_series: None,
    }
}

pub(super) fn format(name: &str) -> &'static BenchFormat {
    BENCH_FORMATS.iter().find(|format| format.name == name).unwrap()
}

#[test]
fn the_text_is_that_of_vllm_bench_serve_and_a_few_lines_more() {
    insta::assert_snapshot!((format("text").write)(BenchRuns::One(&run())));
}

#[test]
fn a_rate_a_void_sample_and_missing_latencies_have_their_lines() {
    let mut run = run();
    (run.rate, run.concurrency) = (16.0, None);
    (run.end, run.unfinished, run.unsent) = ("interrupted".to_owned(), 3, 4);
    run.invalid = vec!["too many errors".to_owned(), "too few samples".to_owned()];
    run.measurement = Measurement { duration_s: 1.0, completed: 1, ..Measurement::default() };
    insta::assert_snapshot!((format("text").write)(BenchRuns::One(&run)));
}

#[test]
fn the_markdown_is_what_tabulate_writes() {
    let mut second = run();
    second.name = "a|b".to_owned();
    second.measurement.duration_s = 200.0;
    second.measurement.itl_ms = None;
    let runs = [run(), second];
    insta::assert_snapshot!((format("markdown").write)(BenchRuns::Profile(&runs)));
}

#[test]
fn the_columns_have_one_entry_for_each_run_in_the_tables_order() {
    let runs = [run(), BenchResult { measurement: Measurement::default(), ..run() }];
    let text = (format("columns").write)(BenchRuns::Profile(&runs));
    assert!(
        text.starts_with(r#"{"latency":{},"throughput":{},"serving":{"Test name":{"0":"random_inf","1":"#),
        "{text}"
    );
    assert!(text.ends_with(r#""P99 ITL (ms)":{"0":69.5477,"1":null}}}"#), "{text}");
    let places: Vec<_> = table::SERVING.iter().map(|(header, _)| text.find(&format!("{header:?}")).unwrap()).collect();
    assert!(places.is_sorted(), "{text}");
}

#[test]
fn one_run_is_an_object_and_a_profile_an_array() {
    let runs = [run()];
    let one: Json = serde_json::from_str(&(format("json").write)(BenchRuns::One(&runs[0]))).unwrap();
    let all: Json = serde_json::from_str(&(format("json").write)(BenchRuns::Profile(&runs))).unwrap();
    assert_eq!(all, Json::Array(vec![one.clone()]));
    assert_eq!(one["request_rate"], "inf");
    assert_eq!(one["num_prompts"], 200);
    assert_eq!(one["max_concurrency"], 64);
    assert_eq!(one["mean_ttft_ms"], 970.551);
    assert_eq!(one["errors"]["timeout"], 1);
    assert_eq!(one["request_goodput"], Json::Null);
    assert_eq!(one["valid"], true);
}

#[test]
fn a_reader_of_the_json_gets_the_measurement_back() {
    let run = run();
    let read: Measurement = serde_json::from_value(benchmark_json(&run)).unwrap();
    assert_eq!(read, run.measurement);
}

#[test]
fn numbers_have_six_digits_as_python_writes_them() {
    // From a nightly run: the values in its JSON, and their text in its Markdown.
    for (value, shown) in [
        (0.924_708_707_353_934_7, "0.924709"),
        (2.541_704_971_520_416_7, "2.5417"),
        (197.550_144_695_557_86, "197.55"),
        (1_085.244_480_214_929_8, "1085.24"),
        (97.147_811_000_468_21, "97.1478"),
        (103.090_148_500_086_8, "103.09"),
        (1_002.308_118_000_655_7, "1002.31"),
        (114.879_581_730_065_18, "114.88"),
    ] {
        assert_eq!(format_general(value), shown);
    }
    // python3 -c 'print(*(format(x, "g") for x in (...)))'
    let extremes = [0.0, 1.0, 999_999.5, 1_234_567.0, 0.000_1, 0.000_012_3, -2.5, 100_000.0].map(format_general);
    assert_eq!(extremes, ["0", "1", "1e+06", "1.23457e+06", "0.0001", "1.23e-05", "-2.5", "100000"]);
}
