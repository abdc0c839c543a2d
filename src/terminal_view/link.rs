//! The link between the view's thread, the task that observes the study, and the tuner of this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::state::{LiveProgress, ViewData};
use crate::observation::TrialDetail;

/// The data and the requests that the view shares with the rest of the process.
#[derive(Default)]
pub(crate) struct ViewLink {
    shared: Mutex<SharedView>,
    /// Wakes the observing task after a request of the view.
    requested: Notify,
}

/// Returns the progress of the run at present; `None` if there is no run.
pub(crate) type LiveSource = dyn Fn() -> Option<LiveProgress> + Send + Sync;

#[derive(Default)]
struct SharedView {
    live: Option<Arc<LiveSource>>,
    data: ViewData,
    /// Grows with each change of the data.
    version: u64,
    request: ViewRequest,
    is_ended: bool,
    is_shown: bool,
    job: JobEvents,
}

/// Signals of job control that the view's thread has not handled yet.
#[derive(Debug, Default)]
struct JobEvents {
    is_suspend_due: bool,
    is_resumed: bool,
}

/// The choices of the view's user that the observing task follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ViewRequest {
    /// The chosen study. `None`: the default.
    pub study: Option<String>,
    /// The trial whose details are shown.
    pub selected: Option<u32>,
}

impl std::fmt::Debug for ViewLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ViewLink").finish_non_exhaustive()
    }
}

impl ViewLink {
    fn shared(&self) -> MutexGuard<'_, SharedView> {
        // A panic elsewhere must not end the view.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the data to show.
    pub(super) fn update(&self, change: impl FnOnce(&mut ViewData)) {
        let mut shared = self.shared();
        change(&mut shared.data);
        shared.version += 1;
    }

    pub(super) fn details(&self) -> Vec<Arc<TrialDetail>> {
        self.shared().data.details.clone()
    }

    /// Sets the source of the progress that the tuner of this process reports. The view asks it at each drawing, so that
    /// times go on without an event.
    pub(crate) fn set_live(&self, live: Arc<LiveSource>) {
        self.shared().live = Some(live);
    }

    /// Shows a notice of the tuner until the next one.
    pub(crate) fn show_notice(&self, text: &str) {
        self.update(|data| data.notice = Some(text.to_owned()));
    }

    /// Returns the progress at present.
    pub(super) fn live(&self) -> Option<LiveProgress> {
        // The lock is released before the source takes its own.
        let live = self.shared().live.clone()?;
        live()
    }

    /// Returns the data and its version, if the version is another one than `known`.
    pub(super) fn newer_than(&self, known: u64) -> Option<(u64, ViewData)> {
        let shared = self.shared();
        (shared.version != known).then(|| (shared.version, shared.data.clone()))
    }

    /// Ends the view and the observing task. The view's thread gives the terminal back within a moment.
    pub(crate) fn end(&self) {
        self.shared().is_ended = true;
        self.requested.notify_one();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.shared().is_ended
    }

    /// Records whether the view owns the terminal.
    pub(super) fn set_shown(&self, is_shown: bool) {
        self.shared().is_shown = is_shown;
    }

    pub(super) fn is_shown(&self) -> bool {
        self.shared().is_shown
    }

    pub(super) fn request(&self, request: ViewRequest) {
        let mut shared = self.shared();
        if shared.request != request {
            shared.request = request;
            drop(shared);
            self.requested.notify_one();
        }
    }

    pub(super) fn requested(&self) -> ViewRequest {
        self.shared().request.clone()
    }

    /// Waits for the next request of the view.
    pub(super) async fn wait_for_request(&self) {
        self.requested.notified().await;
    }

    pub(super) fn ask_to_suspend(&self) {
        self.shared().job.is_suspend_due = true;
    }

    pub(super) fn take_suspend(&self) -> bool {
        std::mem::take(&mut self.shared().job.is_suspend_due)
    }

    pub(super) fn note_resumed(&self) {
        self.shared().job.is_resumed = true;
    }

    pub(super) fn take_resumed(&self) -> bool {
        std::mem::take(&mut self.shared().job.is_resumed)
    }
}
