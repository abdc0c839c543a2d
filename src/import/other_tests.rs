//! Tests with results of other benchmarks, of sweeps, and of Optuna.

use std::path::Path;

use super::*;
use crate::config::Config;
use crate::objective::Goal;
use crate::trial::FailureKind;

async fn read(directory: &Path, name: &str, content: &str) -> ImportedDocument {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    read_path(&path).await.unwrap()
}

fn metrics<const N: usize>(result: &ImportedResult, names: [&str; N]) -> Vec<f64> {
    let value = |name: &str| result.metrics.get(name).copied().unwrap_or_else(|| panic!("no {name}: {result:?}"));
    names.map(value).to_vec()
}

/// Numbers of a run of openshift-psap/auto-tuning-vllm (Apache-2.0): Qwen3-1.7B, ten concurrent streams.
#[tokio::test]
async fn a_guidellm_report_has_a_result_for_each_benchmark_in_milliseconds() {
    let directory = tempfile::tempdir().unwrap();
    let of = |mean: f64| {
        serde_json::json!({"successful": {"mean": mean, "median": mean, "std_dev": 1.0, "percentiles":
        {"p90": mean, "p95": mean, "p99": mean}}, "errored": {"mean": 0.0}})
    };
    let benchmark = serde_json::json!({
        "args": {"strategy": {"type_": "concurrent", "streams": 10}}, "duration": 18.1,
        "request_totals": {"successful": 100, "errored": 0, "incomplete": 0, "total": 100},
        "metrics": {
            "requests_per_second": of(5.525), "request_latency": of(1.782), "time_to_first_token_ms": of(303.76),
            "inter_token_latency_ms": of(9.91), "time_per_output_token_ms": of(11.87),
            "output_tokens_per_second": of(829.4), "prompt_token_count": of(558.59), "output_token_count": of(150.11),
        },
    });
    let report = serde_json::json!({"args": {"model": "Qwen/Qwen3-1.7B"}, "benchmarks": [benchmark, benchmark]});
    let document = read(directory.path(), "benchmarks.json", &report.to_string()).await;
    assert_eq!(document.results.len(), 2);
    let result = &document.results[0];
    let names = ["request_throughput", "output_throughput", "mean_ttft_ms", "p99_tpot_ms", "mean_e2el_ms", "completed"];
    assert_eq!(metrics(result, names), [5.525, 829.4, 303.76, 9.91, 1782.0, 100.0]);
    assert_eq!((result.load.concurrency, result.load.input_len), (Some(10), Some(559)));
}

#[tokio::test]
async fn an_aiperf_export_is_read_with_its_units_and_a_cancelled_one_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut export = serde_json::json!({
        "input_config": {"endpoint": {"model_names": ["Qwen/Qwen3-0.6B"]}, "loadgen": {"concurrency": 8, "request_count": 64}},
        "request_latency": {"unit": "ms", "avg": 812.5, "p50": 800.0, "p99": 1001.0, "std": 50.0},
        "time_to_first_token": {"unit": "sec", "avg": 0.045, "p50": 0.04, "p99": 0.09},
        "inter_token_latency": {"unit": "ms", "avg": 7.5},
        "request_throughput": {"unit": "requests/sec", "avg": 9.8},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 980.0},
        "request_count": {"unit": "requests", "avg": 64.0},
        "was_cancelled": false,
    });
    let document = read(directory.path(), "a.json", &export.to_string()).await;
    let names = ["mean_e2el_ms", "mean_ttft_ms", "mean_tpot_ms", "output_throughput", "completed"];
    assert_eq!(metrics(&document.results[0], names), [812.5, 45.0, 7.5, 980.0, 64.0]);
    assert_eq!(document.results[0].load.model.as_deref(), Some("Qwen/Qwen3-0.6B"));
    export["was_cancelled"] = true.into();
    std::fs::write(directory.path().join("a.json"), export.to_string()).unwrap();
    let error = read_path(&directory.path().join("a.json")).await.unwrap_err().to_string();
    assert!(error.contains("the benchmark was cancelled"), "{error}");
}

