//! One launch from spawn to outcome.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::vitals::{self, Vitals, conclude};
use super::{Event, Installed, Phase, Stop, TuneError, Tuner};
use crate::config::Config;
use crate::engine::{LaunchSpec, diagnose};
use crate::flag::FlagError;
use crate::job::Job;
use crate::server::{HOST, LeftBehind, Marker, Ready, Server, Spawn, SpawnError, StartError, describe_exit, free_port};
use crate::store::{Begin, Study, now};
use crate::telemetry::Story;
use crate::trial::{Failure, FailureKind, Launch, Outcome, Trial};

/// How often a trial is launched again, on another port, because its port was taken.
const MOST_COLLISIONS: usize = 3;

/// How long an unhealthy engine may take to end: vLLM's watchdog looks every 5 s whether its engine has died.
pub(super) const DEATH_LIMIT: Duration = Duration::from_secs(8);

/// A server that is being interrupted gets this long before it is killed.
const INTERRUPTED_GRACE: Duration = Duration::from_secs(5);

/// What came of one launch.
struct Attempt {
    outcome: Outcome,
    /// Where the server became ready.
    ready: Option<Ready>,
    /// What was seen of the server meanwhile.
    story: Option<Story>,
}

impl Attempt {
    /// One in which no server became ready.
    fn unready(outcome: Outcome) -> Self {
        Self { outcome, ready: None, story: None }
    }

    fn failed_with(&self, kind: FailureKind) -> bool {
        matches!(&self.outcome, Outcome::Failed(failure) if failure.kind == kind)
    }
}

/// Why a server did not become ready.
enum Ended {
    Start(StartError),
    Alarm(vitals::Alarm),
}

/// A launch with an outcome.
pub(super) struct Launched {
    pub(super) trial: Trial,
    pub(super) story: Option<Story>,
    /// What could not be ended; the trial is stored first.
    pub(super) left_behind: Option<LeftBehind>,
}

impl From<Trial> for Launched {
    /// One without a launch.
    fn from(trial: Trial) -> Self {
        Self { trial, story: None, left_behind: None }
    }
}

