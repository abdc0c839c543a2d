//! A short command that ends something: run to its end, within a limit.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::{describe_exit, process, start};

/// As much of what a failing command says is told, in characters.
const MOST_TOLD: usize = 300;

/// A command in a session of its own. Dropping it before its end kills all of the session.
struct Running {
    child: Child,
    session: i32,
    ended: bool,
}

impl Running {
    /// How it ended, and what it wrote to standard error.
    async fn wait(&mut self) -> std::io::Result<(ExitStatus, Vec<u8>)> {
        let mut errors = Vec::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_end(&mut errors).await?;
        }
        let status = self.child.wait().await?;
        self.ended = true;
        Ok((status, errors))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // The leader is still to be collected, so the number is its own.
        for member in process::members(&[self.session], |_| false) {
            let _ = kill(Pid::from_raw(member.pid()), Signal::SIGKILL);
        }
    }
}

/// Runs a command that has to succeed within `limit`; later it is killed with all that it has started. Safe to cancel.
///
/// # Errors
/// The command, how it ended, and what it said.
pub async fn finish(words: &[String], limit: Duration) -> Result<(), String> {
    let [program, arguments @ ..] = words else { return Err("the command is empty".to_owned()) };
    let told = words.join(" ");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let (child, session) = start(&mut command).map_err(|error| format!("`{told}` cannot be run: {error}"))?;
    let mut running = Running { child, session, ended: false };
    match tokio::time::timeout(limit, running.wait()).await {
        Err(_) => Err(format!("`{told}` did not end within {limit:?}")),
        Ok(Err(error)) => Err(format!("`{told}` cannot be waited for: {error}")),
        Ok(Ok((status, _))) if status.success() => Ok(()),
        Ok(Ok((status, errors))) => {
            let said: String = String::from_utf8_lossy(&errors).trim().chars().take(MOST_TOLD).collect();
            Err(format!("`{told}` failed ({}): {said}", describe_exit(status)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn a_command_that_hangs_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("sleep 600 & echo $! >'{}'; wait", file.display());
        let error = finish(&["sh".to_owned(), "-c".to_owned(), script], Duration::from_millis(500)).await.unwrap_err();
        assert!(error.contains("did not end within 500ms"), "{error}");
        let child: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let begin = Instant::now();
        let lives = || procfs::process::Process::new(child).is_ok_and(|process| process.is_alive());
        while lives() {
            assert!(begin.elapsed() < Duration::from_secs(10), "the child of the command lives on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
