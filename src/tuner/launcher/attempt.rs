//! One server from spawn to its last process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::command::{first_request, served_names};
use super::devices::{gpu_conditions, launch_devices};
use super::failure::{DEATH_LIMIT, alarm_failure, crash, failed, prefer_exit, start_failure};
use super::load_test::LoadTest;
use super::look::{LookServer, ServerLink};
use super::reply_check::ReplyCheck;
use super::{EndedTrial, Launcher};
use crate::config::Config;
use crate::engine::{LogReader, PhaseTimeline, PlaceholderValues, own_models};
use crate::facts::MeasurementCondition;
use crate::metrics::RaceTarget;
use crate::server::{
    self, LeftBehind, LiveControl, Marker, PendingStop, ReadyCheck, ReadyServer, Server, SpawnError, SpawnParameters,
    StartError, run_to_success,
};
use crate::trial::{FailureKind, LaunchRecords, Origin, Outcome, PhaseTime, Startup};
use crate::tuner::run::StudyRun;
use crate::tuner::slots::SlotPlace;
use crate::tuner::watchdog::{
    DEAD_ENGINE_GRACE, WatchScope, Watchdog, WatchdogAlarm, computes_elsewhere, computes_on_another_host,
};
use crate::tuner::{StopRequest, TrialPhase, TuneError, TunerEvent};

/// Grace period of an interrupted server before it is killed.
const INTERRUPTED_GRACE: Duration = Duration::from_secs(5);

/// The result of one launch.
pub(super) struct LaunchReport {
    pub(super) outcome: Outcome,
    /// Data of the server, if it became ready.
    pub(super) ready: Option<ReadyServer>,
    pub(super) records: LaunchRecords,
    /// Whether a waiting process forked the server.
    pub(super) is_fast: bool,
    /// Processes that could not be ended. The trial is stored first.
    pub(super) left_behind: Option<LeftBehind>,
}

impl LaunchReport {
    /// Creates a report without a server that became ready.
    pub(super) fn new(outcome: Outcome, records: LaunchRecords) -> Self {
        Self { outcome, ready: None, records, is_fast: false, left_behind: None }
    }

    pub(super) fn failed_with(&self, kind: FailureKind) -> bool {
        matches!(&self.outcome, Outcome::Failed(failure) if failure.kind == kind)
    }
}

/// The reason why a server did not become ready.
enum StartFailure {
    Failed(StartError),
    Alarm(WatchdogAlarm),
}

/// The end of a launch.
#[expect(clippy::large_enum_variant, reason = "one for each launch")]
pub(super) enum AttemptEnd {
    Report(LaunchReport),
    /// The measurement and the live looks were reported while the server ran.
    Reported {
        left_behind: Option<LeftBehind>,
    },
}

/// The live looks that a launch offers once it is measured.
pub(super) struct LookOffer<'l> {
    pub(super) control: LiveControl,
    pub(super) link: &'l mut ServerLink,
    /// Builds the trial of the launch from its report.
    pub(super) to_trial: &'l (dyn Fn(LaunchReport) -> EndedTrial + Sync),
}

/// One launch of a configuration.
pub(super) struct LaunchAttempt<'l> {
    pub(super) launcher: &'l Launcher<'l>,
    pub(super) origin: &'l Origin,
    pub(super) config: &'l Config,
    pub(super) place: &'l SlotPlace,
    /// Values for the placeholders in the study's words.
    pub(super) placeholders: &'l PlaceholderValues,
    /// The value that the load must be able to reach.
    pub(super) race: Option<&'l RaceTarget>,
    /// The expected value of the highest load.
    pub(super) expected_load: Option<f64>,
}

