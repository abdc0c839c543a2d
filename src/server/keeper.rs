//! What is done now and then while a server lives: its log is kept within bounds, and its processes are looked at, so that
//! one that leaves the launch later is known.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::family::Family;
use super::log::Log;

/// How often the log's size is asked for: one system call.
const INTERVAL: Duration = Duration::from_millis(100);

/// The same while the engine floods it.
const FLOODED_INTERVAL: Duration = Duration::from_millis(20);

/// A look reads the whole of `/proc`. Engines start their processes in the first minutes; later, a look would only take
/// processor time from what is measured.
const YOUNG: Duration = Duration::from_mins(2);
const YOUNG_INTERVAL: Duration = Duration::from_millis(500);
const OLD_INTERVAL: Duration = Duration::from_secs(5);

/// Ends when dropped.
#[derive(Debug)]
pub(super) struct Keeper(JoinHandle<()>);

impl Keeper {
    pub(super) fn start(log: Arc<Log>, family: Arc<Family>) -> Self {
        Self(tokio::spawn(keep(log, family)))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep(log: Arc<Log>, family: Arc<Family>) {
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
                    log.note(&format!("this log cannot be kept within bounds: {error}"));
                }
                false
            }
            // The runtime ends.
            Err(_) => return,
        };
        tokio::time::sleep(if flooded { FLOODED_INTERVAL } else { INTERVAL }).await;
    }
}
