//! The ways in which the simulated engine misbehaves when it is told to, as real engines do: so that a supervisor can be
//! tested against all of them without a GPU.
//!
//! `--sim-fault NAME[@PHASE][:KEY=VALUE,...]` may be given several times; what belongs to one moment happens in the order
//! of the command line.
//!
//! | fault | what it does | keys, and their defaults |
//! |---|---|---|
//! | `exit@PHASE` | ends, with vLLM's words for the cause | `cause` (`exception`), `code` or `signal` (the cause's own) |
//! | `hang@PHASE` | does nothing more, and says nothing | |
//! | `slow@PHASE` | takes longer, and says so | `seconds` (1) |
//! | `close-log@PHASE` | closes standard output and standard error | |
//! | `flood@PHASE` | writes megabytes of log lines | `mb` (1000) |
//! | `ignore-term`, `ignore-int` | goes on when it gets this signal | |
//! | `escape` | has a child that left the session and sleeps | `bare` (`no`): without environment; `orphan` (`no`): its parent has ended |
//! | `engine-core` | has a second process, `VLLM::EngineCore`, whose death under load it survives by 2 s | `dies-after` seconds of readiness, dies at `phase` or at `request` (never) |
//! | `other-model` | serves a model of another name | `name` (`another-model`) |
//! | `late-bind` | takes its port only when everything else is done | |
//! | `late-listen` | says that it is up, and listens later | `seconds` (1) |
//! | `mute` | takes requests and never answers them; `/health` answers | |
//! | `unhealthy` | answers `/health` with 503 from so many seconds of readiness on | `after` (0) |
//! | `die` | ends at a request, counted from 1 | `request` (1), `cause` (`exception`), `code` or `signal` |
//! | `errors` | answers with status 500 from a request on | `from` (1) |
//! | `stall` | sends no more of a stream after so many tokens | `after` (0), `from` (1) |
//! | `end-early` | ends streams after so many tokens, without `[DONE]` | `after` (all), `from` (1) |
//! | `error-event` | sends an error in the stream after so many tokens | `after` (0), `from` (1) |
//! | `leak` | holds more and more memory | `mb-per-s` (50), `cap-mb` (512) |
//! | `long-step` | takes `seconds` for the first step of a request; no counter moves | `seconds` (60), `busy` (`yes`): takes a whole processor, `request` (1) |
//! | `spin` | never ends the first step of a request, and takes a whole processor | `request` (1) |
//!
//! Phases: `parse`, `config`, `bind`, `weights`, `profile`, `kv`, `graphs`, `ready`. Causes: `Cause` in `cause.rs`.
//!
//! `--sim-fault-if FLAG=VALUE` limits the faults to configurations with that value, `FLAG=` to those without the flag.
//! `--sim-fault-once FILE` limits them to the one launch that finds no such file and creates it.

mod act;
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

use super::ask::Complaint;
use super::log::Log;
use super::refusal::Refusal;
use crate::config::Config;
use crate::facts::EngineVersion;

pub(super) use cause::ENGINE_DEAD;
pub(crate) use spec::{End, Fault, Phase};

/// The title of the engine's process.
const ENGINE_CORE: &str = "VLLM::EngineCore";

/// How long vLLM's front end goes on after its engine has died: its watchdog looks every 5 s.
const SURVIVAL: Duration = Duration::from_secs(2);

/// Which faults are asked for, and when they apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub faults: Vec<Fault>,
    /// Flags and the values that they must have; an empty value stands for a flag that is not given.
    pub conditions: Vec<(String, String)>,
    /// The faults apply only to the launch that creates this file.
    pub once: Option<PathBuf>,
}

impl Plan {
    /// The faults of a launch with this configuration. Uses up the one launch of `once`.
    fn arm(&self, config: &Config) -> Vec<Fault> {
        let holds = |(flag, value): &(String, String)| match config.get(flag) {
            Some(set) => set.to_string() == *value,
            None => value.is_empty(),
        };
        if self.faults.is_empty() || !self.conditions.iter().all(holds) {
            return Vec::new();
        }
        // A file that cannot be created is as good as one that is there: the faults cannot be kept to one launch.
        let first = self.once.as_ref().is_none_or(|file| std::fs::File::create_new(file).is_ok());
        if first { self.faults.clone() } else { Vec::new() }
    }
}

/// A step that takes longer than it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepFault {
    /// `None`: for ever.
    pub(super) lasts: Option<Duration>,
    /// Whether it takes a whole processor.
    pub(super) busy: bool,
}