impl LaunchAttempt<'_> {
    fn study(&self) -> &StudyRun<'_> {
        self.launcher.run
    }

    fn enter(&self, phase: TrialPhase) {
        self.study().emit(TunerEvent::Phase { number: self.place.trial, phase });
    }

    /// Starts the server, measures it, lets it take live looks if it offers them, and ends it. Returns `None` if the user
    /// requests a stop meanwhile.
    ///
    /// # Errors
    /// If the log cannot be written, the server reports another release, the load cannot be driven, or an interrupted
    /// server leaves processes behind.
    pub(super) async fn run(
        &self,
        command: Vec<String>,
        variables: BTreeMap<String, String>,
        mut offer: Option<LookOffer<'_>>,
    ) -> Result<Option<AttemptEnd>, TuneError> {
        let run = self.study();
        let (engine, filling) = (&run.job.engine, self.placeholders);
        let stop_command = engine.stop_command.as_ref().map(|words| filling.fill_words(words));
        // The stop command is written down first, so that the next tuner runs it if this one is killed.
        let owed = stop_command.as_deref().map(|command| PendingStop::write(&filling.log, command)).transpose();
        let owed = owed.map_err(|source| TuneError::Log { path: filling.log.clone(), source })?;
        let mut spawn = self.spawn(command, variables, stop_command);
        let fast_starts = &self.launcher.fast_starts;
        spawn.fast = tokio::select! {
            biased;
            // A command that can start fast has no stop command that would have to run.
            () = run.wait_for_stop(StopRequest::Graceful) => return Ok(None),
            order = fast_starts.order(run, self.launcher.context, self.origin, &spawn) => order,
        };
        let mut spawned = Server::spawn(&spawn);
        if let Err(error @ SpawnError::Fork { .. }) = &spawned {
            fast_starts.refuse(self.launcher.context, &error.to_string());
            spawn.fast = None;
            spawned = Server::spawn(&spawn);
        }
        let mut server = match spawned {
            Ok(server) => server,
            Err(SpawnError::Log { path, source }) => return Err(TuneError::Log { path, source }),
            Err(error) => {
                owed.into_iter().for_each(PendingStop::remove);
                let outcome = failed(FailureKind::Spawn, error.to_string());
                return Ok(Some(AttemptEnd::Report(LaunchReport::new(outcome, LaunchRecords::default()))));
            }
        };
        if engine.engine.log_reader().is_some() {
            server.own_models = own_models(self.config, &run.job.search_space().fixed);
        }
        // A parameter such as the tokenizer may name the served model itself.
        server.own_models.retain(|name| *name != run.job.model.argument);
        let watchdog = Watchdog::start(self.watch_scope(&server), server.plain_url());
        let measured = tokio::select! {
            biased;
            () = run.wait_for_stop(StopRequest::Graceful) => None,
            measured = self.measure_and_look(&mut server, &watchdog, offer.as_mut()) => Some(measured),
        };
        self.enter(TrialPhase::Stopping);
        let grace = if measured.is_some() { engine.stop_timeout } else { INTERRUPTED_GRACE };
        let grace = watchdog.grace(grace);
        let grace = if server.has_exited() { grace.min(DEAD_ENGINE_GRACE) } else { grace };
        // The processes that end from now on are stopped on purpose.
        drop(watchdog);
        let stopped = tokio::select! {
            biased;
            // Dropping the server kills it at once.
            () = run.wait_for_stop(StopRequest::Immediate) => {
                // The stop command ends processes that the signals did not reach. If it fails, the next run repeats it.
                if let Some(owed) = owed
                    && run_to_success(&owed.command, INTERRUPTED_GRACE).await.is_ok()
                {
                    owed.remove();
                }
                return Ok(None);
            }
            stopped = server.stop(grace) => stopped.err(),
        };
        if let (None, Some(owed)) = (&stopped, owed) {
            owed.remove();
        }
        match (measured, stopped) {
            (Some(measured), left_behind) => Ok(Some(match measured? {
                Some(report) => AttemptEnd::Report(LaunchReport { left_behind, ..report }),
                None => AttemptEnd::Reported { left_behind },
            })),
            (None, Some(left_behind)) => Err(left_behind.into()),
            (None, None) => Ok(None),
        }
    }

    fn spawn(
        &self,
        command: Vec<String>,
        variables: BTreeMap<String, String>,
        stop_command: Option<Vec<String>>,
    ) -> SpawnParameters {
        let (run, filling) = (self.study(), self.placeholders);
        let engine = &run.job.engine;
        let mut env = filling.fill_variables(engine.env.clone());
        env.extend(variables);
        SpawnParameters {
            command,
            env,
            log: filling.log.clone(),
            marker: Marker::new(run.store.path(), &run.job.name, filling.trial),
            port: filling.port,
            processors: self.place.processors.clone(),
            stop_command,
            forwarded: engine.has_forwarded_port,
            api_key: engine.api_key().map(|key| server::ServerKey(key.to_owned())),
            tls: run.job.speaks_tls(run.installed.version),
            fast: None,
            engine: Arc::clone(&engine.engine),
        }
    }

    fn watch_scope(&self, server: &Server) -> WatchScope {
        let run = self.study();
        let (log, engine) = (server.log_path().to_owned(), &run.job.engine);
        let directories = [log.as_path(), run.store.path()].map(|file| match file.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory.to_owned(),
            _ => PathBuf::from("."),
        });
        WatchScope {
            processes: server.processes(),
            log,
            directories: directories.to_vec(),
            stall: engine.stall_timeout,
            longest_step: self.launcher.step_forecast.longest_step(self.config),
            devices: launch_devices(run, self.place, self.config)
                .filter(|_| !computes_on_another_host(&engine.command)),
            elsewhere: computes_elsewhere(&engine.command),
            page: engine.engine.metrics(),
            title: engine.engine.process_title(),
        }
    }

    /// Starts the server and measures it. A measured server takes live looks, if it offers them. Then the report is
    /// passed on at once, and `None` is returned.
    async fn measure_and_look(
        &self,
        server: &mut Server,
        watchdog: &Watchdog,
        offer: Option<&mut LookOffer<'_>>,
    ) -> Result<Option<LaunchReport>, TuneError> {
        let report = LaunchReport { is_fast: server.is_fast(), ..self.measure(server, watchdog).await? };
        let (Some(offer), Some(ready), Outcome::Measured(_)) = (offer, report.ready.clone(), &report.outcome) else {
            return Ok(Some(report));
        };
        let knobs = match offer.control.knobs() {
            Ok(knobs) => knobs,
            Err(error) => {
                self.launcher.refuse_live_looks(&error.to_string());
                return Ok(Some(report));
            }
        };
        let ended = (offer.to_trial)(report);
        let looks = LookServer { attempt: self, server, watchdog, control: &mut offer.control, knobs };
        looks.serve(ended, &ready, offer.link).await?;
        Ok(None)
    }

    /// Starts the server and measures it. The report has the measurement, or the reason why there is none.
    async fn measure(&self, server: &mut Server, watchdog: &Watchdog) -> Result<LaunchReport, TuneError> {
        let run = self.study();
        let (names, limit) = (served_names(run), run.job.engine.startup_timeout);
        let reader = run.job.engine.engine.log_reader();
        let (spawned, mut timeline) = (Instant::now(), reader.map(LogReader::timeline));
        let see = &mut |line: &str, at| {
            if let Some(timeline) = &mut timeline {
                timeline.process_line(line, at);
            }
        };
        let check = ReadyCheck { names: &names, first: first_request(run.job) };
        let ready = tokio::select! {
            biased;
            ready = server.wait_until_ready(&check, limit, see) => ready.map_err(StartFailure::Failed),
            alarm = watchdog.alarm() => Err(StartFailure::Alarm(alarm)),
        };
        let end = ready.as_ref().map_or_else(|_| spawned.elapsed(), |ready| ready.startup);
        let phases = timeline.map_or_else(Vec::new, |timeline: PhaseTimeline| timeline.end(end));
        let failure = match ready {
            Ok(ready) => {
                self.launcher.context.check_reported_release(self.place.trial, ready.version.as_deref())?;
                let startup = self.startup(server, phases).await;
                return self.measure_ready(server, watchdog, ready, startup).await;
            }
            Err(StartFailure::Failed(error)) => {
                let error = prefer_exit(server, error).await;
                start_failure(server, error)
            }
            Err(StartFailure::Alarm(alarm)) => alarm_failure(server, alarm, false).await,
        };
        let startup = Some(Startup { phases, ..Startup::default() });
        Ok(LaunchReport::new(Outcome::Failed(failure), LaunchRecords { startup, ..LaunchRecords::default() }))
    }

    /// Measures a ready server. The report has the measurement, or the reason why there is none.
    async fn measure_ready(
        &self,
        server: &mut Server,
        watchdog: &Watchdog,
        ready: ReadyServer,
        startup: Startup,
    ) -> Result<LaunchReport, TuneError> {
        watchdog.mark_ready();
        // The preflight must not use the engine's processors during the measurement.
        self.launcher.preflighter.wait_for_import().await;
        let Self { launcher, config, place, race, expected_load, .. } = *self;
        let Launcher { run, context, .. } = *launcher;
        let test = LoadTest { run, context, config, number: place.trial, place, watchdog, race, expected_load };
        let mut report = test.run(server, &ready.model).await?;
        // Requests to a dead engine fail at once, before the watchdog notices the death. Its last process may take
        // seconds to end.
        if let Outcome::Failed(failure) = &report.outcome
            && !watchdog.has_ended_load()
            && (watchdog.raised().is_some() || !server.is_healthy().await)
        {
            let found = tokio::select! {
                biased;
                status = server.wait_for_exit() => Ok(status),
                alarm = watchdog.alarm() => Err(Some(alarm)),
                () = tokio::time::sleep(DEATH_LIMIT) => Err(None),
            };
            let failure = match found {
                Ok(status) => Some(crash(server, status)),
                Err(Some(alarm)) => Some(alarm_failure(server, alarm, true).await),
                Err(None) => watchdog.unanswered(failure),
            };
            report.outcome = failure.map_or(report.outcome, Outcome::Failed);
        }
        if let Outcome::Measured(measurement) = &mut report.outcome {
            let check = ReplyCheck { run: launcher.run, config, number: place.trial, model: &ready.model };
            report.records.answers = check.run(server, measurement).await?;
        }
        report.records.startup = Some(startup);
        Ok(LaunchReport { ready: Some(ready), ..report })
    }

    /// Returns the phases of a ready server's start, and the differences between its resolved and its requested values.
    async fn startup(&self, server: &Server, phases: Vec<PhaseTime>) -> Startup {
        let run = self.study();
        let mut conditions = tokio::task::spawn_blocking(MeasurementCondition::of_launch).await.unwrap_or_default();
        conditions.extend(gpu_conditions(run, self.place).await);
        let engine = &run.job.engine.engine;
        let Some(reader) = engine.log_reader() else { return Startup { phases, conditions, ..Startup::default() } };
        // Without a metrics page the log contains most of the resolved values.
        let page = match engine.metrics() {
            Some(page) => server.page(&page.path).await.unwrap_or_default(),
            None => String::new(),
        };
        let seen = reader.read_reported_config(&server.log_text(), &page);
        let asked = run.with_engine_args(self.config);
        let differences = reader.differences(&asked, &seen);
        if !differences.is_empty() {
            run.emit(TunerEvent::ResolvedValuesDiffer { number: self.place.trial, differences: differences.clone() });
        }
        Startup { phases, resolved: seen.reported_values(&asked), differences, conditions }
    }
}
