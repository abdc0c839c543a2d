//! Tests of both formats over a small study with a trial in each state and hostile texts.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, SqliteConnection};

use super::*;
use crate::config::{Config, Value};
use crate::facts::Host;
use crate::objective::Score;
use crate::store::{Store, Study, TrialBegin};
use crate::study_report::StudyReport;
use crate::trial::{
    Distribution, Failure, FailureKind, LaunchCommand, Measurement, Outcome, Proposal, REDACTED, Rejection, Trial,
};

/// A key of Hugging Face by its shape, stored by an earlier version without redaction.
const KEY: &str = "hf_0123456789abcdefghij";

const HOSTILE: &str = "it's \"one\"; DROP TABLE trials; -- \u{1b}[2J\u{202e}\0 %s";

fn definition() -> Json {
    json!({
        "engine": {"kind": "sim", "args": ["--api-key", "an-old-secret"], "env": {"HF_TOKEN": "an-old-secret"}},
        "model": "m",
        "space": {
            "fixed": {"max-model-len": 4096, "hf-token": "an-old-secret"},
            "parameters": {
                "max-num-seqs": {"domain": "1 to 1024, powers of two", "when": []},
                "gpu-memory-utilization": {"domain": "0.5 to 0.98", "when": []},
                "kv-cache-dtype": {"domain": "auto, fp8", "when": []},
                "enable-prefix-caching": {"domain": "true or false", "when": []},
            },
        },
        "objective": {
            "metric": "output_throughput", "goal": "maximize",
            "constraints": [{"metric": "p99_ttft_ms", "at_most": 100.0}, {"metric": "request_goodput", "at_least": 1.0}],
        },
    })
}

fn measurement(output_tokens: u64, p99: f64) -> Measurement {
    Measurement {
        completed: 10,
        duration_s: 2.0,
        total_output_tokens: output_tokens,
        ttft_ms: Some(Distribution { p99, ..Distribution::default() }),
        good_requests: Some(4),
        ..Measurement::default()
    }
}

