//! The reasons why a launch has no measurement: a start that failed, a server that ended, an alarm of the watchdog.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use crate::server::{Server, StartError};
use crate::trial::{Failure, FailureKind, Outcome};
use crate::tuner::watchdog::WatchdogAlarm;

/// The time that an unhealthy engine may take to end: vLLM's watchdog checks its engine every 5 s.
pub(super) const DEATH_LIMIT: Duration = Duration::from_secs(7);

/// Time limit of the health check of a silent server.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);

/// Builds the outcome of a failed launch.
pub(in crate::tuner) fn failed(kind: FailureKind, message: String) -> Outcome {
    Outcome::Failed(Failure { kind, message })
}

/// Replaces a refused first request by the server's exit, if it ends soon: the exit has a more exact cause.
pub(super) async fn prefer_exit(server: &mut Server, error: StartError) -> StartError {
    if matches!(error, StartError::RequestRefused(_))
        && !server.is_healthy().await
        && let Ok(status) = tokio::time::timeout(DEATH_LIMIT, server.wait_for_exit()).await
    {
        return StartError::Exited(status);
    }
    error
}

/// Returns the failure of a server that did not become ready.
pub(super) fn start_failure(server: &Server, error: StartError) -> Failure {
    match error {
        StartError::Exited(status) => server.diagnose(Some(status), false),
        StartError::Timeout(limit) => {
            let message = format!("not ready within {limit:?}; {}", last_line(&server.log_text()));
            Failure { kind: FailureKind::StartupTimeout, message }
        }
        StartError::Client(error) => Failure { kind: FailureKind::Spawn, message: error.to_string() },
        StartError::WrongServer(message) => Failure { kind: FailureKind::WrongServer, message },
        StartError::Unresponsive(message) => Failure { kind: FailureKind::Hang, message },
        StartError::RequestRefused(message) => {
            let message = format!("the first request, for one token, was refused: {message}");
            Failure { kind: FailureKind::RequestErrors, message }
        }
    }
}

fn last_line(log: &str) -> String {
    match log.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("the last line of its log: {line}"),
        None => "its log is empty".to_owned(),
    }
}

/// Returns the failure of an engine that ended under load, with any exit code.
pub(super) fn crash(server: &Server, status: ExitStatus) -> Failure {
    server.diagnose(Some(status), true)
}

/// Converts an alarm to a failure. After the death of a process it waits for the engine's end, because the log may then
/// name the cause. `ready` states whether the server was ready.
pub(in crate::tuner) async fn alarm_failure(server: &mut Server, alarm: WatchdogAlarm, ready: bool) -> Failure {
    match alarm {
        WatchdogAlarm::Death { who, status } => {
            let exit = tokio::time::timeout(DEATH_LIMIT, server.wait_for_exit()).await;
            // After a signal to one of the engine's other processes, the launched process exits with a code of its own,
            // often 0. The signal is therefore preferred.
            let failure = match status.filter(|status| status.signal().is_some()).or(exit.ok()) {
                Some(status) if ready => crash(server, status),
                Some(status) => start_failure(server, StartError::Exited(status)),
                None => server.diagnose(None, ready),
            };
            Failure { message: format!("{who} ended; {}", failure.message), ..failure }
        }
        WatchdogAlarm::Silence { silent, in_flight, reason } => {
            let healthy = tokio::time::timeout(HEALTH_LIMIT, server.is_healthy()).await == Ok(true);
            let health = if healthy { "passes" } else { "fails" };
            let message = format!(
                "no token for {silent:.1?} with {in_flight} requests in flight, and the server's counters stand still; \
                 {reason}; the health check {health}"
            );
            Failure { kind: FailureKind::Hang, message }
        }
        WatchdogAlarm::EndLaunch { kind, message } => Failure { kind, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_log_is_reported_as_empty() {
        assert_eq!(last_line(" \n"), "its log is empty");
        assert_eq!(last_line("INFO loading\n\n"), "the last line of its log: INFO loading");
    }
}