#[tokio::test]
async fn a_sweep_is_read_once_with_the_flags_that_it_varies() {
    let directory = tempfile::tempdir().unwrap();
    let run = |sequences: u64, number: u64| {
        serde_json::json!({"completed": 10, "duration": 2.0, "output_throughput": 100.0, "request_rate": "inf",
            "max_concurrency": 32, "num_prompts": 10, "model_id": "m", "tokenizer_id": "m", "seed": 0,
            "p75_ttft_ms": 7.5, "max_num_seqs": sequences, "run_number": number})
    };
    for sequences in [32, 64] {
        let folder = format!("sweep/SERVE--max_num_seqs={sequences}");
        for number in 0..2 {
            let name = format!("{folder}/run={number}.json");
            read(directory.path(), &name, &run(sequences, number).to_string()).await;
        }
        let runs = serde_json::json!([run(sequences, 0), run(sequences, 1)]);
        read(directory.path(), &format!("{folder}/summary.json"), &runs.to_string()).await;
    }
    let document = read_path(&directory.path().join("sweep")).await.unwrap();
    let configs: Vec<_> =
        document.results.iter().map(|result| result.launch.as_ref().unwrap().config.clone()).collect();
    let of = |sequences: i64| Config::new().with("max-num-seqs", sequences);
    assert_eq!(configs, [of(32), of(32), of(64), of(64)]);
    assert_eq!(metrics(&document.results[3], ["p75_ttft_ms", "output_throughput"]), [7.5, 100.0]);
    let csv = "completed,duration,run_number,output_throughput,max_num_seqs\n10,2.0,0,100.0,32\n10,2.0,1,90.0,64\n";
    let document = read(directory.path(), "summary.csv", csv).await;
    assert_eq!(document.results.len(), 2);
    assert_eq!(document.results[1].launch.as_ref().unwrap().config.get_f64("max-num-seqs"), Some(64.0));
    std::fs::write(directory.path().join("cut.csv"), &csv[..csv.len() - 5]).unwrap();
    let error = read_path(&directory.path().join("cut.csv")).await.unwrap_err();
    assert_eq!(error.line, Some(3), "{error}");
}

/// The dump of a storage that Optuna 5 has written.
#[tokio::test]
async fn an_optuna_storage_is_read_with_states_values_and_objective() {
    use sqlx::ConnectOptions;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("optuna.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true).foreign_keys(false);
    let mut connection = options.connect().await.unwrap();
    let dump = include_str!("../../tests/fixtures/imports/optuna.sql");
    let limits = "INSERT INTO trial_system_attributes (trial_id, key, value_json) VALUES (1, 'constraints', '[-5.0]'), \
                  (2, 'constraints', '[0.5]')";
    sqlx::raw_sql(dump).execute(&mut connection).await.unwrap();
    sqlx::raw_sql(limits).execute(&mut connection).await.unwrap();
    sqlx::Connection::close(connection).await.unwrap();
    let document = read_path(&path).await.unwrap();
    let objective = document.objective.as_ref().unwrap();
    assert_eq!((objective.metric.as_str(), objective.goal), ("output_throughput", Goal::Maximize));
    let [first, second, failed, pruned] = &document.results[..] else { panic!("{document:?}") };
    assert_eq!(metrics(first, ["output_throughput", "mean_ttft_ms"]), [282.601, 303.5]);
    assert_eq!(metrics(second, ["output_throughput"]), [251.3]);
    let config = &first.launch.as_ref().unwrap().config;
    assert!([8192, 16_384].contains(&config.get_i64("max-num-batched-tokens").unwrap()), "{config}");
    assert!((0.9..=0.95).contains(&config.get_f64("gpu-memory-utilization").unwrap()), "{config}");
    assert!((64..=512).contains(&config.get_i64("max-num-seqs").unwrap()), "{config}");
    assert_eq!(document.unread.len(), 1, "the last trial still runs");
    let study = ImportedStudy::new(std::slice::from_ref(&document), None);
    let feasible: Vec<_> = study.trials.iter().map(|scored| scored.score.is_feasible()).collect();
    assert_eq!(feasible, [true, false, false, false], "the second trial exceeds its constraint");
    let kinds: Vec<_> = study.trials[2..].iter().map(|scored| scored.trial.outcome.failure().unwrap().kind).collect();
    assert_eq!(kinds, [FailureKind::OutOfMemory, FailureKind::Killed], "{:?} {:?}", failed.failure, pruned.failure);
    let absent = PathBuf::from(format!("{}#other", path.display()));
    let error = read_path(&absent).await.unwrap_err();
    assert!(error.to_string().contains("no study \"other\""), "{error}");
    assert_eq!(error.hint.as_deref(), Some("it contains mlperf"));
}

#[tokio::test]
async fn a_recipe_is_refused_with_its_use_as_a_first_point() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recipes/models/Qwen/Qwen3-8B.yaml");
    let error = read_path(&file).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{}: a recipe holds no measurements", file.display()));
    let hint = "use it as a first point: setpoint tune --model Qwen/Qwen3-8B --start ";
    assert_eq!(error.hint, Some(format!("{hint}{}", file.display())));
}
