//! The reasons why a launch has no measurement: a start that failed, a server that ended, an alarm of the watchdog.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use crate::server::{Server, StartError};
use crate::trial::{Failure, FailureKind, Outcome};
use crate::tuner::watchdog::Alarm;

/// How long an unhealthy engine may take to end: vLLM's watchdog looks every 5 s whether its engine has died.
pub(super) const DEATH_LIMIT: Duration = Duration::from_secs(7);

/// How long the health check of a server may take that answers nothing else.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);

pub(in crate::tuner) fn failed(kind: FailureKind, message: String) -> Outcome {
    Outcome::Failed(Failure { kind, message })
}

/// An engine that refuses its first request may be about to end, which tells more.
pub(super) async fn with_end(server: &mut Server, error: StartError) -> StartError {
    if matches!(error, StartError::Refuses(_))
        && !server.is_healthy().await
        && let Ok(status) = tokio::time::timeout(DEATH_LIMIT, server.exited()).await
    {
        return StartError::Exited(status);
    }
    error
}

/// The failure of a server that did not become ready.
pub(super) fn start_failure(server: &Server, error: StartError) -> Failure {
    match error {
        StartError::Exited(status) => server.diagnose(Some(status), false),
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

/// The failure of an engine that ended under load, whatever its exit code.
pub(super) fn crash(server: &Server, status: ExitStatus) -> Failure {
    server.diagnose(Some(status), true)
}

/// The failure that an alarm stands for: the engine may first say in its log why one of its processes has ended. `ready`: whether
/// its server was ready by then.
pub(in crate::tuner) async fn conclude(server: &mut Server, alarm: Alarm, ready: bool) -> Failure {
    match alarm {
        Alarm::Death { who, status } => {
            let leader = tokio::time::timeout(DEATH_LIMIT, server.exited()).await;
            // What a leader makes of a signal to another process is a code of its own, often 0.
            let failure = match status.filter(|status| status.signal().is_some()).or(leader.ok()) {
                Some(status) if ready => crash(server, status),
                Some(status) => start_failure(server, StartError::Exited(status)),
                None => server.diagnose(None, ready),
            };
            Failure { message: format!("{who} ended; {}", failure.message), ..failure }
        }
        Alarm::Silence { silent, in_flight, reason } => {
            let healthy = tokio::time::timeout(HEALTH_LIMIT, server.is_healthy()).await == Ok(true);
            let health = if healthy { "answers" } else { "does not answer" };
            let message = format!(
                "no token for {silent:.1?} with {in_flight} requests in flight, and its counters stand still; {reason}; the \
                 health check {health}"
            );
            Failure { kind: FailureKind::Hang, message }
        }
        Alarm::End { kind, message } => Failure { kind, message },
    }
}
