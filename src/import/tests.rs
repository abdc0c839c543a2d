//! Tests of the readers with documents as people keep them, and with the same documents cut off.

use std::path::PathBuf;

use super::*;
use crate::objective::Score;
use crate::trial::{FailureKind, Outcome};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/seeds").join(name)
}

async fn document(name: &str) -> ImportedDocument {
    read_path(&fixture(name)).await.unwrap()
}

fn metric(result: &ImportedResult, name: &str) -> f64 {
    result.metrics.get(name).copied().unwrap_or_else(|| panic!("no {name}: {result:?}"))
}

#[tokio::test]
async fn a_table_of_seven_columns_has_rates_and_medians() {
    let document = document("nightly-rates.md").await;
    assert_eq!(document.results.len(), 8);
    let last = &document.results[7];
    assert_eq!(last.name.as_deref(), Some("serving_qwen2_5vl_7B_tp1_qps_inf"));
    assert_eq!((last.line, last.load.rate), (19, Some(f64::INFINITY)));
    let names = ["request_throughput", "output_throughput", "median_ttft_ms", "median_tpot_ms", "median_itl_ms"];
    assert_eq!(names.map(|name| metric(last, name)).to_vec(), [5.26736, 579.831, 14326.2, 208.966, 73.1931]);
    assert!(document.unread.iter().any(|unread| unread.text.starts_with("- Input length: 32 tokens")));
}

#[tokio::test]
async fn a_table_and_the_same_by_columns_agree() {
    let document = document("nightly-columns.md").await;
    let (table, columns) = document.results.split_at(4);
    assert_eq!(columns.len(), 4);
    for row in table {
        let same = columns.iter().find(|other| other.name == row.name).unwrap();
        assert_eq!(row.metrics.len(), 13);
        for (name, value) in &row.metrics {
            let exact = metric(same, name);
            assert!((value - exact).abs() <= 1e-5 * exact, "{name}: {value} {exact}");
        }
        assert!(row.device.as_ref().unwrap().contains("GPUDirect"));
    }
    assert!(document.unread.iter().any(|unread| unread.reason == "code"), "the Python between them");
}

#[tokio::test]
async fn a_markdown_list_is_read_like_a_block() {
    let document = document("run-folder.md").await;
    let [run] = &document.results[..] else { panic!("{document:?}") };
    let names = ["completed", "duration", "total_input_tokens", "total_token_throughput", "p99_itl_ms"];
    assert_eq!(names.map(|name| metric(run, name)).to_vec(), [1.0, 87.72, 14336.0, 186.77, 43.52]);
    assert_eq!(run.metrics.len(), 16);
}

#[tokio::test]
async fn a_ladder_of_blocks_is_read_with_the_length_of_its_prompts() {
    let document = document("request-ladder.txt").await;
    let text = std::fs::read_to_string(fixture("request-ladder.txt")).unwrap();
    assert_eq!(document.results.len(), text.matches("Serving Benchmark Result").count());
    let loads: Vec<_> = document.results.iter().map(|run| (run.load.requests, run.load.input_len)).collect();
    assert_eq!(loads[11], (Some(2048), Some(80)));
    assert_eq!(loads[12], (Some(1), Some(10_000)));
    assert!(document.results.iter().all(|run| run.metrics.len() == 16));
    let unread: Vec<_> = document.unread.iter().map(|unread| unread.text.as_str()).collect();
    assert_eq!(unread, ["vllm"], "everything else is part of a result");
}

