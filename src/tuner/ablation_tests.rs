//! Simulated studies whose winner has a needless flag.

use std::path::Path;
use std::sync::Arc;

use super::{SimulatedStudy, Slots};
use crate::config::Config;
use crate::decision::{AblationResult, Decision, FlagFinding, VerdictKind};
use crate::document::Document;
use crate::execution::detect;
use crate::job::Job;
use crate::sampler;
use crate::store::{ScoredTrial, Store};
use crate::trial::Origin;

/// Small batches of prompt tokens are 5 % better. The block size has no effect.
fn study(budget: &str) -> Job {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b");
    let text = format!(
        r#"
study = {{ name = "needless", seed = 1, sampler = "grid" }}
engine = {{ kind = "sim", args = ["--sim-device", "l4"] }}
model = {{ path = "{}" }}
workload = {{ kind = "random", input_len = 512, output_len = 24 }}
load = {{ concurrency = 24, requests = 72 }}
objective = {{ maximize = "output_throughput" }}
budget = {{ repeat_baseline = 0, {budget} }}

[space]
fixed = {{ max-model-len = 4096 }}
parameters.max-num-batched-tokens = {{ kind = "categorical", choices = [768, 8192] }}
parameters.block-size = {{ kind = "categorical", choices = [32, 64] }}
"#,
        model.display()
    );
    let file = Path::new("needless.toml");
    Document::from_text(file, text).parse(|root| Job::resolve(root, file)).unwrap()
}

async fn run(job: &Job, store: &Store) -> (Vec<ScoredTrial>, Decision) {
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed).unwrap();
    let study = SimulatedStudy { job, store, installed, slots, observer: Arc::new(|_| {}) };
    let study = study.run().await.unwrap().summary.study;
    (store.trials(&study).await.unwrap(), store.decision(&study).await.unwrap().unwrap())
}

fn ablation_count(trials: &[ScoredTrial]) -> usize {
    trials.iter().filter(|row| row.trial.proposal.origin == Origin::Ablation).count()
}

fn findings(result: &AblationResult) -> Vec<(&str, FlagFinding)> {
    result.flags.iter().map(|flag| (flag.name.as_str(), flag.finding)).collect()
}

#[tokio::test]
async fn a_needless_flag_is_left_out_once_the_budget_allows_tests() {
    let store = Store::in_memory().await.unwrap();
    // Five launches of the search and four of the confirmation. One is not enough for a test.
    let (trials, first) = run(&study("trials = 10, confirm = 2, ablation = 3"), &store).await;
    assert_eq!(ablation_count(&trials), 0, "{first:?}");
    assert!(findings(first.ablation.as_ref().unwrap()).iter().all(|(_, finding)| *finding == FlagFinding::Unsettled));

    let (trials, decision) = run(&study("trials = 40, confirm = 2, ablation = 16"), &store).await;
    let result = decision.ablation.as_ref().unwrap();
    assert!(result.is_complete && ablation_count(&trials) >= 4, "{result:?}");
    let found = findings(result);
    assert!(found.contains(&("max-num-batched-tokens", FlagFinding::Proven)), "{found:?}");
    assert!(found.contains(&("block-size", FlagFinding::NoEffect)), "{found:?}");
    let winner = Config::new().with("max-model-len", 4096_i64).with("max-num-batched-tokens", 768_i64);
    assert_eq!(decision.winner, winner.key());
    assert_eq!(decision.verdict.over_defaults.kind, VerdictKind::Better);

    // Further launches find nothing to test.
    let (more, again) = run(&study("trials = 41, confirm = 2, ablation = 16"), &store).await;
    assert_eq!((ablation_count(&more), again.winner), (ablation_count(&trials), decision.winner));
}

#[tokio::test]
async fn without_launches_for_it_the_winner_keeps_its_flags() {
    let store = Store::in_memory().await.unwrap();
    let (trials, decision) = run(&study("trials = 40, confirm = 2, ablation = 0"), &store).await;
    let result = decision.ablation.unwrap();
    assert_eq!((ablation_count(&trials), decision.winner), (0, result.full_winner.clone()));
    assert!(result.is_complete && result.flags.iter().all(|flag| flag.finding == FlagFinding::Unsettled), "{result:?}");
}

#[tokio::test]
async fn launches_that_are_left_after_a_converged_search_test_the_flags() {
    let mut job = study("trials = 60, confirm = 4, stop_below = 0.5, stop_after = 5");
    job.sampler = sampler::find("auto").unwrap();
    job.priors.clear();
    // All of these many values are 5 % better than the default.
    job.space.space.parameters[0].domain = crate::space::Domain::int(700, 800, crate::space::IntScale::Log, 1);
    let (trials, decision) = run(&job, &Store::in_memory().await.unwrap()).await;
    assert_eq!(decision.verdict.over_defaults.kind, VerdictKind::Better);
    let (tested, result) = (ablation_count(&trials), decision.ablation.unwrap());
    assert!((4..=40).contains(&tested) && result.is_complete, "{tested} launches: {result:?}");
    assert_eq!(findings(&result).first(), Some(&("block-size", FlagFinding::NoEffect)), "{result:?}");
}
