//! Runs with fake launches that test rules.

use std::sync::{Arc, Mutex};

use super::tests::{EndOrder, SchedulerBench, finish, pretended, scheduler_of, settle};
use super::*;
use crate::config::Config;
use crate::facts::{Host, TrialContext};
use crate::store::{RuleTest, RuleVerdict};
use crate::trial::{LaunchRecords, Measurement};
use crate::tuner::RuleVerdicts;
use crate::tuner::context::RunContext;
use crate::tuner::launcher::failed;

/// GPUs that are described as too small for one of them to hold the weights of 15.3 GiB.
const SMALL: &str = "{ kind = \"sim\", gpu_memory_gib = 16 }";

fn measured() -> Outcome {
    let (completed, duration_s, total_output_tokens) = (9, 1.0, 1000);
    Outcome::Measured(Measurement { completed, duration_s, total_output_tokens, ..Measurement::default() })
}

fn is_on_one(config: &Config) -> bool {
    config.get_i64("tensor-parallel-size").unwrap_or(1) == 1
}

/// The outcome on an engine for which R7 is right: the weights do not fit on one device.
fn right(proposal: &Proposal) -> Outcome {
    if is_on_one(&proposal.config) { failed(FailureKind::NoKvMemory, "none".to_owned()) } else { measured() }
}

fn wrong(_: &Proposal) -> Outcome {
    measured()
}

/// Runs to the end. Trials run one at a time.
async fn run(bench: &SchedulerBench, outcome: impl Fn(&Proposal) -> Outcome) -> StudyEnding {
    let mut scheduler = bench.scheduler().await;
    for _ in 0..10_000 {
        match scheduler.next().await.unwrap() {
            NextAction::Launch(LaunchOrder { pending, place }) => {
                let proposal = &pending.proposal;
                if proposal.origin == Origin::RuleTest {
                    assert!(place.alone && scheduler.running.len() == 1, "{proposal:?}");
                }
                let result = launched(proposal, &place, outcome(proposal));
                if let Some(ending) = settle(&mut scheduler, LaunchOrder { pending, place }, result).await {
                    return ending;
                }
            }
            NextAction::End(ending) => return ending,
            NextAction::Look { .. } | NextAction::Release { .. } | NextAction::Wait => panic!("it waits for nothing"),
            NextAction::AskAgain => {}
        }
    }
    panic!("it does not end");
}

fn launched(proposal: &Proposal, place: &SlotPlace, outcome: Outcome) -> Trial {
    let startup_s = matches!(outcome, Outcome::Measured(_)).then_some(1.0);
    Trial { startup_s, outcome, ..pretended(proposal, place, EndOrder::default()) }
}

/// Returns the rule, the verdict and the configuration of each test.
async fn tested(bench: &SchedulerBench) -> Vec<(String, Option<RuleVerdict>, Config)> {
    let run = bench.study_run().await;
    let key = crate::tuner::rule_test::rule_test_key(&bench.job, &run.installed);
    let mut tests = Vec::new();
    for RuleTest { study, number, rule, verdict, .. } in bench.store.rule_tests(&key).await.unwrap() {
        let study = bench.store.study(&study).await.unwrap().unwrap();
        let proposals = bench.store.proposals(&study).await.unwrap();
        let row = proposals.into_iter().find(|row| row.proposal.number == number).unwrap();
        let proposal = row.proposal;
        assert_eq!(proposal.origin, Origin::RuleTest);
        assert!(proposal.why.unwrap().starts_with(&format!("tests rule {rule}, which ")));
        tests.push((rule, verdict, proposal.config));
    }
    tests
}

/// Adds an equal study under another name.
async fn another(bench: &mut SchedulerBench) {
    bench.job.name.push('2');
    let definition = bench.job.definition();
    bench.study = bench.store.create_study(&bench.job.name, &definition, &Host::detect()).await.unwrap();
}

/// Returns origin and configuration of each launch.
async fn launches(bench: &SchedulerBench) -> Vec<(Origin, Config)> {
    let all = bench.store.proposals(&bench.study).await.unwrap();
    let launched = all.into_iter().filter(|row| row.state != "rejected").map(|row| row.proposal);
    launched.map(|proposal| (proposal.origin, proposal.config)).collect()
}

