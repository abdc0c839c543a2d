//! Faults of the simulated engine on request, as they occur in real engines. A supervisor can thereby be tested against
//! all of them without a GPU.
//!
//! `--sim-fault NAME[@PHASE][:KEY=VALUE,...]` may be given several times. Faults of the same moment take effect in the
//! order of the command line.
//!
//! | fault | effect | keys, and their defaults |
//! |---|---|---|
//! | `exit@PHASE` | ends with vLLM's messages for the cause | `cause` (`exception`), `code` or `signal` (the cause's own) |
//! | `hang@PHASE` | waits without end and without a log line | |
//! | `slow@PHASE` | takes longer, with progress lines in the log | `seconds` (1) |
//! | `close-log@PHASE` | closes standard output and standard error | |
//! | `flood@PHASE` | writes megabytes of log lines | `mb` (1000) |
//! | `ignore-term`, `ignore-int` | ignores this signal | |
//! | `escape` | starts a sleeping child outside of the session | `bare` (`no`): no environment; `orphan` (`no`): parent has ended |
//! | `engine-core` | starts a child `VLLM::EngineCore`, which may die | `dies-after`, `phase`, `request` (never) |
//! | `other-model` | serves a model of another name | `name` (`another-model`) |
//! | `late-bind` | takes its port only at the end of the start | |
//! | `late-listen` | reports a complete start, and listens later | `seconds` (1) |
//! | `mute` | accepts requests and never answers them; `/health` answers | |
//! | `unhealthy` | answers `/health` with 503 when it has been ready for `after` seconds | `after` (0) |
//! | `die` | ends at a request, counted from 1 | `request` (1), `cause` (`exception`), `code` or `signal` |
//! | `errors` | answers with status 500 from a request on | `from` (1) |
//! | `stall` | stops sending a stream after `after` tokens | `after` (0), `from` (1) |
//! | `end-early` | ends streams after `after` tokens, without `[DONE]` | `after` (all), `from` (1) |
//! | `error-event` | sends an error in the stream after `after` tokens | `after` (0), `from` (1) |
//! | `leak` | allocates more and more memory | `mb-per-s` (50), `cap-mb` (512) |
//! | `long-step` | first step of a request takes `seconds` | `seconds` (60), `busy` (`yes`): uses a processor, `request` (1) |
//! | `spin` | never ends the first step of a request, and uses a whole processor | `request` (1) |
//!
//! No counter moves during a `long-step`. The child of `engine-core` dies `dies-after` seconds after readiness, at a
//! phase or at a request. Under load, the server survives its child by 2 s.
//!
//! Phases: `parse`, `config`, `bind`, `weights`, `profile`, `kv`, `graphs`, `ready`. Causes: `Cause` in `cause.rs`.
//!
//! `--sim-fault-if FLAG=VALUE` limits the faults to configurations with that value, `FLAG=` to those without the flag.
//! `--sim-fault-once FILE` limits them to the first launch, which finds no such file and creates it.

mod effects;
mod cause;
mod parse;
#[cfg(test)]
mod served_tests;
mod spec;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::Instant;

use super::log::ServedLog;
use super::refusal::Refusal;
use super::request::ErrorResponse;
use crate::config::Config;
use crate::facts::EngineVersion;

pub(super) use cause::ENGINE_DEAD;
pub(crate) use spec::{FaultPhase, FaultSpec, ProcessEnd};

/// The title of the engine's process.
const ENGINE_CORE: &str = "VLLM::EngineCore";

/// The time that the front end survives its engine. vLLM's watchdog checks every 5 s.
const FRONT_END_SURVIVAL: Duration = Duration::from_secs(2);

/// The requested faults and their conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultPlan {
    pub faults: Vec<FaultSpec>,
    /// Flags with their required values. An empty value requires that the flag is not given.
    pub conditions: Vec<(String, String)>,
    /// A file; the faults apply only to the launch that creates it.
    pub once: Option<PathBuf>,
}

impl FaultPlan {
    /// Returns the faults of a launch with this configuration. If `once` is set, creates its file.
    fn faults_for(&self, config: &Config) -> Vec<FaultSpec> {
        let holds = |(flag, value): &(String, String)| match config.get(flag) {
            Some(set) => set.to_string() == *value,
            None => value.is_empty(),
        };
        if self.faults.is_empty() || !self.conditions.iter().all(holds) {
            return Vec::new();
        }
        // If the file cannot be created for another reason, there are no faults either: they could not be limited to
        // one launch.
        let first = self.once.as_ref().is_none_or(|file| std::fs::File::create_new(file).is_ok());
        if first { self.faults.clone() } else { Vec::new() }
    }
}

/// A prolonged step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepFault {
    /// Its duration; `None` for a step without an end.
    pub(super) duration: Option<Duration>,
    /// Whether it uses a whole processor.
    pub(super) busy: bool,
}

/// The faults of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestFaults {
    pub(super) stream: Option<StreamFault>,
    pub(super) step: Option<StepFault>,
}

