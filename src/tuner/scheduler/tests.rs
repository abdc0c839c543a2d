//! Runs with fake launches that end in any order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;

use super::*;
use crate::execution::detect;
use crate::facts::{Host, TrialContext};
use crate::job::Job;
use crate::store::{Incident, Store, Study};
use crate::trial::{Failure, Measurement};
use crate::tuner::context::RunContext;
use crate::tuner::launcher::UnresolvedFailure;
use crate::tuner::launcher::failed;
use crate::tuner::time::RunTime;
use crate::tuner::{Slots, TunerEvent};

/// A study with some devices. A trial takes one, two or four of them.
pub(super) struct SchedulerBench {
    _directory: tempfile::TempDir,
    pub(super) job: Job,
    pub(super) store: Store,
    pub(super) study: Study,
}

impl SchedulerBench {
    pub(super) async fn new(budget: &str, devices: usize, most_seqs: u32) -> Self {
        Self::of("{ kind = \"sim\" }", budget, devices, most_seqs).await
    }

    pub(super) async fn of(engine: &str, budget: &str, devices: usize, most_seqs: u32) -> Self {
        let space = format!(
            "fixed = {{ max-model-len = 2048 }}\n\
             parameters.max-num-seqs = {{ kind = \"int\", low = 1, high = {most_seqs} }}\n\
             parameters.tensor-parallel-size = {{ kind = \"categorical\", choices = [1, 2, 4] }}\n"
        );
        Self::with_space(engine, budget, devices, &space).await
    }

    pub(super) async fn with_space(engine: &str, budget: &str, devices: usize, space: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b");
        let devices: Vec<_> = (0..devices).map(|device| device.to_string()).collect();
        let text = format!(
            "study = {{ name = \"pretended\", seed = 3, sampler = \"sobol\" }}\nengine = {engine}\nbudget = {{ {budget} }}\n\
             model = {{ path = {:?} }}\nslots = {{ devices = {devices:?} }}\n\
             workload = {{ kind = \"random\", input_len = 32, output_len = 8 }}\n\
             load = {{ concurrency = 8, requests = 16 }}\n\
             objective = {{ maximize = \"output_throughput\" }}\n\
             [space]\n{space}",
            model.display().to_string()
        );
        let file = directory.path().join("study.toml");
        std::fs::write(&file, text).unwrap();
        let job = Job::read(&file).unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study(&job.name, &job.definition(), &Host::detect()).await.unwrap();
        Self { _directory: directory, job, store, study }
    }

    /// Returns a run on a simulated clock.
    pub(super) async fn study_run(&self) -> StudyRun<'_> {
        let mut installed = detect(&self.job).await;
        let slots = Slots::resolve(&self.job, &mut installed).unwrap();
        let (job, store, study, stop) = (&self.job, &self.store, self.study.clone(), watch::channel(StopRequest::No).1);
        let (observer, time) = (Arc::new(|_: TunerEvent| {}), RunTime::simulated());
        StudyRun { job, store, study, installed, slots, observer, stop, time }
    }

    pub(super) async fn scheduler(&self) -> Scheduler<'_> {
        scheduler_of(self.study_run().await).await
    }

    /// Returns number, origin, configuration and state of each proposal.
    pub(super) async fn decided(&self) -> Vec<(u32, String, String, String)> {
        let all = self.store.proposals(&self.study).await.unwrap();
        let row = |StoredProposal { proposal, state, .. }: StoredProposal| {
            (proposal.number, proposal.origin.to_string(), proposal.config.key(), state)
        };
        all.into_iter().map(row).collect()
    }

    pub(super) async fn paid(&self) -> usize {
        self.decided()
            .await
            .iter()
            .filter(|(_, by, _, state)| Origin::from_name(by.clone()).counts_against_budget() && state != "rejected")
            .count()
    }
}