#[tokio::test]
async fn a_rule_that_a_start_refutes_is_set_aside_in_every_study_of_the_database() {
    let mut bench = SchedulerBench::of(SMALL, "trials = 12, confirm = 0", 4, 400).await;
    assert_eq!(run(&bench, wrong).await, StudyEnding::TrialsSpent);
    let found = tested(&bench).await;
    assert_eq!(found.len(), 1);
    assert_eq!((&*found[0].0, found[0].1), ("R7", Some(RuleVerdict::Refuted)));
    let first = launches(&bench).await;
    assert_eq!(first[0].0, Origin::RuleTest, "nothing else could be compared with the defaults");
    assert_eq!(first.iter().filter(|(origin, _)| *origin == Origin::RuleTest).count(), 1);
    assert!(first.iter().filter(|(_, config)| is_on_one(config)).count() > 3, "{first:?}");
    let defaults = bench.job.search_space().fixed.clone();
    assert!(first.iter().any(|(_, config)| *config == defaults), "the defaults are measured");
    assert!(bench.store.measurements_of(&bench.study, 0).await.unwrap().is_some());
    assert_eq!(bench.paid().await, 12, "a test counts for the budget");

    another(&mut bench).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut run = bench.study_run().await;
    let teller = Arc::clone(&told);
    run.observer = Arc::new(move |event| {
        if let TunerEvent::RuleSetAside { rule, study, number } = event {
            teller.lock().unwrap().push((rule, study, number));
        }
    });
    let mut scheduler = scheduler_of(run).await;
    let NextAction::Launch(LaunchOrder { pending: PendingTrial { proposal, .. }, .. }) =
        scheduler.next().await.unwrap()
    else {
        panic!("the defaults come first")
    };
    assert_eq!((proposal.origin, proposal.number), (Origin::Baseline, 0));
    assert_eq!(
        told.lock().unwrap().iter().map(|(rule, study, _)| (*rule, &**study)).collect::<Vec<_>>(),
        [("R7", "pretended")]
    );
}

#[tokio::test]
async fn a_rule_that_a_start_confirms_stays_and_is_not_tested_again() {
    let mut bench = SchedulerBench::of(SMALL, "trials = 12, confirm = 0", 4, 400).await;
    for study in 0..2 {
        if study > 0 {
            another(&mut bench).await;
        }
        assert_eq!(run(&bench, right).await, StudyEnding::TrialsSpent);
        let on_one: Vec<_> = launches(&bench).await.into_iter().filter(|(_, config)| is_on_one(config)).collect();
        assert_eq!(on_one.len(), 1 - study, "{on_one:?}");
        let found = tested(&bench).await;
        assert_eq!(
            found.iter().map(|test| (&*test.0, test.1)).collect::<Vec<_>>(),
            [("R7", Some(RuleVerdict::Confirmed))]
        );
    }
}

#[tokio::test]
async fn a_test_without_a_verdict_is_repeated_once_and_ends_neither_the_study_nor_its_patience() {
    let bench = SchedulerBench::of(SMALL, "trials = 12, confirm = 0", 4, 400).await;
    let lost = |proposal: &Proposal| {
        let is_lost = is_on_one(&proposal.config);
        if is_lost { failed(FailureKind::StartupExit, "a driver is gone".to_owned()) } else { measured() }
    };
    assert_eq!(run(&bench, lost).await, StudyEnding::TrialsSpent);
    let found = tested(&bench).await;
    let verdicts: Vec<_> = found.iter().map(|test| test.1).collect();
    assert_eq!(verdicts, [Some(RuleVerdict::Inconclusive); 2], "{found:?}");
    let order: Vec<_> = launches(&bench).await.into_iter().map(|(origin, _)| origin).collect();
    assert_eq!(order[0], Origin::RuleTest);
    assert_ne!(order[1], Origin::RuleTest, "something is measured before it is repeated");
}

#[tokio::test]
async fn a_space_that_late_rules_empty_is_not_given_up_before_their_tests() {
    let engine = "{ kind = \"sim\", gpu_memory_gib = 12 }";
    let space = "fixed = { max-model-len = 2048 }\n\
                 parameters.max-num-seqs = { kind = \"int\", low = 1, high = 64 }\n";
    let bench = SchedulerBench::with_space(engine, "trials = 6, confirm = 0", 1, space).await;
    assert_eq!(run(&bench, wrong).await, StudyEnding::TrialsSpent);
    assert_eq!(launches(&bench).await.len(), 6);
    let bench = SchedulerBench::with_space(engine, "trials = 6, confirm = 0", 1, space).await;
    assert!(matches!(run(&bench, right).await, StudyEnding::NothingAllowed(_)));
    assert_eq!(launches(&bench).await.len(), 1, "only the test");
    assert!(matches!(run(&bench, right).await, StudyEnding::NothingAllowed(_)));
    assert_eq!(launches(&bench).await.len(), 1, "a later run knows the verdict");
}

#[tokio::test]
async fn at_most_three_launches_of_a_study_test_rules() {
    let space = "fixed = { max-num-seqs = 64 }\n\
                 parameters.block-size = { kind = \"categorical\", choices = [16, 24] }\n\
                 parameters.gpu-memory-utilization = { kind = \"categorical\", choices = [0.3, 0.9, 1.0] }\n\
                 parameters.max-model-len = { kind = \"categorical\", choices = [2048, 4096, 40960] }\n";
    let bench =
        SchedulerBench::with_space("{ kind = \"sim\", gpu_memory_gib = 22 }", "trials = 16, confirm = 0", 1, space)
            .await;
    let refuse = |proposal: &Proposal| {
        if proposal.origin == Origin::RuleTest { failed(FailureKind::NoKvMemory, String::new()) } else { measured() }
    };
    let ending = run(&bench, refuse).await;
    assert!(matches!(ending, StudyEnding::TrialsSpent | StudyEnding::SpaceExhausted), "{ending}");
    let found = tested(&bench).await;
    let mut rules: Vec<_> = found.iter().map(|test| &*test.0).collect();
    assert_eq!(rules.len(), 3, "{found:?}");
    rules.sort_unstable();
    rules.dedup();
    assert_eq!(rules.len(), 3, "each rule once: {found:?}");
}

