//! One launch from spawn to outcome.

mod command;
mod devices;
mod gate;
mod longest_step;
mod retry;
mod sample;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use self::retry::Patience;
use crate::config::Config;
use crate::engine::{Filling, LogReader, Timeline, differences, own_models};
use crate::facts::MeasurementCondition;
use crate::server::{self, LeftBehind, Marker, Owed, Ready, ReadyCheck, Server, Spawn, SpawnError, StartError, finish};
use crate::store::{Study, now};
use crate::trial::{Failure, FailureKind, Launch, LaunchRecords, Outcome, PhaseTime, Startup, Trial};
use crate::tuner::scheduler::PendingTrial;
use crate::tuner::slots::Place;
use crate::tuner::watchdog::{self, BEREAVED_GRACE, Vitals, conclude};
use crate::tuner::{Ending, Event, Phase, Stop, TuneError, Tuner};

pub use self::command::command_line;
pub use self::longest_step::MeasuredPrefill;
pub(in crate::tuner) use self::retry::Unresolved;
pub use self::retry::{Pause, PauseEvidence};

/// How often a trial is launched again, on another port, because its port was taken.
const MOST_COLLISIONS: usize = 3;

/// How long an unhealthy engine may take to end: vLLM's watchdog looks every 5 s whether its engine has died.
pub(in crate::tuner) const DEATH_LIMIT: Duration = Duration::from_secs(7);

/// A server that is being interrupted gets this long before it is killed.
const INTERRUPTED_GRACE: Duration = Duration::from_secs(5);

/// The result of one launch.
pub(in crate::tuner) struct LaunchReport {
    pub(in crate::tuner) outcome: Outcome,
    /// If the server became ready.
    ready: Option<Ready>,
    pub(in crate::tuner) records: LaunchRecords,
    /// Processes that could not be ended. The trial is stored first.
    left_behind: Option<LeftBehind>,
}

impl LaunchReport {
    /// A report without a server that became ready.
    pub(in crate::tuner) fn new(outcome: Outcome, records: LaunchRecords) -> Self {
        Self { outcome, ready: None, records, left_behind: None }
    }

    fn failed_with(&self, kind: FailureKind) -> bool {
        matches!(&self.outcome, Outcome::Failed(failure) if failure.kind == kind)
    }
}

/// Why a server did not become ready.
enum Ended {
    Start(StartError),
    Alarm(watchdog::Alarm),
}

/// A trial with its outcome, not stored yet.
pub(in crate::tuner) struct EndedTrial {
    pub(in crate::tuner) trial: Trial,
    pub(in crate::tuner) records: LaunchRecords,
    /// Processes that could not be ended. The trial is stored first.
    pub(in crate::tuner) left_behind: Option<LeftBehind>,
}

/// A launch that is over, with what it had.
pub(in crate::tuner) struct Settled {
    pub(in crate::tuner) pending: PendingTrial,
    pub(in crate::tuner) place: Place,
    pub(in crate::tuner) result: Result<LaunchEnd, TuneError>,
}

/// The end of a trial's launches.
#[expect(clippy::large_enum_variant, reason = "one for each launch, and nearly all of them are outcomes")]
pub(in crate::tuner) enum LaunchEnd {
    Outcome(EndedTrial),
    /// Its environment failed until the patience ended.
    Unresolved(Box<Unresolved>),
    /// The run ends, and the trial is launched again by the next one.
    Ended(Ending),
}

impl From<Trial> for EndedTrial {
    /// A trial without a launch.
    fn from(trial: Trial) -> Self {
        Self { trial, records: LaunchRecords::default(), left_behind: None }
    }
}

