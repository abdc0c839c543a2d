//! The state of a study as an observer reads it: from its database, its lock and the logs of its launches, without its
//! tuner.
//!
//! [`StudyObserver::poll`] is cheap enough for several calls per second. It reads the database only if another connection
//! has changed it, and then only the trials that have changed. Of a log it reads the bytes that were added.

mod detail;
mod launch;
mod log_excerpt;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;

use crate::objective::Objective;
use crate::server::log_directory;
use crate::store::{ListedTrial, Store, StoreError, Study, StudyCounts, TrialMark};
use crate::tuner::holder;

pub(crate) use detail::TrialDetail;
use launch::LaunchFollower;
pub(crate) use launch::{LaunchStage, ObservedPhase, RunningLaunch};
use standing::Standing;
pub(crate) use standing::{BestSoFar, ExpectedLaunch};

/// The state of a study at one instant.
#[derive(Clone, Debug)]
pub(crate) struct StudyObservation {
    pub study: Study,
    /// `None` if the stored definition has no readable objective.
    pub objective: Option<Objective>,
    pub counts: StudyCounts,
    /// The tuner that runs the study. `None` if the study is not running.
    pub tuner: Option<RunningTuner>,
    /// The trials with an outcome, ordered by number.
    pub trials: Arc<Vec<ListedTrial>>,
    /// The best configuration. `None` before a measurement within the limits.
    pub best: Option<BestSoFar>,
    /// The value of the engine's defaults.
    pub baseline: Option<f64>,
    /// The expected duration of a launch. `None` before the first measured launch.
    pub expected: Option<ExpectedLaunch>,
    /// The trials without an outcome, ordered by number.
    pub running: Vec<RunningLaunch>,
}

/// A tuner that holds a study's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningTuner {
    /// The id of its process.
    pub process: String,
    /// The beginning of its run, if the file of the lock shows it.
    pub since: Option<SystemTime>,
}

/// A study of a database, for a choice among several.
#[derive(Clone, Debug)]
pub(crate) struct ObservedStudy {
    pub study: Study,
    pub counts: StudyCounts,
    pub is_running: bool,
}

impl StudyObservation {
    /// Returns the trial with an outcome of this number.
    pub(crate) fn trial(&self, number: u32) -> Option<&ListedTrial> {
        let index = self.trials.binary_search_by_key(&number, |trial| trial.number).ok()?;
        self.trials.get(index)
    }

    /// Returns the seconds of all launches with an outcome.
    pub(crate) fn launched_s(&self) -> f64 {
        self.trials.iter().map(|trial| trial.elapsed_s).sum()
    }
}

/// Returns every study of the database, the newest last.
pub(crate) async fn observed_studies(store: &Store) -> Result<Vec<ObservedStudy>, StoreError> {
    let studies = store.studies().await?.into_iter();
    let observed = |(study, counts): (Study, StudyCounts)| {
        let is_running = is_running(store, &study);
        ObservedStudy { study, counts, is_running }
    };
    Ok(studies.map(observed).collect())
}

/// Returns the study to show if none is named: the newest one that is running, or else the newest one.
pub(crate) fn default_study(studies: &[ObservedStudy]) -> Option<&ObservedStudy> {
    studies.iter().rev().find(|observed| observed.is_running).or(studies.last())
}

/// Returns whether a tuner on this host runs a study now.
pub(crate) fn is_running(store: &Store, study: &Study) -> bool {
    holder(&lock_path(store, study)).is_some()
}

fn lock_path(store: &Store, study: &Study) -> PathBuf {
    log_directory(store.path(), &study.name).join("lock")
}

/// An observer of one study.
#[derive(Debug)]
pub(crate) struct StudyObserver {
    store: Store,
    observation: StudyObservation,
    /// The version of the database that was read last.
    version: Option<i64>,
    marks: BTreeMap<u32, TrialMark>,
    standing: Standing,
    followers: Vec<LaunchFollower>,
}

impl StudyObserver {
    /// Begins to observe a study and reads it.
    pub(crate) async fn open(store: Store, study: Study) -> Result<Self, StoreError> {
        let observation = StudyObservation {
            objective: study.objective(),
            study,
            counts: StudyCounts::default(),
            tuner: None,
            trials: Arc::default(),
            best: None,
            baseline: None,
            expected: None,
            running: Vec::new(),
        };
        let (marks, standing) = (BTreeMap::new(), Standing::default());
        let mut observer = Self { store, observation, version: None, marks, standing, followers: Vec::new() };
        observer.poll().await?;
        Ok(observer)
    }

