//! The loop: ask, check, launch, measure, store, until the budget is spent.

mod confirm;
mod doubt;
mod estimate;
mod event;
mod gate;
mod inquiry;
mod lock;
mod memory;
mod prepare;
mod reap;
mod retry;
mod sample;
mod trial;
mod vitals;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::watch;

use crate::config::Config;
use crate::document::DocumentError;
use crate::flag::FlagError;
use crate::job::{Job, Search};
use crate::objective::Score;
use crate::rule::Removal;
use crate::sampler::Past;
use crate::server::{Baseline, LeftBehind};
use crate::store::{Scored, Store, StoreError, Study, now};
use crate::telemetry::Story;
use crate::trial::{Failure, FailureKind, Launch, Outcome, Rejection, Startup, Trial};

pub use confirm::CONFIRMATION;
pub use doubt::{WrongRule, wrong_rules};
pub use estimate::{Estimate, Source, estimate};
pub use event::{Ending, Event, Observer, Phase};
pub use inquiry::{Inquiry, preflight_setup, question};
pub use lock::{Lock, LockError, holder};
pub use memory::learned;
pub use prepare::{Installed, detect};
pub use reap::{Fate, Found, Reaped, find, reap, study_folders};
use retry::Patience;
pub use retry::Pause;
pub use trial::command_line;
use trial::{Launched, asked};

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
    #[error("study {name:?} is in the database with another definition: {}", differences.join("; "))]
    Differs { name: String, differences: Vec<String> },
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

/// Starts that fail this often, or this often in a row for the same reason, before anything was measured say that the
/// engine does not work at all.
const MOST_FAILED_STARTS: usize = 3;

/// Rejected configurations in a row after which the space counts as empty of valid ones.
const MOST_REJECTED: usize = 1000;