#[tokio::test]
async fn launch_lines_have_their_errors_memory_and_results() {
    let document = document("tuning-notes.txt").await;
    let failed: Vec<_> = document.results.iter().filter(|result| result.failure.is_some()).collect();
    let measured: Vec<_> = document.results.iter().filter(|result| result.failure.is_none()).collect();
    assert_eq!((failed.len(), measured.len()), (6, 12));
    assert_eq!(failed[0].launch.as_ref().unwrap().config.get_i64("max-num-batched-tokens"), Some(535));
    assert!(failed[0].failure.as_ref().unwrap().message.starts_with("ValueError: max_num_batched_tokens (535)"));
    let launched: Vec<_> = measured.iter().filter_map(|result| result.launch.as_ref()).collect();
    assert_eq!(
        launched.iter().map(|launch| launch.config.get_i64("max-num-seqs").unwrap()).collect::<Vec<_>>(),
        [3563, 972, 1723]
    );
    let with_memory: Vec<_> = document.results.iter().filter_map(|result| result.memory).collect();
    assert_eq!(with_memory, [GpuMemoryUse { used_mib: 19_344, total_mib: 46_068 }]);
    assert_eq!(measured[0].metrics.get("mean_e2el_ms"), Some(&7_129.634_637_832_642));
    assert_eq!(
        measured[0].metrics.get("p5_output_speed"),
        Some(&23.590_649_737_405_258),
        "95 % of the requests are faster"
    );
    let unread: Vec<_> = document.unread.iter().map(|unread| unread.text.as_str()).collect();
    assert_eq!(unread, ["ask", "鉴目所", "系统院"]);
}

#[tokio::test]
async fn results_of_unknown_flags_or_of_other_loads_are_never_averaged() {
    let notes = ImportedStudy::new(&[document("tuning-notes.txt").await], None);
    assert_eq!(notes.objective.metric, "output_throughput");
    let outcomes = notes.trials.iter().map(|scored| &scored.trial.outcome);
    let kinds: Vec<_> = outcomes.filter_map(|outcome| Some(outcome.failure()?.kind)).collect();
    assert_eq!(kinds, [FailureKind::InvalidArgument; 6]);
    let keys: std::collections::BTreeSet<_> =
        notes.trials.iter().map(|scored| scored.trial.proposal.config.key()).collect();
    assert_eq!(keys.len(), notes.trials.len());
    let ladder = ImportedStudy::new(&[document("request-ladder.txt").await], None);
    let last = &ladder.trials[11];
    assert_eq!(last.score, Score::Feasible { value: 438.42 });
    assert_eq!(last.trial.proposal.config.get_i64("import.requests"), Some(2048));
    let Outcome::Measured(measured) = &last.trial.outcome else { panic!("{last:?}") };
    assert_eq!(measured.metric("mean_e2el_ms"), None, "the document does not contain it");
}

#[tokio::test]
async fn a_document_cut_off_anywhere_within_a_result_is_refused_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        ("nightly-rates.md", "| serving_qwen2_5_7B_tp1_qps_4     |                      4 |       2.81", 13),
        ("nightly-columns.md", "\"Total Tput (tok/s)\": {\"0\"", 54),
        ("run-folder.md", "* Mean TPOT (ms):                          42.78\n", 23),
        ("request-ladder.txt", "P99 ITL (ms):                            408.83", 134),
        ("tuning-notes.txt", "\"time-per-output-token(tpot)\": {", 29),
    ];
    for (name, end, line) in cases {
        let text = std::fs::read_to_string(fixture(name)).unwrap();
        let cut = text.find(end).unwrap_or_else(|| panic!("{name} has {end:?}")) + end.len();
        let path = directory.path().join(name);
        std::fs::write(&path, &text[..cut]).unwrap();
        let error = read_path(&path).await.unwrap_err();
        assert_eq!(error.line, Some(line), "{error}");
        assert!(error.hint.as_ref().unwrap().contains("cut off"), "{error:?}");
    }
}

#[tokio::test]
async fn unusable_files_are_named_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    for (name, content, expected) in [
        ("prose.txt", &b"Nothing here.\n"[..], "it contains no result; none of its 1 lines can be read"),
        ("empty.txt", b"", "it contains no result"),
        ("shape.json", b"{\"a\": 1}", "no known shape of results has the keys a"),
        ("binary.bin", b"ab\xff", "is not text: byte 2 is no UTF-8"),
        ("table.csv", b"a,b\n1,2\n", "the columns a, b are unknown"),
        (
            "short.csv",
            b"trial,state,reason,value,feasible,startup_s,elapsed_s,completed\n1,measured\n",
            "the row has 2 of 8 columns",
        ),
        ("type.json", b"{\"completed\": \"x\", \"duration\": 1}", "\"completed\" is \"x\" instead of a number"),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        let error = read_path(&path).await.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    let missing = read_path(&directory.path().join("absent.txt")).await.unwrap_err().to_string();
    assert!(missing.contains("cannot be read"), "{missing}");
}
