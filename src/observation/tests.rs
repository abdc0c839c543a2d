//! Tests of the observer on databases and logs of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::config::Config;
use crate::facts::Host;
use crate::objective::{Goal, Score};
use crate::store::{Incident, TrialBegin};
use crate::trial::{Failure, FailureKind, LaunchCommand, Measurement, Outcome, Proposal, Trial};
use crate::tuner::StudyLock;

struct Fixture {
    directory: tempfile::TempDir,
    writer: Store,
    study: Study,
}

impl Fixture {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let writer = Store::open(&path.to_string_lossy(), true).await.unwrap();
        let objective = json!({"metric": "output_throughput", "goal": "maximize", "constraints": []});
        let definition = json!({"engine": {"kind": "sim"}, "objective": objective});
        let study = writer.create_study("chat", &definition, &Host::detect()).await.unwrap();
        Self { directory, writer, study }
    }

    fn database(&self) -> PathBuf {
        self.directory.path().join("a.db")
    }

    async fn observer(&self) -> StudyObserver {
        let reader = Store::open(&self.database().to_string_lossy(), false).await.unwrap();
        StudyObserver::open(reader, self.study.clone()).await.unwrap()
    }

    async fn measure(&self, number: u32, value: f64) {
        let trial = Trial::example(number, "auto", Outcome::Measured(Measurement::default()));
        let trial = trial.with_config(Config::new().with("max-num-seqs", i64::from(number)));
        self.writer.append(self.study.id, &trial, Score::Feasible { value }).await.unwrap();
    }

    /// Stores a trial without an outcome, and returns the path of its log.
    async fn begin(&self, number: u32, started_at: &str) -> PathBuf {
        let log = crate::server::trial_log(&self.database(), &self.study.name, number);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let proposal = Proposal::example(number, "auto");
        let begin = TrialBegin { proposal: &proposal, launch: &LaunchCommand::default(), started_at, log: &log };
        self.writer.begin_trial(self.study.id, &begin).await.unwrap();
        log
    }

    fn lock(&self) -> StudyLock {
        StudyLock::acquire(&log_directory(&self.database(), &self.study.name).join("lock")).unwrap()
    }
}

fn append(path: &Path, text: &str) {
    use std::io::Write;
    let mut log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    log.write_all(text.as_bytes()).unwrap();
}

#[tokio::test]
async fn a_poll_finds_new_and_withdrawn_trials_and_nothing_without_a_change() {
    let fixture = Fixture::new().await;
    fixture.measure(0, 100.0).await;
    let mut observer = fixture.observer().await;
    assert!(!observer.poll().await.unwrap());
    let failure = Failure { kind: FailureKind::PortInUse, message: "busy".to_owned() };
    fixture.measure(1, 150.0).await;
    let failed = Trial::example(2, "auto", Outcome::Failed(failure.clone()));
    fixture.writer.append(fixture.study.id, &failed, Score::Failed).await.unwrap();
    assert!(observer.poll().await.unwrap() && !observer.poll().await.unwrap());
    let seen = observer.observation();
    let numbers = |seen: &StudyObservation| seen.trials.iter().map(|trial| trial.number).collect::<Vec<_>>();
    assert_eq!((numbers(seen), seen.counts.measured, seen.counts.failed), (vec![0, 1, 2], 2, 1));
    let best = seen.best.clone().unwrap();
    assert_eq!((best.number, best.value, best.gain, seen.baseline), (1, 150.0, Some(1.5), Some(100.0)));
    assert!(seen.tuner.is_none() && seen.running.is_empty());

    let at = "2030-01-02T03:04:05.000Z".to_owned();
    let incident = Incident { number: 2, attempt: 1, at, failure, log: None, paused: false };
    fixture.writer.withdraw(fixture.study.id, &[incident]).await.unwrap();
    assert!(observer.poll().await.unwrap());
    let seen = observer.observation();
    assert_eq!((numbers(seen), seen.running[0].number), (vec![0, 1], 2));
    assert_eq!(seen.running[0].stage, LaunchStage::Interrupted, "no tuner runs");
}

