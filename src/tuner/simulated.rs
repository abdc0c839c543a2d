//! Whole studies in virtual time: the twin predicts each launch, and the simulated clock advances to the next end of a
//! launch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::context::RunContext;
use super::estimate::startup_s;
use super::journal::Journal;
use super::launcher::{
    EndedOrder, EndedTrial, LaunchEnd, LaunchEvent, LaunchOrder, Launches, LookOrder, command_line, failed,
};
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

/// A running launch or live look on the simulated clock.
struct PredictedLaunch {
    task: PredictedTask,
    end: Duration,
    result: Result<EndedTrial, TuneError>,
}

/// The task that ends at a time of the simulated clock.
#[expect(clippy::large_enum_variant, reason = "one for each launch and look")]
enum PredictedTask {
    Launch(LaunchOrder),
    /// A live look on the server of this trial.
    Look(u32),
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

impl PredictedLaunch {
    /// Returns the time of the end, and the trial's number for equal times.
    fn order(&self) -> (Duration, u32) {
        let trial = match &self.task {
            PredictedTask::Launch(order) => order.place.trial,
            PredictedTask::Look(server_of) => *server_of,
        };
        (self.end, trial)
    }
}

/// Returns whether the server of a launch waits for live looks.
fn offers_looks(order: &LaunchOrder, ended: &EndedTrial) -> bool {
    order.pending.live_helper.is_some() && ended.trial.outcome.measurement().is_some()
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
    /// Measured servers that wait for live looks, by their trials.
    servers: BTreeMap<u32, LaunchOrder>,
    events: VecDeque<LaunchEvent>,
    /// Stops the run at the end of its time.
    stop: watch::Sender<StopRequest>,
}

impl<'l> PredictedLaunches<'l> {
    /// # Errors
    /// If the database cannot be read.
    async fn open(run: &'l StudyRun<'l>, stop: watch::Sender<StopRequest>) -> Result<Self, StoreError> {
        let (predicted, running, events) = (BTreeMap::new(), Vec::new(), VecDeque::new());
        let speeds = SimulatedSpeeds::of_study(run).await?;
        let (forecaster, servers) = (JobForecaster::new(run.job), BTreeMap::new());
        Ok(Self { run, forecaster, speeds, predicted, running, servers, events, stop })
    }

