//! Periodic work while a server lives. It limits the size of the log and records the launch's processes. A recorded
//! process is recognised even if it later changes its session, its environment or its parent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::family::LaunchFamily;
use super::log::LogFile;

/// The interval between two checks of the log's size. A check is one system call.
const INTERVAL: Duration = Duration::from_millis(100);

/// The interval while the engine floods the log.
const FLOODED_INTERVAL: Duration = Duration::from_millis(20);

/// The time after the launch during which processes are recorded often. Each look reads the whole of `/proc`. Engines
/// start their processes in the first minutes; later looks would take processor time from the measurement.
const YOUNG: Duration = Duration::from_mins(2);
const YOUNG_INTERVAL: Duration = Duration::from_millis(500);
const OLD_INTERVAL: Duration = Duration::from_secs(5);

/// The handle of the periodic task, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct LogKeeper(JoinHandle<()>);

impl LogKeeper {
    pub(super) fn start(log: Arc<LogFile>, family: Arc<LaunchFamily>) -> Self {
        Self(tokio::spawn(keep(log, family)))
    }
}

impl Drop for LogKeeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep(log: Arc<LogFile>, family: Arc<LaunchFamily>) {
    let begin = Instant::now();
    let (mut looked, mut told): (Option<Instant>, bool) = (None, false);
    loop {
        let interval = if begin.elapsed() < YOUNG { YOUNG_INTERVAL } else { OLD_INTERVAL };
        let look = looked.is_none_or(|last| last.elapsed() >= interval);
        if look {
            looked = Some(Instant::now());
        }
        let (log, family) = (Arc::clone(&log), Arc::clone(&family));
        let work = move || {
            if look {
                family.members_quickly();
            }
            log.bound().map_err(|error| (log, error))
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
        tokio::time::sleep(if flooded { FLOODED_INTERVAL } else { INTERVAL }).await;
    }
}