/// Everything that one run of the tuner needs.
pub struct Tuner<'a> {
    pub job: &'a Job,
    pub store: &'a Store,
    pub installed: Installed,
    pub inquiry: Inquiry,
    pub observer: Arc<Observer>,
    pub stop: watch::Receiver<Stop>,
    /// The devices' memory before a launch that has not given it back.
    pub held: Option<Baseline>,
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
        let summary = self.tune().await;
        self.inquiry.stop().await;
        summary
    }

    async fn tune(&mut self) -> Result<Summary, TuneError> {
        let begin = Instant::now();
        let (study, _lock) = self.open_study().await?;
        self.inquiry.start();
        let mut history = self.store.history(&study).await?;
        let counts = self.store.counts(study.id).await?;
        let mut launched = u32::try_from(counts.measured + counts.failed).unwrap_or(u32::MAX);
        let mut measured_any = counts.measured > 0;
        let best = self.store.best(&study, self.job.objective.goal, 1).await?.pop();
        (self.observer)(Event::Begin {
            study: self.job.name.clone(),
            stored: history.len(),
            launched,
            best: best.map(|best| best.value),
        });

        // Which rules the engine contradicts, once it has been asked.
        let distrusted = OnceLock::new();
        let search = self.job.search(self.installed.version, self.installed.device, self.installed.host);
        let mut scope = self.scope(search);

        let stop = self.stop.clone();
        let mut known = learned(self.job, &self.installed, self.store).await?;
        let (mut rejected_in_row, mut failed_starts, mut patience) = (0, FailedStarts::default(), Patience::default());
        let ending = loop {
            if *stop.borrow() > Stop::No {
                break Ending::Interrupted;
            }
            if self.job.budget.trials.is_some_and(|trials| launched >= trials) {
                break Ending::TrialsSpent;
            }
            if self.job.budget.time.is_some_and(|time| begin.elapsed() >= time) {
                break Ending::TimeSpent;
            }
            let number = u32::try_from(history.len()).unwrap_or(u32::MAX);
            (self.observer)(Event::Phase(Phase::Checking));
            // The defaults are launched first, while the engine is still being imported.
            if distrusted.get().is_none() && (number > 0 || scope.empty) {
                let work = self.contradicted(&study, &scope.removal);
                let Some(wrong) = unless_asked(stop.clone(), work).await? else { break Ending::Interrupted };
                let wrong = distrusted.get_or_init(|| wrong);
                if !wrong.is_empty() {
                    scope = self.scope(scope.search.distrusting(wrong));
                }
            }
            let absent = self.inquiry.absent.clone();
            let now = scope.search.knowing(&known, absent.as_ref());
            let Some((proposed_by, config)) = self.propose(&study, &now, &history, launched).await? else {
                break if scope.empty { Ending::NothingAllowed(scope.removal) } else { Ending::NothingLeft };
            };
            let work = self.rejection(&study, number, &config, &now);
            let Some(rejection) = unless_asked(stop.clone(), work).await? else { break Ending::Interrupted };
            if scope.empty && rejection.is_none() {
                break Ending::NothingAllowed(scope.removal);
            }
            let Launched { trial, startup, story, left_behind } = if let Some(finding) = rejection {
                rejected_in_row += 1;
                let rejection = Rejection { rule: finding.rule.to_owned(), message: finding.message };
                self.rejected(number, proposed_by, config.clone(), rejection).into()
            } else {
                rejected_in_row = 0;
                (self.observer)(Event::Launch { number, proposed_by, config: config.clone() });
                match self.launch(&study, number, proposed_by, &config, &mut patience).await? {
                    ControlFlow::Continue(launched) => launched,
                    ControlFlow::Break(ending) => break ending,
                }
            };
            let score = self.job.objective.score(&trial.outcome);
            self.keep(&study, &trial, score, (startup.as_ref(), story.as_ref())).await?;
            if trial.log.is_some() {
                known = learned(self.job, &self.installed, self.store).await?;
            }
            if let Some(left_behind) = left_behind {
                return Err(left_behind.into());
            }
            history.push(Past { proposed_by: proposed_by.to_owned(), config });

            match &trial.outcome {
                Outcome::Rejected(_) => {}
                Outcome::Failed(failure) => {
                    launched += 1;
                    failed_starts.add(failure, trial.startup_s.is_some());
                }
                Outcome::Measured(_) => {
                    launched += 1;
                    measured_any = true;
                }
            }
            let scored = Scored { trial, score };
            let best = self.store.best(&study, self.job.objective.goal, 1).await?.pop();
            let improves = best.as_ref().is_some_and(|best| best.first.trial.number == number);
            let best = best.map(|best| best.value);
            (self.observer)(Event::Trial { trial: Box::new(scored.clone()), improves, best, launched });
            if rejected_in_row >= MOST_REJECTED {
                break Ending::NothingValid { rejected: rejected_in_row, last: reason(&scored) };
            }
            let failures = failed_starts.most();
            if !measured_any && failures >= MOST_FAILED_STARTS {
                break Ending::EngineBroken { failures, last: reason(&scored) };
            }
        };
        (self.observer)(Event::End(ending.clone()));
        Ok(Summary { study, ending })
    }

    /// Stores a trial, how its server started, what that tells of the memory, and what was seen of it.
    async fn keep(
        &self,
        study: &Study,
        trial: &Trial,
        score: Score,
        (startup, story): (Option<&Startup>, Option<&Story>),
    ) -> Result<(), TuneError> {
        let keep = async {
            if let Some(log) = &trial.log {
                let config = self.job.with_arguments(&trial.config, self.installed.version);
                self.remember(study, trial.number, &config, log).await?;
            }
            if let Some(startup) = startup {
                self.store.append_startup(study.id, trial.number, startup).await?;
            }
            if let Some(story) = story {
                self.store.append_telemetry(study.id, trial.number, story).await?;
            }
            // Last, because with it the trial is over: a tuner that is killed before measures it again and replaces the rest.
            self.store.append(study.id, trial, score).await
        };
        keep.await.map_err(|source| unstored(source, trial))
    }

    /// Tells what the rules leave of a space.
    fn scope<'s>(&self, search: Search<'s>) -> Scope<'s> {
        let removal = search.removal();
        let empty = search.is_empty(&removal);
        (self.observer)(Event::Space(removal.clone()));
        Scope { search, removal, empty }
    }

    /// The next configuration and who proposes it.
    async fn propose(
        &self,
        study: &Study,
        search: &Search<'_>,
        history: &[Past],
        launched: u32,
    ) -> Result<Option<(&'static str, Config)>, TuneError> {
        let confirming = self.job.budget.is_confirming(launched);
        match if confirming { None } else { search.next(history) } {
            Some(proposal) => Ok(Some(proposal)),
            // What the confirmation does not need goes back to the search.
            None => match self.confirm(study, history).await? {
                None if confirming => Ok(search.next(history)),
                again => Ok(again),
            },
        }
    }

    fn rejected(&self, number: u32, proposed_by: &str, config: Config, rejection: Rejection) -> Trial {
        // A flag that the release does not have cannot be rendered; then the stored command is what could be.
        let command =
            command_line(self.job, &self.installed, &config, None).unwrap_or_else(|_| self.job.engine.command.clone());
        Trial {
            number,
            proposed_by: proposed_by.to_owned(),
            config,
            launch: Launch { command, env: self.job.launch_env() },
            started_at: now(),
            startup_s: None,
            elapsed_s: 0.0,
            engine_version: None,
            log: None,
            outcome: Outcome::Rejected(rejection),
        }
    }
}

/// What says that the engine does not work at all.
#[derive(Default)]
struct FailedStarts {
    blamed: usize,
    /// The latest failed start, and how often in a row it was the same.
    refused: Option<(Failure, usize)>,
}

impl FailedStarts {
    fn add(&mut self, failure: &Failure, was_ready: bool) {
        self.blamed += usize::from(blames_the_engine(failure.kind));
        self.refused = (!was_ready).then(|| {
            let before = self.refused.take().filter(|(last, _)| last == failure).map_or(0, |(_, times)| times);
            (failure.clone(), before + 1)
        });
    }

    fn most(&self) -> usize {
        self.blamed.max(self.refused.as_ref().map_or(0, |(_, times)| *times))
    }
}

/// What there is to search.
struct Scope<'a> {
    search: Search<'a>,
    removal: Removal,
    /// Whether the rules leave nothing of it.
    empty: bool,
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
            let measured = serde_json::json!({"config": trial.config, "metrics": measurement}).to_string();
            TuneError::Unstored { source, number: trial.number, measured }
        }
    }
}

/// Failures at start-up that no configuration would cause on its own.
fn blames_the_engine(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Spawn | FailureKind::StartupExit | FailureKind::StartupTimeout | FailureKind::WrongServer
    )
}

fn reason(scored: &Scored) -> String {
    scored.trial.outcome.reason().unwrap_or_default()
}
