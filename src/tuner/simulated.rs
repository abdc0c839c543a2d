//! Whole studies in virtual time: the twin predicts each launch, and the simulated clock advances to the next end of a
//! launch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::context::RunContext;
use super::estimate::startup_s;
use super::journal::Journal;
use super::launcher::{EndedOrder, EndedTrial, LaunchEnd, LaunchOrder, Launches, command_line, failed};
use super::preflighter::Preflighter;
use super::run::StudyRun;
use super::scheduler::Scheduler;
use super::simulated_speed::SimulatedSpeeds;
use super::study_priors::twin_question;
use super::time::RunTime;
use super::{EventObserver, RunSummary, Slots, StopRequest, StudyEnding, TuneError, TunerEvent, run, steps};
use crate::config::Config;
use crate::execution::ExecutionEnvironment;
use crate::facts::{TrialContext, TrialDevices};
use crate::job::Job;
use crate::metrics::RaceTarget;
use crate::predict::{ForecastResult, JobForecaster, PredictError};
use crate::store::{Store, StoreError};
use crate::trial::{FailureKind, LaunchCommand, LaunchRecords, Outcome, Replies, Trial};
use crate::twin::{Calibration, Factors};

/// A study whose launches the twin predicts.
///
/// Scheduler, rules, sampler and database are those of a run with servers. The budget's time counts on a simulated
/// clock. It starts at zero and advances to the next end of a launch. A launch takes as long as its predicted start and
/// load. Concurrent launches do not disturb each other. Two launches of a configuration have equal outcomes, unless the
/// engine's arguments request noise (`--sim-launch-noise`, `--sim-drift`). Then each launch has the speed that the
/// process of the simulated engine would draw. The drift is that of the middle of the launch's load.
pub struct SimulatedStudy<'a> {
    pub job: &'a Job,
    pub store: &'a Store,
    pub installed: ExecutionEnvironment,
    pub slots: Slots,
    pub observer: Arc<EventObserver>,
}

impl std::fmt::Debug for SimulatedStudy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedStudy").field("study", &self.job.name).finish_non_exhaustive()
    }
}

/// A finished run of a simulated study.
#[derive(Debug)]
pub struct SimulatedRun {
    pub summary: RunSummary,
    /// The duration of the run on its own clock.
    pub elapsed: Duration,
}

impl SimulatedStudy<'_> {
    /// Runs the study, or resumes it, until one of the reasons in `StudyEnding` ends the run.
    ///
    /// # Errors
    /// If the twin has no preset of the device, the load cannot be driven, or the database cannot be used.
    pub async fn run(self) -> Result<SimulatedRun, TuneError> {
        let Self { job, store, installed, slots, observer } = self;
        installed.preset(job).map_err(TuneError::NoTwin)?;
        let study = run::find_or_create_study(job, store).await?;
        let (stop, stopped) = watch::channel(StopRequest::No);
        let device = TrialDevices::described(installed.device);
        let run = StudyRun { job, store, study, installed, slots, observer, stop: stopped, time: RunTime::simulated() };
        let present = TrialContext { device, ..TrialContext::default() };
        let context = RunContext::new(&run, false, present);
        let preflighter = Preflighter::new(&run, None);
        let journal = Journal::new(&run, &context);
        let scheduler = Scheduler::open(&run, &journal, &preflighter).await?;
        let ending = match steps::execute_steps(&run, scheduler, PredictedLaunches::open(&run, stop).await?).await? {
            StudyEnding::Interrupted => StudyEnding::TimeSpent,
            ending => ending,
        };
        run.emit(TunerEvent::RunEnded(ending.clone()));
        let elapsed = run.time.elapsed();
        Ok(SimulatedRun { summary: RunSummary { study: run.study, ending }, elapsed })
    }
}

/// A running launch on the simulated clock.
struct PredictedLaunch {
    order: LaunchOrder,
    end: Duration,
    result: Result<EndedTrial, TuneError>,
}

/// The outcome of a predicted load.
#[derive(Clone, Debug)]
struct PredictedLoad {
    outcome: Outcome,
    /// Seconds of the load, with its warm-up.
    load_s: f64,
    /// The times of its requests, if they can calibrate the twin.
    replies: Option<Replies>,
}

/// Launches whose outcomes are predicted when they start.
struct PredictedLaunches<'l> {
    run: &'l StudyRun<'l>,
    forecaster: JobForecaster,
    /// The speeds of the launches, if they vary.
    speeds: Option<SimulatedSpeeds>,
    /// Predictions at the undisturbed speed by the keys of their configurations, since confirmations repeat
    /// configurations.
    predicted: BTreeMap<String, PredictedLoad>,
    running: Vec<PredictedLaunch>,
    ended: VecDeque<EndedOrder>,
    /// Stops the run at the end of its time.
    stop: watch::Sender<StopRequest>,
}

impl<'l> PredictedLaunches<'l> {
    /// # Errors
    /// If the database cannot be read.
    async fn open(run: &'l StudyRun<'l>, stop: watch::Sender<StopRequest>) -> Result<Self, StoreError> {
        let (predicted, running, ended) = (BTreeMap::new(), Vec::new(), VecDeque::new());
        let speeds = SimulatedSpeeds::of_study(run).await?;
        Ok(Self { run, forecaster: JobForecaster::new(run.job), speeds, predicted, running, ended, stop })
    }