/// Opens a scheduler. It borrows its team, which is leaked: a test has few of them.
pub(super) async fn scheduler_of(run: StudyRun<'_>) -> Scheduler<'_> {
    let run: &StudyRun<'_> = Box::leak(run.into());
    let context: &RunContext<'_> = Box::leak(RunContext::new(run, false, TrialContext::default()).into());
    let journal: &Journal<'_> = Box::leak(Journal::new(run, context).into());
    let preflighter: &Preflighter<'_> = Box::leak(Preflighter::new(run, None).into());
    Scheduler::open(run, journal, preflighter).await.unwrap()
}

const MINUTE: Duration = Duration::from_mins(1);

/// Probabilities of disturbances.
#[derive(Clone, Copy, Default)]
pub(super) struct EndOrder {
    pub(super) killed: f64,
    pub(super) paused: f64,
    /// Certain or impossible.
    pub(super) neighbours_cost: bool,
    /// Whether half of the configurations fail for lack of host memory unless they run alone.
    pub(super) memory_is_short: bool,
}

/// Returns the trial of a launch. A configuration has equal outcomes each time, so that only the order may make a
/// difference.
pub(super) fn pretended(proposal: &Proposal, place: &SlotPlace, chances: EndOrder) -> Trial {
    let key = proposal.config.key();
    let sum = key.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let outcome = if sum % 5 == 0 && proposal.number > 0 && proposal.origin != Origin::Interference {
        // Each failure has a reason of its own, so that none are equal.
        let reason: String = sum.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
        failed(FailureKind::Crash, format!("gone, {reason}"))
    } else if sum % 2 == 0 && chances.memory_is_short && !place.alone && proposal.origin != Origin::Interference {
        failed(FailureKind::HostMemory, "the host has 1 MiB of memory left".to_owned())
    } else {
        let is_slow = chances.neighbours_cost && proposal.origin == Origin::Interference;
        let total_output_tokens = (1000 + sum % 1000) / if is_slow { 2 } else { 1 };
        Outcome::Measured(Measurement { duration_s: 1.0, completed: 9, total_output_tokens, ..Measurement::default() })
    };
    Trial { startup_s: Some(1.0), ..Trial::of(proposal.clone(), outcome) }
}

/// Returns the end of a trial whose environment has failed until the retries were exhausted.
fn unresolved(pending: &PendingTrial) -> LaunchEnd {
    let number = pending.proposal.number;
    let failure = Failure { kind: FailureKind::DeviceBusy, message: "taken".to_owned() };
    let trial = Trial::of(pending.proposal.clone(), Outcome::Failed(failure.clone()));
    let (at, since) = (String::new(), String::new());
    let last = Incident { number, attempt: 3, at, failure, log: None, paused: false };
    let failures = pending.max_failures;
    LaunchEnd::Unresolved(Box::new(UnresolvedFailure { ended: trial.into(), last, failures, since }))
}

impl From<Trial> for LaunchEnd {
    fn from(trial: Trial) -> Self {
        Self::Outcome(trial.into())
    }
}

pub(super) async fn settle(
    scheduler: &mut Scheduler<'_>,
    order: LaunchOrder,
    end: impl Into<LaunchEnd>,
) -> Option<StudyEnding> {
    scheduler.process_end(EndedOrder { order, result: Ok(end.into()) }).await.unwrap()
}

/// Executes one run; `None` if it was killed.
async fn run(bench: &SchedulerBench, random: &mut ChaCha8Rng, chances: EndOrder) -> Option<StudyEnding> {
    let mut scheduler = bench.scheduler().await;
    let mut running: Vec<LaunchOrder> = Vec::new();
    let mut end = None;
    for _ in 0..10_000 {
        if random.random_bool(chances.killed) {
            return None;
        }
        let next = if end.is_none() { scheduler.next().await.unwrap() } else { NextAction::Wait };
        let is_waiting = matches!(next, NextAction::Wait);
        match next {
            NextAction::Launch(LaunchOrder { pending, place }) => {
                let number = pending.proposal.number;
                for LaunchOrder { pending: other, place: taken } in &running {
                    let other = other.proposal.number;
                    assert!(!place.alone && !taken.alone, "{number} beside {other}");
                    assert!(place.slots.iter().all(|slot| !taken.slots.contains(slot)), "{place:?} beside {taken:?}");
                    assert_ne!(number, other);
                }
                running.push(LaunchOrder { pending, place });
                let most = scheduler.at_a_time.unwrap_or(scheduler.run.slots.parallel());
                assert!(running.len() <= most, "{} at a time, not {most}", running.len());
            }
            NextAction::End(ending) => end = Some(ending),
            NextAction::Wait | NextAction::AskAgain => {}
            NextAction::Look { .. } | NextAction::Release { .. } => panic!("no server waits"),
        }
        if running.is_empty() && end.is_some() {
            return end;
        }
        assert!(!is_waiting || !running.is_empty(), "it waits for nothing");
        if !running.is_empty() && (is_waiting || random.random_bool(0.2)) {
            let launch = running.swap_remove(random.random_range(0..running.len()));
            let result = if random.random_bool(chances.paused) {
                unresolved(&launch.pending)
            } else {
                pretended(&launch.pending.proposal, &launch.place, chances).into()
            };
            let ending = settle(&mut scheduler, launch, result).await;
            end = end.or(ending);
        }
    }
    panic!("it does not end");
}

/// Repeats runs until the study is finished.
pub(super) async fn finish(bench: &SchedulerBench, seed: u64, chances: EndOrder) -> StudyEnding {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..500 {
        match run(bench, &mut random, chances).await {
            None | Some(StudyEnding::Paused(_)) => {}
            Some(ending) => return ending,
        }
    }
    panic!("it is never done");
}

#[tokio::test]
async fn the_study_is_the_same_for_every_order_of_launch_ends_and_kills() {
    let undisturbed = SchedulerBench::new("trials = 24", 8, 400).await;
    assert_eq!(finish(&undisturbed, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let expected = undisturbed.decided().await;
    assert_eq!(undisturbed.paid().await, 24);
    assert_eq!(expected.iter().filter(|(_, by, ..)| by == "interference").count(), 8);
    assert_eq!(expected.iter().filter(|(_, by, ..)| by == "confirmation").count(), 2);
    let numbers: Vec<_> = expected.iter().map(|(number, ..)| *number).collect();
    assert_eq!(numbers, (0..u32::try_from(expected.len()).unwrap()).collect::<Vec<_>>());
    for (seed, chances) in (1..13).zip(
        [
            EndOrder::default(),
            EndOrder { killed: 0.02, ..EndOrder::default() },
            EndOrder { killed: 0.05, ..EndOrder::default() },
            EndOrder { killed: 0.02, memory_is_short: true, ..EndOrder::default() },
        ]
        .into_iter()
        .cycle(),
    ) {
        let bench = SchedulerBench::new("trials = 24", 8, 400).await;
        assert_eq!(finish(&bench, seed, chances).await, StudyEnding::TrialsSpent);
        assert_eq!(bench.decided().await, expected, "seed {seed}");
    }
}

#[tokio::test]
async fn a_study_whose_environment_fails_now_and_then_is_finished_with_every_trial_and_its_budget() {
    for seed in 1..9 {
        let killed = if seed % 2 == 0 { 0.02 } else { 0.0 };
        let chances = EndOrder { killed, paused: 0.1, ..EndOrder::default() };
        let bench = SchedulerBench::new("trials = 24", 8, 400).await;
        let unused = match finish(&bench, seed, chances).await {
            StudyEnding::TrialsSpent => 0,
            StudyEnding::Settled { unused } => unused as usize,
            other => panic!("seed {seed}: {other}"),
        };
        let decided = bench.decided().await;
        assert_eq!(bench.paid().await + unused, 24, "seed {seed}: {decided:?}");
        for (place, (number, by, _, state)) in (0_u32..).zip(&decided) {
            assert_eq!(*number, place);
            assert!(state != "running" && (state == "measured" || by != "probe"), "seed {seed}: {number} {by} {state}");
        }
    }
}

#[tokio::test]
async fn a_larger_budget_resumes_an_ended_study() {
    let mut bench = SchedulerBench::new("trials = 12, confirm = 0", 4, 400).await;
    assert_eq!(finish(&bench, 1, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let before = bench.decided().await;
    bench.job.budget.trials = Some(20);
    let ending = finish(&bench, 2, EndOrder { killed: 0.02, ..EndOrder::default() }).await;
    assert_eq!(ending, StudyEnding::TrialsSpent);
    let after = bench.decided().await;
    assert_eq!((bench.paid().await, &after[..before.len()]), (20, before.as_slice()));
    assert_eq!(after.iter().filter(|(_, by, ..)| by == "interference").count(), 4, "what neighbours cost is known");
}

#[tokio::test]
async fn a_space_that_is_used_up_while_trials_run_ends_after_the_last_of_them_with_its_confirmation() {
    for (seed, devices) in [(1, 1), (2, 2), (3, 4), (4, 8)] {
        let bench = SchedulerBench::new("trials = 1000, confirm = 1", devices, 5).await;
        let ending = finish(&bench, seed, EndOrder { killed: 0.01, paused: 0.02, ..EndOrder::default() }).await;
        let decided = bench.decided().await;
        assert_eq!(ending, StudyEnding::SpaceExhausted, "{decided:?}");
        let by = |name: &str| decided.iter().filter(|(_, by, ..)| by == name).count();
        assert_eq!((by("baseline"), by("confirmation")), (1, 2));
        let mut searched: Vec<_> = decided.iter().filter(|(_, by, ..)| by == "sobol").map(|row| &row.2).collect();
        let (count, fit) = (searched.len(), [1, 2, 4].iter().filter(|size| **size <= devices).count());
        searched.sort_unstable();
        searched.dedup();
        assert_eq!((searched.len(), count), (5 * fit, 5 * fit), "each of them once");
        assert!(decided.iter().all(|(.., state)| state != "running"));
    }
}

#[tokio::test]
async fn later_runs_remember_an_interference_above_the_limit() {
    let bench = SchedulerBench::new("trials = 16", 8, 400).await;
    let chances = EndOrder { killed: 0.04, neighbours_cost: true, ..EndOrder::default() };
    let settled = StudyEnding::Settled { unused: 2 };
    assert_eq!(finish(&bench, 5, chances).await, settled);
    let mut scheduler = bench.scheduler().await;
    assert!(matches!(scheduler.next().await.unwrap(), NextAction::End(ending) if ending == settled));
    assert_eq!((scheduler.at_a_time, bench.paid().await), (Some(1), 14));
}

#[tokio::test]
async fn a_trial_that_waits_for_slots_does_not_begin_after_the_time_limit() {
    let mut bench = SchedulerBench::new("trials = 100", 4, 400).await;
    bench.job.budget.time = Some(MINUTE);
    let mut scheduler = bench.scheduler().await;
    let mut running = BTreeMap::new();
    // Until a trial finds no slots although more trials may run.
    while scheduler.at_a_time.is_none() || scheduler.waiting.is_empty() {
        match scheduler.next().await.unwrap() {
            NextAction::Launch(LaunchOrder { pending, place }) => {
                drop(running.insert(pending.proposal.number, LaunchOrder { pending, place }));
            }
            NextAction::Wait if scheduler.waiting.is_empty() => {
                let (_, launch) = running.pop_first().unwrap();
                let result = pretended(&launch.pending.proposal, &launch.place, EndOrder::default());
                assert_eq!(settle(&mut scheduler, launch, result).await, None);
            }
            NextAction::Wait | NextAction::AskAgain => {}
            NextAction::Look { .. } | NextAction::Release { .. } => panic!("no server waits"),
            NextAction::End(ending) => panic!("{ending}"),
        }
    }
    scheduler.run.time.advance_to(MINUTE);
    while let Some((_, launch)) = running.pop_first() {
        assert!(matches!(scheduler.next().await.unwrap(), NextAction::Wait));
        let result = pretended(&launch.pending.proposal, &launch.place, EndOrder::default());
        assert_eq!(settle(&mut scheduler, launch, result).await, None);
    }
    assert!(matches!(scheduler.next().await.unwrap(), NextAction::End(StudyEnding::TimeSpent)));
}

#[tokio::test]
async fn a_trial_that_waits_for_slots_is_stored_under_its_number_and_a_missing_number_is_never_given_again() {
    let bench = SchedulerBench::new("trials = 100", 4, 400).await;
    let mut scheduler = bench.scheduler().await;
    let mut running = BTreeMap::new();
    while scheduler.at_a_time.is_none() || scheduler.waiting.is_empty() {
        match scheduler.next().await.unwrap() {
            NextAction::Launch(LaunchOrder { pending, place }) => {
                drop(running.insert(pending.proposal.number, LaunchOrder { pending, place }));
            }
            NextAction::Wait if scheduler.waiting.is_empty() => {
                let (_, launch) = running.pop_first().unwrap();
                let result = pretended(&launch.pending.proposal, &launch.place, EndOrder::default());
                assert_eq!(settle(&mut scheduler, launch, result).await, None);
            }
            NextAction::Wait | NextAction::AskAgain => {}
            NextAction::Look { .. } | NextAction::Release { .. } => panic!("no server waits"),
            NextAction::End(ending) => panic!("{ending}"),
        }
    }
    let stored = bench.decided().await.len();
    assert_eq!(stored, scheduler.history.len(), "the run may end before it is launched");

    // An earlier version has left a gap.
    let number = u32::try_from(stored).unwrap() + 3;
    scheduler.journal.reserve(&Proposal { number, ..scheduler.waiting[0].proposal.clone() }).await.unwrap();
    let scheduler = bench.scheduler().await;
    assert_eq!(scheduler.history.len(), stored + 4);
    assert_eq!(scheduler.waiting.back().map(|waiting| waiting.proposal.number), Some(number));
}

#[tokio::test]
async fn a_slot_with_permanent_leftovers_is_lost_and_the_others_finish_the_study() {
    let bench = SchedulerBench::new("trials = 30, confirm = 0", 8, 400).await;
    let mut scheduler = bench.scheduler().await;
    let left_behind =
        || LeftBehind::Processes { pids: vec![7], marker: "a|b|9".to_owned(), waited: Duration::from_secs(20) };
    let mut lost: Option<Vec<usize>> = None;
    let ending = loop {
        let mut running = Vec::new();
        let end = loop {
            match scheduler.next().await.unwrap() {
                NextAction::Launch(order) => running.push(order),
                NextAction::AskAgain => {}
                NextAction::Wait => break None,
                NextAction::Look { .. } | NextAction::Release { .. } => panic!("no server waits"),
                NextAction::End(ending) => break Some(ending),
            }
        };
        if let Some(ending) = end {
            break ending;
        }
        for LaunchOrder { pending, place } in running {
            if let Some(lost) = &lost {
                assert!(place.slots.iter().all(|slot| !lost.contains(slot)), "{place:?}");
            }
            let result = if lost.is_none() && pending.proposal.number > 9 && place.slots.len() == 1 {
                lost = Some(place.slots.clone());
                Err(left_behind().into())
            } else {
                Ok(pretended(&pending.proposal, &place, EndOrder::default()).into())
            };
            assert_eq!(
                scheduler.process_end(EndedOrder { order: LaunchOrder { pending, place }, result }).await.unwrap(),
                None
            );
        }
    };
    assert_eq!((ending, bench.paid().await), (StudyEnding::TrialsSpent, 30));
    assert!(lost.is_some() && bench.decided().await.iter().all(|(.., state)| state != "running"));

    // A trial that needs more slots than are left is no failure of its configuration.
    let bench = SchedulerBench::new("trials = 30, confirm = 0", 4, 400).await;
    let mut scheduler = bench.scheduler().await;
    scheduler.pool.mark_lost(&[3]);
    let error = loop {
        match scheduler.next().await {
            Ok(NextAction::Launch(LaunchOrder { pending, place })) => {
                let result = pretended(&pending.proposal, &place, EndOrder::default());
                assert_eq!(settle(&mut scheduler, LaunchOrder { pending, place }, result).await, None);
            }
            Ok(NextAction::AskAgain) => {}
            Ok(NextAction::Look { .. } | NextAction::Release { .. } | NextAction::Wait | NextAction::End(_)) => {
                panic!("four devices are asked for some time")
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TuneError::TooFewSlots { needed: 4, left: 3, .. }), "{error}");

    // If it was the only slot, the run ends with an error.
    let bench = SchedulerBench::new("trials = 3", 1, 400).await;
    let mut scheduler = bench.scheduler().await;
    let NextAction::Launch(LaunchOrder { pending, place }) = scheduler.next().await.unwrap() else {
        panic!("the defaults come first")
    };
    let result = Err(left_behind().into());
    let error = scheduler.process_end(EndedOrder { order: LaunchOrder { pending, place }, result }).await.unwrap_err();
    assert!(matches!(error, TuneError::LeftBehind(found) if found == left_behind()));
}
