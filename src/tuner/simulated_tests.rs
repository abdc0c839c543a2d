//! Tests of whole studies in virtual time.

use std::path::Path;

use super::*;
use crate::execution::{UnusableTrials, detect, measured_trial};
use crate::job::FirstPoint;
use crate::objective::{Goal, MetricLimit, Objective};
use crate::predict::calibrate_from_trials;
use crate::sampler;
use crate::space::{Domain, IntScale};
use crate::trial::Origin;
use crate::twin::TermFactor;

fn quickstart() -> Job {
    let mut job = Job::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart.toml")).unwrap();
    job.sampler = sampler::find("sobol").unwrap();
    job
}

/// Returns the run, and the number, configuration, value and start time of each trial.
async fn simulate(job: &Job) -> (SimulatedRun, Vec<(u32, String, Option<f64>, String)>) {
    let store = Store::in_memory().await.unwrap();
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed).unwrap();
    let study = SimulatedStudy { job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let run = study.run().await.unwrap();
    let trials = store.trials(&run.summary.study).await.unwrap();
    let row = |scored: crate::store::ScoredTrial| {
        let value = scored.trial.outcome.measurement().and_then(|found| found.metric(&job.objective.metric));
        let Trial { proposal, started_at, .. } = scored.trial;
        (proposal.number, proposal.config.key(), value, started_at)
    };
    (run, trials.into_iter().map(row).collect())
}

#[tokio::test]
async fn a_simulated_study_spends_its_trials_and_is_the_same_each_time() {
    let mut job = quickstart();
    job.budget.trials = Some(8);
    let (run, trials) = simulate(&job).await;
    assert_eq!((&run.summary.ending, trials.len()), (&StudyEnding::TrialsSpent, 8));
    assert!(trials.iter().all(|(.., value, _)| value.is_some_and(|value| value > 0.0)), "{trials:?}");
    assert!(trials.windows(2).all(|pair| pair[0].3 < pair[1].3), "one after the other: {trials:?}");
    let again = simulate(&job).await;
    assert_eq!((again.0.elapsed, again.1), (run.elapsed, trials));
}

#[tokio::test]
async fn without_a_feasible_configuration_the_search_takes_the_time_of_the_confirmation() {
    let mut job = quickstart();
    (job.budget.trials, job.budget.time) = (None, Some(Duration::from_mins(2)));
    job.objective.constraints[0].limit = MetricLimit::AtMost(0.001);
    let (run, trials) = simulate(&job).await;
    assert_eq!(run.summary.ending, StudyEnding::TimeSpent);
    let longest = run.elapsed.div_f64(crate::stats::to_f64(trials.len())).mul_f64(2.0);
    assert!(run.elapsed + longest > Duration::from_mins(2), "{:?} for {} trials", run.elapsed, trials.len());
}

