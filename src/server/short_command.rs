//! Short commands, which run to their end or are killed at a time limit.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::process::Command;

use super::{LaunchMembers, Marker, describe_exit, orphan, start, stop};

/// Returns a marker that separates the processes of a short command from engine launches and from foreign processes.
fn marker() -> Marker {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Marker::helper(Path::new("/"), "a short command", &format!("{}-{number}", std::process::id()))
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("the command is empty")]
    Empty,
    #[error("cannot run {program:?}: {source}")]
    Program { program: String, source: std::io::Error },
    #[error("{program:?} took longer than {limit:?}")]
    TooLong { program: String, limit: Duration },
    #[error("{program:?} ended with {status}: {errors}")]
    Failed { program: String, status: String, errors: String },
}

/// Returns the standard output of a command that succeeds within `limit`. At the limit, or if the future is dropped,
/// the command is killed with everything that it started. Processes that outlive a command that ended in time are left
/// alone.
pub(super) async fn run_short(
    command: &[String],
    env: &BTreeMap<String, String>,
    limit: Duration,
) -> Result<String, CommandError> {
    let program = command.first().ok_or(CommandError::Empty)?.clone();
    let output = run_to_its_end(command, env, limit).await?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors =
        errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no error output").trim().to_owned();
    Err(CommandError::Failed { program, status: describe_exit(output.status), errors })
}

/// Runs a command to its end within `limit`, as [`run_short`] does.
async fn run_to_its_end(
    command: &[String],
    env: &BTreeMap<String, String>,
    limit: Duration,
) -> Result<Output, CommandError> {
    let [program, arguments @ ..] = command else { return Err(CommandError::Empty) };
    let program = program.clone();
    let failed = |source| CommandError::Program { program: program.clone(), source };
    let mut command = Command::new(&program);
    command.args(arguments).envs(env);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (child, family) = start(&mut command, marker(), None).map_err(failed)?;
    let mut running = RunningCommand { members: family, ended: false };
    let output = tokio::time::timeout(limit, child.wait_with_output()).await;
    let output = output.map_err(|_| CommandError::TooLong { program: program.clone(), limit })?.map_err(failed)?;
    running.ended = true;
    Ok(output)
}

/// A short command in progress.
struct RunningCommand {
    members: Arc<LaunchMembers>,
    ended: bool,
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if !self.ended {
            stop::kill_all(&self.members);
        }
        orphan::forget(&self.members);
    }
}

/// Returns the standard output of a short command, or `None` if it does not succeed within `limit`.
pub async fn output_of(command: &[String], limit: Duration) -> Option<String> {
    run_short(command, &BTreeMap::new(), limit).await.ok()
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    pub succeeded: bool,
    /// The standard output, and the standard error after it.
    pub output: String,
}

/// Returns the end of a short command. The variables in `env` are added to the tuner's own environment.
///
/// # Errors
/// If it cannot be run, or takes longer than `limit`.
pub async fn end_of(command: &[String], env: &BTreeMap<String, String>, limit: Duration) -> Result<CommandEnd, String> {
    let ended = run_to_its_end(command, env, limit).await.map_err(|error| error.to_string())?;
    let text = [ended.stdout, ended.stderr].concat();
    Ok(CommandEnd { succeeded: ended.status.success(), output: String::from_utf8_lossy(&text).into_owned() })
}

/// Runs a command that has to succeed within `limit`. At the limit it is killed with everything that it started. Safe
/// to cancel.
///
/// # Errors
/// The command, its exit status, and the last line of its standard error.
pub async fn run_to_success(command: &[String], limit: Duration) -> Result<(), String> {
    let ended = run_short(command, &BTreeMap::new(), limit).await;
    ended.map(drop).map_err(|error| crate::trial::redact(&format!("`{}`: {error}", command.join(" "))).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::process;

    async fn shell(script: &str, limit: Duration) -> Result<String, String> {
        let command = ["sh", "-c", script].map(str::to_owned);
        let env = BTreeMap::from([("WHO".to_owned(), "ada".to_owned())]);
        run_short(&command, &env, limit).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_command_returns_its_output_or_its_error() {
        let long = Duration::from_secs(20);
        assert_eq!(shell("echo $WHO", long).await, Ok("ada".to_owned()));
        let failed = shell("echo first >&2; echo 'no such container' >&2; exit 1", long).await;
        assert_eq!(failed, Err("\"sh\" ended with exit code 1: no such container".to_owned()));
        let slow = shell("sleep 600 & sleep 600; :", Duration::from_millis(50)).await;
        assert_eq!(slow, Err("\"sh\" took longer than 50ms".to_owned()));
        let prefix = Marker::study_prefix(Path::new("/"), "a short command");
        let mine = format!("{prefix}{}-", std::process::id());
        let with_a_child = |entry: &process::ProcessEntry| {
            entry.marker().is_some_and(|marker| marker.starts_with(mine.as_bytes()))
                && std::fs::read_to_string(format!("/proc/{}/cmdline", entry.pid)).is_ok_and(|it| it.contains("600"))
        };
        assert!(!process::all().iter().any(with_a_child), "its children are ended with it");
        let absent = run_short(&["/none/such".to_owned()], &BTreeMap::new(), long).await.map_err(|e| e.to_string());
        assert!(absent.unwrap_err().starts_with("cannot run \"/none/such\""));
        assert_eq!(output_of(&[], long).await, None);
    }
}
