//! Supervision of one running engine, or of a helper that answers line by line. A launch starts in a session of its
//! own, and its first process is its leader. Before it is used, the listener of its port is verified to belong to it.
//! It is ended together with every process that it started.
//!
//! This module is the only place that starts or signals processes. `family` and `orphan` decide which processes belong
//! to a launch, and `reap` which ones a killed tuner left behind. No other process is ever signalled.

mod launch_members;
mod leader;
mod live;
mod memory_gate;
mod launch_monitor;
mod log;
mod marker;
mod orphan;
mod pending_stop;
mod resource_holder;
mod pipe;
mod port;
mod post;
mod process;
mod processes;
mod ready;
mod reap;
mod short_command;
mod sock_diag;
mod starter;
mod stop;
mod log_tail;
mod tunnel;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Instant;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::engine::{Engine, EngineEvidence, ProcessExit};
use crate::facts::{OomKills, Processors};
use crate::trial::Failure;
use launch_members::LaunchMembers;
use launch_monitor::LaunchMonitor;
use leader::{ForkedProcess, Leader};
pub use live::{LIVE_EXTENSION, LiveControl, LiveError, remove_left_folders};
use log::LogFile;
pub use log::read_log;
pub use log_tail::LogTail;
pub use marker::Marker;
pub use memory_gate::{DeviceShortage, HeldMemory, MemoryBaseline, UnreleasedMemory, holders_text, is_held, shortages};
pub use pending_stop::PendingStop;
pub use pipe::{HelperPipe, PipeError};
pub use port::{PORT_RANGE as PORTS, Ports, free_port};
use process::ProcessEntry;
pub use processes::LaunchProcesses;
pub use ready::{FirstRequest, OnLine, ReadyCheck, ReadyServer, StartError};
pub use reap::{Leftover, LeftoverProof, ProcessOrigin, end_processes, leftovers, log_directory, trial_log};
pub use resource_holder::ResourceHolder;
pub use short_command::{CommandEnd, end_of, output_of, run_to_success};
pub use starter::{FastOrder, Starter, StarterError};
pub use stop::LeftBehind;
use tunnel::TlsTunnel;
pub use tunnel::own_server_tls;

/// The loopback interface, the only one that servers listen on.
pub const HOST: &str = "127.0.0.1";

/// The API key of a server. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerKey(pub String);

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(...)")
    }
}

/// The parameters of a launch.
#[derive(Clone, Debug)]
pub struct SpawnParameters {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables added to the tuner's own environment.
    pub env: BTreeMap<String, String>,
    /// The processors that the launch may use; `None` for those of the tuner.
    pub processors: Option<Processors>,
    /// The file that receives standard output and standard error. Unlike a pipe, a file cannot block the engine if
    /// nobody reads it.
    pub log: PathBuf,
    /// Identifies the processes of the launch.
    pub marker: Marker,
    /// The server's port on the loopback interface.
    pub port: u16,
    /// A command that ends processes out of reach of signals, such as a container. It runs first when the server is
    /// stopped, with `env`.
    pub stop_command: Option<Vec<String>>,
    /// Whether the port's listener may be a program outside of the launch, such as that of a container or a tunnel.
    pub forwarded: bool,
    /// The key that the server requires.
    pub api_key: Option<ServerKey>,
    /// Whether the server speaks TLS.
    pub tls: bool,
    /// The waiting process that forks instead of a start of the program. Its environment is that of this launch.
    pub fast: Option<FastOrder>,
    /// The engine that the program runs: its readiness checks and its diagnosis of failures.
    pub engine: Arc<dyn Engine>,
}