/// Waits until the user has asked for at least this; for ever where nobody can ask any more.
pub(super) async fn asked(stop: &mut watch::Receiver<Stop>, what: Stop) {
    if stop.wait_for(|stop| *stop >= what).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The command line of a configuration; without a port, the engine's own default address is left to it.
///
/// # Errors
/// When the release does not have a flag of the configuration.
pub fn command_line(
    job: &Job,
    installed: &Installed,
    config: &Config,
    port: Option<u16>,
) -> Result<Vec<String>, FlagError> {
    let engine = &job.engine;
    let mut args = engine.args.clone();
    args.extend(engine.engine.version_args(installed.version));
    let (command, model) = (engine.command.as_slice(), job.model.argument.as_str());
    let address = port.map(|port| (HOST, port));
    LaunchSpec { command, model, config, args: &args, version: installed.version, address }.command_line()
}

impl Tuner<'_> {
    /// Launches a configuration and measures it; `None` when it was interrupted and is to be tried again.
    pub(super) async fn launch(
        &mut self,
        study: &Study,
        number: u32,
        proposed_by: &str,
        config: &Config,
    ) -> Result<Option<Launched>, TuneError> {
        let begin = Instant::now();
        let started_at = now();
        let log = self.log_directory().join(format!("trial-{number:04}.log"));
        let mut collisions = 0;
        let (launch, Attempt { outcome, ready, story }, left_behind) = loop {
            let port = free_port().map_err(TuneError::Port)?;
            let command = command_line(self.job, &self.installed, config, Some(port))?;
            let launch = Launch { command: command.clone(), env: self.job.launch_env() };
            let stored = Begin { number, proposed_by, config, launch: &launch, started_at: &started_at, log: &log };
            self.store.begin(study.id, &stored).await?;
            let Some((attempt, left_behind)) = self.attempt(number, command, port, log.clone()).await? else {
                return Ok(None);
            };
            // Somebody else was quicker: that says nothing about the configuration.
            if attempt.failed_with(FailureKind::PortInUse) && left_behind.is_none() && collisions < MOST_COLLISIONS {
                collisions += 1;
                continue;
            }
            break (launch, attempt, left_behind);
        };
        let trial = Trial {
            number,
            proposed_by: proposed_by.to_owned(),
            config: config.clone(),
            launch,
            started_at,
            startup_s: ready.as_ref().map(|ready| ready.startup.as_secs_f64()),
            elapsed_s: begin.elapsed().as_secs_f64(),
            engine_version: ready.and_then(|ready| ready.version),
            log: Some(log),
            outcome,
        };
        Ok(Some(Launched { trial, story, left_behind }))
    }

    async fn attempt(
        &mut self,
        number: u32,
        command: Vec<String>,
        port: u16,
        log: PathBuf,
    ) -> Result<Option<(Attempt, Option<LeftBehind>)>, TuneError> {
        (self.observer)(Event::Phase(Phase::Starting));
        let marker = Marker::new(self.store.path(), &self.job.name, number);
        let spawn = Spawn { command, env: self.job.engine.env.clone(), log, marker, port };
        let mut server = match Server::spawn(&spawn) {
            Ok(server) => server,
            Err(SpawnError::Log { path, source }) => return Err(TuneError::Log { path, source }),
            Err(error) => {
                let outcome = failed(FailureKind::Spawn, error.to_string());
                return Ok(Some((Attempt::unready(outcome), None)));
            }
        };
        let vitals = Vitals::start(self.vital_scope(&server), server.base_url());
        let mut stop = self.stop.clone();
        let measured = tokio::select! {
            biased;
            () = asked(&mut stop, Stop::Gently) => None,
            measured = self.measure(&mut server, &vitals) => Some(measured),
        };
        (self.observer)(Event::Phase(Phase::Stopping));
        let grace = if measured.is_some() { self.job.engine.stop_timeout } else { INTERRUPTED_GRACE };
        let grace = vitals.grace(grace);
        // What ends now is meant to.
        drop(vitals);
        let stopped = tokio::select! {
            biased;
            // Dropping the server kills it at once.
            () = asked(&mut stop, Stop::Now) => return Ok(None),
            stopped = server.stop(grace) => stopped.err(),
        };
        match (measured, stopped) {
            (Some(measured), left_behind) => Ok(Some((measured?, left_behind))),
            (None, Some(left_behind)) => Err(left_behind.into()),
            (None, None) => Ok(None),
        }
    }

    /// From spawn to numbers, or to the reason why there are none.
    async fn measure(&self, server: &mut Server, vitals: &Vitals) -> Result<Attempt, TuneError> {
        let (model, limit) = (self.served_model(), self.job.engine.startup_timeout);
        let ready = tokio::select! {
            biased;
            ready = server.ready(&model, limit) => ready.map_err(Ended::Start),
            alarm = vitals.alarm() => Err(Ended::Alarm(alarm)),
        };
        let failure = match ready {
            Ok(ready) => return self.measure_ready(server, ready, vitals).await,
            Err(Ended::Start(error)) => start_failure(server, error),
            Err(Ended::Alarm(alarm)) => conclude(server, alarm, false).await,
        };
        Ok(Attempt::unready(Outcome::Failed(failure)))
    }

    /// From readiness to numbers, or to the reason why there are none.
    async fn measure_ready(&self, server: &mut Server, ready: Ready, vitals: &Vitals) -> Result<Attempt, TuneError> {
        vitals.serve();
        // Nothing of ours may take the engine's processors while it is measured.
        self.inquiry.settled().await;
        let (mut outcome, story) = self.sample(server, &ready.model, vitals).await?;
        // Requests to a dead engine fail at once, sooner than a death is noticed; its last process may take seconds to end.
        if let Outcome::Failed(failure) = &outcome
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
            outcome = failure.map_or(outcome, Outcome::Failed);
        }
        Ok(Attempt { outcome, ready: Some(ready), story: Some(story) })
    }

    fn vital_scope(&self, server: &Server) -> vitals::Scope {
        let (log, engine) = (server.log_path().to_owned(), &self.job.engine);
        let directories = [log.as_path(), self.store.path()].map(|file| match file.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory.to_owned(),
            _ => PathBuf::from("."),
        });
        vitals::Scope {
            processes: server.processes(),
            log,
            directories: directories.to_vec(),
            stall: engine.stall_timeout,
            elsewhere: vitals::computes_elsewhere(&engine.command),
        }
    }

    /// The name under which the server serves the model.
    fn served_model(&self) -> String {
        let set = self.job.with_arguments(&self.job.parameters().fixed, self.installed.version);
        set.get_str("served-model-name").unwrap_or(&self.job.model.argument).to_owned()
    }
}

pub(super) fn failed(kind: FailureKind, message: String) -> Outcome {
    Outcome::Failed(Failure { kind, message })
}

pub(super) fn start_failure(server: &Server, error: StartError) -> Failure {
    match error {
        StartError::Exited(status) => diagnose(&server.log_text(), &describe_exit(status), FailureKind::StartupExit),
        StartError::Timeout(limit) => {
            let last = server.log_text().lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned);
            let last = last.unwrap_or_else(|| "nothing".to_owned());
            let message = format!("not ready within {limit:?}; the last line of its log: {last}");
            Failure { kind: FailureKind::StartupTimeout, message }
        }
        StartError::Client(error) => Failure { kind: FailureKind::Spawn, message: error.to_string() },
        StartError::WrongServer(message) => Failure { kind: FailureKind::WrongServer, message },
    }
}

/// An engine that ends under load has failed, whatever its exit code.
pub(super) fn crash(server: &Server, status: ExitStatus) -> Failure {
    let failure = diagnose(&server.log_text(), &describe_exit(status), FailureKind::Crash);
    match failure.kind {
        FailureKind::OutOfMemory | FailureKind::Crash => failure,
        _ => Failure { kind: FailureKind::Crash, ..failure },
    }
}
