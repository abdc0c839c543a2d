//! A short command that ends something: run to its end, within a limit.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::describe_exit;

/// As much of what a failing command says is told, in characters.
const MOST_TOLD: usize = 300;

/// Runs a command that has to succeed within `limit`; later it is killed.
///
/// # Errors
/// The command, how it ended, and what it said.
pub async fn finish(words: &[String], limit: Duration) -> Result<(), String> {
    let [program, arguments @ ..] = words else { return Err("the command is empty".to_owned()) };
    let told = words.join(" ");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the place; the process is killed when it outlives the limit"
    )]
    let ended = tokio::time::timeout(limit, command.output()).await;
    match ended {
        Err(_) => Err(format!("`{told}` did not end within {limit:?}")),
        Ok(Err(error)) => Err(format!("`{told}` cannot be run: {error}")),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let said: String = String::from_utf8_lossy(&output.stderr).trim().chars().take(MOST_TOLD).collect();
            Err(format!("`{told}` failed ({}): {said}", describe_exit(output.status)))
        }
    }
}