/// The fault of a stream after a number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFault {
    Stall { after: u64 },
    EndEarly { after: Option<u64> },
    Error { after: u64 },
}

/// The life of the server, for the task that watches the engine's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServerStage {
    Starting,
    Ready,
    Stopping,
}

/// The faults of one launch, which the server consults at each phase of its start and for each request.
#[derive(Debug)]
pub(super) struct ActiveFaults {
    list: Vec<FaultSpec>,
    version: EngineVersion,
    log: ServedLog,
    /// The number of requests so far.
    requests: AtomicU64,
    stage: watch::Sender<ServerStage>,
    ready_at: std::sync::OnceLock<Instant>,
    /// The end of the process, as soon as a request has caused it.
    end: watch::Sender<Option<Refusal>>,
    /// Whether the engine's process lives; `None` if none was started.
    core_alive: watch::Sender<Option<bool>>,
    /// Whether the engine's process has to die now.
    must_die: watch::Sender<bool>,
}

impl ActiveFaults {
    pub(super) fn new(plan: &FaultPlan, config: &Config, version: EngineVersion, log: ServedLog) -> Self {
        Self {
            list: plan.faults_for(config),
            version,
            log,
            requests: AtomicU64::new(0),
            stage: watch::Sender::new(ServerStage::Starting),
            ready_at: std::sync::OnceLock::new(),
            end: watch::Sender::new(None),
            core_alive: watch::Sender::new(None),
            must_die: watch::Sender::new(false),
        }
    }

    /// Returns whether SIGTERM (15) or SIGINT (2) has no effect.
    pub(super) fn ignores_signal(&self, signal: u8) -> bool {
        let fault = if signal == 15 { FaultSpec::IgnoreTerm } else { FaultSpec::IgnoreInt };
        self.list.contains(&fault)
    }

