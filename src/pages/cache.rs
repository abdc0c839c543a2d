//! Documents and pages of studies, computed at most once for each change, and only for a small share of a processor.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use tokio::sync::Mutex;

use super::read::{CommandNames, read_document};
use crate::observation::is_running;
use crate::report::{PageError, StudyDocument, live_page};
use crate::store::{Store, StoreError, Study};

/// A page is computed again after this multiple of its processor time at the earliest, so that pages take at most one
/// percent of a processor however often trials end.
const REST: u32 = 100;
/// The longest rest. Only a wrong clock would need it.
const MAX_REST: Duration = Duration::from_mins(5);

/// The reason for which a page cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PagesError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Page(#[from] PageError),
    #[error("the document cannot be written: {0}")]
    Document(#[from] serde_json::Error),
    #[error("the metrics cannot be written: {0}")]
    Metrics(#[from] std::fmt::Error),
    #[error("a task has ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// The page of a study in one state of the database.
#[derive(Clone, Debug)]
pub(super) struct StudyPage {
    pub(super) document: Arc<StudyDocument>,
    pub(super) html: Arc<str>,
    signature: PageSignature,
    /// The instant after which a newer state may be computed.
    pub(super) rests_until: Instant,
}

/// The state of a study that decides its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageSignature {
    rows: u64,
    is_running: bool,
}

/// The pages of all studies that were asked for.
#[derive(Debug)]
pub(super) struct PageCache {
    store: Store,
    names: CommandNames,
    pages: Mutex<HashMap<i64, StudyPage>>,
}

impl PageCache {
    pub(super) fn new(store: Store, names: CommandNames) -> Self {
        Self { store, names, pages: Mutex::default() }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the present state of a study.
    pub(super) async fn signature(&self, study: &Study) -> Result<PageSignature, StoreError> {
        Ok(PageSignature { rows: self.store.study_signature(study).await?, is_running: is_running(&self.store, study) })
    }

    /// Returns the page of a study. A page that was computed a moment ago may lack the latest change.
    pub(super) async fn page(&self, study: &Study) -> Result<StudyPage, PagesError> {
        // Callers of one state share its computation.
        let mut pages = self.pages.lock().await;
        let signature = self.signature(study).await?;
        if let Some(page) = pages.get(&study.id)
            && (page.signature == signature || Instant::now() < page.rests_until)
        {
            return Ok(page.clone());
        }
        let begin = processor_time();
        let url = format!("/studies/{}/timelines/{{trial}}", url_segment(&study.name));
        let document = Box::pin(read_document(&self.store, study.clone(), &self.names, Some(url))).await?;
        let document = Arc::new(document);
        let html = {
            let document = Arc::clone(&document);
            tokio::task::spawn_blocking(move || Ok::<_, PagesError>(live_page(&document.to_json()?)?)).await??
        };
        // Waiting for a processor is no cost.
        let rest = (REST * processor_time().saturating_sub(begin)).min(MAX_REST);
        let page = StudyPage { document, html: html.into(), signature, rests_until: Instant::now() + rest };
        pages.insert(study.id, page.clone());
        Ok(page)
    }

    /// Returns the instant after which the page of a study shows its present state.
    pub(super) async fn rests_until(&self, study: &Study) -> Instant {
        self.pages.lock().await.get(&study.id).map_or_else(Instant::now, |page| page.rests_until)
    }
}

#[cfg(test)]
impl PageCache {
    /// Lets the computed page of a study rest.
    pub(super) async fn rest(&self, study: &Study, until: Instant) {
        if let Some(page) = self.pages.lock().await.get_mut(&study.id) {
            page.rests_until = until;
        }
    }
}

/// Returns the processor time of this process so far.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Returns a name as one segment of an address.
#[must_use]
pub(super) fn url_segment(name: &str) -> String {
    // Form encoding writes a blank as a plus sign, which a path does not know.
    url::form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}