#[cfg(test)]
impl SpawnParameters {
    /// Returns the launch of a shell script as the server of a trial of `study`, with its log in `directory`.
    pub(crate) fn of_script(directory: &std::path::Path, shell: &str, script: &str, study: &str, trial: u32) -> Self {
        Self {
            command: [shell, "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            log: directory.join(format!("log-{trial}")),
            marker: Marker::new(&directory.join("test.db"), study, trial),
            port: 1,
            processors: None,
            stop_command: None,
            forwarded: false,
            api_key: None,
            tls: false,
            fast: None,
            engine: crate::engine::testing::engine(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("cannot write the log {}: {source}", path.display())]
    Log { path: PathBuf, source: std::io::Error },
    #[error("cannot start {program:?}: {source}")]
    Program { program: String, source: std::io::Error },
    #[error("cannot start {program:?} by a fork: {source}")]
    Fork { program: String, source: Box<StarterError> },
    #[error("the launch command is empty")]
    NoProgram,
}

/// A started engine. Dropping it ends its processes at once; [`Server::stop`] ends them gently.
#[derive(Debug)]
pub struct Server {
    leader: Leader,
    marker: Marker,
    port: u16,
    log: Arc<LogFile>,
    members: Arc<LaunchMembers>,
    /// The command and its environment variables; `None` after it has run.
    stop_command: Option<(Vec<String>, BTreeMap<String, String>)>,
    forwarded: bool,
    api_key: Option<ServerKey>,
    /// The plain-text port of a server that speaks TLS.
    tunnel: Option<TlsTunnel>,
    /// Inodes of foreign sockets that listened on the port before this server was started.
    stale_sockets: Vec<u64>,
    started: Instant,
    exit_status: Option<ExitStatus>,
    /// Whether [`Server::stop`] has finished, with or without success.
    stopped: bool,
    _monitor: LaunchMonitor,
    /// The kernel's count of out-of-memory kills at the launch.
    oom_kills: OomKills,
    engine: Arc<dyn Engine>,
    /// Models and adapters that only this launch's configuration names, for the diagnosis of a failure.
    pub own_models: Vec<String>,
}

impl Server {
    /// Starts the engine and its supervision.
    ///
    /// # Errors
    /// If the log cannot be created or the program cannot be run.
    pub fn spawn(spawn: &SpawnParameters) -> Result<Self, SpawnError> {
        let log_failed = |source| SpawnError::Log { path: spawn.log.clone(), source };
        let log = LogFile::create(&spawn.log).map_err(log_failed)?;
        let program = spawn.command.first().ok_or(SpawnError::NoProgram)?;
        let failed = |source| SpawnError::Program { program: program.clone(), source };
        let oom_kills = OomKills::read();
        let stale = port::listening_inodes(spawn.port);
        let tunnel = spawn.tls.then(|| TlsTunnel::start(spawn.port)).transpose().map_err(failed)?;
        let started = spawn.fast.as_ref().map_or_else(Instant::now, |fast| fast.began);
        let (leader, family) = if let Some(fast) = &spawn.fast {
            let forked = fast.fork(&spawn.log);
            let forked =
                forked.map_err(|source| SpawnError::Fork { program: program.clone(), source: source.into() })?;
            register_fork(forked, spawn, &log)
        } else {
            let outputs = log.writer().and_then(|out| Ok((out, log.writer()?))).map_err(log_failed)?;
            let mut command = plain_command(spawn, outputs).map_err(failed)?;
            let (child, family) = start(&mut command, spawn.marker.clone(), log.id()).map_err(failed)?;
            (Leader::Child(child), family)
        };
        let log = Arc::new(log);
        Ok(Self {
            leader,
            marker: spawn.marker.clone(),
            port: spawn.port,
            _monitor: LaunchMonitor::start(Arc::clone(&log), Arc::clone(&family)),
            log,
            members: family,
            stop_command: spawn.stop_command.clone().map(|command| (command, spawn.env.clone())),
            forwarded: spawn.forwarded,
            api_key: spawn.api_key.clone(),
            tunnel,
            stale_sockets: stale,
            started,
            exit_status: None,
            stopped: false,
            oom_kills,
            engine: Arc::clone(&spawn.engine),
            own_models: Vec::new(),
        })
    }

    /// Returns the server's address without a path. The scheme is `https` if the server speaks TLS.
    #[must_use]
    pub fn base_url(&self) -> String {
        let scheme = if self.tunnel.is_some() { "https" } else { "http" };
        format!("{scheme}://{HOST}:{}", self.port)
    }

    /// Returns the server's address over plain HTTP, for requests that are not measured.
    #[must_use]
    pub fn plain_url(&self) -> String {
        format!("http://{HOST}:{}", self.tunnel.as_ref().map_or(self.port, |tunnel| tunnel.port))
    }

    /// Returns whether the leader is known to have ended.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        self.exit_status.is_some()
    }

    /// Returns whether a waiting process forked the leader.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        matches!(self.leader, Leader::Forked(_))
    }

    /// Waits for the leader to end, without a limit. Safe to cancel.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        if let Some(status) = self.exit_status {
            return status;
        }
        let status = self.leader.wait().await;
        self.exit_status = Some(status);
        status
    }

    /// Returns the number of processes that the kernel has killed for lack of memory since the launch. They are those
    /// of the tuner's control group, or those of the host if the group's counter has not moved.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        OomKills::read().since(self.oom_kills)
    }

    /// Returns the beginning and the end of the engine's log so far.
    #[must_use]
    pub fn log_text(&self) -> String {
        read_log(self.log.path())
    }

    /// Diagnoses why the engine ended, or why it has to be ended. `exit` is `None` while it is alive.
    #[must_use]
    pub fn diagnose(&self, exit: Option<ExitStatus>, under_load: bool) -> Failure {
        let (log, own_models) = (&self.log_text(), self.own_models.as_slice());
        let (exit, oom_kills) = (exit.map(Into::into), self.oom_kills());
        self.engine.diagnose(&EngineEvidence { log, exit, under_load, oom_kills, ended_by_tuner: false, own_models })
    }

    /// Returns a reader that follows the log from its beginning.
    #[must_use]
    pub fn tail(&self) -> LogTail {
        LogTail::new(self.log.path())
    }
}