#[tokio::test]
async fn the_best_configuration_is_that_of_the_ranking() {
    let fixture = Fixture::new().await;
    for (number, seqs, end, value) in
        [(0, 0, 2, 50.0), (1, 1, 2, 90.0), (2, 2, 2, 80.0), (3, 1, 0, 0.0), (4, 3, 1, 99.0), (5, 2, 2, 60.0)]
    {
        let failure = Failure { kind: FailureKind::Crash, message: String::new() };
        let (outcome, score) = match end {
            0 => (Outcome::Failed(failure), Score::Failed),
            1 => (Outcome::Measured(Measurement::default()), Score::Infeasible { violation: 0.5, value }),
            _ => (Outcome::Measured(Measurement::default()), Score::Feasible { value }),
        };
        let trial = Trial::example(number, "auto", outcome).with_config(Config::new().with("max-num-seqs", seqs));
        fixture.writer.append(fixture.study.id, &trial, score).await.unwrap();
        let observer = fixture.observer().await;
        let ranked = fixture.writer.best(&fixture.study, Goal::Maximize, 1).await.unwrap();
        let best = observer.observation().best.as_ref();
        let expected = ranked.first().map(|best| (best.first.trial.proposal.number, best.value));
        assert_eq!(best.map(|best| (best.number, best.value)), expected, "after trial {number}");
    }
}

#[tokio::test]
async fn a_launch_is_followed_by_its_log_and_the_lock() {
    let fixture = Fixture::new().await;
    let log = fixture.begin(0, &crate::store::now()).await;
    let mut observer = fixture.observer().await;
    let lock = fixture.lock();
    assert!(observer.poll().await.unwrap());
    let launch = |observer: &StudyObserver| observer.observation().running[0].clone();
    assert_eq!(launch(&observer).stage, LaunchStage::Waiting);
    assert_eq!(observer.observation().tuner.as_ref().unwrap().process, std::process::id().to_string());

    append(&log, "INFO 01-02 03:04:05 [utils.py:1] non-default args: {}\n");
    assert!(observer.poll().await.unwrap());
    let started = launch(&observer);
    assert_eq!(started.stage, LaunchStage::Starting);
    assert!(started.phases.len() > 1 && started.phases.iter().all(|phase| phase.duration.is_some()), "{started:?}");
    append(&log, "INFO:     Application startup complete.\n");
    assert!(observer.poll().await.unwrap());
    assert_eq!(launch(&observer).stage, LaunchStage::Serving, "{:?}", launch(&observer).phases);

    drop(lock);
    assert!(observer.poll().await.unwrap());
    assert_eq!(launch(&observer).stage, LaunchStage::Interrupted);
    // A repeated launch begins a new log.
    std::fs::remove_file(&log).unwrap();
    fixture.begin(0, &crate::store::now()).await;
    let _lock = fixture.lock();
    observer.poll().await.unwrap();
    assert_eq!((launch(&observer).stage, launch(&observer).log_lines.len()), (LaunchStage::Waiting, 0));
}

#[tokio::test]
async fn the_durations_of_phases_before_the_observation_are_unknown() {
    let fixture = Fixture::new().await;
    let log = fixture.begin(0, "2020-01-02T03:04:05.000Z").await;
    append(&log, "INFO 01-02 03:04:05 [utils.py:1] non-default args: {}\n");
    let _lock = fixture.lock();
    let observer = fixture.observer().await;
    let phases = &observer.observation().running[0].phases;
    assert!(!phases.is_empty() && phases.iter().all(|phase| phase.duration.is_none()), "{phases:?}");
}

