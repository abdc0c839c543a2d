//! Fast starts of engines in Python. A waiting process has imported the engine, and forks for each launch.
//!
//! `setpoint_start.py` is the program of the waiting processes. It describes them and their messages. The starter is their
//! hub: it starts one for each environment that a launch needs. They end with the starter.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use super::leader::ForkedProcess;
use super::process::ProcessEntry;
use super::{HelperPipe, Marker, PipeError, SpawnError};
use crate::engine::FastStart;
use crate::facts::Processors;
use crate::private_files::{create_private_directory, write_private};

const SCRIPT: &str = include_str!("setpoint_start.py");
const SCRIPT_NAME: &str = "setpoint_start.py";
const HUB: &str = "hub.sock";

/// The time that a waiting process may take to fork.
const FORK_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum StarterError {
    #[error("cannot use {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error("the process that starts engines: {0}")]
    Pipe(#[from] PipeError),
    #[error("the process that starts engines does not answer: {0}")]
    Socket(#[from] std::io::Error),
    #[error("the process that starts engines answers {0}")]
    Refused(String),
    #[error("the environment variable {0} is not in UTF-8")]
    Variable(String),
}

/// The hub of the waiting processes of a run. Dropping it ends them.
#[derive(Debug)]
pub struct Starter {
    folder: PathBuf,
    hub: HelperPipe,
}

/// A start that a waiting process is ready for.
#[derive(Clone, Debug)]
pub struct FastOrder {
    address: PathBuf,
    command: Vec<String>,
    environment: BTreeMap<String, String>,
    /// When the launch began to wait for the process.
    pub(super) began: Instant,
}

#[derive(Deserialize)]
struct Answer {
    address: Option<PathBuf>,
    pid: Option<i32>,
    error: Option<String>,
}

impl Starter {
    /// Starts the hub, which imports nothing itself. `fast` has the interpreter and the modules of all launches.
    ///
    /// # Errors
    /// If its folder cannot be written, or the interpreter cannot be run.
    pub async fn start(fast: &FastStart, marker: Marker) -> Result<Self, StarterError> {
        // Not beside the logs: the address of a socket has at most 107 bytes.
        let folder = std::env::temp_dir().join(format!("setpoint-{:016x}", rand::random::<u64>()));
        let script = folder.join(SCRIPT_NAME);
        create_private_directory(&folder)
            .and_then(|()| write_private(&script, SCRIPT.as_bytes()))
            .map_err(|source| StarterError::File { path: folder.clone(), source })?;
        let words = [fast.python.as_str(), &script.to_string_lossy(), "hub", &folder.to_string_lossy()];
        let command: Vec<String> = words.into_iter().chain(fast.modules.iter().copied()).map(str::to_owned).collect();
        let mut hub = HelperPipe::spawn(&command, &BTreeMap::new(), marker)?;
        hub.read().await?;
        Ok(Self { folder, hub })
    }

    /// Waits until a process is ready to fork for a launch of `fast.command` in this environment. The variables in `env`
    /// are added to the tuner's own. The first launch with an environment waits for the imports.
    ///
    /// # Errors
    /// If the waiting process cannot be started.
    pub async fn prepare(
        &self,
        fast: FastStart,
        env: &BTreeMap<String, String>,
        marker: &Marker,
        processors: Option<&Processors>,
    ) -> Result<FastOrder, StarterError> {
        let began = Instant::now();
        let mut environment = own_environment()?;
        environment.extend(env.clone());
        environment.insert(Marker::VARIABLE.to_owned(), marker.value());
        let processors: Vec<u32> = processors.cloned().unwrap_or_else(Processors::allowed).iter().collect();
        let mut hub = tokio::net::UnixStream::connect(self.folder.join(HUB)).await?;
        let request = json!({"environment": environment, "processors": processors});
        hub.write_all(format!("{request}\n").as_bytes()).await?;
        let mut line = String::new();
        tokio::io::BufReader::new(hub).read_line(&mut line).await?;
        let address = match answer(&line) {
            Ok(Answer { address: Some(address), .. }) => address,
            Ok(_) => return Err(StarterError::Refused(line)),
            Err(StarterError::Refused(text)) => {
                return Err(StarterError::Refused(format!(
                    "{text}; the end of its standard error: {}",
                    self.hub.errors()
                )));
            }
            Err(error) => return Err(error),
        };
        Ok(FastOrder { address, command: fast.command, environment, began })
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        // The hub removes it as well, if the tuner ends in another way.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl FastOrder {
    /// Forks the first process of a launch, whose output is `log`.
    ///
    /// # Errors
    /// If the waiting process has ended or refuses, or if the new process ends at once.
    pub(super) fn fork(&self, log: &Path) -> Result<ForkedProcess, StarterError> {
        let directory = std::env::current_dir()?;
        let log = std::path::absolute(log)?;
        let request = json!({
            "argv": self.command, "log": log, "directory": directory, "environment": self.environment,
        });
        let mut connection = UnixStream::connect(&self.address)?;
        connection.set_read_timeout(Some(FORK_LIMIT))?;
        connection.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        // The end of the process comes as a second line, much later.
        BufReader::new(&connection).read_line(&mut line)?;
        let pid = answer(&line)?.pid.ok_or_else(|| StarterError::Refused(line.clone()))?;
        let entry =
            ProcessEntry::read(pid).ok_or_else(|| StarterError::Refused(format!("{line} and /proc has none")))?;
        connection.set_read_timeout(None)?;
        connection.set_nonblocking(true)?;
        Ok(ForkedProcess::new(entry, tokio::net::UnixStream::from_std(connection)?))
    }
}

fn answer(line: &str) -> Result<Answer, StarterError> {
    let answer: Answer = serde_json::from_str(line).map_err(|_| StarterError::Refused(format!("{line:?}")))?;
    match answer.error {
        Some(error) => Err(StarterError::Refused(error)),
        None => Ok(answer),
    }
}

/// Returns the tuner's own environment.
fn own_environment() -> Result<BTreeMap<String, String>, StarterError> {
    let text = |word: std::ffi::OsString| {
        word.into_string().map_err(|word| StarterError::Variable(word.to_string_lossy().into_owned()))
    };
    std::env::vars_os().map(|(name, value)| Ok((text(name)?, text(value)?))).collect()
}

#[cfg(test)]
mod tests;
