//! Server-sent events: a page learns that its study has changed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;

use super::cache::{PageCache, PageSignature};
use crate::store::Study;

/// Interval between looks at the database: a trial is shown within a second of its end.
const POLL: Duration = Duration::from_millis(200);
/// Interval between looks at the lock of a study, whose release changes no row.
const LOCK_POLL: Duration = Duration::from_secs(1);

/// The number of changes of the database so far. It follows the database while someone listens.
pub(super) fn follow_changes(cache: Arc<PageCache>) -> watch::Sender<u64> {
    let (sender, _) = watch::channel(0);
    let changes = sender.clone();
    tokio::spawn(async move {
        let mut known = None;
        loop {
            tokio::time::sleep(POLL).await;
            if changes.receiver_count() == 0 {
                continue;
            }
            // A database that cannot be read now may be readable later.
            let version = cache.store().data_version().await.ok();
            if version.is_some() && std::mem::replace(&mut known, version) != version {
                changes.send_modify(|count| *count += 1);
            }
        }
    });
    sender
}

/// One listener of a study.
struct Listener {
    cache: Arc<PageCache>,
    study: Study,
    changes: watch::Receiver<u64>,
    stop: watch::Receiver<bool>,
    /// The state that was reported last.
    reported: Option<PageSignature>,
}

impl Listener {
    /// Waits until the study has another state than the reported one, and until its page may show it. `None` when the
    /// server ends.
    async fn next_change(&mut self) -> Option<()> {
        loop {
            if *self.stop.borrow() {
                return None;
            }
            if let Ok(signature) = self.cache.signature(&self.study).await
                && self.reported != Some(signature)
            {
                let rests_until = self.cache.rests_until(&self.study).await;
                tokio::select! {
                    () = tokio::time::sleep_until(rests_until.max(Instant::now()).into()) => {}
                    _ = self.stop.wait_for(|stop| *stop) => return None,
                }
                // Further changes of this time are part of the same report.
                self.reported = self.cache.signature(&self.study).await.ok();
                return Some(());
            }
            tokio::select! {
                changed = self.changes.changed() => changed.ok()?,
                () = tokio::time::sleep(LOCK_POLL) => {}
                _ = self.stop.wait_for(|stop| *stop) => return None,
            }
        }
    }
}

/// Returns the events of a study: `change` at once, and after each change. The stream ends with the server.
pub(super) fn events(
    cache: Arc<PageCache>,
    study: Study,
    changes: watch::Receiver<u64>,
    stop: watch::Receiver<bool>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let listener = Listener { cache, study, changes, stop, reported: None };
    let stream = unfold(listener, |mut listener| async move {
        listener.next_change().await?;
        Some((Ok(Event::default().event("change").data("{}")), listener))
    });
    // A broken connection is found by writing to it.
    Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}
