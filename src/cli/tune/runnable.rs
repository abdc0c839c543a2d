//! A study that is ready to run, with its display.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::cli::GlobalOptions;
use crate::cli::failure::CommandFailure;
use crate::cli::progress::{ProgressLine, TuneView};
use crate::execution::{ExecutionEnvironment, ReleaseSource};
use crate::job::Job;
use crate::store::Store;
use crate::trial::draft_bias;
use crate::tuner::{RunSummary, Slots, StopRequest, TuneError, Tuner, estimate, preflight_setup};

/// A study, the environment of its engine, and its display.
pub(super) struct RunnableStudy {
    pub(super) job: Job,
    pub(super) installed: ExecutionEnvironment,
    pub(super) slots: Slots,
    pub(super) progress: Arc<ProgressLine>,
    /// The view that shows the progress, as long as it is open.
    view: Option<Arc<TuneView>>,
}

impl RunnableStudy {
    /// Creates the study with its display.
    pub(super) async fn new(
        job: Job,
        installed: ExecutionEnvironment,
        slots: Slots,
        store: &Store,
        global: &GlobalOptions,
        view: Option<Arc<TuneView>>,
    ) -> Result<Self, CommandFailure> {
        let progress = Arc::new(ProgressLine::new(global, &job, view.as_ref()));
        let study = Self { job, installed, slots, progress, view };
        study.fill_display(store).await?;
        Ok(study)
    }

    /// Replaces the display, which ends with a run.
    pub(super) async fn renew_display(&mut self, store: &Store, global: &GlobalOptions) -> Result<(), CommandFailure> {
        self.progress = Arc::new(ProgressLine::new(global, &self.job, self.view.as_ref()));
        self.fill_display(store).await
    }

    /// Gives the display the results of earlier runs and, for a live line, the expected times of a launch.
    async fn fill_display(&self, store: &Store) -> Result<(), CommandFailure> {
        self.show_baselines();
        if let Some(stored) = store.study(&self.job.name).await?
            && let Some(baseline) = store.baseline(&stored).await?
        {
            self.progress.set_baseline(baseline.value);
        }
        if self.progress.is_live() {
            let estimated = estimate(&self.job, &self.installed, &self.slots, None, Some(store)).await?;
            self.progress.set_estimate(&estimated);
        }
        Ok(())
    }

    /// Runs the study, or resumes it. If the first server reports another release than the assumed one, the run begins
    /// again for that release.
    pub(super) async fn run(
        &mut self,
        store: &Store,
        stop: &watch::Receiver<StopRequest>,
        accepts_change: bool,
    ) -> Result<RunSummary, CommandFailure> {
        let (begin, time) = (Instant::now(), self.job.budget.time);
        let result = loop {
            let setup = preflight_setup(&self.job, &self.installed, store.path()).unwrap_or_else(|reason| {
                self.progress.note(&format!("no preflight: {reason}"));
                None
            });
            let watcher = Arc::clone(&self.progress);
            let tuner = Tuner {
                job: &self.job,
                store,
                installed: self.installed.clone(),
                slots: self.slots.clone(),
                accepts_change,
                preflight: setup,
                observer: Arc::new(move |event| watcher.on(&event)),
                stop: stop.clone(),
            };
            match tuner.run().await {
                Err(TuneError::ReleaseAdopted { version, reported }) => {
                    self.progress.note(&format!(
                        "the server reports release {reported} instead of the assumed {}: rules, memory model and \
                         priors are computed again for {version}",
                        self.installed.version
                    ));
                    self.installed.adopt(version, ReleaseSource::FirstServer);
                    self.show_baselines();
                    self.job.check_release(version)?;
                    self.job.budget.time = time.map(|time| time.saturating_sub(begin.elapsed()));
                }
                result => break result,
            }
        };
        self.progress.finish();
        Ok(result?)
    }

    /// Gives the display the baselines of its rows: the engine's defaults and today's deployment. They depend on the
    /// engine's release.
    fn show_baselines(&self) {
        let Self { job, installed, .. } = self;
        let search = job.search(installed.version, installed.device, installed.host);
        let defaults = job.default_values(installed.version, installed.device, installed.host);
        self.progress.set_baselines(defaults, search.deployment());
    }

    /// Notes the properties of the workload and of the machine that the user should know before the run.
    pub(super) fn note_conditions(&self) {
        let Self { job, installed, slots, progress, .. } = self;
        for left_out in job.parts().iter().flat_map(|part| part.workload.source.left_out()) {
            progress.note(&format!("the workload's file: left out {} {}", left_out.rows, left_out.reason));
        }
        for warning in job.repetition_warnings() {
            progress.note(&format!("the workload: {warning}"));
        }
        if let Some(warning) = draft_bias(&job.definition(), None) {
            progress.note(&format!("the workload: {warning}"));
        }
        if installed.assumed {
            progress.note(&format!(
                "the engine's release is unknown, flags are checked as for {}; set engine.version if it differs",
                installed.version
            ));
        }
        slots.describe().iter().for_each(|slots| progress.note(slots));
        if let Some(reason) = &installed.detection_error {
            progress.note(&format!("the GPUs are unknown, so rules about them are skipped: {reason}"));
        }
        for notice in &installed.gpu_notices {
            progress.note(notice);
        }
    }
}
