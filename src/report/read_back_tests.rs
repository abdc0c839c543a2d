//! Tests of trials as JSON and CSV: the importer reads every metric and failure back.

use super::{trial_json, trials_csv};
use crate::config::Config;
use crate::import::read_path;
use crate::objective::Score;
use crate::store::ScoredTrial;
use crate::study_report::StudyReport;
use crate::trial::{Distribution, Failure, FailureKind, Measurement, Outcome, Trial};

fn trials() -> Vec<ScoredTrial> {
    let latency = Some(Distribution { mean: 12.5, median: 12.0, std: 1.0, p90: 13.0, p95: 14.0, p99: 40.0 });
    let measurement = Measurement {
        completed: 10,
        duration_s: 2.0,
        total_output_tokens: 500,
        ttft_ms: latency,
        ..Measurement::default()
    };
    let failure = Failure { kind: FailureKind::OutOfMemory, message: "no memory".to_owned() };
    let config = |value: i64| Config::new().with("max-num-seqs", value).with("enable-prefix-caching", false);
    let trial = |number, value, outcome| Trial::example(number, "auto", outcome).with_config(config(value));
    vec![
        ScoredTrial { trial: trial(0, 64, Outcome::Measured(measurement)), score: Score::Feasible { value: 250.0 } },
        ScoredTrial { trial: trial(1, 512, Outcome::Failed(failure)), score: Score::Failed },
    ]
}

#[tokio::test]
async fn our_own_json_and_csv_are_read_back_with_every_metric_and_failure() {
    let directory = tempfile::tempdir().unwrap();
    let trials = trials();
    let study = StudyReport::example("s").study;
    let json: serde_json::Value = trials.iter().map(|scored| trial_json(&study, scored)).collect();
    let csv = trials_csv(&trials, |_| false).unwrap();
    let own = trials[0].trial.outcome.measurement().unwrap();
    for (name, content) in [("trials.json", json.to_string()), ("trials.csv", csv)] {
        std::fs::write(directory.path().join(name), content).unwrap();
        let document = read_path(&directory.path().join(name)).await.unwrap();
        let [measured, failed] = &document.results[..] else { panic!("{name}: {document:?}") };
        for metric in Measurement::NAMES {
            assert_eq!(measured.metrics.get(*metric).copied(), own.metric(metric), "{name}: {metric}");
        }
        for (result, scored) in document.results.iter().zip(&trials) {
            assert_eq!(result.launch.as_ref().unwrap().config, scored.trial.proposal.config, "{name}");
        }
        let failure = failed.failure.as_ref().unwrap();
        assert_eq!((failure.kind, failure.message.as_str()), (Some(FailureKind::OutOfMemory), "no memory"), "{name}");
    }
}
