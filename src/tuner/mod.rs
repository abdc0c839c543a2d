//! The tuning loop: it asks the sampler, checks, launches, measures and stores, until the budget is spent or another
//! reason ends the run.
//!
//! Each part has one task. `scheduler` chooses the next trial. `preflighter` checks it with the rules and the engine.
//! `launcher` starts and measures it. `watchdog` monitors its processes meanwhile. `journal` stores the result. Each
//! part refers to the run (`run::StudyRun`) and to the parts that it needs. No part refers to the loop (`steps`).

mod study_calibration;
mod study_priors;
mod context;
mod estimate;
mod event;
mod journal;
mod launcher;
mod lock;
mod memory;
mod preflighter;
mod race;
mod reap;
mod rule_test;
mod run;
mod scheduler;
mod simulated;
mod simulated_speed;
mod slots;
mod steps;
mod time;
mod watchdog;
#[cfg(test)]
mod ablation_tests;
#[cfg(test)]
mod workload_tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use self::context::RunContext;
use self::journal::Journal;
use self::launcher::{Launcher, ProcessLaunches, device_without_leftovers};
use self::preflighter::Preflighter;
use self::run::StudyRun;
use self::scheduler::Scheduler;
use self::time::RunTime;
use crate::document::DocumentError;
use crate::execution::{ExecutionEnvironment, ReleaseSource};
use crate::facts::{ContextChange, EngineVersion};
use crate::flag::FlagError;
use crate::job::Job;
use crate::preflight;
use crate::server::LeftBehind;
use crate::store::{Store, StoreError, Study};

pub use estimate::{FigureSource, FinishedLaunches, StudyEstimate, estimate};
pub use event::{BudgetPlan, EventObserver, StudyEnding, TrialPhase, TunerEvent, remaining_gain_text};
pub use launcher::{PauseEvidence, RetryPause, command_line};
pub use lock::{LockError, StudyLock, holder};
pub use memory::read_learned_memory;
pub use preflighter::{WrongRule, preflight_arguments, preflight_setup, wrong_rules};
pub use reap::{FoundLeftover, LeftoverFate, ReapSummary, find_leftovers, reap, study_folders};
pub use rule_test::{PlannedRuleTest, RuleVerdicts};
pub use simulated::{SimulatedRun, SimulatedStudy};
pub use slots::{Interference, Slots};
pub use study_priors::read_priors;

/// The stop that signals have requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopRequest {
    #[default]
    No,
    /// End the server in order and leave.
    Graceful,
    /// Kill the server and leave.
    Immediate,
}

/// The reason why the tuner itself cannot go on. Earlier measurements are stored.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Study(#[from] DocumentError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{source}; trial {number} was measured but could not be stored: {measured}")]
    Unstored { source: StoreError, number: u32, measured: String },
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    LeftBehind(#[from] LeftBehind),
    #[error(
        "trial {number} needs {needed} slots, but {left} are left: leftovers on the other slots could not be ended"
    )]
    TooFewSlots { number: u32, needed: usize, left: usize },
    #[error("study {name:?} is in the database with another definition: {}", differences.join("; "))]
    DefinitionDiffers { name: String, differences: Vec<String> },
    #[error("study {name:?} was measured in another context: {}",
        changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    ContextDiffers { name: String, changes: Vec<ContextChange> },
    #[error(
        "the server of trial {number} reports release {reported}, but flags, rules and memory were computed for {expected} \
         ({from}); the trial is not measured and stays unfinished"
    )]
    OtherRelease { number: u32, reported: String, expected: String, from: ReleaseSource },
    /// Not for a user: the caller computes everything again for this release and restarts the run.
    #[error("the server reports release {reported}, and the release was only assumed")]
    ReleaseAdopted { version: EngineVersion, reported: String },
    #[error("cannot write the log {}: {source}", path.display())]
    Log { path: PathBuf, source: std::io::Error },
    #[error("cannot build the launch command: {0}")]
    Command(#[from] FlagError),
    #[error("no free port: {0}")]
    Port(std::io::Error),
    #[error("the study cannot be simulated: {0}")]
    NoTwin(String),
    #[error("cannot run the load: {0}")]
    Load(#[from] crate::load::LoadError),
}

/// The result of a run of the tuner.
#[derive(Debug)]
pub struct RunSummary {
    pub study: Study,
    pub ending: StudyEnding,
}

/// The inputs of one run of the tuner.
pub struct Tuner<'a> {
    pub job: &'a Job,
    pub store: &'a Store,
    pub installed: ExecutionEnvironment,
    pub slots: Slots,
    /// Whether the user accepts that the release, the device or the host differs from the study's.
    pub accepts_change: bool,
    /// The setup of the engine's preflight. Without it only the rules decide.
    pub preflight: Option<preflight::PreflightSetup>,
    pub observer: Arc<EventObserver>,
    pub stop: watch::Receiver<StopRequest>,
}

