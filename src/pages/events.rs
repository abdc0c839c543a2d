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
                if rests_until <= Instant::now() {
                    self.reported = Some(signature);
                    return Some(());
                }
                // Another caller may compute the page meanwhile, which then rests again with an older state. So the loop
                // looks again.
                tokio::select! {
                    () = tokio::time::sleep_until(rests_until.into()) => {}
                    _ = self.stop.wait_for(|stop| *stop) => return None,
                }
                continue;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::pages::CommandNames;
    use crate::store::Store;

    #[tokio::test]
    async fn a_change_is_reported_only_when_the_page_may_show_it() {
        let store = Store::in_memory().await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let names = CommandNames { program: "setpoint".to_owned(), database: "setpoint.db".to_owned() };
        let cache = Arc::new(PageCache::new(store, names));
        cache.page(&study).await.unwrap();
        let rest = |length: u64| cache.rest(&study, Instant::now() + Duration::from_millis(length));
        rest(50).await;
        let (_changes, changes) = watch::channel(0);
        let (_stop, stop) = watch::channel(false);
        let mut listener = Listener { cache: Arc::clone(&cache), study: study.clone(), changes, stop, reported: None };
        let begin = Instant::now();
        let (reported, ()) = tokio::join!(listener.next_change(), async {
            // As another caller does, who computes the page when its first rest has ended.
            tokio::time::sleep(Duration::from_millis(20)).await;
            rest(300).await;
        });
        assert_eq!(reported, Some(()));
        assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
    }
}