    /// Returns the trial that a launch would produce. It has no log and no processes.
    fn predict(&mut self, order: &LaunchOrder) -> Result<EndedTrial, TuneError> {
        let run = self.run;
        let proposal = order.pending.proposal.clone();
        let config = &proposal.config;
        let start_s = startup_s(run.job, &run.installed, config);
        let (race, expected) = (order.pending.race.as_deref(), order.pending.expected_load);
        let launch = self.load(config, (proposal.number, start_s), 1.0, race, expected)?;
        let is_measured = launch.outcome.measurement().is_some();
        let mut command = command_line(run.job, &run.installed, config, None)?;
        command.is_prepared = order.pending.live_helper.is_some();
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

    /// Returns the trial that a live look would produce. Its times are longer by the simulated bias.
    fn predict_look(&mut self, order: LookOrder) -> Result<EndedTrial, TuneError> {
        let run = self.run;
        let LookOrder { proposal, launch, race, expected_load, .. } = order;
        let engine = &run.job.engine;
        let bias = engine.engine.simulated(&engine.args).map_or(0.0, |simulated| simulated.live_bias);
        let place = (proposal.number, 0.0);
        let load = self.load(&proposal.config, place, 1.0 + bias, race.as_deref(), expected_load)?;
        let trial = Trial {
            launch,
            started_at: run.time.timestamp(),
            startup_s: None,
            elapsed_s: load.load_s,
            engine_version: Some(run.installed.version.to_string()),
            log: None,
            outcome: load.outcome,
            probe: None,
            proposal,
        };
        Ok(trial.into())
    }

    /// Returns the outcome of a load at the speed of its launch. `place` is the number of the trial, and the seconds until
    /// the load begins. `slowness` is a further factor on all times.
    fn load(
        &mut self,
        config: &Config,
        (number, start_s): (u32, f64),
        slowness: f64,
        race: Option<&RaceTarget>,
        expected: Option<f64>,
    ) -> Result<PredictedLoad, TuneError> {
        let is_plain = race.is_none() && expected.is_none() && slowness <= 1.0 && slowness >= 1.0;
        match &self.speeds {
            None if is_plain => self.undisturbed(config),
            None => self.forecast(config, slowness, race, expected),
            Some(_) => {
                let undisturbed = self.undisturbed(config)?;
                let drawn = self
                    .speeds
                    .as_ref()
                    .zip(undisturbed.outcome.measurement())
                    .map(|(speeds, _)| speeds.slowness(self.run, number, start_s + undisturbed.load_s / 2.0));
                drawn.map_or(Ok(undisturbed), |drawn| self.forecast(config, drawn * slowness, race, expected))
            }
        }
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
        self.running.push(PredictedLaunch { task: PredictedTask::Launch(order), end, result });
    }

    fn look(&mut self, server_of: u32, order: LookOrder) {
        let result = self.predict_look(order);
        let taken = result.as_ref().map_or(0.0, |ended| ended.trial.elapsed_s);
        let end = self.run.time.elapsed() + Duration::from_secs_f64(taken);
        self.running.push(PredictedLaunch { task: PredictedTask::Look(server_of), end, result });
    }

    fn release(&mut self, server_of: u32) {
        if let Some(order) = self.servers.remove(&server_of) {
            let result = Ok(LaunchEnd::Reported { left_behind: None });
            self.events.push_back(LaunchEvent::Ended(EndedOrder { order, result }));
        }
    }

    fn release_all(&mut self) {
        while let Some((server_of, _)) = self.servers.first_key_value() {
            self.release(*server_of);
        }
    }

    fn count(&self) -> usize {
        self.running.len()
    }

    fn event(&mut self) -> Option<LaunchEvent> {
        self.events.pop_front()
    }

    async fn wait(&mut self) -> bool {
        if !self.events.is_empty() {
            return true;
        }
        let Some(first) = (0..self.running.len()).min_by_key(|at| self.running[*at].order()) else { return false };
        let PredictedLaunch { task, end, result } = self.running.swap_remove(first);
        let limit = self.run.job.budget.time.unwrap_or(Duration::MAX);
        self.run.time.advance_to(end.min(limit));
        let is_late = end > limit;
        if is_late {
            self.stop.send_replace(StopRequest::Graceful);
        }
        let event = match (task, result) {
            (PredictedTask::Launch(order), Ok(ended)) if !is_late && offers_looks(&order, &ended) => {
                let helper = order.pending.live_helper.map_or(&[][..], |helper| helper.knobs);
                self.servers.insert(order.place.trial, order);
                LaunchEvent::Measured { ended: Box::new(ended), knobs: helper.to_vec() }
            }
            (PredictedTask::Launch(order), result) => {
                let result = result.map(|ended| {
                    if is_late { LaunchEnd::RunEnded(StudyEnding::Interrupted) } else { LaunchEnd::Outcome(ended) }
                });
                LaunchEvent::Ended(EndedOrder { order, result })
            }
            (PredictedTask::Look(_), Ok(ended)) if !is_late => {
                let is_usable = ended.trial.outcome.measurement().is_some();
                LaunchEvent::Looked { ended: Box::new(ended), is_usable }
            }
            (PredictedTask::Look(server_of), result) => {
                let Some(order) = self.servers.remove(&server_of) else { return !self.events.is_empty() };
                let result = result.map(|_| LaunchEnd::RunEnded(StudyEnding::Interrupted));
                LaunchEvent::Ended(EndedOrder { order, result })
            }
        };
        self.events.push_back(event);
        true
    }

    // The clock stands still meanwhile.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T {
        work.await
    }
}

#[cfg(test)]
#[path = "simulated_tests.rs"]
mod tests;