impl std::fmt::Debug for Tuner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tuner").field("study", &self.job.name).finish_non_exhaustive()
    }
}

impl Tuner<'_> {
    /// Runs the study, or resumes it, until one of the reasons in `StudyEnding` ends the run.
    ///
    /// # Errors
    /// If the tuner cannot go on. A failing configuration is not an error.
    pub async fn run(self) -> Result<RunSummary, TuneError> {
        let asked = self.stop.clone();
        let (sender, receiver) = watch::channel(*asked.borrow());
        let deadline = self.job.budget.time.and_then(|time| Instant::now().checked_add(time));
        tokio::select! {
            biased;
            summary = Box::pin(self.tune(receiver)) => summary,
            never = forward_stops(asked, sender, deadline) => match never {},
        }
    }

    /// Runs the study. `stop` is the user's request, or the end of the budget's time.
    async fn tune(self, stop: watch::Receiver<StopRequest>) -> Result<RunSummary, TuneError> {
        let Self { job, store, installed, slots, accepts_change, preflight, observer, stop: asked } = self;
        let time = RunTime::machine();
        let _lock = run::lock_study(job, store)?;
        let study = run::find_or_create_study(job, store).await?;
        let mut run = StudyRun { job, store, study, installed, slots, observer, stop, time };
        let context = context::reconcile_context(&run, accepts_change).await?;
        run::end_leftovers(&run).await?;
        // Leftovers of an earlier run have been ended, so memory that is still in use belongs to others.
        let device = run.unless_stopped(async { Ok(device_without_leftovers(&run).await) }).await?;
        if let Some(device) = device.flatten() {
            run.installed.device = device;
        }
        let context = RunContext::new(&run, accepts_change, context);
        let preflighter = Preflighter::new(&run, preflight);
        preflighter.start().await;
        let journal = Journal::new(&run, &context);
        let ending = async {
            let launcher = Launcher::new(&run, &journal, &context, &preflighter).await?;
            let scheduler = Scheduler::open(&run, &journal, &preflighter).await?;
            steps::execute_steps(&run, scheduler, ProcessLaunches::new(&launcher)).await
        };
        let ending = ending.await;
        preflighter.stop().await;
        let ending = match ending? {
            StudyEnding::Interrupted if *asked.borrow() == StopRequest::No => StudyEnding::TimeSpent,
            ending => ending,
        };
        run.emit(TunerEvent::RunEnded(ending.clone()));
        Ok(RunSummary { study: run.study, ending })
    }
}

/// Forwards the user's requests to stop. At the deadline it requests a stop itself, so that a running trial is ended.
async fn forward_stops(
    mut asked: watch::Receiver<StopRequest>,
    stop: watch::Sender<StopRequest>,
    deadline: Option<Instant>,
) -> std::convert::Infallible {
    let raise = |to: StopRequest| stop.send_modify(|stop| *stop = to.max(*stop));
    let time = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
        raise(StopRequest::Graceful);
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
