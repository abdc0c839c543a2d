//! Runs of studies with today's deployment and start points.

use super::tests::{EndOrder, SchedulerBench, finish, pretended, settle};
use super::*;
use crate::config::Config;
use crate::facts::TrialContext;
use crate::job::FirstPoint;
use crate::trial::Origin;

fn seqs(value: i64) -> Config {
    Config::new().with("max-num-seqs", value)
}

/// Returns a study whose deployment and start points the fake launches measure.
async fn bench(budget: &str, devices: usize) -> SchedulerBench {
    let mut bench = SchedulerBench::new(budget, devices, 200).await;
    bench.job.deployment = Some(FirstPoint::deployment("serve.sh, line 12", seqs(768)));
    bench.job.starts = vec![
        FirstPoint::start("recipe A", seqs(64)),
        FirstPoint::start("recipe B", Config::new().with("max-num-batched-tokens", 8192_i64)),
    ];
    bench
}

/// Returns the names of the origins, in the order of the trials.
async fn origins(bench: &SchedulerBench) -> Vec<String> {
    bench.decided().await.into_iter().map(|(_, origin, ..)| origin).collect()
}

/// Returns the configurations of the confirmation, without the fixed flags.
async fn confirmed(bench: &SchedulerBench) -> Vec<Config> {
    let rows = bench.store.proposals(&bench.study).await.unwrap();
    let fixed = &bench.job.search_space().fixed;
    let again = rows.into_iter().filter(|row| row.proposal.origin == Origin::Confirmation);
    again.map(|row| row.proposal.config.without(fixed)).collect()
}

