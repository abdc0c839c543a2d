//! One running engine, or a helper that is asked line by line: started in a session of its own, proven to be ours, and
//! ended with everything it started.
//!
//! The only place that starts or signals processes. Every process of a launch is recognised by its session or by the
//! marker in its environment; nothing else is ever signalled.

mod marker;
mod pipe;
mod port;
mod process;
mod processes;
mod ready;
mod stop;
mod tail;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

pub use marker::Marker;
pub use pipe::{Pipe, PipeError};
pub use port::free_port;
pub use processes::Processes;
pub use ready::{OnLine, Ready, StartError};
pub use stop::{LeftBehind, sweep};
pub use tail::LogTail;

/// Servers listen on the loopback interface only.
pub const HOST: &str = "127.0.0.1";

/// What to start.
#[derive(Clone, Debug)]
pub struct Spawn {
    pub command: Vec<String>,
    /// Variables added to the tuner's own environment.
    pub env: BTreeMap<String, String>,
    /// Receives standard output and standard error. A file needs nobody to drain it, so it can never block the engine.
    pub log: PathBuf,
    pub marker: Marker,
    pub port: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("cannot write the log {}: {source}", path.display())]
    Log { path: PathBuf, source: std::io::Error },
    #[error("cannot start {program:?}: {source}")]
    Program { program: String, source: std::io::Error },
    #[error("the launch command is empty")]
    NoProgram,
}

/// A started engine. Dropping it ends its processes at once; [`Server::stop`] ends them gently.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Process id of the leader, which is the session's and the process group's id as well.
    session: i32,
    marker: Marker,
    port: u16,
    log: PathBuf,
    started: Instant,
    exited: Option<ExitStatus>,
}

impl Server {
    /// # Errors
    /// When the log cannot be created or the program cannot be run.
    pub fn spawn(spawn: &Spawn) -> Result<Self, SpawnError> {
        let log = |source| SpawnError::Log { path: spawn.log.clone(), source };
        let out = File::create(&spawn.log).map_err(log)?;
        let err = out.try_clone().map_err(log)?;
        let [program, arguments @ ..] = spawn.command.as_slice() else { return Err(SpawnError::NoProgram) };
        let mut command = Command::new(program);
        command.args(arguments).envs(&spawn.env).env(Marker::VARIABLE, spawn.marker.value());
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let (child, session) =
            start(&mut command).map_err(|source| SpawnError::Program { program: program.clone(), source })?;
        let (marker, log) = (spawn.marker.clone(), spawn.log.clone());
        Ok(Self { child, session, marker, port: spawn.port, log, started: Instant::now(), exited: None })
    }

    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{HOST}:{}", self.port)
    }

    /// Waits for the leader to end, for as long as it takes. Safe to cancel.
    pub async fn exited(&mut self) -> ExitStatus {
        if let Some(status) = self.exited {
            return status;
        }
        // Waiting fails only when somebody else has reaped the child; then it has ended all the same.
        let status = self.child.wait().await.unwrap_or_default();
        self.exited = Some(status);
        status
    }

    /// The beginning and the end of what the engine has logged so far.
    #[must_use]
    pub fn log_text(&self) -> String {
        read_log(&self.log)
    }
}

/// Starts a process in a session of its own, whose identifier comes back with it.
fn start(command: &mut Command) -> std::io::Result<(Child, i32)> {
    // SAFETY: `setsid` is async-signal-safe and touches no memory of the parent.
    #[expect(unsafe_code, reason = "a session of its own is the only way to reach the whole tree later")]
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(std::io::Error::from));
    }
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    let child = command.spawn()?;
    let session = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(-1);
    Ok((child, session))
}

/// An exit status in words.
#[must_use]
pub fn describe_exit(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown exit status".to_owned(),
    }
}

/// The text of a log, or its two ends where it is long; empty where it cannot be read.
///
/// Logs grow without bound when an engine floods them; causes stand at the beginning, deaths at the end.
#[must_use]
pub fn read_log(path: &Path) -> String {
    use std::io::{Read, Seek, SeekFrom};
    const MOST: u64 = 4 << 20;
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut bytes = Vec::new();
        file.by_ref().take(MOST).read_to_end(&mut bytes)?;
        if length > 2 * MOST {
            file.seek(SeekFrom::Start(length - MOST))?;
            bytes.push(b'\n');
        }
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

/// The standard output of a short command that succeeds within `limit`.
pub async fn output_of(command: &[String], limit: Duration) -> Option<String> {
    let [program, arguments @ ..] = command else { return None };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the place; the process is killed when it outlives the limit"
    )]
    let output = tokio::time::timeout(limit, command.output()).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