#[tokio::test]
async fn a_run_that_is_killed_takes_its_test_up_again_and_a_verdict_that_was_not_stored_follows_from_the_trial() {
    let bench = SchedulerBench::of(SMALL, "trials = 6, confirm = 0", 4, 400).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let mut scheduler = bench.scheduler().await;
        let proposal = loop {
            match scheduler.next().await.unwrap() {
                NextAction::Launch(LaunchOrder { pending, .. }) => break pending.proposal,
                NextAction::AskAgain => {}
                NextAction::Look { .. } | NextAction::Release { .. } | NextAction::Wait | NextAction::End(_) => {
                    panic!("a test comes first")
                }
            }
        };
        assert_eq!(proposal.origin, Origin::RuleTest);
        seen.push(proposal);
    }
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
    // Killed after the trial's outcome was stored and before the verdict.
    let trial = Trial { startup_s: Some(1.0), ..Trial::of(seen.remove(0), measured()) };
    let score = bench.job.objective.score(&trial.outcome);
    bench.store.append(bench.study.id, &trial, score).await.unwrap();
    drop(bench.scheduler().await);
    let verdicts = RuleVerdicts::read(&bench.job, &bench.study_run().await.installed, &bench.store).await.unwrap();
    assert_eq!(verdicts.rules_to_set_aside(), ["R7"]);
    assert_eq!(run(&bench, wrong).await, StudyEnding::TrialsSpent);
    assert_eq!(tested(&bench).await.len(), 1);
}

#[tokio::test]
async fn on_several_slots_tests_neither_repeat_nor_are_lost_in_whatever_order_launches_end() {
    // R15a rejects half of the space, and not the defaults.
    let space = "fixed = { max-model-len = 2048 }\n\
                 parameters.max-num-seqs = { kind = \"int\", low = 1, high = 400 }\n\
                 parameters.block-size = { kind = \"categorical\", choices = [16, 24, 32, 40] }\n";
    let mut expected = None;
    for (seed, chances) in
        (0..5).zip([EndOrder::default(), EndOrder { killed: 0.03, ..EndOrder::default() }].into_iter().cycle())
    {
        let bench = SchedulerBench::with_space("{ kind = \"sim\" }", "trials = 16", 4, space).await;
        assert_eq!(finish(&bench, seed, chances).await, StudyEnding::Settled { unused: 2 });
        let found = tested(&bench).await;
        assert!((1..=2).contains(&found.len()) && found.iter().all(|test| test.0 == "R15a"), "{found:?}");
        assert!(found.iter().all(|test| test.1.is_some()), "{found:?}");
        let decided = bench.decided().await;
        assert_eq!(*expected.get_or_insert_with(|| decided.clone()), decided, "seed {seed}");
    }
}

#[tokio::test]
async fn an_earlier_start_that_failed_as_the_rule_predicts_spares_the_test() {
    let bench = SchedulerBench::of(SMALL, "trials = 4, confirm = 0", 4, 400).await;
    let config = bench.job.search_space().fixed.clone();
    let refused = failed(FailureKind::NoKvMemory, "none".to_owned());
    let study = bench.store.create_study("earlier", &bench.job.definition(), &Host::detect()).await.unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let line = "INFO 11-24 09:00:00 [gpu_model_runner.py:1] Model loading took 15.27 GiB memory and 1.5 seconds\n";
    std::fs::write(log.path(), line).unwrap();
    let log = Some(log.path().to_owned());
    let trial = Trial { log, ..Trial::example(3, "baseline", refused).with_config(config) };
    let earlier = StudyRun { study, ..bench.study_run().await };
    let context = RunContext::new(&earlier, false, TrialContext::default());
    let (score, records) = (bench.job.objective.score(&trial.outcome), LaunchRecords::default());
    Journal::new(&earlier, &context).append(&trial, score, &records, &[]).await.unwrap();
    assert_eq!(run(&bench, right).await, StudyEnding::TrialsSpent);
    assert_eq!(tested(&bench).await, []);
    assert!(launches(&bench).await.iter().all(|(_, config)| !is_on_one(config)));
}

#[tokio::test]
async fn a_failed_test_does_not_remove_its_configuration_from_the_ranking() {
    let bench = SchedulerBench::of(SMALL, "trials = 12, confirm = 0", 4, 400).await;
    let config = Config::new().with("max-num-seqs", 7_i64);
    for (number, origin, outcome) in
        [(0, "baseline", measured()), (1, "rule_test", failed(FailureKind::NoKvMemory, String::new()))]
    {
        let trial = Trial::example(number, origin, outcome).with_config(config.clone());
        let score = bench.job.objective.score(&trial.outcome);
        bench.store.append(bench.study.id, &trial, score).await.unwrap();
    }
    let best = bench.store.best(&bench.study, bench.job.objective.goal, 1).await.unwrap();
    assert_eq!(best.len(), 1);
}