fn trial(number: u32, origin: &'static str, outcome: Outcome) -> Trial {
    let config = Config::new().with("max-model-len", 4096_i64).with("hf-token", "an-old-secret");
    let config = match number {
        0 => config,
        _ => config
            .with("max-num-seqs", 1_i64 << number)
            .with("gpu-memory-utilization", 0.75)
            .with("kv-cache-dtype", "fp8")
            .with("enable-prefix-caching", true)
            .with(HOSTILE, HOSTILE),
    };
    let command = ["serve", "a b", HOSTILE, "--api-key", "an-old-secret"].map(str::to_owned).to_vec();
    let env = [("OMP_NUM_THREADS", "8"), ("HF_TOKEN", "an-old-secret")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut trial = Trial::example(number, origin, outcome).with_config(config);
    trial.launch = LaunchCommand { command, env, ..LaunchCommand::default() };
    trial.elapsed_s = 1.5;
    trial
}

/// Stores trials 0 (measured), 1 (over both limits), 2 (rejected), 3 (failed), 4 (interference) and 5 (running).
async fn store_study(directory: &Path, definition: &Json) -> (Store, Study) {
    let store = Store::open(&directory.join("setpoint.db").to_string_lossy(), true).await.unwrap();
    let study = store.create_study("night", definition, &Host::detect()).await.unwrap();
    let rejection = Rejection { rule: "R1".to_owned(), message: HOSTILE.to_owned() };
    let failure = Failure { kind: FailureKind::Crash, message: format!("ended with {KEY}") };
    let over = Measurement { good_requests: Some(1), ..measurement(900, 150.0) };
    for (trial, score) in [
        (trial(0, "baseline", Outcome::Measured(measurement(500, 50.0))), Score::Feasible { value: 250.0 }),
        (trial(1, "auto", Outcome::Measured(over)), Score::Infeasible { violation: 1.0, value: 450.0 }),
        (trial(2, "auto", Outcome::Rejected(rejection)), Score::Failed),
        (trial(3, "auto", Outcome::Failed(failure)), Score::Failed),
        (trial(4, "interference", Outcome::Measured(measurement(990, 50.0))), Score::Feasible { value: 495.0 }),
    ] {
        store.append(study.id, &trial, score).await.unwrap();
    }
    let running = trial(5, "auto", Outcome::Measured(Measurement::default()));
    let begin = TrialBegin {
        proposal: &Proposal { why: Some(HOSTILE.to_owned()), ..running.proposal },
        launch: &running.launch,
        started_at: "2030-01-02T03:04:05.678Z",
        log: directory,
    };
    store.begin_trial(study.id, &begin).await.unwrap();
    (store, study)
}

/// Exports the study and returns a connection to the file.
async fn exported(format: &str, store: &Store, study: Study, path: &Path) -> SqliteConnection {
    let report = StudyReport::read(store, study, 1).await.unwrap();
    let content = StudyContent::read(store, &report).await.unwrap();
    write_database(path, find_database(format).unwrap(), &content).await.unwrap();
    SqliteConnectOptions::new().filename(path).read_only(true).connect().await.unwrap()
}

async fn pairs(connection: &mut SqliteConnection, query: &str) -> BTreeMap<String, String> {
    let rows: Vec<(String, String)> =
        sqlx::query_as(AssertSqlSafe(query.to_owned())).fetch_all(connection).await.unwrap();
    rows.into_iter().collect()
}

async fn attribute(connection: &mut SqliteConnection, number: u32, key: &str) -> Option<Json> {
    let query = "SELECT value_json FROM trial_user_attributes WHERE trial_id = ? AND key = ?";
    let text: Option<String> =
        sqlx::query_scalar(query).bind(number + 1).bind(key).fetch_optional(connection).await.unwrap();
    text.map(|text| serde_json::from_str(&text).unwrap())
}

/// Number, state, value, constraints, start and end of a trial of Optuna.
type OptunaRow = (u32, String, Option<f64>, Option<String>, Option<String>, Option<String>);

#[tokio::test]
async fn optuna_has_a_trial_for_each_trial_with_state_value_and_limits() {
    let directory = tempfile::tempdir().unwrap();
    let (store, study) = store_study(directory.path(), &definition()).await;
    let mut file = exported("optuna", &store, study, &directory.path().join("o.db")).await;
    let query = "SELECT number, state, value, system.value_json, datetime_start, datetime_complete FROM trials \
                 LEFT JOIN trial_values USING (trial_id) \
                 LEFT JOIN trial_system_attributes AS system USING (trial_id) ORDER BY number";
    let rows: Vec<OptunaRow> = sqlx::query_as(query).fetch_all(&mut file).await.unwrap();
    let states: Vec<_> = rows.iter().map(|row| (row.1.as_str(), row.2)).collect();
    let expected = [
        ("COMPLETE", Some(250.0)),
        ("COMPLETE", Some(450.0)),
        ("PRUNED", None),
        ("FAIL", None),
        ("PRUNED", None),
        ("RUNNING", None),
    ];
    assert_eq!(states, expected);
    let limits: Vec<_> = rows.iter().map(|row| row.3.as_deref()).collect();
    assert_eq!(limits, [Some("[-0.5,-1.0]"), Some("[0.5,0.5]"), None, None, None, None]);
    let (start, end) = ("2026-01-02 03:04:05.678000", "2026-01-02 03:04:07.178000");
    assert_eq!((rows[0].4.as_deref(), rows[0].5.as_deref()), (Some(start), Some(end)));
    assert_eq!((rows[5].4.as_deref(), rows[5].5.as_deref()), (Some("2030-01-02 03:04:05.678000"), None));

    let directions = "SELECT direction, objective || '' FROM study_directions";
    assert_eq!(pairs(&mut file, directions).await, BTreeMap::from([("MAXIMIZE".to_owned(), "0".to_owned())]));
    let system = pairs(&mut file, "SELECT key, value_json FROM study_system_attributes").await;
    assert_eq!(system["study:metric_names"], r#"["output_throughput"]"#);
    assert_eq!(
        system["dashboard:4:note_str:0"],
        format!("{:?}", r"crash\: ended with \(redacted\)"),
        "its page shows it first"
    );
    assert!(!system.contains_key("dashboard:1:note_ver"), "{system:?}");
    let user = pairs(&mut file, "SELECT key, value_json FROM study_user_attributes").await;
    assert_eq!(user["limits"], r#""p99_ttft_ms <= 100, request_goodput >= 1""#);
    assert_eq!(user["winner"], r#""trial 0: output_throughput 250, measured once""#);

    for (number, key, value) in [
        (0, "output_throughput", json!(250.0)),
        (0, "p99_ttft_ms", json!(50.0)),
        (0, "feasible", json!("true")),
        (1, "feasible", json!("false")),
        (1, "violation", json!(1.0)),
        (1, "broken_limits", json!("p99_ttft_ms 150 (at most 100), request_goodput 0.5 (at least 1)")),
        (2, "state", json!("rejected")),
        (2, "reason_code", json!("R1")),
        (3, "reason", json!(format!("crash: ended with {REDACTED}"))),
        (4, "reason", json!("not comparable: measured while other trials ran")),
        (4, "output_throughput", json!(495.0)),
        (5, "state", json!("running")),
        (5, "env", json!("HF_TOKEN='(redacted)' OMP_NUM_THREADS=8")),
    ] {
        assert_eq!(attribute(&mut file, number, key).await, Some(value), "{key} of trial {number}");
    }
}

#[tokio::test]
async fn optuna_has_the_parameters_with_the_scales_of_the_space() {
    let directory = tempfile::tempdir().unwrap();
    let (store, study) = store_study(directory.path(), &definition()).await;
    let mut file = exported("optuna", &store, study, &directory.path().join("o.db")).await;
    let query = "SELECT param_name, param_value, distribution_json FROM trial_params WHERE trial_id = 2";
    let rows: Vec<(String, f64, String)> = sqlx::query_as(query).fetch_all(&mut file).await.unwrap();
    let rows: BTreeMap<_, _> = rows.into_iter().map(|(name, value, json)| (name, (value, json))).collect();
    let value = |name: &str| rows[name].0.to_string();
    assert_eq!(rows.len(), 5, "fixed flags are no parameters: {rows:?}");
    assert_eq!(["max-num-seqs", "gpu-memory-utilization"].map(value), ["2", "0.75"]);
    assert_eq!(["kv-cache-dtype", "enable-prefix-caching"].map(value), ["1", "1"], "indices of choices");
    let attributes = |name: &str| serde_json::from_str::<Json>(&rows[name].1).unwrap()["attributes"].clone();
    assert_eq!(attributes("max-num-seqs"), json!({"low": 1, "high": 1024, "log": true, "step": 1}));
    assert_eq!(attributes("gpu-memory-utilization"), json!({"low": 0.5, "high": 0.98, "log": false, "step": null}));
    assert_eq!(attributes("kv-cache-dtype"), json!({"choices": ["auto", "fp8"]}));
    let fixed = pairs(&mut file, "SELECT key, value_json FROM study_user_attributes").await;
    assert_eq!(fixed["fixed"], r#""hf-token=(redacted) max-model-len=4096""#);
}

#[tokio::test]
async fn mlflow_has_a_run_for_each_trial_with_params_metrics_and_tags() {
    let directory = tempfile::tempdir().unwrap();
    let (store, study) = store_study(directory.path(), &definition()).await;
    let mut file = exported("mlflow", &store, study, &directory.path().join("m.db")).await;
    let query = "SELECT name, status, start_time, end_time, length(run_uuid) FROM runs ORDER BY run_uuid";
    let runs: Vec<(String, String, i64, Option<i64>, i64)> = sqlx::query_as(query).fetch_all(&mut file).await.unwrap();
    let states: Vec<_> = runs.iter().map(|run| (run.0.as_str(), run.1.as_str(), run.4)).collect();
    let expected = [
        ("trial 0", "FINISHED", 32),
        ("trial 1", "FINISHED", 32),
        ("trial 2", "KILLED", 32),
        ("trial 3", "FAILED", 32),
        ("trial 4", "FINISHED", 32),
        ("trial 5", "RUNNING", 32),
    ];
    assert_eq!(states, expected);
    assert_eq!((runs[0].2, runs[0].3, runs[5].3), (1_767_323_045_678, Some(1_767_323_047_178), None));
    for table in ["metrics", "latest_metrics"] {
        let query = format!(
            "SELECT key, value || '' FROM {table} JOIN runs USING (run_uuid) WHERE runs.name = 'trial 1' AND is_nan = 0"
        );
        let metrics = pairs(&mut file, &query).await;
        let of = ["value", "output_throughput", "p99_ttft_ms", "violation"].map(|name| metrics[name].as_str());
        assert_eq!(of, ["450.0", "450.0", "150.0", "1.0"], "{table}");
    }
    let params = "SELECT key, value FROM params JOIN runs USING (run_uuid) WHERE name = 'trial 1'";
    let params = pairs(&mut file, params).await;
    let of = ["max-num-seqs", "max-model-len", "kv-cache-dtype", "hf-token"].map(|name| params[name].as_str());
    assert_eq!(of, ["2", "4096", "fp8", REDACTED]);
    let tags = "SELECT key, value FROM tags JOIN runs USING (run_uuid) WHERE name = 'trial 3'";
    let tags = pairs(&mut file, tags).await;
    assert_eq!(tags["setpoint.reason"], format!("crash: ended with {REDACTED}"));
    assert_eq!(tags["mlflow.runName"], "trial 3");
    let experiments = pairs(&mut file, "SELECT experiment_id || '', name FROM experiments").await;
    assert_eq!(experiments.into_values().collect::<Vec<_>>(), ["Default", "night"]);
}

#[tokio::test]
async fn no_file_contains_a_secret_or_a_control_character() {
    let directory = tempfile::tempdir().unwrap();
    let (store, study) = store_study(directory.path(), &definition()).await;
    for exporter in DATABASE_EXPORTERS {
        let path = directory.path().join(exporter.name());
        drop(exported(exporter.name(), &store, study.clone(), &path).await);
        let bytes = std::fs::read(&path).unwrap();
        for secret in ["an-old-secret", KEY, "\u{1b}[2J", "\u{202e}"] {
            let is_found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!is_found, "{secret:?} in {}", exporter.name());
        }
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("DROP TABLE trials"), "the rest of a hostile text stays");
    }
}

#[tokio::test]
async fn only_an_earlier_export_is_replaced_and_nothing_is_left_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let (store, study) = store_study(directory.path(), &definition()).await;
    let report = StudyReport::read(&store, study, 1).await.unwrap();
    let content = StudyContent::read(&store, &report).await.unwrap();
    let optuna = find_database("optuna").unwrap();
    let path = directory.path().join("o.db");
    for _ in 0..2 {
        write_database(&path, optuna, &content).await.unwrap();
    }
    let own = directory.path().join("setpoint.db");
    let (before, text) = (std::fs::read(&own).unwrap(), directory.path().join("text"));
    std::fs::write(&text, "mine").unwrap();
    for (file, format) in [(&own, "optuna"), (&text, "optuna"), (&path, "mlflow")] {
        let error = write_database(file, find_database(format).unwrap(), &content).await.unwrap_err().to_string();
        assert!(error.ends_with(&format!("exists and was not written by `export --format {format}`")), "{error}");
    }
    assert!(std::fs::read(&own).unwrap() == before && std::fs::read(&text).unwrap() == b"mine");
    std::fs::write(directory.path().join("o.db-wal"), "").unwrap();
    let error = write_database(&path, optuna, &content).await.unwrap_err().to_string();
    assert!(error.contains("o.db-wal shows that another program uses it"), "{error}");
    let absent = directory.path().join("absent/o.db");
    let error = write_database(&absent, optuna, &content).await.unwrap_err().to_string();
    assert!(error.contains("absent/o.db: No such file or directory"), "{error}");
    let parts = std::fs::read_dir(directory.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".part"));
    assert_eq!(parts.count(), 0);
}

#[tokio::test]
async fn a_study_without_trials_or_a_readable_definition_is_exported() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("setpoint.db").to_string_lossy(), true).await.unwrap();
    for (name, definition) in [("Default", json!({})), ("empty", definition())] {
        let study = store.create_study(name, &definition, &Host::detect()).await.unwrap();
        for exporter in DATABASE_EXPORTERS {
            let path = directory.path().join(format!("{name}.{}", exporter.name()));
            let mut file = exported(exporter.name(), &store, study.clone(), &path).await;
            let table = if exporter.name() == "optuna" { "trials" } else { "runs" };
            let query = format!("SELECT count(*) FROM {table}");
            let count: i64 = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut file).await.unwrap();
            assert_eq!(count, 0, "{name}");
        }
    }
}

#[test]
fn many_rows_are_inserted_with_every_value() {
    let rows = |count: i64| {
        let mut rows = TableRows::new("t", &["a", "b", "c"]);
        for index in 0..count {
            rows.push([index.into(), SqlCell::Null, Value::Int(index).to_string().into()]);
        }
        rows
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut connection = SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
        sqlx::raw_sql("CREATE TABLE t (a, b, c)").execute(&mut connection).await.unwrap();
        for count in [0, 1, 333, 2000] {
            rows(count).insert(&mut connection).await.unwrap();
            let query = "SELECT count(*), coalesce(max(a), -1) FROM t WHERE b IS NULL AND c = a || ''";
            let found: (i64, i64) = sqlx::query_as(query).fetch_one(&mut connection).await.unwrap();
            assert_eq!(found, (count, count - 1));
            sqlx::query("DELETE FROM t").execute(&mut connection).await.unwrap();
        }
    });
}
