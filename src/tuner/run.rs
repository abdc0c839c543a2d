//! Before the first trial: the study's row, its lock, and what an earlier run left behind.

use std::path::PathBuf;
use std::time::Duration;

use super::{Event, Lock, LockError, TuneError, Tuner, reap};
use crate::facts::Host;
use crate::job::differences;
use crate::private_files::{create_private_directory, restrict_files};
use crate::server::{self, Owed, ProcessOrigin};
use crate::store::Study;

impl Tuner<'_> {
    /// Finds or creates the study, locks it, and ends what a killed tuner left running.
    pub(super) async fn open_study(&self) -> Result<(Study, Lock), TuneError> {
        let directory = self.log_directory();
        let io = |source| LockError::Io { path: directory.clone(), source };
        // The folder of all studies' logs, then that of this one's.
        directory.parent().map_or(Ok(()), create_private_directory).map_err(io)?;
        create_private_directory(&directory).and_then(|()| restrict_files(&directory)).map_err(io)?;
        let lock = Lock::acquire(&directory.join("lock"))?;
        let definition = self.job.definition();
        let study = match self.store.study(&self.job.name).await? {
            None => self.store.create_study(&self.job.name, &definition, &Host::detect()).await?,
            Some(study) => {
                let differences = differences(&definition, &study.definition);
                if !differences.is_empty() {
                    return Err(TuneError::Differs { name: study.name, differences });
                }
                study
            }
        };
        self.enter_context(&study).await?;
        for owed in Owed::of(&directory) {
            if let Err(error) = owed.pay(reap::STOP_COMMAND_LIMIT).await {
                (self.observer)(Event::StopCommand { error });
            }
        }
        let of_study = |origin: &ProcessOrigin| origin.study == self.job.name && origin.is_of(self.store.path());
        let processes = server::end(of_study, Duration::ZERO).await?.len();
        if processes > 0 {
            (self.observer)(Event::Swept { processes });
        }
        Ok((study, lock))
    }

    /// It is stored with each trial.
    pub(super) fn log_directory(&self) -> PathBuf {
        server::log_directory(self.store.path(), &self.job.name)
    }
}