/// Returns the command of a plain start, with its two outputs.
fn plain_command(spawn: &SpawnParameters, (out, err): (std::fs::File, std::fs::File)) -> std::io::Result<Command> {
    let mut command = Command::new(&spawn.command[0]);
    command.args(&spawn.command[1..]).envs(&spawn.env);
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    if let Some(processors) = &spawn.processors {
        keep_to(&mut command, processors)?;
    }
    Ok(command)
}

/// Registers a forked process as the leader of a launch.
fn register_fork(process: ForkedProcess, spawn: &SpawnParameters, log: &LogFile) -> (Leader, Arc<LaunchMembers>) {
    let family = LaunchMembers::new(process.entry(), spawn.marker.clone(), log.id());
    orphan::children().register(&family);
    (Leader::Forked(process), family)
}

/// Restricts the program and its descendants to these processors.
fn keep_to(command: &mut Command, processors: &Processors) -> nix::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().try_for_each(|number| set.set(number as usize))?;
    // SAFETY: `sched_setaffinity` is a plain system call and reads no memory but the set, which the closure owns.
    #[expect(unsafe_code, reason = "before the program runs: it counts its processors when it starts")]
    unsafe {
        command.pre_exec(move || sched_setaffinity(Pid::from_raw(0), &set).map_err(std::io::Error::from));
    }
    Ok(())
}

/// Starts a process with the marker in a session of its own. `log` is the device and inode of the file that it writes
/// to; `None` if its output is a pipe.
fn start(
    command: &mut Command,
    marker: Marker,
    log: Option<(u64, u64)>,
) -> std::io::Result<(Child, Arc<LaunchMembers>)> {
    command.env(Marker::VARIABLE, marker.value());
    // SAFETY: `setsid` is async-signal-safe and touches no memory of the parent.
    #[expect(unsafe_code, reason = "a session of its own is the only way to reach the whole tree later")]
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(std::io::Error::from));
    }
    let mut children = orphan::children();
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    let child = command.spawn()?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    // The process exists in `/proc`, dead or alive, until its parent waits for it.
    let leader = pid.and_then(ProcessEntry::read).ok_or_else(|| std::io::Error::other("/proc does not show it"))?;
    let family = LaunchMembers::new(leader, marker, log);
    children.register(&family);
    Ok((child, family))
}

/// Returns an exit status in words.
#[must_use]
pub fn describe_exit(status: ExitStatus) -> String {
    ProcessExit::from(status).to_string()
}
