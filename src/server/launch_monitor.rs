//! Periodic work while a server lives. It limits the size of the log and records the launch's processes. A recorded
//! process is recognised even if it later changes its session, its environment or its parent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::launch_members::LaunchMembers;
use super::log::LogFile;

/// The interval between two checks of the log's size. A check is one system call.
const SIZE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The interval while the engine floods the log.
const FLOODED_INTERVAL: Duration = Duration::from_millis(20);

/// The time after the launch during which processes are recorded often. Each look reads the whole of `/proc`. Engines
/// start their processes in the first minutes; later looks would take processor time from the measurement.
const START_PERIOD: Duration = Duration::from_mins(2);
const START_RECORD_INTERVAL: Duration = Duration::from_millis(500);
const LATER_RECORD_INTERVAL: Duration = Duration::from_secs(5);

/// The handle of the periodic task, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct LaunchMonitor(JoinHandle<()>);

impl LaunchMonitor {
    pub(super) fn start(log: Arc<LogFile>, family: Arc<LaunchMembers>) -> Self {
        Self(tokio::spawn(monitor_launch(log, family)))
    }
}

impl Drop for LaunchMonitor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn monitor_launch(log: Arc<LogFile>, family: Arc<LaunchMembers>) {
    let begin = Instant::now();
    let (mut looked, mut told): (Option<Instant>, bool) = (None, false);
    loop {
        let interval = if begin.elapsed() < START_PERIOD { START_RECORD_INTERVAL } else { LATER_RECORD_INTERVAL };
        let look = looked.is_none_or(|last| last.elapsed() >= interval);
        if look {
            looked = Some(Instant::now());
        }
        let (log, family) = (Arc::clone(&log), Arc::clone(&family));
        let work = move || {
            if look {
                family.members_quickly();
            }
            log.limit_size().map_err(|error| (log, error))
        };
        let bounded = tokio::task::spawn_blocking(work).await;
        let flooded = match bounded {
            Ok(Ok(flooded)) => flooded,
            Ok(Err((log, error))) => {
                if !std::mem::replace(&mut told, true) {
                    log.note(&format!("the size of this log cannot be limited: {error}"));
                }
                false
            }
            // The runtime is shutting down.
            Err(_) => return,
        };
        tokio::time::sleep(if flooded { FLOODED_INTERVAL } else { SIZE_CHECK_INTERVAL }).await;
    }
}
