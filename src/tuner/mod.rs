//! The loop: ask, check, launch, measure, store, until the budget is spent.

mod believe;
mod context;
mod estimate;
mod event;
mod launcher;
mod lock;
mod memory;
mod preflighter;
mod reap;
mod rule_test;
mod run;
mod scheduler;
mod slots;
mod watchdog;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{RwLock, watch};

use crate::document::DocumentError;
use crate::execution::{ExecutionEnvironment, ReleaseSource};
use crate::facts::{ContextChange, EngineVersion};
use crate::flag::FlagError;
use crate::job::Job;
use crate::objective::Score;
use crate::server::LeftBehind;
use crate::store::{Store, StoreError, Study, TrialRecord, now};
use crate::trial::{Launch, LaunchRecords, Outcome, Proposal, Rejection, Trial};

pub use believe::beliefs;
pub use context::RunContext;
pub use estimate::{Estimate, Source, estimate};
pub use event::{Ending, Event, Observer, Phase, Plan, left_on_the_table};
use launcher::asked;
pub use launcher::{MeasuredPrefill, Pause, PauseEvidence, command_line};
pub use lock::{Lock, LockError, holder};
pub use memory::learned;
use memory::start_key;
pub use preflighter::{Inquiry, WrongRule, preflight_setup, question, wrong_rules};
pub use reap::{Fate, Found, Reaped, find, reap, study_folders};
pub use rule_test::{PlannedRuleTest, RuleVerdicts};
use scheduler::{Course, Next};
pub use slots::{Interference, Slots};

/// Whether to go on, asked by signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    #[default]
    No,
    /// End the server in order and leave.
    Gently,
    /// Kill the server and leave.
    Now,
}

/// Why the tuner itself cannot go on. What was measured is stored.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Study(#[from] DocumentError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{source}; trial {number} was measured and could not be stored: {measured}")]
    Unstored { source: StoreError, number: u32, measured: String },
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    LeftBehind(#[from] LeftBehind),
    #[error(
        "trial {number} needs {needed} slots, and {left} are left: what was left behind on the others could not be ended"
    )]
    TooFewSlots { number: u32, needed: usize, left: usize },
    #[error("study {name:?} is in the database with another definition: {}", differences.join("; "))]
    Differs { name: String, differences: Vec<String> },
    #[error("study {name:?} was measured in another context: {}",
        changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    ContextDiffers { name: String, changes: Vec<ContextChange> },
    #[error(
        "the server of trial {number} reports release {reported}, but flags, rules and memory were computed for {expected} \
         ({from}); the trial is not measured and stays unfinished"
    )]
    OtherRelease { number: u32, reported: String, expected: String, from: ReleaseSource },
    /// Not for a user: everything is to be computed again for this release, and the run begun again.
    #[error("the server reports release {reported}, and the release was only assumed")]
    ReleaseAdopted { version: EngineVersion, reported: String },
    #[error("cannot write the log {}: {source}", path.display())]
    Log { path: PathBuf, source: std::io::Error },
    #[error("cannot spell the launch command: {0}")]
    Command(#[from] FlagError),
    #[error("no free port: {0}")]
    Port(std::io::Error),
    #[error("cannot drive the load: {0}")]
    Load(#[from] crate::load::LoadError),
}

/// How a run of the tuner ended.
#[derive(Debug)]
pub struct Summary {
    pub study: Study,
    pub ending: Ending,
}

/// Everything that one run of the tuner needs.
pub struct Tuner<'a> {
    pub job: &'a Job,
    pub store: &'a Store,
    pub installed: ExecutionEnvironment,
    pub slots: Slots,
    pub context: RunContext,
    pub inquiry: RwLock<Inquiry>,
    /// Filled by the run itself.
    pub measured_prefill: MeasuredPrefill,
    pub observer: Arc<Observer>,
    pub stop: watch::Receiver<Stop>,
}

impl std::fmt::Debug for Tuner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tuner").field("study", &self.job.name).finish_non_exhaustive()
    }
}