/// The faults of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestFaults {
    pub(super) stream: Option<StreamFault>,
    pub(super) step: Option<StepFault>,
}

/// What a stream does after some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFault {
    Stall { after: u64 },
    EndEarly { after: Option<u64> },
    Error { after: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Starting,
    Ready,
    Stopping,
}

/// The faults of one launch, asked wherever one may take effect.
#[derive(Debug)]
pub(super) struct Faults {
    list: Vec<Fault>,
    version: EngineVersion,
    log: Log,
    requests: AtomicU64,
    stage: watch::Sender<Stage>,
    ready_at: std::sync::OnceLock<Instant>,
    /// How the process is to end, once it is to.
    end: watch::Sender<Option<Refusal>>,
    /// `None` where there is no process of the engine; then whether it lives.
    core: watch::Sender<Option<bool>>,
    /// Whether it is to die now.
    doomed: watch::Sender<bool>,
}

impl Faults {
    pub(super) fn new(plan: &Plan, config: &Config, version: EngineVersion, log: Log) -> Self {
        Self {
            list: plan.arm(config),
            version,
            log,
            requests: AtomicU64::new(0),
            stage: watch::Sender::new(Stage::Starting),
            ready_at: std::sync::OnceLock::new(),
            end: watch::Sender::new(None),
            core: watch::Sender::new(None),
            doomed: watch::Sender::new(false),
        }
    }

    /// Whether SIGTERM (15) or SIGINT (2) has no effect.
    pub(super) fn ignores(&self, signal: u8) -> bool {
        let fault = if signal == 15 { Fault::IgnoreTerm } else { Fault::IgnoreInt };
        self.list.contains(&fault)
    }