    /// Returns the trial that a launch would produce. It has no log and no processes.
    fn predict(&mut self, order: &LaunchOrder) -> Result<EndedTrial, TuneError> {
        let run = self.run;
        let proposal = order.pending.proposal.clone();
        let config = &proposal.config;
        let start_s = startup_s(run.job, &run.installed, config);
        let (race, expected) = (order.pending.race.as_deref(), order.pending.expected_load);
        let launch = match &self.speeds {
            None if race.is_none() && expected.is_none() => self.undisturbed(config)?,
            None => self.forecast(config, 1.0, race, expected)?,
            Some(_) => {
                let undisturbed = self.undisturbed(config)?;
                let slowness = self
                    .speeds
                    .as_ref()
                    .zip(undisturbed.outcome.measurement())
                    .map(|(speeds, _)| speeds.slowness(run, proposal.number, start_s + undisturbed.load_s / 2.0));
                slowness.map_or(Ok(undisturbed), |slowness| self.forecast(config, slowness, race, expected))?
            }
        };
        let is_measured = launch.outcome.measurement().is_some();
        let command = command_line(run.job, &run.installed, config, None)?;
        let trial = Trial {
            launch: LaunchCommand::redacted(&command, run.job.launch_env(run.installed.device, config)),
            started_at: run.time.timestamp(),
            startup_s: is_measured.then_some(start_s),
            elapsed_s: start_s + if is_measured { launch.load_s } else { 0.0 },
            engine_version: Some(run.installed.version.to_string()),
            log: None,
            outcome: launch.outcome,
            probe: None,
            proposal,
        };
        let records = LaunchRecords { replies: launch.replies, ..LaunchRecords::default() };
        Ok(EndedTrial { records, ..EndedTrial::from(trial) })
    }

    /// Returns the outcome of a configuration at the undisturbed speed.
    fn undisturbed(&mut self, config: &Config) -> Result<PredictedLoad, TuneError> {
        let key = config.key();
        if let Some(known) = self.predicted.get(&key) {
            return Ok(known.clone());
        }
        let launch = self.forecast(config, 1.0, None, None)?;
        self.predicted.insert(key, launch.clone());
        Ok(launch)
    }

    fn forecast(
        &self,
        config: &Config,
        slowness: f64,
        race: Option<&RaceTarget>,
        expected_load: Option<f64>,
    ) -> Result<PredictedLoad, TuneError> {
        let job = self.run.job;
        let engine = &job.engine;
        let physics = engine.engine.simulated(&engine.args).map_or(Factors::ONE, |simulated| simulated.physics);
        let calibration = Calibration::none().with_factors(physics);
        let question = twin_question(job, &self.run.installed, config.clone(), &calibration);
        let question = question.map_err(TuneError::NoTwin)?;
        let outcome = match self.forecaster.forecast_launch(&question, slowness, race, expected_load) {
            Ok(ForecastResult { outcome: Outcome::Rejected(refused), .. }) => {
                // A real engine does not reject a launch: it exits during its start.
                failed(FailureKind::StartupExit, refused.message)
            }
            Ok(ForecastResult { outcome, load_s, replies, .. }) => {
                return Ok(PredictedLoad { outcome, load_s, replies });
            }
            Err(PredictError::Load(error)) => return Err(error.into()),
            Err(error @ PredictError::Settings(_)) => failed(FailureKind::StartupExit, error.to_string()),
            Err(error @ PredictError::Request(_)) => failed(FailureKind::RequestErrors, error.to_string()),
        };
        Ok(PredictedLoad { outcome, load_s: 0.0, replies: None })
    }
}

impl Launches for PredictedLaunches<'_> {
    fn start(&mut self, order: LaunchOrder) {
        let result = self.predict(&order);
        let taken = result.as_ref().map_or(0.0, |ended| ended.trial.elapsed_s);
        let end = self.run.time.elapsed() + Duration::from_secs_f64(taken);
        self.running.push(PredictedLaunch { order, end, result });
    }

    fn count(&self) -> usize {
        self.running.len()
    }

    fn ended(&mut self) -> Option<EndedOrder> {
        self.ended.pop_front()
    }

    async fn wait(&mut self) -> bool {
        let order = |launch: &PredictedLaunch| (launch.end, launch.order.place.trial);
        let Some(first) = (0..self.running.len()).min_by_key(|at| order(&self.running[*at])) else {
            return !self.ended.is_empty();
        };
        let PredictedLaunch { order, end, result } = self.running.swap_remove(first);
        let limit = self.run.job.budget.time.unwrap_or(Duration::MAX);
        self.run.time.advance_to(end.min(limit));
        let result = result.map(|ended| {
            if end > limit {
                self.stop.send_replace(StopRequest::Graceful);
                return LaunchEnd::RunEnded(StudyEnding::Interrupted);
            }
            LaunchEnd::Outcome(ended)
        });
        self.ended.push_back(EndedOrder { order, result });
        true
    }

    // The clock stands still meanwhile.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T {
        work.await
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::execution::{UnusableTrials, detect, measured_trial};
    use crate::job::FirstPoint;
    use crate::objective::{Goal, Objective};
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
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/any-server.toml")).unwrap();
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
}
