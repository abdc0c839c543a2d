//! Tests against documents as people keep them: our output has each of their fields, and is read back without loss.

use std::collections::{BTreeMap, BTreeSet};

use super::tests::{format, run};
use super::*;
use crate::import::{ImportedDocument, read_path};

fn fixture(name: &str) -> String {
    let path = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/seeds").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Two serving runs, and one of each other test.
fn profile() -> Vec<BenchResult> {
    let named = |name: &str, test| BenchResult { name: name.to_owned(), test, ..run() };
    let rate = BenchResult { rate: 4.0, ..named("qps_4", BenchTest::Serving) };
    vec![
        rate,
        named("qps_inf", BenchTest::Serving),
        named("batch_8", BenchTest::Latency),
        named("200", BenchTest::Throughput),
    ]
}

async fn read_back(text: &str) -> ImportedDocument {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("output.txt");
    std::fs::write(&path, text).unwrap();
    read_path(&path).await.unwrap()
}

/// Asserts that the metrics read are those of the run, to a relative precision.
fn assert_equal(metrics: &BTreeMap<String, f64>, run: &BenchResult, expected: &[&str], precision: f64) {
    let read: BTreeSet<_> = metrics.keys().map(String::as_str).collect();
    assert_eq!(read, expected.iter().copied().collect());
    for (name, value) in metrics {
        let total = run.measurement.total_input_tokens + run.measurement.total_output_tokens;
        let own = run.measurement.metric(name).unwrap_or_else(|| crate::stats::to_f64(total));
        assert!((value - own).abs() <= precision * own.abs(), "{name}: {value}, measured {own}");
    }
}

const SERVING: [&str; 13] = [
    "completed",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "p99_itl_ms",
];
const LATENCY: [&str; 3] = ["mean_e2el_ms", "median_e2el_ms", "p99_e2el_ms"];
const THROUGHPUT: [&str; 5] = ["completed", "total_tokens", "duration", "request_throughput", "total_token_throughput"];
const RATES: [&str; 5] =
    ["request_throughput", "output_throughput", "median_ttft_ms", "median_tpot_ms", "median_itl_ms"];

/// Returns the headers of the first table whose header line contains this one.
fn headers(text: &str, with: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.starts_with('|') && line.contains(with)).unwrap();
    line.trim_matches('|').split('|').map(|header| header.trim().to_owned()).collect()
}

#[tokio::test]
async fn the_table_of_rates_has_the_columns_of_the_ascend_table_and_is_read_back() {
    let runs = profile();
    let text = (format("rates").write)(BenchRuns::Profile(&runs));
    assert_eq!(headers(&text, "Request rate"), headers(&fixture("nightly-rates.md"), "Request rate"));
    let document = read_back(&text).await;
    let by_name = |name: &str| document.results.iter().find(|read| read.name.as_deref() == Some(name)).unwrap();
    for (run, expected) in runs.iter().zip([&RATES[..], &RATES, &LATENCY, &THROUGHPUT]) {
        let read = by_name(&run.name);
        assert_equal(&read.metrics, run, expected, 1e-5);
        assert_eq!(read.load.rate, (run.test == BenchTest::Serving).then_some(run.rate));
    }
}

#[tokio::test]
async fn the_nightly_tables_have_all_columns_in_markdown_and_by_columns_and_are_read_back() {
    let runs = profile();
    let seed = fixture("nightly-columns.md");
    let markdown = (format("markdown").write)(BenchRuns::Profile(&runs));
    assert_eq!(headers(&markdown, "# of req. |   Tput"), headers(&seed, "# of req."));
    let columns = (format("columns").write)(BenchRuns::Profile(&runs));
    let keys = |text: &str| -> (Vec<String>, BTreeSet<String>) {
        let json: Json = serde_json::from_str(text).unwrap();
        let of = |json: &Json| json.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        (of(&json), of(&json["serving"]).into_iter().collect())
    };
    let seed_json = seed.lines().find(|line| line.starts_with("{\"latency\"")).unwrap();
    assert_eq!(keys(&columns), keys(seed_json));
    for (text, precision) in [(markdown, 1e-5), (columns, 0.0)] {
        let document = read_back(&text).await;
        assert_eq!(document.results.len(), 4);
        for (run, expected) in runs.iter().zip([&SERVING[..], &SERVING, &LATENCY, &THROUGHPUT]) {
            let read = document.results.iter().find(|read| read.name.as_ref() == Some(&run.name)).unwrap();
            assert_equal(&read.metrics, run, expected, precision);
            assert_eq!(read.device.as_ref(), Some(&run.device));
        }
    }
}

