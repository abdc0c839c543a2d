//! One run of a study: its row in the database, its lock, and the facts that every part of the tuner reads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::time::RunTime;
use super::{EventObserver, LockError, Slots, StopRequest, StudyLock, TuneError, TunerEvent, reap};
use crate::config::Config;
use crate::execution::ExecutionEnvironment;
use crate::facts::Host;
use crate::job::{Job, differences};
use crate::private_files::{create_private_directory, restrict_files};
use crate::rule::Facts;
use crate::server::{self, PendingStop, ProcessOrigin};
use crate::store::{Store, Study};

/// The data that all parts of a run share. It does not change while launches run.
pub(super) struct StudyRun<'a> {
    pub(super) job: &'a Job,
    pub(super) store: &'a Store,
    pub(super) study: Study,
    pub(super) installed: ExecutionEnvironment,
    pub(super) slots: Slots,
    pub(super) observer: Arc<EventObserver>,
    /// The user's request to stop, or the end of the budget's time.
    pub(super) stop: watch::Receiver<StopRequest>,
    pub(super) time: RunTime,
}

impl StudyRun<'_> {
    /// Sends an event to the observer.
    pub(super) fn emit(&self, event: TunerEvent) {
        (self.observer)(event);
    }

    /// Sends a notice for the user to the observer.
    pub(super) fn notice(&self, text: String) {
        self.emit(TunerEvent::Notice { text });
    }

    /// Returns the stop that is requested at present.
    pub(super) fn stop(&self) -> StopRequest {
        *self.stop.borrow()
    }

    /// Waits until at least this stop is requested. Never returns if the sender is gone.
    pub(super) async fn wait_for_stop(&self, at_least: StopRequest) {
        if self.stop.clone().wait_for(|stop| *stop >= at_least).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Runs `work` and returns its result; `None` if a stop is requested before it ends.
    pub(super) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, TuneError>>,
    ) -> Result<Option<T>, TuneError> {
        tokio::select! {
            biased;
            () = self.wait_for_stop(StopRequest::Graceful) => Ok(None),
            done = work => done.map(Some),
        }
    }

    /// Returns the facts that rules and the memory model read.
    pub(super) fn facts(&self) -> Facts<'_> {
        self.job.facts(self.installed.version, self.installed.device, self.installed.host)
    }

    /// Merges the values of the study's `engine.args` into a configuration.
    pub(super) fn with_engine_args(&self, config: &Config) -> Config {
        self.job.with_arguments(config, self.installed.version)
    }

    /// Returns the directory of the study's logs, which is stored with each trial.
    pub(super) fn log_directory(&self) -> PathBuf {
        server::log_directory(self.store.path(), &self.job.name)
    }

    pub(super) fn log_path(&self, number: u32) -> PathBuf {
        server::trial_log(self.store.path(), &self.job.name, number)
    }
}

/// Finds or creates the row of a study in the database.
///
/// # Errors
/// If the database holds a study of this name with another definition.
pub(super) async fn find_or_create_study(job: &Job, store: &Store) -> Result<Study, TuneError> {
    let definition = job.definition();
    match store.study(&job.name).await? {
        None => Ok(store.create_study(&job.name, &definition, &Host::detect()).await?),
        Some(study) => {
            let differences = differences(&definition, &study.definition);
            if !differences.is_empty() {
                return Err(TuneError::DefinitionDiffers { name: study.name, differences });
            }
            Ok(study)
        }
    }
}

/// Creates the directory of a study's logs and locks the study.
///
/// # Errors
/// If the directory cannot be written, or another tuner runs the study.
pub(super) fn lock_study(job: &Job, store: &Store) -> Result<StudyLock, TuneError> {
    let directory = server::log_directory(store.path(), &job.name);
    let io = |source| LockError::Io { path: directory.clone(), source };
    // The folder of all studies' logs, then that of this study.
    directory.parent().map_or(Ok(()), create_private_directory).map_err(io)?;
    create_private_directory(&directory).and_then(|()| restrict_files(&directory)).map_err(io)?;
    Ok(StudyLock::acquire(&directory.join("lock"))?)
}

/// Runs the stop commands that a killed tuner still owed, and ends the processes that it has left running.
///
/// # Errors
/// If one of them does not end.
pub(super) async fn end_leftovers(run: &StudyRun<'_>) -> Result<(), TuneError> {
    for owed in PendingStop::of(&run.log_directory()) {
        if let Err(error) = owed.run(reap::STOP_COMMAND_LIMIT).await {
            run.emit(TunerEvent::StopCommandFailed { error });
        }
    }
    let of_study = |origin: &ProcessOrigin| origin.study == run.job.name && origin.is_of(run.store.path());
    let processes = server::end_processes(of_study, Duration::ZERO).await?.len();
    if processes > 0 {
        run.emit(TunerEvent::LeftoversEnded { processes });
    }
    if let Err(error) = server::remove_left_folders(&run.log_directory()) {
        run.notice(format!("left by a killed run: {error}"));
    }
    Ok(())
}