#[tokio::test]
async fn the_deployment_follows_the_defaults_and_the_start_points_follow_it() {
    let bench = bench("trials = 12, confirm = 1", 1).await;
    assert_eq!(finish(&bench, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let rows = bench.store.proposals(&bench.study).await.unwrap();
    let first: Vec<_> = rows.iter().take(5).map(|row| row.proposal.origin.name()).collect();
    assert_eq!(first, ["baseline", "baseline_repeat", "deployment", "start", "start"]);
    assert_eq!(rows[2].proposal.config.get_i64("max-model-len"), Some(2048), "the fixed flags hold for all");
    let why: Vec<_> = rows.iter().skip(2).take(3).filter_map(|row| row.proposal.why.as_deref()).collect();
    assert_eq!(why, ["today's deployment: serve.sh, line 12", "start: recipe A", "start: recipe B"]);
    assert_eq!(rows.iter().filter(|row| row.state == "measured" && row.proposal.number < 5).count(), 5);
    assert_eq!(bench.paid().await, 12, "they count against the budget");
}

#[tokio::test]
async fn each_round_of_the_confirmation_measures_winner_defaults_and_deployment() {
    let bench = bench("trials = 16, confirm = 2, repeat_baseline = 0", 1).await;
    assert_eq!(finish(&bench, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let (origins, confirmed) = (origins(&bench).await, confirmed(&bench).await);
    assert!(origins[origins.len() - 6..].iter().all(|origin| origin == "confirmation"), "{origins:?}");
    let count = |config: &Config| confirmed.iter().filter(|other| *other == config).count();
    assert_eq!((confirmed.len(), count(&Config::new()), count(&seqs(768))), (6, 2, 2), "{confirmed:?}");
    let winner = &confirmed[0];
    assert!(
        !winner.is_empty() && *winner != seqs(768),
        "a second launch of the deployment must not replace the winner"
    );
    assert_eq!(count(winner), 2);
    let baselines = confirmed.chunks(3).all(|round| round.contains(&Config::new()) && round.contains(&seqs(768)));
    assert!(baselines, "in turn: {confirmed:?}");
}

#[tokio::test]
async fn a_deployment_that_wins_is_confirmed_beside_the_defaults_alone() {
    let mut bench = bench("trials = 9, confirm = 2", 1).await;
    bench.job.starts.clear();
    // Every other configuration is slower than the deployment.
    let mut scheduler = bench.scheduler().await;
    loop {
        match scheduler.next().await.unwrap() {
            NextAction::Launch(LaunchOrder { pending, place }) => {
                let mut trial = pretended(&pending.proposal, &place, EndOrder::default());
                if let Outcome::Measured(measurement) = &mut trial.outcome {
                    let is_deployment = pending.proposal.config.get_i64("max-num-seqs") == Some(768);
                    measurement.total_output_tokens = if is_deployment { 9000 } else { 100 };
                }
                assert_eq!(settle(&mut scheduler, LaunchOrder { pending, place }, trial).await, None);
            }
            NextAction::AskAgain => {}
            NextAction::Look { .. } | NextAction::Release { .. } | NextAction::Wait => panic!("one launch at a time"),
            NextAction::End(ending) => break assert_eq!(ending, StudyEnding::Settled { unused: 2 }),
        }
    }
    let confirmed = confirmed(&bench).await;
    let count = |config: &Config| confirmed.iter().filter(|other| *other == config).count();
    assert_eq!((count(&seqs(768)), count(&Config::new())), (2, 2), "{confirmed:?}");
    let best = bench.store.best(&bench.study, bench.job.objective.goal, 1).await.unwrap();
    assert_eq!(best[0].first.trial.proposal.origin, Origin::Deployment);
}

#[tokio::test]
async fn a_killed_study_with_first_points_resumes_as_an_undisturbed_one() {
    let undisturbed = bench("trials = 16, confirm = 1", 8).await;
    assert_eq!(finish(&undisturbed, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let expected = undisturbed.decided().await;
    assert_eq!((expected[2].1.as_str(), undisturbed.paid().await), ("deployment", 16), "{expected:?}");
    for seed in 1..6 {
        let disturbed = bench("trials = 16, confirm = 1", 8).await;
        let chances = EndOrder { killed: 0.05, ..EndOrder::default() };
        assert_eq!(finish(&disturbed, seed, chances).await, StudyEnding::TrialsSpent);
        assert_eq!(disturbed.decided().await, expected, "seed {seed}");
    }
}

#[tokio::test]
async fn first_points_that_are_added_later_are_launched_next_in_the_same_study() {
    let mut bench = bench("trials = 6, confirm = 0", 1).await;
    let (deployment, starts) = (bench.job.deployment.take(), std::mem::take(&mut bench.job.starts));
    let definition = bench.job.definition();
    assert_eq!(finish(&bench, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    assert_eq!(bench.store.deployment(&bench.study).await.unwrap(), None);
    bench.job.budget.trials = Some(10);
    (bench.job.deployment, bench.job.starts) = (deployment, starts);
    assert_eq!(bench.job.definition(), definition);
    assert_eq!(finish(&bench, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let origins = origins(&bench).await;
    assert_eq!(origins[6..10], ["baseline_repeat", "deployment", "start", "start"], "{origins:?}");
    let stored = bench.store.deployment(&bench.study).await.unwrap().unwrap();
    assert_eq!((&*stored.source, stored.is_defaults), ("serve.sh, line 12", false));
}

#[tokio::test]
async fn a_deployment_that_the_rules_reject_is_stored_and_the_study_goes_on() {
    let mut bench = bench("trials = 12, confirm = 1", 1).await;
    // The model's heads cannot be divided by 3.
    let config = Config::new().with("tensor-parallel-size", 3_i64);
    bench.job.deployment = Some(FirstPoint::deployment("serve.sh", config.clone()));
    assert_eq!(finish(&bench, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let rows = bench.decided().await;
    assert_eq!((rows[2].1.as_str(), rows[2].3.as_str()), ("deployment", "rejected"));
    assert_eq!((rows.iter().filter(|row| row.1 == "deployment").count(), bench.paid().await), (1, 12));
    let confirmed = confirmed(&bench).await;
    assert!(confirmed.len() == 2 && !confirmed.contains(&config), "{confirmed:?}");
}

#[tokio::test]
async fn a_deployment_that_equals_the_defaults_is_not_launched_twice() {
    for flags in [Config::new(), Config::new().with("max-model-len", 2048_i64)] {
        let mut bench = bench("trials = 12, confirm = 1", 1).await;
        bench.job.deployment = Some(FirstPoint::deployment("serve.sh", flags));
        assert_eq!(finish(&bench, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
        let origins = origins(&bench).await;
        assert_eq!(origins[..4], ["baseline", "baseline_repeat", "start", "start"]);
        assert_eq!(confirmed(&bench).await.len(), 2);
        assert!(bench.store.deployment(&bench.study).await.unwrap().unwrap().is_defaults);
    }
}

#[tokio::test]
async fn after_a_change_of_the_context_the_deployment_is_measured_again_behind_the_defaults() {
    let mut bench = bench("trials = 6, confirm = 0", 1).await;
    assert_eq!(finish(&bench, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    bench.store.accept_context(bench.study.id, &TrialContext::default()).await.unwrap();
    let before = bench.decided().await.len();
    bench.job.budget.trials = Some(12);
    assert_eq!(finish(&bench, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let origins = origins(&bench).await;
    assert_eq!(origins[before..before + 3], ["baseline", "baseline_repeat", "deployment"], "{origins:?}");
}
