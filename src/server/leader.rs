//! The first process of a launch: a child of the tuner, or a fork of a waiting process.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::Child;

use super::process::ProcessEntry;

/// The interval of looks at a process whose end nobody reports.
const POLL: Duration = Duration::from_millis(50);

/// The first process of a launch.
#[derive(Debug)]
pub(super) enum Leader {
    Child(Child),
    Forked(ForkedProcess),
}

impl Leader {
    /// Waits for its end. Safe to cancel.
    pub(super) async fn wait(&mut self) -> ExitStatus {
        match self {
            // `wait` fails only if another party has already collected the child; the child has ended then, too.
            Self::Child(child) => child.wait().await.unwrap_or_default(),
            Self::Forked(process) => process.wait().await,
        }
    }
}

/// A process that a waiting process has forked.
#[derive(Debug)]
pub(super) struct ForkedProcess {
    entry: ProcessEntry,
    /// Reports the end as `{"status": N}`, with the status of `waitpid(2)`.
    connection: UnixStream,
    report: Vec<u8>,
}

impl ForkedProcess {
    pub(super) fn new(entry: ProcessEntry, connection: UnixStream) -> Self {
        Self { entry, connection, report: Vec::new() }
    }

    pub(super) fn entry(&self) -> ProcessEntry {
        self.entry
    }

    async fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = status_in(&self.report) {
                return status;
            }
            let mut bytes = [0; 256];
            match self.connection.read(&mut bytes).await {
                Ok(read @ 1..) => self.report.extend(&bytes[..read]),
                // The waiting process has ended first, so that nobody knows the exit code.
                Ok(0) | Err(_) => break,
            }
        }
        while ProcessEntry::read(self.entry.pid).is_some_and(|now| now.started == self.entry.started && !now.dead) {
            tokio::time::sleep(POLL).await;
        }
        ExitStatus::default()
    }
}

fn status_in(report: &[u8]) -> Option<ExitStatus> {
    #[derive(serde::Deserialize)]
    struct Report {
        status: i32,
    }
    serde_json::from_slice::<Report>(report).ok().map(|report| ExitStatus::from_raw(report.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_reported_as_the_system_reports_it() {
        assert_eq!(status_in(b"{\"status\": 256}\n").unwrap().code(), Some(1));
        assert_eq!(status_in(b"{\"status\": 9}\n").unwrap().signal(), Some(9));
        assert_eq!(status_in(b"{\"sta"), None);
    }
}