/// Waits until the user has asked for at least this; for ever where nobody can ask any more.
pub(in crate::tuner) async fn asked(stop: &mut watch::Receiver<Stop>, what: Stop) {
    if stop.wait_for(|stop| *stop >= what).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Tuner<'_> {
    pub(in crate::tuner) async fn launched(&self, study: &Study, pending: PendingTrial, mut place: Place) -> Settled {
        let result = self.launch(study, &pending, &mut place).await;
        Settled { pending, place, result }
    }

    /// Launches a configuration and measures it. If its environment fails it is launched again, until the patience ends.
    async fn launch(&self, study: &Study, pending: &PendingTrial, place: &mut Place) -> Result<LaunchEnd, TuneError> {
        let proposal = &pending.proposal;
        let (number, config) = (proposal.number, &proposal.config);
        let log = self.log_path(number);
        let mut collisions = 0;
        let mut patience = Patience::new(pending.most_failures, Arc::clone(&pending.own_failures));
        loop {
            if !self.wait_for_memory(place, config).await {
                return Ok(LaunchEnd::Ended(Ending::Interrupted));
            }
            // In this order a trial never seems to end after it has.
            let (started_at, begin) = (now(), Instant::now());
            let ports = place.ports().map_err(TuneError::Port)?;
            let variables = self.variables(place, &ports, config);
            let filling = self.filling(place, &ports, &log, &variables);
            let command = command_line(self.job, &self.installed, config, Some(&filling))?;
            let launch = Launch::redacted(&command, filling.values(self.job.launch_env(self.installed.device, config)));
            self.begin(study, proposal, &launch, &started_at).await?;
            if let Some(placement) = place.placement(&ports) {
                self.store.place(study.id, number, &placement).await?;
            }
            let Some(report) = self.attempt(config, command, (&filling, variables), place).await? else {
                return Ok(LaunchEnd::Ended(Ending::Interrupted));
            };
            // Somebody else was quicker: another port may do at once.
            let again_at_once = report.failed_with(FailureKind::PortInUse) && collisions < MOST_COLLISIONS;
            collisions = if again_at_once { collisions + 1 } else { 0 };
            let LaunchReport { outcome, ready, records, left_behind } = report;
            if let Some(replies) = &records.replies {
                self.learn_prefill(config, replies);
            }
            let trial = Trial {
                proposal: proposal.clone(),
                launch,
                started_at,
                startup_s: ready.as_ref().map(|ready| ready.startup.as_secs_f64()),
                elapsed_s: begin.elapsed().as_secs_f64(),
                engine_version: ready.and_then(|ready| ready.version),
                log: Some(log.clone()),
                outcome: outcome.for_storage(),
                probe: None,
            };
            let ended = EndedTrial { trial, records, left_behind };
            if let Some(tried) = self.settle(study, &mut patience, ended, again_at_once).await? {
                return Ok(tried);
            }
        }
    }

    async fn attempt(
        &self,
        config: &Config,
        command: Vec<String>,
        (filling, variables): (&Filling, BTreeMap<String, String>),
        place: &mut Place,
    ) -> Result<Option<LaunchReport>, TuneError> {
        let phase_is = |phase| (self.observer)(Event::Phase { number: place.trial, phase });
        phase_is(Phase::Starting);
        let baselines = self.memory_before(place, config).await;
        let engine = &self.job.engine;
        let stop_command = engine.stop_command.as_ref().map(|words| filling.words(words));
        // Written down first: a tuner that is killed leaves it to the next one.
        let owed = stop_command.as_deref().map(|command| Owed::write(&filling.log, command)).transpose();
        let owed = owed.map_err(|source| TuneError::Log { path: filling.log.clone(), source })?;
        let mut env = filling.values(engine.env.clone());
        env.extend(variables);
        let spawn = Spawn {
            command,
            env,
            log: filling.log.clone(),
            marker: Marker::new(self.store.path(), &self.job.name, filling.trial),
            port: filling.port,
            processors: place.processors.clone(),
            stop_command,
            forwarded: engine.forwarded,
            api_key: engine.api_key().map(|key| server::ApiKey(key.to_owned())),
            tls: self.job.speaks_tls(self.installed.version),
            engine: Arc::clone(&engine.engine),
        };
        let mut server = match Server::spawn(&spawn) {
            Ok(server) => server,
            Err(SpawnError::Log { path, source }) => return Err(TuneError::Log { path, source }),
            Err(error) => {
                owed.into_iter().for_each(Owed::settle);
                let outcome = failed(FailureKind::Spawn, error.to_string());
                return Ok(Some(LaunchReport::new(outcome, LaunchRecords::default())));
            }
        };
        if engine.engine.log_reader().is_some() {
            server.own_models = own_models(config, &self.job.parameters().fixed);
        }
        // A tokenizer, for instance, may be that of the served model.
        server.own_models.retain(|name| *name != self.job.model.argument);
        let vitals = Vitals::start(self.vital_scope(&server, config, place), server.plain_url());
        let mut stop = self.stop.clone();
        let measured = tokio::select! {
            biased;
            () = asked(&mut stop, Stop::Gently) => None,
            measured = self.measure(&mut server, config, (&*place, &vitals)) => Some(measured),
        };
        phase_is(Phase::Stopping);
        let grace = if measured.is_some() { self.job.engine.stop_timeout } else { INTERRUPTED_GRACE };
        let grace = vitals.grace(grace);
        let grace = if server.has_exited() { grace.min(BEREAVED_GRACE) } else { grace };
        // What ends now is meant to.
        drop(vitals);
        let stopped = tokio::select! {
            biased;
            // Dropping the server kills it at once.
            () = asked(&mut stop, Stop::Now) => {
                // What the signals did not reach. Where it fails the next run does it.
                if let Some(owed) = owed
                    && finish(&owed.command, INTERRUPTED_GRACE).await.is_ok()
                {
                    owed.settle();
                }
                return Ok(None);
            }
            stopped = server.stop(grace) => stopped.err(),
        };
        if let (None, Some(owed)) = (&stopped, owed) {
            owed.settle();
        }
        match (measured, stopped) {
            (Some(measured), left_behind) => {
                if left_behind.is_none() {
                    self.memory_after(place, baselines).await;
                }
                Ok(Some(LaunchReport { left_behind, ..measured? }))
            }
            (None, Some(left_behind)) => Err(left_behind.into()),
            (None, None) => Ok(None),
        }
    }

    /// From spawn to numbers, or to the reason why there are none.
    async fn measure(
        &self,
        server: &mut Server,
        config: &Config,
        (place, vitals): (&Place, &Vitals),
    ) -> Result<LaunchReport, TuneError> {
        let (names, limit) = (self.served_names(), self.job.engine.startup_timeout);
        let reader = self.job.engine.engine.log_reader();
        let (spawned, mut timeline) = (Instant::now(), reader.map(LogReader::timeline));
        let see = &mut |line: &str, at| {
            if let Some(timeline) = &mut timeline {
                timeline.see(line, at);
            }
        };
        let check = ReadyCheck { names: &names, first: self.first_request() };
        let ready = tokio::select! {
            biased;
            ready = server.ready(&check, limit, see) => ready.map_err(Ended::Start),
            alarm = vitals.alarm() => Err(Ended::Alarm(alarm)),
        };
        let end = ready.as_ref().map_or_else(|_| spawned.elapsed(), |ready| ready.startup);
        let phases = timeline.map_or_else(Vec::new, |timeline: Timeline| timeline.end(end));
        let failure = match ready {
            Ok(ready) => {
                self.check_reported_release(place.trial, ready.version.as_deref())?;
                let startup = self.started(server, config, phases, place).await;
                return self.measure_ready(server, (ready, config), startup, (place, vitals)).await;
            }
            Err(Ended::Start(error)) => {
                let error = with_end(server, error).await;
                start_failure(server, error)
            }
            Err(Ended::Alarm(alarm)) => conclude(server, alarm, false).await,
        };
        let startup = Some(Startup { phases, ..Startup::default() });
        Ok(LaunchReport::new(Outcome::Failed(failure), LaunchRecords { startup, ..LaunchRecords::default() }))
    }

    /// From readiness to numbers, or to the reason why there are none.
    async fn measure_ready(
        &self,
        server: &mut Server,
        (ready, config): (Ready, &Config),
        startup: Startup,
        (place, vitals): (&Place, &Vitals),
    ) -> Result<LaunchReport, TuneError> {
        vitals.serve();
        // Nothing of ours may take the engine's processors while it is measured.
        self.inquiry.read().await.settled().await;
        let mut report = self.sample(server, (&ready.model, config), (place, vitals)).await?;
        // Requests to a dead engine fail at once, sooner than a death is noticed; its last process may take seconds to end.
        if let Outcome::Failed(failure) = &report.outcome
            && !vitals.has_told()
            && (vitals.raised().is_some() || !server.is_healthy().await)
        {
            let found = tokio::select! {
                biased;
                status = server.exited() => Ok(status),
                alarm = vitals.alarm() => Err(Some(alarm)),
                () = tokio::time::sleep(DEATH_LIMIT) => Err(None),
            };
            let failure = match found {
                Ok(status) => Some(crash(server, status)),
                Err(Some(alarm)) => Some(conclude(server, alarm, true).await),
                Err(None) => vitals.unanswered(failure),
            };
            report.outcome = failure.map_or(report.outcome, Outcome::Failed);
        }
        report.records.startup = Some(startup);
        Ok(LaunchReport { ready: Some(ready), ..report })
    }

    /// How a server that is ready has started, and whether it runs with what was asked for.
    async fn started(&self, server: &Server, config: &Config, phases: Vec<PhaseTime>, place: &Place) -> Startup {
        let mut conditions = tokio::task::spawn_blocking(MeasurementCondition::of_launch).await.unwrap_or_default();
        conditions.extend(self.gpu_conditions(place).await);
        let engine = &self.job.engine.engine;
        let Some(reader) = engine.log_reader() else { return Startup { phases, conditions, ..Startup::default() } };
        // Without its page the log tells most of it.
        let page = match engine.metrics() {
            Some(page) => server.page(&page.path).await.unwrap_or_default(),
            None => String::new(),
        };
        let seen = reader.resolved(&server.log_text(), &page);
        let asked = self.job.with_arguments(config, self.installed.version);
        let differences = differences(&asked, &seen);
        if !differences.is_empty() {
            (self.observer)(Event::Differs { number: place.trial, differences: differences.clone() });
        }
        Startup { phases, resolved: seen.shown(&asked), differences, conditions }
    }

    fn vital_scope(&self, server: &Server, config: &Config, place: &Place) -> watchdog::Scope {
        let (log, engine) = (server.log_path().to_owned(), &self.job.engine);
        let directories = [log.as_path(), self.store.path()].map(|file| match file.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory.to_owned(),
            _ => PathBuf::from("."),
        });
        watchdog::Scope {
            processes: server.processes(),
            log,
            directories: directories.to_vec(),
            stall: engine.stall_timeout,
            longest_step: self.longest_step(config),
            devices: self.devices(place, config).filter(|_| !watchdog::computes_on_another_host(&engine.command)),
            elsewhere: watchdog::computes_elsewhere(&engine.command),
            page: engine.engine.metrics(),
            title: engine.engine.process_title(),
        }
    }
}