    /// What happens when the start reaches a phase.
    pub(super) async fn at(&self, phase: Phase) -> Result<(), Refusal> {
        for fault in &self.list {
            match fault {
                Fault::Exit { at, cause, end } if *at == phase => {
                    let told = cause.tell(Some(phase), self.version, &self.log);
                    return Err(ended(told, *end).await);
                }
                Fault::Hang { at } if *at == phase => std::future::pending().await,
                Fault::Slow { at, lasts } if *at == phase => act::slow(&self.log, *lasts).await,
                Fault::CloseLog { at } if *at == phase => self.log.close(),
                Fault::Flood { at, megabytes } if *at == phase => act::flood(&self.log, *megabytes).await,
                Fault::Escape { bare, orphan } if phase == Phase::Parse => drop(started(act::escape(*bare, *orphan))?),
                Fault::EngineCore { after, at, .. } => {
                    if phase == Phase::Weights {
                        self.start_core(*after)?;
                    }
                    if *at == Some(phase) {
                        self.doomed.send_replace(true);
                        self.core_death().await;
                        return Err(self.unstarted());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Called once the server listens.
    pub(super) fn ready(&self) {
        if self.list.is_empty() {
            return;
        }
        let _ = self.ready_at.set(Instant::now());
        self.stage.send_replace(Stage::Ready);
        for fault in &self.list {
            if let Fault::Leak { megabytes_per_s, cap } = *fault {
                tokio::spawn(act::leak(megabytes_per_s, cap));
            }
        }
    }

    /// The names to serve the model under.
    pub(super) fn served_names(&self, names: Vec<String>) -> Vec<String> {
        let other = self.list.iter().find_map(|fault| match fault {
            Fault::OtherModel { name } => Some(vec![name.clone()]),
            _ => None,
        });
        other.unwrap_or(names)
    }

    pub(super) fn binds_late(&self) -> bool {
        self.list.contains(&Fault::LateBind)
    }

    /// Passes the time between being up and listening.
    pub(super) async fn listen_late(&self) {
        for fault in &self.list {
            if let Fault::LateListen { by } = fault {
                tokio::time::sleep(*by).await;
            }
        }
    }

    /// What `/health` is to say.
    pub(super) fn health(&self) -> StatusCode {
        let since = self.ready_at.get().map_or(Duration::ZERO, Instant::elapsed);
        let ill = |fault: &Fault| matches!(fault, Fault::Unhealthy { after } if since >= *after);
        if self.core_is_dead() || self.list.iter().any(ill) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
    }

    /// Returns the faults of a request for tokens: of its answer, its first step, and its stream if it has one.
    pub(super) async fn request(&self) -> Result<RequestFaults, Complaint> {
        let mut found = RequestFaults::default();
        if self.list.is_empty() {
            return Ok(found);
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if self.core_is_dead() {
            return Err(Complaint::internal(ENGINE_DEAD));
        }
        for fault in &self.list {
            match fault {
                Fault::Mute => std::future::pending().await,
                Fault::Die { request, cause, end } if number == *request => {
                    let told = cause.tell(None, self.version, &self.log);
                    self.end.send_replace(Some(ended(told, *end).await));
                    std::future::pending::<()>().await;
                }
                Fault::EngineCore { request, .. } if *request == Some(number) => {
                    self.doomed.send_replace(true);
                    self.core_death().await;
                    return Err(Complaint::internal(ENGINE_DEAD));
                }
                Fault::Errors { from } if number >= *from => return Err(Complaint::internal("Internal server error")),
                Fault::Stall { after, from } if number >= *from => {
                    found.stream = Some(StreamFault::Stall { after: *after });
                }
                Fault::EndEarly { after, from } if number >= *from => {
                    found.stream = Some(StreamFault::EndEarly { after: *after });
                }
                Fault::ErrorEvent { after, from } if number >= *from => {
                    found.stream = Some(StreamFault::Error { after: *after });
                }
                Fault::LongStep { lasts, busy, request } if number == *request => {
                    found.step = Some(StepFault { lasts: Some(*lasts), busy: *busy });
                }
                Fault::Spin { request } if number == *request => {
                    found.step = Some(StepFault { lasts: None, busy: true });
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Waits until a request has ended the server.
    pub(super) async fn end(&self) -> Refusal {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(refusal)) => refusal,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    fn core_is_dead(&self) -> bool {
        *self.core.borrow() == Some(false)
    }

    /// Starts the engine's process, and a task that keeps an eye on it.
    fn start_core(&self, dies_after: Option<Duration>) -> Result<(), Refusal> {
        let mut child = started(act::engine_core())?;
        self.core.send_replace(Some(true));
        let (core, mut stage, mut doomed) = (self.core.clone(), self.stage.subscribe(), self.doomed.subscribe());
        let mut ready = stage.clone();
        let due = async move {
            match dies_after {
                Some(after) if ready.wait_for(|stage| *stage >= Stage::Ready).await.is_ok() => {
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
                _ = stage.wait_for(|stage| *stage == Stage::Stopping) => {}
            }
            // It may have ended by itself.
            let _ = child.start_kill();
            let _ = child.wait().await;
            core.send_replace(Some(false));
        });
        Ok(())
    }

    /// Waits until the engine's process has ended without being asked to.
    pub(super) async fn core_death(&self) {
        let mut core = self.core.subscribe();
        if core.wait_for(|lives| *lives == Some(false)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// As the front end reports a dead engine during the start.
    pub(super) fn unstarted(&self) -> Refusal {
        let error = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): \
                     {'EngineCore': -9}";
        let Refusal { exit_code, text } = Refusal::traceback("v1/engine/utils.py", error);
        Refusal { exit_code, text: self.log.of_api(&text).trim_end().to_owned() }
    }

    /// The front end's last seconds after the engine's death.
    pub(super) async fn outlive_core(&self) {
        self.log.api_error("core_client.py", "Engine core proc EngineCore died unexpectedly, shutting down client.");
        cause::engine_dead(&self.log);
        tokio::time::sleep(SURVIVAL).await;
    }

    /// Ends the engine's process, as an end in order does.
    pub(super) async fn stop_core(&self) {
        self.stage.send_replace(Stage::Stopping);
        let mut core = self.core.subscribe();
        let _ = core.wait_for(|lives| *lives != Some(true)).await;
    }
}

/// What the process is to end with. A signal ends it here, unless it is one that the engine handles.
async fn ended(told: Refusal, end: Option<End>) -> Refusal {
    match end {
        None => told,
        Some(End::Code(exit_code)) => Refusal { exit_code, ..told },
        Some(End::Signal(signal)) => {
            act::raise(signal);
            std::future::pending().await
        }
    }
}

fn started(child: std::io::Result<Child>) -> Result<Child, Refusal> {
    child.map_err(|error| Refusal {
        exit_code: 1,
        text: format!("the simulated engine cannot start the process that its fault needs: {error}"),
    })
}

/// Life of the engine's process, `sim engine-core`: it does nothing until it is ended.
///
/// # Errors
/// When the process cannot name itself.
pub(crate) async fn engine_core() -> std::io::Result<()> {
    tokio::fs::write("/proc/self/comm", ENGINE_CORE).await?;
    tokio::time::sleep(act::LIFE).await;
    Ok(())
}