    /// Applies the faults of a phase of the start.
    pub(super) async fn apply_phase(&self, phase: FaultPhase) -> Result<(), Refusal> {
        for fault in &self.list {
            match fault {
                FaultSpec::Exit { at, cause, end } if *at == phase => {
                    let told = cause.report(Some(phase), self.version, &self.log);
                    return Err(finish_process(told, *end).await);
                }
                FaultSpec::Hang { at } if *at == phase => std::future::pending().await,
                FaultSpec::Slow { at, lasts } if *at == phase => effects::slow(&self.log, *lasts).await,
                FaultSpec::CloseLog { at } if *at == phase => self.log.close(),
                FaultSpec::Flood { at, megabytes } if *at == phase => effects::flood(&self.log, *megabytes).await,
                FaultSpec::Escape { bare, orphan } if phase == FaultPhase::Parse => {
                    drop(require_started(effects::spawn_escaped(*bare, *orphan))?);
                }
                FaultSpec::EngineCore { after, at, .. } => {
                    if phase == FaultPhase::Weights {
                        self.start_core(*after)?;
                    }
                    if *at == Some(phase) {
                        self.must_die.send_replace(true);
                        self.core_death().await;
                        return Err(self.failed_start_report());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts the faults of a ready server. To be called once, when it listens.
    pub(super) fn ready(&self) {
        if self.list.is_empty() {
            return;
        }
        let _ = self.ready_at.set(Instant::now());
        self.stage.send_replace(ServerStage::Ready);
        for fault in &self.list {
            if let FaultSpec::Leak { megabytes_per_s, cap } = *fault {
                tokio::spawn(effects::leak(megabytes_per_s, cap));
            }
        }
    }

    /// Returns the names under which the model is served.
    pub(super) fn served_names(&self, names: Vec<String>) -> Vec<String> {
        let other = self.list.iter().find_map(|fault| match fault {
            FaultSpec::OtherModel { name } => Some(vec![name.clone()]),
            _ => None,
        });
        other.unwrap_or(names)
    }

    /// Returns whether the port is taken only at the end of the start.
    pub(super) fn binds_late(&self) -> bool {
        self.list.contains(&FaultSpec::LateBind)
    }

    /// Waits between the reported end of the start and listening.
    pub(super) async fn listen_late(&self) {
        for fault in &self.list {
            if let FaultSpec::LateListen { by } = fault {
                tokio::time::sleep(*by).await;
            }
        }
    }

    /// Returns the status of `/health`.
    pub(super) fn health(&self) -> StatusCode {
        let since = self.ready_at.get().map_or(Duration::ZERO, Instant::elapsed);
        let ill = |fault: &FaultSpec| matches!(fault, FaultSpec::Unhealthy { after } if since >= *after);
        if self.core_is_dead() || self.list.iter().any(ill) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
    }

    /// Applies the faults of a request before its answer. Returns those of its first step and of its stream.
    pub(super) async fn apply_request(&self) -> Result<RequestFaults, ErrorResponse> {
        let mut found = RequestFaults::default();
        if self.list.is_empty() {
            return Ok(found);
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if self.core_is_dead() {
            return Err(ErrorResponse::internal(ENGINE_DEAD));
        }
        for fault in &self.list {
            match fault {
                FaultSpec::Mute => std::future::pending().await,
                FaultSpec::Die { request, cause, end } if number == *request => {
                    let told = cause.report(None, self.version, &self.log);
                    self.end.send_replace(Some(finish_process(told, *end).await));
                    std::future::pending::<()>().await;
                }
                FaultSpec::EngineCore { request, .. } if *request == Some(number) => {
                    self.must_die.send_replace(true);
                    self.core_death().await;
                    return Err(ErrorResponse::internal(ENGINE_DEAD));
                }
                FaultSpec::Errors { from } if number >= *from => {
                    return Err(ErrorResponse::internal("Internal server error"));
                }
                FaultSpec::Stall { after, from } if number >= *from => {
                    found.stream = Some(StreamFault::Stall { after: *after });
                }
                FaultSpec::EndEarly { after, from } if number >= *from => {
                    found.stream = Some(StreamFault::EndEarly { after: *after });
                }
                FaultSpec::ErrorEvent { after, from } if number >= *from => {
                    found.stream = Some(StreamFault::Error { after: *after });
                }
                FaultSpec::LongStep { lasts, busy, request } if number == *request => {
                    found.step = Some(StepFault { duration: Some(*lasts), busy: *busy });
                }
                FaultSpec::Spin { request } if number == *request => {
                    found.step = Some(StepFault { duration: None, busy: true });
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Waits until a request has ended the server.
    pub(super) async fn wait_for_end(&self) -> Refusal {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(refusal)) => refusal,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    fn core_is_dead(&self) -> bool {
        *self.core_alive.borrow() == Some(false)
    }

    /// Starts the engine's process and a task that watches it.
    fn start_core(&self, dies_after: Option<Duration>) -> Result<(), Refusal> {
        let mut child = require_started(effects::engine_core())?;
        self.core_alive.send_replace(Some(true));
        let (core, mut stage, mut doomed) =
            (self.core_alive.clone(), self.stage.subscribe(), self.must_die.subscribe());
        let mut ready = stage.clone();
        let due = async move {
            match dies_after {
                Some(after) if ready.wait_for(|stage| *stage >= ServerStage::Ready).await.is_ok() => {
                    tokio::time::sleep(after).await;
                }
                _ => std::future::pending().await,
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                _ = child.wait() => {}
                () = due => {}
                _ = doomed.wait_for(|doomed| *doomed) => {}
                _ = stage.wait_for(|stage| *stage == ServerStage::Stopping) => {}
            }
            // The process may have ended by itself.
            let _ = child.start_kill();
            let _ = child.wait().await;
            core.send_replace(Some(false));
        });
        Ok(())
    }

    /// Waits for an unrequested end of the engine's process.
    pub(super) async fn core_death(&self) {
        let mut core = self.core_alive.subscribe();
        if core.wait_for(|lives| *lives == Some(false)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the front end's report of a dead engine during the start.
    pub(super) fn failed_start_report(&self) -> Refusal {
        let error = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): \
                     {'EngineCore': -9}";
        let Refusal { exit_code, text } = Refusal::traceback("v1/engine/utils.py", error);
        Refusal { exit_code, text: self.log.of_api(&text).trim_end().to_owned() }
    }

    /// Simulates the front end's last seconds after the engine's death.
    pub(super) async fn outlive_core(&self) {
        self.log.api_error("core_client.py", "Engine core proc EngineCore died unexpectedly, shutting down client.");
        cause::report_dead_engine(&self.log);
        tokio::time::sleep(FRONT_END_SURVIVAL).await;
    }

    /// Ends the engine's process because the server was asked to end, and waits for it.
    pub(super) async fn stop_core(&self) {
        self.stage.send_replace(ServerStage::Stopping);
        let mut core = self.core_alive.subscribe();
        let _ = core.wait_for(|lives| *lives != Some(true)).await;
    }
}

/// Replaces the exit code of `told` by that of `end`. A signal is sent to this process at once, and the future then
/// stays pending.
async fn finish_process(told: Refusal, end: Option<ProcessEnd>) -> Refusal {
    match end {
        None => told,
        Some(ProcessEnd::Code(exit_code)) => Refusal { exit_code, ..told },
        Some(ProcessEnd::Signal(signal)) => {
            effects::raise(signal);
            std::future::pending().await
        }
    }
}

fn require_started(child: std::io::Result<Child>) -> Result<Child, Refusal> {
    child.map_err(|error| Refusal {
        exit_code: 1,
        text: format!("the simulated engine cannot start the process that its fault needs: {error}"),
    })
}

/// Runs the engine's process, `sim engine-core`, which sleeps until it is ended.
///
/// # Errors
/// If the process cannot set its name.
pub(crate) async fn engine_core() -> std::io::Result<()> {
    tokio::fs::write("/proc/self/comm", ENGINE_CORE).await?;
    tokio::time::sleep(effects::CHILD_LIFETIME).await;
    Ok(())
}
