//! Tests of filters, order and columns.

use super::*;
use crate::config::Config;
use crate::facts::Host;
use crate::objective::Score;
use crate::trial::{Distribution, Failure, FailureKind, Measurement, Outcome, Trial};

/// Creates a study of five measured trials, whose sizes are 8 to 128, and one that failed.
async fn study(directory: &std::path::Path) -> (Store, Study) {
    let store = Store::open(&directory.join("a.db").to_string_lossy(), true).await.unwrap();
    let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
    for number in 0..5 {
        let config = Config::new()
            .with("max-num-seqs", 8_i64 << number)
            .with("kv-cache-dtype", if number == 2 { "fp8" } else { "auto" });
        let ttft_ms = Some(Distribution { p99: 100.0 - f64::from(number), median: 10.0, ..Distribution::default() });
        // The fourth one lacks its latency.
        let ttft_ms = ttft_ms.filter(|_| number != 3);
        let measurement = Measurement {
            completed: 3,
            failed: u64::from(number == 4),
            duration_s: 1.0,
            ttft_ms,
            ..Measurement::default()
        };
        let trial = Trial::example(number, "auto", Outcome::Measured(measurement)).with_config(config);
        store.append(study.id, &trial, Score::Feasible { value: f64::from(number) }).await.unwrap();
    }
    let failure = Failure { kind: FailureKind::OutOfMemory, message: "full".to_owned() };
    let config = Config::new().with("max-num-seqs", 256_i64).with("enforce-eager", true);
    let trial = Trial::example(5, "auto", Outcome::Failed(failure)).with_config(config);
    store.append(study.id, &trial, Score::Failed).await.unwrap();
    (store, study)
}

/// Returns the numbers of the listed trials.
fn numbers(store: &Store, study: &Study, options: &ListOptions) -> Result<Vec<u32>, QuestionError> {
    match TrialList::read(store, study, options) {
        Ok(list) => Ok(list.trials.iter().map(|trial| trial.number).collect()),
        Err(ListError::Question(error)) => Err(error),
        Err(ListError::Store(error)) => panic!("{error}"),
    }
}

fn matching(conditions: &[&str]) -> ListOptions {
    ListOptions { conditions: conditions.iter().map(|text| (*text).to_owned()).collect(), ..ListOptions::default() }
}

#[tokio::test]
async fn conditions_compare_flags_metrics_fields_and_arithmetic() {
    let directory = tempfile::tempdir().unwrap();
    let (store, study) = study(directory.path()).await;
    for (conditions, expected) in [
        (&["max-num-seqs >= 64"][..], &[3, 4, 5][..]),
        (&["p99_ttft_ms < 99"], &[2, 4]),
        (&["p99_ttft_ms >= 9.8 * median_ttft_ms"], &[0, 1, 2]),
        (&["max-num-seqs >= 16", "p99_ttft_ms > 97"], &[1, 2]),
        (&["max-num-seqs-8 == 0"], &[0]),
        (&["failed > 0"], &[4]),
        (&["state == failed"], &[5]),
        (&["reason_code != none"], &[5]),
        (&["kv-cache-dtype == fp8"], &[2]),
        (&["kv-cache-dtype != fp8"], &[0, 1, 3, 4]),
        (&["enforce-eager == true"], &[5]),
        (&["trial == 3"], &[3]),
        (&["min(max-num-seqs, 16) == 16"], &[1, 2, 3, 4, 5]),
    ] {
        let found = numbers(&store, &study, &matching(conditions));
        assert_eq!(found.as_deref(), Ok(expected), "{conditions:?}");
    }
}

#[tokio::test]
async fn a_wrong_name_or_condition_is_answered_with_the_nearest_one() {
    let directory = tempfile::tempdir().unwrap();
    let (store, study) = study(directory.path()).await;
    for (condition, message, hint) in [
        ("max-num-seq >= 64", "nothing named \"max-num-seq\"", "did you mean max-num-seqs?"),
        ("max_num_seqs >= 64", "nothing named \"max_num_seqs\"", "did you mean max-num-seqs?"),
        ("p99_ttft < 500", "nothing named \"p99_ttft\"", "did you mean p99_ttft_ms?"),
        ("kv-cache-dtype > 3", "are not numbers", "kv-cache-dtype == TEXT"),
        ("p99_ttft_ms = 3", "expected one of", "write a comparison"),
        ("p99_ttft_ms", "expected one of", "write a comparison"),
        ("", "expected a number", "write a comparison"),
    ] {
        let error = numbers(&store, &study, &matching(&[condition])).unwrap_err();
        assert!(error.message.contains(message), "{condition}: {error:?}");
        assert!(error.hint.as_ref().is_some_and(|given| given.contains(hint)), "{condition}: {error:?}");
    }
    let sort = ListOptions { sort: Some("valu".to_owned()), ..ListOptions::default() };
    assert_eq!(numbers(&store, &study, &sort).unwrap_err().hint.as_deref(), Some("did you mean value?"));
    let order = ListOptions { sort: Some("value:down".to_owned()), ..ListOptions::default() };
    assert!(numbers(&store, &study, &order).unwrap_err().message.contains("no order \"down\""));
}

#[tokio::test]
async fn trials_without_a_value_come_last_in_either_order() {
    let directory = tempfile::tempdir().unwrap();
    let (store, study) = study(directory.path()).await;
    let by = |sort: &str| ListOptions { sort: Some(sort.to_owned()), ..ListOptions::default() };
    assert_eq!(numbers(&store, &study, &by("p99_ttft_ms")).unwrap(), [4, 2, 1, 0, 3, 5]);
    assert_eq!(numbers(&store, &study, &by("p99_ttft_ms:desc")).unwrap(), [0, 1, 2, 4, 3, 5]);
    assert_eq!(numbers(&store, &study, &by("kv-cache-dtype:asc")).unwrap(), [0, 1, 3, 4, 2, 5]);
    let first = ListOptions { first: Some(2), ..by("max-num-seqs:desc") };
    assert_eq!(numbers(&store, &study, &first).unwrap(), [5, 4]);
    let last = ListOptions { last: Some(2), states: vec!["measured".to_owned()], ..ListOptions::default() };
    assert_eq!(numbers(&store, &study, &last).unwrap(), [3, 4]);
    let none = ListOptions { first: Some(0), ..ListOptions::default() };
    assert_eq!(numbers(&store, &study, &none).unwrap(), [] as [u32; 0]);
}
