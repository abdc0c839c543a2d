//! Fast starts: launches of the search are forks of a process that has imported the engine.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Mutex;

use super::attempt::LaunchReport;
use crate::engine::FastStart;
use crate::server::{FastOrder, Marker, SpawnParameters, Starter, StarterError};
use crate::trial::{FailureKind, Origin};
use crate::tuner::context::RunContext;
use crate::tuner::run::StudyRun;

/// The fast starts of a run.
pub(super) struct FastStarts {
    starter: Mutex<Option<Starter>>,
    /// Whether a fast start became ready.
    has_worked: AtomicBool,
    /// Whether all further launches are plain.
    is_refused: AtomicBool,
}

impl FastStarts {
    /// Creates the fast starts of a run. Without `wanted`, all launches are plain.
    pub(super) fn new(wanted: bool) -> Self {
        Self { starter: Mutex::default(), has_worked: AtomicBool::new(false), is_refused: AtomicBool::new(!wanted) }
    }

    /// Waits until a process can fork for this launch. Returns `None` for a plain start.
    pub(super) async fn order(
        &self,
        run: &StudyRun<'_>,
        context: &RunContext<'_>,
        origin: &Origin,
        spawn: &SpawnParameters,
    ) -> Option<FastOrder> {
        let fast = run.job.engine.engine.fast_start(&spawn.command).filter(|_| self.is_allowed(origin))?;
        let limit = run.job.engine.startup_timeout;
        match tokio::time::timeout(limit, self.prepare(run, fast, spawn)).await {
            Ok(Ok(order)) => Some(order),
            Ok(Err(error)) => {
                self.refuse(context, &error.to_string());
                None
            }
            Err(_) => {
                self.refuse(context, &format!("the imports took longer than {} s", limit.as_secs()));
                None
            }
        }
    }

    fn is_allowed(&self, origin: &Origin) -> bool {
        origin.is_of_search() && !self.is_refused.load(Ordering::Relaxed)
    }

    async fn prepare(
        &self,
        run: &StudyRun<'_>,
        fast: FastStart,
        spawn: &SpawnParameters,
    ) -> Result<FastOrder, StarterError> {
        let mut starter = self.starter.lock().await;
        let starter = match &mut *starter {
            Some(starter) => starter,
            none => {
                let marker = Marker::helper(run.store.path(), &run.job.name, "starter");
                none.insert(Starter::start(&fast, marker).await?)
            }
        };
        starter.prepare(fast, &spawn.env, &spawn.marker, spawn.processors.as_ref()).await
    }

    /// Makes all further launches plain.
    pub(super) fn refuse(&self, context: &RunContext<'_>, why: &str) {
        self.is_refused.store(true, Ordering::Relaxed);
        context.notice_once(format!("no fast starts: {why}; the study continues with plain starts"));
    }

    /// Learns that a server became ready.
    pub(super) fn learn_ready(&self, is_fast: bool) {
        self.has_worked.fetch_or(is_fast, Ordering::Relaxed);
    }

    /// Returns whether a fast start failed, and none has become ready so far. The way of the start may be the cause, so that
    /// the same trial is launched again in the plain way.
    pub(super) fn may_have_failed(&self, report: &LaunchReport, context: &RunContext<'_>) -> bool {
        let kinds = [
            FailureKind::StartupExit,
            FailureKind::StartupTimeout,
            FailureKind::InvalidArgument,
            FailureKind::Unsupported,
        ];
        let is_suspect = report.is_fast
            && report.ready.is_none()
            && report.left_behind.is_none()
            && kinds.into_iter().any(|kind| report.failed_with(kind))
            && !self.has_worked.load(Ordering::Relaxed);
        if is_suspect {
            self.refuse(context, "the first one failed");
        }
        is_suspect
    }
}