    /// Returns the state by the last poll.
    pub(crate) fn observation(&self) -> &StudyObservation {
        &self.observation
    }

    /// Reads the parts that have changed. Returns whether any has.
    pub(crate) async fn poll(&mut self) -> Result<bool, StoreError> {
        if !self.store.path().exists() {
            return Err(StoreError::Missing(self.store.path().to_owned()));
        }
        // Asked before the rows are read: a change between the two is read again by the next poll.
        let version = self.store.data_version().await?;
        let mut has_changed = self.version != Some(version);
        if has_changed {
            self.refresh().await?;
            self.version = Some(version);
        }
        let tuner = self.find_tuner();
        has_changed |= tuner != self.observation.tuner;
        self.observation.tuner = tuner;
        has_changed |= self.follow_launches();
        Ok(has_changed)
    }

    /// Reads the details of a trial with an outcome. `None` if it has none.
    pub(crate) async fn detail(&self, number: u32) -> Result<Option<TrialDetail>, StoreError> {
        TrialDetail::read(&self.store, &self.observation.study, number).await
    }

    /// Reads the trials whose marks have changed, and the rows that depend on all trials.
    async fn refresh(&mut self) -> Result<(), StoreError> {
        let study = self.observation.study.clone();
        let marks: BTreeMap<u32, TrialMark> =
            self.store.trial_marks(&study)?.into_iter().map(|mark| (mark.number, mark)).collect();
        let is_new = |mark: &&TrialMark| !mark.is_running && self.marks.get(&mark.number) != Some(*mark);
        let changed: Vec<u32> = marks.values().filter(is_new).map(|mark| mark.number).collect();
        let read = if changed.is_empty() { Vec::new() } else { self.store.list_of(&study, &changed)? };
        let has_outcome = |number: u32| marks.get(&number).is_some_and(|mark| !mark.is_running);
        let has_withdrawn = self.observation.trials.iter().any(|trial| !has_outcome(trial.number));
        if !read.is_empty() || has_withdrawn {
            let trials = Arc::make_mut(&mut self.observation.trials);
            trials.retain(|trial| has_outcome(trial.number));
            for trial in read {
                match trials.binary_search_by_key(&trial.number, |known| known.number) {
                    Ok(index) => trials[index] = trial,
                    Err(index) => trials.insert(index, trial),
                }
            }
            self.standing.update(&self.observation.trials, &marks, &changed);
        }
        self.marks = marks;
        self.observation.counts = self.store.counts(study.id).await?;
        let (judgement, decision) = (self.store.judgement(&study).await?, self.store.decision(&study).await?);
        let objective = self.observation.objective.as_ref();
        (self.observation.best, self.observation.baseline) =
            self.standing.best_and_baseline(objective, judgement.as_ref(), decision.as_ref());
        self.observation.expected = ExpectedLaunch::of(&self.observation.trials);
        let running = self.store.unfinished_trials(&study).await?;
        let mut earlier = std::mem::take(&mut self.followers);
        for trial in running {
            let known = earlier.iter().position(|follower| follower.is_of(&trial));
            self.followers.push(match known {
                Some(index) => earlier.swap_remove(index),
                None => LaunchFollower::new(self.store.path(), &study, trial),
            });
        }
        Ok(())
    }

    fn find_tuner(&self) -> Option<RunningTuner> {
        let lock = lock_path(&self.store, &self.observation.study);
        let process = holder(&lock)?;
        // A tuner writes its id into the file when it locks it.
        let since = lock.metadata().and_then(|file| file.modified()).ok();
        Some(RunningTuner { process, since })
    }

    /// Reads the new lines of the logs. Returns whether a launch has changed.
    fn follow_launches(&mut self) -> bool {
        let (now, has_tuner) = (Timestamp::now(), self.observation.tuner.is_some());
        let mut has_changed = self.followers.len() != self.observation.running.len();
        for follower in &mut self.followers {
            has_changed |= follower.poll(now, has_tuner);
        }
        if has_changed || !self.followers.is_empty() {
            // The durations of phases go on without a change of the log.
            self.observation.running = self.followers.iter().map(|follower| follower.launch(now)).collect();
        }
        has_changed
    }
}