/// Runs a study up to each of these numbers of trials, and returns all trials.
async fn run_in_parts(job: &mut Job, parts: [u32; 2]) -> Vec<crate::store::ScoredTrial> {
    let store = Store::in_memory().await.unwrap();
    for trials in parts {
        job.budget.trials = Some(trials);
        let mut installed = detect(job).await;
        let slots = Slots::resolve(job, &mut installed).unwrap();
        let study = SimulatedStudy { job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
        study.run().await.unwrap();
    }
    let study = store.study(&job.name).await.unwrap().unwrap();
    store.trials(&study).await.unwrap()
}

#[tokio::test]
async fn a_resumed_study_continues_the_drift_of_its_machine() {
    let mut job = quickstart();
    job.engine.args.extend(["--sim-launch-noise", "0.03", "--sim-drift", "0.1"].map(str::to_owned));
    (job.budget.trials, job.budget.confirm, job.budget.repeat_baseline) = (Some(6), Some(0), 0);
    let (_, whole) = simulate(&job).await;
    let trials = run_in_parts(&mut job, [3, 6]).await;
    let values = trials.into_iter().map(|scored| scored.score.value());
    let whole: Vec<_> = whole.into_iter().map(|(.., value, _)| value).collect();
    for (resumed, whole) in values.zip(&whole) {
        // The sums of the launches' durations are rounded differently.
        let difference = resumed.unwrap() / whole.unwrap() - 1.0;
        assert!(difference.abs() < 1e-6, "{resumed:?} {whole:?}");
    }
    assert_ne!(whole[0], None);
}

/// Returns a small study on a machine that reads weights more slowly than its preset.
fn slow_machine() -> Job {
    let mut job = quickstart();
    job.sampler = sampler::find("auto").unwrap();
    job.engine.args.extend(["--sim-physics", "weights=1.3,compute=1.3,attention=1.3"].map(str::to_owned));
    (job.budget.confirm, job.budget.repeat_baseline) = (Some(0), 0);
    (job.load.requests, job.load.concurrency, job.load.warmup) = (Some(24), Some(8), 0);
    job.space.space.parameters.retain(|parameter| parameter.name == "max-num-seqs");
    // Launches that take no time of the simulated clock would not be worth a calibration.
    job.engine.args.extend(["--sim-time-scale", "0.5"].map(str::to_owned));
    job.load.request_timeout = Duration::from_hours(1);
    job
}

#[tokio::test]
async fn the_trials_of_a_study_calibrate_the_twin() {
    let mut job = slow_machine();
    job.budget.trials = Some(3);
    let store = Store::in_memory().await.unwrap();
    let (sender, notices) = std::sync::mpsc::channel();
    let observer: Arc<EventObserver> = Arc::new(move |event| {
        if let TunerEvent::Notice { text } = event {
            // The receiver may be gone after the test.
            let _ = sender.send(text);
        }
    });
    let mut installed = detect(&job).await;
    let slots = Slots::resolve(&job, &mut installed).unwrap();
    let study = SimulatedStudy { job: &job, store: &store, installed, slots, observer };
    let study = study.run().await.unwrap().summary.study;
    let notices: Vec<_> = notices.try_iter().collect();
    assert!(notices.iter().any(|text| text.contains("calibrated by the trials of this study")), "{notices:?}");
    let (mut tried, mut unusable) = (Vec::new(), UnusableTrials::default());
    for scored in store.trials(&study).await.unwrap() {
        tried.extend(measured_trial(&store, &study, &scored.trial, None, &mut unusable).await.unwrap());
    }
    assert_eq!((tried.len(), unusable), (3, UnusableTrials::default()));
    let (installed, unknown) = (detect(&job).await, Calibration::none());
    let question = twin_question(&job, &installed, Config::new(), &unknown).unwrap();
    let calibrated = calibrate_from_trials(&question, &tried, 3).unwrap().factors;
    let weights = calibrated[TermFactor::Weights];
    assert!((1.2..1.4).contains(&weights), "{calibrated:?}");
}

#[tokio::test]
async fn a_resumed_study_has_the_same_calibrated_prior() {
    let mut job = slow_machine();
    job.budget.trials = Some(5);
    let (_, whole) = simulate(&job).await;
    let trials = run_in_parts(&mut job, [2, 5]).await;
    let resumed: Vec<_> = trials.iter().map(|scored| scored.trial.proposal.config.key()).collect();
    assert_eq!(resumed, whole.into_iter().map(|(_, key, ..)| key).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_deployment_outside_of_the_space_may_win_and_does_not_distort_the_model() {
    let mut job = quickstart();
    job.sampler = sampler::find("auto").unwrap();
    job.priors.clear();
    job.budget.trials = Some(12);
    // Fewer sequences at a time wait less for each token, and the deployment has fewer than the space.
    let (metric, goal) = ("mean_tpot_ms".to_owned(), Goal::Minimize);
    job.objective =
        Objective { metric, goal, constraints: Vec::new(), joint: None, price_per_hour: None, load_goal: None };
    job.space.space.parameters.retain(|parameter| parameter.name == "max-num-seqs");
    job.space.space.parameters[0].domain = Domain::int(16, 1024, IntScale::PowerOfTwo, 1);
    let flags = Config::new().with("max-num-seqs", 4_i64);
    job.deployment = Some(FirstPoint::deployment("serve.sh", flags));
    let store = Store::in_memory().await.unwrap();
    let mut installed = detect(&job).await;
    let slots = Slots::resolve(&job, &mut installed).unwrap();
    let study = SimulatedStudy { job: &job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let study = study.run().await.unwrap().summary.study;
    let verdict = store.judgement(&study).await.unwrap().unwrap();
    let best = store.leading_configurations(&study, goal, Some(&verdict), 1).await.unwrap();
    assert_eq!(best[0].first.trial.proposal.origin, Origin::Deployment);
    assert_eq!(verdict.remaining, None, "the model has not seen the best configuration");
    assert!(verdict.ranking.len() > 4, "{:?}", verdict.ranking);
    for expected in &verdict.ranking {
        let value = store.trial(&study, expected.trial).await.unwrap().unwrap().score.value().unwrap();
        let error = (expected.value - value).abs() / value;
        assert!(error < 0.2, "trial {}: {value} expected at {}", expected.trial, expected.value);
    }
}

#[tokio::test]
async fn the_budgets_time_ends_on_the_simulated_clock() {
    let mut job = quickstart();
    (job.budget.trials, job.budget.time) = (None, Some(Duration::from_hours(1)));
    let begin = std::time::Instant::now();
    let (run, trials) = simulate(&job).await;
    assert_eq!(run.summary.ending, StudyEnding::TimeSpent);
    assert!(run.elapsed <= Duration::from_hours(1) && run.elapsed > Duration::from_mins(50), "{:?}", run.elapsed);
    assert!(trials.len() > 3 && begin.elapsed() < Duration::from_hours(1), "{}", trials.len());
}

#[tokio::test]
async fn launches_at_the_same_time_end_in_the_order_of_the_simulated_clock() {
    let mut job = quickstart();
    job.budget.trials = Some(8);
    let alone = simulate(&job).await.0.elapsed;
    job.slots.get_or_insert_default().parallel = Some(4);
    let (run, trials) = simulate(&job).await;
    assert_eq!(run.summary.ending, StudyEnding::TrialsSpent);
    assert_eq!(trials.iter().filter(|(_, _, value, _)| value.is_some()).count(), 8 + 4, "four of them are unpaid");
    assert!(run.elapsed < alone, "{:?} {alone:?}", run.elapsed);
}

#[tokio::test]
async fn search_trials_that_cannot_win_end_early_and_save_time() {
    let mut job = quickstart();
    job.budget.trials = Some(14);
    (job.load.requests, job.load.duration) = (None, Some(Duration::from_mins(1)));
    job.load.window = crate::metrics::RunPart::Steady;
    job.objective.constraints.clear();
    let store = Store::in_memory().await.unwrap();
    let mut trials = Vec::new();
    for race in [false, true] {
        job.load.race = race;
        job.name = format!("race-{race}");
        let mut installed = detect(&job).await;
        let slots = Slots::resolve(&job, &mut installed).unwrap();
        let study = SimulatedStudy { job: &job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
        let run = study.run().await.unwrap();
        trials.push((run.elapsed, store.trials(&run.summary.study).await.unwrap()));
    }
    let [(whole, full), (raced, ended)] = &trials[..] else { panic!("two studies") };
    assert!(raced < whole, "{raced:?} {whole:?}");
    let (mut lost, mut precise) = (0, 0);
    for (full, ended) in full.iter().zip(ended) {
        let window = |scored: &crate::store::ScoredTrial| {
            scored.trial.outcome.measurement().and_then(|found| found.window.clone()).unwrap()
        };
        assert_eq!(window(full).saved_s, None, "{}", window(full).reason);
        let Some(saved_s) = window(ended).saved_s else { continue };
        let reason = window(ended).reason;
        let is_lost = reason.contains("stays below the best so far");
        assert!(!is_lost || ended.trial.proposal.origin.name() == "sobol", "{:?}", ended.trial.proposal);
        lost += usize::from(is_lost);
        precise += usize::from(reason.contains("a longer load would be of no use"));
        assert!(saved_s > 1.0, "{:?}", window(ended));
        let error = ended.score.value().unwrap() / full.score.value().unwrap() - 1.0;
        assert!(error.abs() < 0.05, "the short window estimates the same: {error}");
    }
    assert!(lost > 0 && precise > 0, "{lost} of the trials lost, {precise} ended as precise enough");
}

#[tokio::test]
async fn without_a_preset_of_the_device_there_is_no_simulated_study() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/any-server.toml")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("study.toml");
    std::fs::write(&file, text).unwrap();
    let job = Job::read(&file).unwrap();
    let store = Store::in_memory().await.unwrap();
    let mut installed = detect(&job).await;
    let slots = Slots::resolve(&job, &mut installed).unwrap();
    let study = SimulatedStudy { job: &job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let error = study.run().await.unwrap_err();
    assert!(matches!(&error, TuneError::NoTwin(why) if why.contains("does not simulate")), "{error}");
}

/// Returns a small study whose servers take live looks with this bias.
fn with_live_looks(bias: &str) -> Job {
    let mut job = quickstart();
    job.sampler = sampler::find("auto").unwrap();
    job.priors.clear();
    let looks = ["--sim-live-looks", "yes", "--sim-live-bias", bias, "--sim-startup-s", "60"];
    job.engine.args.extend(looks.map(str::to_owned));
    (job.load.requests, job.load.concurrency, job.load.warmup) = (Some(32), Some(16), 0);
    (job.budget.trials, job.budget.confirm, job.budget.repeat_baseline) = (Some(7), Some(1), 0);
    job.objective.constraints.clear();
    job
}

/// Runs a study, and returns its trials and notices.
async fn run_with_notices(job: &Job) -> (Vec<crate::store::ScoredTrial>, Vec<String>) {
    let store = Store::in_memory().await.unwrap();
    let (sender, notices) = std::sync::mpsc::channel();
    let observer: Arc<EventObserver> = Arc::new(move |event| {
        if let TunerEvent::Notice { text } = event {
            // The receiver may be gone after the test.
            let _ = sender.send(text);
        }
    });
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed).unwrap();
    let study = SimulatedStudy { job, store: &store, installed, slots, observer };
    let study = study.run().await.unwrap().summary.study;
    (store.trials(&study).await.unwrap(), notices.try_iter().collect())
}

#[tokio::test]
async fn servers_take_live_looks_that_cost_no_launch() {
    let job = with_live_looks("0");
    let (trials, notices) = run_with_notices(&job).await;
    let (looks, launches): (Vec<_>, Vec<_>) =
        trials.iter().map(|scored| &scored.trial).partition(|trial| trial.proposal.origin == Origin::LiveLook);
    assert_eq!(launches.len(), 7, "looks do not count for the budget");
    assert!(looks.len() >= 4 && looks.len() <= 10 * launches.len(), "{}", looks.len());
    for look in &looks {
        let server_of = look.proposal.server_of.unwrap();
        let server = &trials[server_of as usize].trial;
        assert!(server.launch.is_prepared && server.proposal.server_of.is_none() && server_of < look.proposal.number);
        assert_eq!((look.startup_s, &look.log), (None, &None));
        assert!(look.elapsed_s < server.elapsed_s / 2.0);
        let on_server = looks.iter().filter(|other| other.proposal.server_of == Some(server_of)).count();
        assert!(on_server <= 10, "{on_server} on one server");
    }
    assert!(launches[0].launch.is_prepared, "the defaults take looks");
    let confirmation = launches.iter().find(|trial| trial.proposal.origin == Origin::Confirmation).unwrap();
    assert!(!confirmation.launch.is_prepared, "a launch that decides is plain");
    assert!(!notices.iter().any(|text| text.contains("live looks disagree")), "{notices:?}");
    let (again, _) = run_with_notices(&job).await;
    let keys = |trials: &[crate::store::ScoredTrial]| -> Vec<String> {
        trials.iter().map(|scored| scored.trial.proposal.config.key()).collect()
    };
    assert_eq!(keys(&again), keys(&trials));
}

#[tokio::test]
async fn a_knob_whose_looks_differ_from_launches_is_launched_from_then_on() {
    let mut job = with_live_looks("1");
    job.budget.trials = Some(12);
    let (trials, notices) = run_with_notices(&job).await;
    let refuted: Vec<_> = notices.iter().filter(|text| text.contains("is launched from here on")).collect();
    assert!(!refuted.is_empty(), "{notices:?}");
    let last_look = trials.iter().rev().find(|scored| scored.trial.proposal.server_of.is_some()).unwrap();
    let server_of = last_look.trial.proposal.server_of.unwrap();
    let server = &trials[server_of as usize].trial.proposal.config;
    for flag in refuted.iter().filter_map(|text| text.split(' ').next()) {
        let on_server = trials.iter().filter(|scored| scored.trial.proposal.server_of == Some(server_of));
        for look in on_server {
            assert_eq!(look.trial.proposal.config.get(flag), server.get(flag), "{flag} of the last server");
        }
    }
}

#[tokio::test]
async fn live_looks_are_off_without_the_engine_the_key_or_a_model() {
    let (mut without_engine, mut without_key, mut without_model) =
        (with_live_looks("0"), with_live_looks("0"), with_live_looks("0"));
    without_engine.engine.args.retain(|word| !word.contains("live-looks") && word != "yes");
    without_key.live_looks = false;
    without_model.sampler = sampler::find("random").unwrap();
    for job in [without_engine, without_key, without_model] {
        let (trials, _) = run_with_notices(&job).await;
        assert!(trials.iter().all(|scored| scored.trial.proposal.server_of.is_none()));
        assert!(trials.iter().all(|scored| !scored.trial.launch.is_prepared));
    }
}