pub(in crate::tuner) fn failed(kind: FailureKind, message: String) -> Outcome {
    Outcome::Failed(Failure { kind, message })
}

/// An engine that refuses its first request may be about to end, which tells more.
async fn with_end(server: &mut Server, error: StartError) -> StartError {
    if matches!(error, StartError::Refuses(_))
        && !server.is_healthy().await
        && let Ok(status) = tokio::time::timeout(DEATH_LIMIT, server.exited()).await
    {
        return StartError::Exited(status);
    }
    error
}

pub(in crate::tuner) fn start_failure(server: &Server, error: StartError) -> Failure {
    match error {
        StartError::Exited(status) => ended(server, status, false),
        StartError::Timeout(limit) => {
            let last = server.log_text().lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned);
            let last = last.unwrap_or_else(|| "nothing".to_owned());
            let message = format!("not ready within {limit:?}; the last line of its log: {last}");
            Failure { kind: FailureKind::StartupTimeout, message }
        }
        StartError::Client(error) => Failure { kind: FailureKind::Spawn, message: error.to_string() },
        StartError::WrongServer(message) => Failure { kind: FailureKind::WrongServer, message },
        StartError::Mute(message) => Failure { kind: FailureKind::Hang, message },
        StartError::Refuses(message) => {
            let message = format!("the first request, for one token, was refused: {message}");
            Failure { kind: FailureKind::RequestErrors, message }
        }
    }
}

/// An engine that ends under load has failed, whatever its exit code.
pub(in crate::tuner) fn crash(server: &Server, status: ExitStatus) -> Failure {
    ended(server, status, true)
}

fn ended(server: &Server, status: ExitStatus, under_load: bool) -> Failure {
    server.diagnose(Some(status), under_load)
}