#[tokio::test]
async fn the_blocks_have_every_label_of_the_ladder_and_are_read_back() {
    let labels = |text: &str| -> BTreeSet<String> {
        let end = text.find("\n====").unwrap();
        let lines = text[..end].lines().skip_while(|line| !line.contains("Serving Benchmark Result"));
        let label = |line: &str| line.split_once(':').map_or(line, |(label, _)| label).to_lowercase();
        lines.map(label).collect()
    };
    let runs = profile();
    let text = (format("text").write)(BenchRuns::Profile(&runs));
    let ladder = fixture("request-ladder.txt");
    let missing: Vec<_> = labels(&ladder).difference(&labels(&text)).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
    let document = read_back(&text).await;
    assert_eq!(document.results.len(), runs.len());
    assert!(document.unread.is_empty(), "{:?}", document.unread);
    for (read, run) in document.results.iter().zip(&runs) {
        assert_eq!((read.name.as_ref(), read.load.concurrency), (Some(&run.name), run.concurrency));
        let mut expected =
            [&SERVING[..], &LATENCY, &["failed", "duration", "total_input_tokens", "total_output_tokens"]].concat();
        expected.sort_unstable();
        // Values are written with two decimals.
        assert_equal(&read.metrics, run, &expected, 2e-3);
    }
}

#[tokio::test]
async fn the_summary_has_every_field_of_the_tuning_notes_and_is_read_back() {
    fn paths(json: &Json, path: &str, found: &mut BTreeSet<String>) {
        match json {
            Json::Object(members) => {
                members.iter().for_each(|(key, json)| paths(json, &format!("{path}/{key}"), found));
            }
            _ => drop(found.insert(path.to_owned())),
        }
    }
    let speeds = crate::trial::Speeds { mean: 26.4, median: 24.9, std: 2.0, p10: 23.9, p5: 23.6, p1: 23.4 };
    let mut run = run();
    run.measurement.output_speed = Some(speeds);
    let text = (format("summary").write)(BenchRuns::One(&run));
    let (memory, json) = text.split_once('\n').unwrap();
    assert_eq!(memory, "19344MiB / 46068MiB");
    let notes = fixture("tuning-notes.txt");
    let mut seed = serde_json::Deserializer::from_str(&notes).into_iter::<Json>();
    let (mut theirs, mut ours) = (BTreeSet::new(), BTreeSet::new());
    paths(&seed.next().unwrap().unwrap(), "", &mut theirs);
    paths(&serde_json::from_str(json).unwrap(), "", &mut ours);
    assert_eq!(ours, theirs);
    let document = read_back(&text).await;
    let [read] = &document.results[..] else { panic!("{document:?}") };
    assert_eq!(read.memory, run.memory);
    let load = &read.load;
    assert_eq!((load.concurrency, load.requests, load.output_len), (Some(64), Some(200), Some(200)));
    let mut expected =
        vec!["completed", "failed", "duration", "request_throughput", "total_output_tokens", "output_throughput"];
    expected.extend(["mean_output_speed", "median_output_speed", "p5_output_speed", "p1_output_speed"]);
    expected.extend(LATENCY.into_iter().chain(["p95_e2el_ms"]));
    expected.extend(["mean_ttft_ms", "median_ttft_ms", "p95_ttft_ms", "p99_ttft_ms"]);
    expected.extend(["mean_tpot_ms", "median_tpot_ms", "p95_tpot_ms", "p99_tpot_ms"]);
    assert_equal(&read.metrics, &run, &expected, 1e-15);
}