#[tokio::test]
async fn a_log_is_bounded_and_keeps_no_control_characters_and_secrets() {
    let fixture = Fixture::new().await;
    let log = fixture.begin(0, &crate::store::now()).await;
    let _lock = fixture.lock();
    append(&log, &"a line of a flood\n".repeat(100_000));
    append(
        &log,
        "\u{1b}[31m<b>\"red\" & 'quoted'</b>\u{1b}[0m\u{7}\n10 %\r20 %\rdone\n--api-key sk-0123456789abcdef0123\n",
    );
    append(&log, &format!("{}\n\u{202e}evil\u{9b}2J\n", "x".repeat(100_000)));
    let observer = fixture.observer().await;
    let lines = &observer.observation().running[0].log_lines;
    assert_eq!(lines.len(), 200);
    let [.., red, bar, secret, long, evil] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((red.as_str(), bar.as_str()), ("<b>\"red\" & 'quoted'</b>", "done"));
    assert!(!secret.contains("sk-0123"), "{secret}");
    assert_eq!(long.len(), 1_000);
    assert!(!evil.contains(crate::trial::is_control), "{evil:?}");
}

#[tokio::test]
async fn the_details_of_a_trial_are_read_on_request() {
    let fixture = Fixture::new().await;
    let log = fixture.begin(0, &crate::store::now()).await;
    append(&log, "one\ntwo\n");
    let observer = fixture.observer().await;
    assert!(observer.detail(0).await.unwrap().is_none(), "it has no outcome");
    let measured = Trial::example(0, "auto", Outcome::Measured(Measurement::default()));
    // The database was moved with its logs.
    let measured = Trial { log: Some("/elsewhere/trial-0000.log".into()), ..measured };
    fixture.writer.append(fixture.study.id, &measured, Score::Feasible { value: 1.0 }).await.unwrap();
    let detail = observer.detail(0).await.unwrap().unwrap();
    assert_eq!(detail.scored.score, Score::Feasible { value: 1.0 });
    assert_eq!((detail.phases.len(), detail.generation_rates.len()), (0, 0));
}

#[tokio::test]
async fn a_running_study_is_preferred_and_a_lost_database_is_reported() {
    let fixture = Fixture::new().await;
    fixture.writer.create_study("newer", &json!({}), &Host::detect()).await.unwrap();
    let chosen = async || {
        let studies = observed_studies(&fixture.writer).await.unwrap();
        default_study(&studies).unwrap().study.name.clone()
    };
    assert_eq!(chosen().await, "newer");
    let mut observer = fixture.observer().await;
    fixture.begin(0, &crate::store::now()).await;
    let _lock = fixture.lock();
    assert_eq!(chosen().await, "chat");
    std::fs::remove_file(fixture.database()).unwrap();
    assert!(matches!(observer.poll().await, Err(StoreError::Missing(_))));
}

/// The bounds are far above the usual costs, which are below 1 ms for a poll without a change.
#[tokio::test]
async fn polls_of_a_thousand_trials_are_cheap() {
    let fixture = Fixture::new().await;
    for number in 0..1_000 {
        fixture.measure(number, 1000.0 + f64::from(number % 37)).await;
    }
    let log = fixture.begin(1_000, &crate::store::now()).await;
    append(&log, &"INFO a line\n".repeat(1_000));
    let _lock = fixture.lock();
    let mut observer = fixture.observer().await;
    let begin = Instant::now();
    for _ in 0..100 {
        observer.poll().await.unwrap();
    }
    let idle = begin.elapsed() / 100;
    fixture.measure(1_000, 2000.0).await;
    let begin = Instant::now();
    assert!(observer.poll().await.unwrap());
    let refresh = begin.elapsed();
    assert_eq!(observer.observation().best.as_ref().unwrap().number, 1_000);
    assert!(std::env::var_os("SETPOINT_COSTS").is_none(), "{idle:?} without a change, {refresh:?} with a new trial");
    assert!(idle < Duration::from_millis(20) && refresh < Duration::from_millis(500), "{idle:?}, {refresh:?}");
}
