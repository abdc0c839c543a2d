//! One launch from spawn to outcome.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Event, Installed, Phase, Stop, TuneError, Tuner};
use crate::config::Config;
use crate::engine::{LaunchSpec, Timeline, diagnose, differences, resolved};
use crate::flag::FlagError;
use crate::job::Job;
use crate::server::{HOST, LeftBehind, Marker, Ready, Server, Spawn, SpawnError, StartError, describe_exit, free_port};
use crate::store::{Begin, Study, now};
use crate::telemetry::Story;
use crate::trial::{Failure, FailureKind, Launch, Outcome, PhaseTime, Startup, Trial};

/// How often a trial is launched again, on another port, because its port was taken.
const MOST_COLLISIONS: usize = 3;

/// How long an unhealthy engine may take to end: vLLM's watchdog looks every 5 s whether its engine has died.
const DEATH_LIMIT: Duration = Duration::from_secs(8);

/// A server that is being interrupted gets this long before it is killed.
const INTERRUPTED_GRACE: Duration = Duration::from_secs(5);

/// What came of one launch.
struct Attempt {
    outcome: Outcome,
    /// Where the server became ready.
    ready: Option<Ready>,
    /// How far it came, where there was a process.
    startup: Option<Startup>,
    /// What was seen of the server meanwhile.
    story: Option<Story>,
}

impl Attempt {
    /// One in which no server became ready.
    fn unready(outcome: Outcome, startup: Option<Startup>) -> Self {
        Self { outcome, ready: None, startup, story: None }
    }

    fn failed_with(&self, kind: FailureKind) -> bool {
        matches!(&self.outcome, Outcome::Failed(failure) if failure.kind == kind)
    }
}

/// A launch with an outcome.
pub(super) struct Launched {
    pub(super) trial: Trial,
    pub(super) startup: Option<Startup>,
    pub(super) story: Option<Story>,
    /// What could not be ended; the trial is stored first.
    pub(super) left_behind: Option<LeftBehind>,
}

impl From<Trial> for Launched {
    /// One without a launch.
    fn from(trial: Trial) -> Self {
        Self { trial, startup: None, story: None, left_behind: None }
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
        if !self.wait_for_memory().await {
            return Ok(None);
        }
        let begin = Instant::now();
        let started_at = now();
        let log = self.log_directory().join(format!("trial-{number:04}.log"));
        let mut collisions = 0;
        let (launch, Attempt { outcome, ready, startup, story }, left_behind) = loop {
            let port = free_port().map_err(TuneError::Port)?;
            let command = command_line(self.job, &self.installed, config, Some(port))?;
            let launch = Launch { command: command.clone(), env: self.job.launch_env() };
            let stored = Begin { number, proposed_by, config, launch: &launch, started_at: &started_at, log: &log };
            self.store.begin(study.id, &stored).await?;
            let Some((attempt, left_behind)) = self.attempt(number, config, command, port, log.clone()).await? else {
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
        Ok(Some(Launched { trial, startup, story, left_behind }))
    }

    async fn attempt(
        &mut self,
        number: u32,
        config: &Config,
        command: Vec<String>,
        port: u16,
        log: PathBuf,
    ) -> Result<Option<(Attempt, Option<LeftBehind>)>, TuneError> {
        (self.observer)(Event::Phase(Phase::Starting));
        let marker = Marker::new(self.store.path(), &self.job.name, number);
        let env = self.job.engine.env.clone();
        let spawn = Spawn { command, env, log, marker, port, stop_command: None };
        let baseline = self.memory_before();
        let mut server = match Server::spawn(&spawn) {
            Ok(server) => server,
            Err(SpawnError::Log { path, source }) => return Err(TuneError::Log { path, source }),
            Err(error) => {
                let outcome = failed(FailureKind::Spawn, error.to_string());
                return Ok(Some((Attempt::unready(outcome, None), None)));
            }
        };
        let mut stop = self.stop.clone();
        let measured = tokio::select! {
            biased;
            () = asked(&mut stop, Stop::Gently) => None,
            measured = self.measure(&mut server, config) => Some(measured),
        };
        (self.observer)(Event::Phase(Phase::Stopping));
        let grace = if measured.is_some() { self.job.engine.stop_timeout } else { INTERRUPTED_GRACE };
        let stopped = tokio::select! {
            biased;
            // Dropping the server kills it at once.
            () = asked(&mut stop, Stop::Now) => return Ok(None),
            stopped = server.stop(grace) => stopped.err(),
        };
        match (measured, stopped) {
            (Some(measured), left_behind) => {
                if left_behind.is_none() {
                    self.memory_after(baseline).await;
                }
                Ok(Some((measured?, left_behind)))
            }
            (None, Some(left_behind)) => Err(left_behind.into()),
            (None, None) => Ok(None),
        }
    }

    /// From spawn to numbers, or to the reason why there are none.
    async fn measure(&self, server: &mut Server, config: &Config) -> Result<Attempt, TuneError> {
        let (spawned, mut timeline) = (Instant::now(), Timeline::default());
        let see = &mut |line: &str, at| timeline.see(line, at);
        let ready = match server.ready(&self.served_model(), self.job.engine.startup_timeout, see).await {
            Ok(ready) => ready,
            Err(error) => {
                let startup = Startup { phases: timeline.end(spawned.elapsed()), ..Startup::default() };
                let error = with_end(server, error).await;
                let failure = start_failure(server, error);
                return Ok(Attempt::unready(Outcome::Failed(failure), Some(startup)));
            }
        };
        let startup = self.started(server, config, timeline.end(ready.startup)).await;
        // Nothing of ours may take the engine's processors while it is measured.
        self.inquiry.settled().await;
        let (mut outcome, story) = self.sample(server, &ready.model).await?;
        // Requests to a dead engine fail at once, its last process may take seconds to end.
        if matches!(outcome, Outcome::Failed(_))
            && !server.is_healthy().await
            && let Ok(status) = tokio::time::timeout(DEATH_LIMIT, server.exited()).await
        {
            outcome = Outcome::Failed(crash(server, status));
        }
        Ok(Attempt { outcome, ready: Some(ready), startup: Some(startup), story: Some(story) })
    }

    /// How a server that is ready has started, and whether it runs with what was asked for.
    async fn started(&self, server: &Server, config: &Config, phases: Vec<PhaseTime>) -> Startup {
        // Without its page the log tells most of it.
        let page = server.page("/metrics").await.unwrap_or_default();
        let seen = resolved(&server.log_text(), &page);
        let asked = self.job.with_arguments(config, self.installed.version);
        let differences = differences(&asked, &seen);
        if !differences.is_empty() {
            (self.observer)(Event::Differs { differences: differences.clone() });
        }
        Startup { phases, resolved: seen.shown(&asked), differences }
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

fn start_failure(server: &Server, error: StartError) -> Failure {
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
        StartError::Mute(message) => Failure { kind: FailureKind::Hang, message },
        StartError::Refuses(message) => {
            let message = format!("the first request, for one token, was refused: {message}");
            Failure { kind: FailureKind::RequestErrors, message }
        }
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
