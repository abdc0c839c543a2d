//! Simulated studies of several workloads.

use std::path::Path;
use std::sync::Arc;

use super::{SimulatedStudy, Slots, StudyEnding};
use crate::document::Document;
use crate::execution::detect;
use crate::facts::Host;
use crate::job::Job;
use crate::objective::{WorkloadAggregate, WorkloadValues};
use crate::store::{ScoredTrial, Store, Study};

/// Long documents and short chats. `max-num-batched-tokens` is a trade-off between the two.
fn study(over: WorkloadAggregate, sampler: &str, budget: &str) -> Job {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b");
    let text = format!(
        r#"
study = {{ name = "both", seed = 1, sampler = "{sampler}" }}
engine = {{ kind = "sim", args = ["--sim-device", "l4"] }}
model = {{ path = "{}" }}
load = {{ concurrency = 16, requests = 64 }}
objective = {{ minimize = "mean_e2el_ms", over = "{}" }}
budget = {{ {budget} }}

[space]
fixed = {{ max-model-len = 4096, max-num-seqs = 64 }}
parameters.max-num-batched-tokens = {{ kind = "categorical", choices = [384, 512, 768] }}

[[workload]]
name = "documents"
kind = "random"
input_len = 3800
output_len = 8
load = {{ concurrency = 4, requests = 12 }}

[[workload]]
name = "chats"
weight = 2
kind = "random"
input_len = 256
output_len = 16
"#,
        model.display(),
        over.name()
    );
    let file = Path::new("both.toml");
    Document::from_text(file, text).parse(|root| Job::resolve(root, file)).unwrap()
}

async fn run(job: &Job, store: &Store) -> (Study, Vec<ScoredTrial>) {
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed).unwrap();
    let study = SimulatedStudy { job, store, installed, slots, observer: Arc::new(|_| {}) };
    let summary = study.run().await.unwrap().summary;
    assert!(!matches!(summary.ending, StudyEnding::EngineBroken { .. }));
    let trials = store.trials(&summary.study).await.unwrap();
    (summary.study, trials)
}

fn values_of(job: &Job, scored: &ScoredTrial) -> WorkloadValues {
    let proposal = &scored.trial.proposal;
    let measurement = scored.trial.outcome.measurement().unwrap();
    job.objective.workload_values(proposal.number, &proposal.config.key(), measurement).unwrap()
}

#[tokio::test]
async fn mean_worst_and_regret_find_different_winners_in_a_study_with_a_known_trade_off() {
    let mut winners = Vec::new();
    for over in WorkloadAggregate::ALL {
        let job = study(over, "grid", "trials = 20, confirm = 0, repeat_baseline = 0");
        let store = Store::in_memory().await.unwrap();
        let (study, trials) = run(&job, &store).await;
        assert_eq!(trials.len(), 4, "the defaults and the space");
        let best = store.best(&study, job.objective.goal, 1).await.unwrap().pop().unwrap();
        winners.push(best.first.trial.proposal.config.get_i64("max-num-batched-tokens"));
        let parts = &trials[0].trial.outcome.measurement().unwrap().workloads;
        assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["documents", "chats"]);
    }
    assert_eq!(winners, [Some(384), Some(768), Some(512)]);
}

#[tokio::test]
async fn the_stored_values_are_those_of_the_whole_history() {
    for over in WorkloadAggregate::ALL {
        let job = study(over, "grid", "trials = 20, confirm = 0, repeat_baseline = 0");
        let (_, trials) = run(&job, &Store::in_memory().await.unwrap()).await;
        let values: Vec<_> = trials.iter().map(|scored| values_of(&job, scored)).collect();
        let expected = job.objective.joint_values(&values, &values);
        let stored: Vec<_> = trials.iter().map(|scored| scored.score.value().unwrap()).collect();
        assert_eq!(stored, expected, "{}", over.name());
    }
}

/// Copies the first trials of a study to another database, with their values by the end of the last of them.
async fn copy(job: &Job, trials: &[ScoredTrial], to: &Store) {
    let study = to.create_study(&job.name, &job.definition(), &Host::detect()).await.unwrap();
    let values: Vec<_> = trials.iter().map(|scored| values_of(job, scored)).collect();
    let joint = job.objective.joint_values(&values, &values);
    for (ScoredTrial { trial, .. }, value) in trials.iter().zip(joint) {
        to.append(study.id, trial, job.objective.score_of(&trial.outcome, Some(value))).await.unwrap();
    }
}

#[tokio::test]
async fn a_study_of_several_workloads_that_is_interrupted_ends_like_one_that_is_not() {
    let job = study(WorkloadAggregate::Regret, "auto", "trials = 12, stop_below = 0");
    let rows = |trials: &[ScoredTrial]| {
        let row = |scored: &ScoredTrial| (scored.trial.proposal.config.key(), scored.score);
        trials.iter().map(row).collect::<Vec<_>>()
    };
    let (whole, interrupted) = (Store::in_memory().await.unwrap(), Store::in_memory().await.unwrap());
    let (study, expected) = run(&job, &whole).await;
    assert!(whole.decision(&study).await.unwrap().is_some_and(|decision| decision.rounds > 0));
    copy(&job, &expected[..4], &interrupted).await;
    let (_, resumed) = run(&job, &interrupted).await;
    assert_eq!(rows(&resumed), rows(&expected));
}