impl Tuner<'_> {
    /// Runs the study, or goes on with it, until the budget is spent.
    ///
    /// # Errors
    /// When the tuner cannot go on; a failing configuration is not an error.
    pub async fn run(mut self) -> Result<Summary, TuneError> {
        let asked = self.stop.clone();
        let (sender, receiver) = watch::channel(*asked.borrow());
        self.stop = receiver;
        let deadline = self.job.budget.time.and_then(|time| Instant::now().checked_add(time));
        let summary = tokio::select! {
            biased;
            summary = Box::pin(self.tune(&asked)) => summary,
            never = follow(asked.clone(), sender, deadline) => match never {},
        };
        self.inquiry.into_inner().stop().await;
        summary
    }

    /// `asked` is the user's own word: any other stop comes from the end of the time.
    async fn tune(&mut self, asked: &watch::Receiver<Stop>) -> Result<Summary, TuneError> {
        let (study, _lock) = self.open_study().await?;
        // Leftovers of an earlier run have been ended: memory that is held from now on belongs to others.
        let device = unless_asked(self.stop.clone(), async { Ok(self.device_without_leftovers().await) }).await?;
        if let Some(device) = device.flatten() {
            self.installed.device = device;
        }
        self.follow_course(study, asked).await
    }

    async fn follow_course(&self, study: Study, asked: &watch::Receiver<Stop>) -> Result<Summary, TuneError> {
        self.inquiry.write().await.start();
        let doubted = OnceLock::new();
        let mut course = Course::open(self, &study, &doubted).await?;
        let mut launches = FuturesUnordered::new();
        // Launches that are over and not yet stored.
        let mut done = VecDeque::new();
        let mut end = None;
        let mut is_told = false;
        // Whatever is waited for, the launches go on: each may hold what it is that is waited for.
        loop {
            if let Some(launched) = done.pop_front() {
                let settled = Box::pin(course.settled(launched));
                match (alongside(settled, &mut launches, &mut done).await, &end) {
                    (Ok(None), _) | (Ok(Some(_)), Some(_)) => {}
                    (Ok(Some(ending)), None) => end = Some(Ok(ending)),
                    (Err(error), None) => end = Some(Err(error)),
                    (Err(error), Some(_)) => (self.observer)(Event::Also { error: error.to_string() }),
                }
            } else if end.is_some() {
                // What runs is measured to its end, unless the user has asked to stop.
                if !std::mem::replace(&mut is_told, true) {
                    self.tell_last(end.as_ref(), launches.len());
                }
                let Some(last) = launches.next().await else { break };
                done.push_back(last);
            } else {
                match alongside(Box::pin(course.next()), &mut launches, &mut done).await {
                    Ok(Next::Launch(pending, place)) => launches.push(self.launched(&study, pending, place)),
                    Ok(Next::Wait) if done.is_empty() => match launches.next().await {
                        Some(launched) => done.push_back(launched),
                        None => unreachable!("whoever waits has something to wait for"),
                    },
                    Ok(Next::Wait | Next::Propose) => {}
                    Ok(Next::End(ending)) => end = Some(Ok(ending)),
                    Err(error) => end = Some(Err(error)),
                }
            }
        }
        drop(launches);
        let ending = match end.unwrap_or(Ok(Ending::Interrupted))? {
            Ending::Interrupted if *asked.borrow() == Stop::No => Ending::TimeSpent,
            ending => ending,
        };
        if *self.stop.borrow() < Stop::Now {
            course.judge().await?;
        }
        (self.observer)(Event::End(ending.clone()));
        Ok(Summary { study, ending })
    }

    /// Says why nothing more begins while some still run: the end may be an hour away.
    fn tell_last(&self, end: Option<&Result<Ending, TuneError>>, running: usize) {
        let why = match end {
            Some(Ok(ending)) => ending.to_string(),
            Some(Err(error)) => error.to_string(),
            None => return,
        };
        if running > 0 && *self.stop.borrow() == Stop::No {
            (self.observer)(Event::Last { why, running });
        }
    }

    /// Stores a trial, how its server started, what that tells of the memory, and what was seen of it.
    async fn keep(&self, study: &Study, trial: &Trial, score: Score, records: &LaunchRecords) -> Result<(), TuneError> {
        let context = self.context_of(trial);
        let config = self.job.with_arguments(&trial.proposal.config, self.installed.version);
        let start = trial.log.as_deref().and_then(|log| self.observed_start(&config, log));
        let key = start_key(self.job, &self.installed);
        let model = &*self.job.model.argument;
        let record = TrialRecord {
            trial,
            score,
            context: context.as_ref(),
            start: start.as_ref().map(|start| (model, &key, start)),
            records,
        };
        self.store.append_record(study.id, record).await.map_err(|source| unstored(source, trial))
    }

    fn rejected(&self, proposal: Proposal, rejection: Rejection) -> Trial {
        // A flag that the release does not have cannot be rendered; then the stored command is what could be.
        let command = command_line(self.job, &self.installed, &proposal.config, None)
            .unwrap_or_else(|_| self.job.engine.command.clone());
        Trial {
            launch: Launch::redacted(&command, self.job.launch_env(self.installed.device, &proposal.config)),
            proposal,
            started_at: now(),
            startup_s: None,
            elapsed_s: 0.0,
            engine_version: None,
            log: None,
            outcome: Outcome::Rejected(rejection),
            probe: None,
        }
    }
}

/// Hands on the user's word, and asks for a stop at the deadline, so that a trial that is still under way then is ended.
async fn follow(
    mut asked: watch::Receiver<Stop>,
    stop: watch::Sender<Stop>,
    deadline: Option<Instant>,
) -> std::convert::Infallible {
    let raise = |to: Stop| stop.send_modify(|stop| *stop = to.max(*stop));
    let time = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
        raise(Stop::Gently);
        std::future::pending().await
    };
    let user = async {
        while asked.changed().await.is_ok() {
            raise(*asked.borrow());
        }
        std::future::pending().await
    };
    tokio::select! { never = time => never, never = user => never }
}

/// What comes of `work`, while the launches go on; those that end meanwhile are `done`.
async fn alongside<T, L: Future>(
    work: impl Future<Output = T>,
    launches: &mut FuturesUnordered<L>,
    done: &mut VecDeque<L::Output>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            Some(launched) = launches.next() => done.push_back(launched),
        }
    }
}

/// What comes of `work`; `None` where the user asks to stop before.
async fn unless_asked<T>(
    mut stop: watch::Receiver<Stop>,
    work: impl Future<Output = Result<T, TuneError>>,
) -> Result<Option<T>, TuneError> {
    tokio::select! {
        biased;
        () = asked(&mut stop, Stop::Gently) => Ok(None),
        done = work => done.map(Some),
    }
}

/// The last resort of a measurement that the database did not take is the error's text.
fn unstored(source: StoreError, trial: &Trial) -> TuneError {
    match trial.outcome.measurement() {
        None => source.into(),
        Some(measurement) => {
            let measured = serde_json::json!({"config": trial.proposal.config, "metrics": measurement}).to_string();
            TuneError::Unstored { source, number: trial.proposal.number, measured }
        }
    }
}
