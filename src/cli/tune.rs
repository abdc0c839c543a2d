//! `tune`: runs or resumes a study, or a comparison of engines.

mod comparison;
mod runnable;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::watch;

use self::runnable::RunnableStudy;

use super::failure::{
    CommandFailure, ENGINE_NEVER_HEALTHY, INTERRUPTED, NO_VALID_MEASUREMENT, NOTHING_FEASIBLE, USAGE,
};
use super::importance::store_importance;
use super::init::{RequestOptions, compose, prepare};
use super::output::{layout_of, note, print, print_styled};
use super::progress::{TuneView, ViewGuard};
use super::query::no_winner;
use super::report::command_names;
use super::{GlobalOptions, LogFormat, parse_duration, signal};
use crate::config::Config;
use crate::deployment::{Deployment, read_deployment};
use crate::execution::{ExecutionEnvironment, ReleaseSource, detect};
use crate::export::quote;
use crate::facts::EngineVersion;
use crate::init::{DeployedFlags, InitError};
use crate::job::{Job, StudyFile, unknown_sampler};
use crate::report::{card_text, incidents_line};
use crate::sampler::{self, ExplainedNumber, KnownOutcome, PastTrial, Suggestion};
use crate::store::{Store, Study, database_path};
use crate::study_report::{FurthestPhase, NoWinner, StudyCost, StudyReport};
use crate::trial::redact;
use crate::tuner::{RuleVerdicts, Slots, StopRequest, StudyEnding, TuneError, read_priors};
use crate::twin::Calibration;

#[derive(Debug, Args)]
pub(super) struct TuneCommand {
    /// The study file (TOML). Without one, --model or --from describes the study.
    #[arg(required_unless_present_any = ["model", "from"],
        conflicts_with_all = ["model", "engine", "goal", "slo", "workload", "concurrency", "rate", "start", "adapter"])]
    study: Option<PathBuf>,
    #[command(flatten)]
    request: RequestOptions,
    /// Number of launches, including the study's earlier ones. Rejected trials are not counted.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    trials: Option<u32>,
    /// Time limit, such as 8h. It includes the confirmation and the last stop.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Seed of the sampler and of the workload.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The sampler, which proposes configurations.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(
        sampler::SAMPLERS.iter().map(|s| clap::builder::PossibleValue::new(s.name()).help(s.summary()))
    ))]
    sampler: Option<String>,
    /// Number of concurrent trials. Each gets the GPUs that it needs, or an equal share of the processors if there are
    /// no GPUs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    parallel: Option<u32>,
    /// Continue a study although the engine's release, the device or the host has changed. The defaults are measured
    /// again, and only later trials are compared.
    #[arg(long)]
    accept_change: bool,
    /// Print the first launch commands and start nothing.
    #[arg(long)]
    dry_run: bool,
    /// Show the study in a view that takes the whole terminal. Key `?` explains it; `q` returns to plain output.
    #[arg(long, conflicts_with = "dry_run")]
    tui: bool,
}

/// Number of commands after which a dry run ends. Launches that test rules, the deployment and the start points are all
/// shown, even if there are more.
const DRY_RUN_COMMANDS: usize = 5;

/// Hint for a run whose time ended before the defaults were measured.
const MORE_TIME_HINT: &str = "set budget.time or --time above the duration of a launch, which `setpoint check STUDY.toml` \
                         estimates; the same command resumes with the same trial";

/// Hint for a space whose configurations the rules all reject.
const SEE_CHECK_HINT: &str = "`setpoint check STUDY.toml` shows the removals of each rule; widen the ranges, or change the \
                         fixed flags or the workload that it names";

impl TuneCommand {
    /// Applies the options that override a study file. Without one, composes the study.
    async fn job(&self, read: Option<Job>, global: &GlobalOptions) -> Result<Job, CommandFailure> {
        let mut job = if let Some(job) = read {
            job
        } else {
            match Box::pin(self.request.request(global, self.trials, self.time)).await? {
                Some(request) if self.dry_run => compose(&request, global).await?.0.job,
                Some(request) => prepare(&request, global).await?,
                None => return Err(CommandFailure::new(USAGE, "neither a study file nor --model is given")),
            }
        };
        self.override_job(&mut job)?;
        Ok(job)
    }

    fn override_job(&self, job: &mut Job) -> Result<(), CommandFailure> {
        job.budget.trials = self.trials.or(job.budget.trials);
        job.budget.time = self.time.or(job.budget.time);
        if let Some(seed) = self.seed {
            job.reseed(seed)?;
        }
        if let Some(name) = &self.sampler {
            job.sampler = sampler::find(name).ok_or_else(|| CommandFailure::new(USAGE, unknown_sampler(name)))?;
        }
        if self.parallel.is_some() {
            job.slots.get_or_insert_default().parallel = self.parallel;
        }
        Ok(())
    }

    /// Starts the view of `--tui`. It ends when the guard is dropped.
    async fn start_view(
        &self,
        global: &GlobalOptions,
        study: Option<&str>,
    ) -> Result<Option<ViewGuard>, CommandFailure> {
        if !self.tui {
            return Ok(None);
        }
        Ok(Some(TuneView::start(global, study.map(str::to_owned)).await?))
    }

    /// Returns the deployment that is added to a study file. That of a study without a file is part of the study.
    fn deployment_of_file(&self) -> Result<Option<Deployment>, CommandFailure> {
        let text = self.request.from.as_deref().filter(|_| self.study.is_some());
        Ok(text.map(read_deployment).transpose().map_err(InitError::from)?)
    }

    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        if self.tui {
            TuneView::check(global)?;
        }
        let read = match self.study.as_deref().map(StudyFile::read).transpose()? {
            Some(StudyFile::Comparison(comparison)) => {
                return Box::pin(comparison::run(&self, comparison, global)).await;
            }
            Some(StudyFile::Single(job)) => Some(*job),
            None => None,
        };
        let mut job = Box::pin(self.job(read, global)).await?;
        let deployment = self.deployment_of_file()?;
        let mut installed = detect(&job).await;
        adopt_deployment(&mut job, deployment.as_ref(), installed.version)?;
        let slots = Slots::resolve(&job, &mut installed)?;
        // An unsuitable release is reported before a database is created. If the release is only assumed, an existing
        // database may contain the actual one. The check then comes after it was read.
        let is_known = installed.release_from != ReleaseSource::Assumed;
        if self.dry_run || is_known || !database_path(&global.db).exists() {
            job.check_release(installed.version)?;
        }
        if self.dry_run {
            return dry_run(&job, &installed, global).await;
        }
        if let Some(error) = job.engine.missing_program(&job.file) {
            return Err(error.into());
        }
        let store = Store::open(&global.db, true).await?;
        installed.recall_release(&store, &job.name).await?;
        let notes = adopt_deployment(&mut job, deployment.as_ref(), installed.version)?;
        job.check_release(installed.version)?;
        let time = job.budget.time;
        let view = self.start_view(global, Some(&job.name)).await?;
        let viewed = view.as_ref().map(|view| Arc::clone(&view.0));
        let mut study = RunnableStudy::new(job, installed, slots, &store, global, viewed).await?;
        for text in &notes {
            study.progress.note(text);
        }
        study.note_conditions();
        let summary = study.run(&store, &stops()?, self.accept_change).await?;
        // A user who interrupts a run does not wait for it, and with few measurements the shares are rough estimates.
        let least = ExplainedNumber::least_measurements(study.job.search_space().dimensions());
        let measured = store.counts(summary.study.id).await?.measured;
        let is_enough = usize::try_from(measured).is_ok_and(|measured| measured >= least);
        if is_enough && !matches!(summary.ending, StudyEnding::Interrupted) {
            store_importance(&study.job, &study.installed, &store, &summary.study).await?;
        }
        drop(view);
        if let ending @ StudyEnding::NothingAllowed(_) = &summary.ending {
            store.close().await;
            return Err(CommandFailure::new(NOTHING_FEASIBLE, ending.to_string()).with_hint(SEE_CHECK_HINT));
        }
        let conclusion = match (&summary.ending, time) {
            (StudyEnding::TimeSpent, Some(time)) => untried(&store, &summary.study, time).await?.map_or(Ok(()), Err),
            _ => Ok(()),
        };
        let conclusion = match conclusion {
            Ok(()) => print_findings(global, &store, &summary.study, &study.job).await,
            untried => untried,
        };
        store.close().await;
        finish(summary.ending, conclusion)
    }
}

/// Returns the user's requests to stop: the first signal ends a study in order, the second one at once.
fn stops() -> Result<watch::Receiver<StopRequest>, CommandFailure> {
    signal::watch_signals(StopRequest::No, |stop| {
        *stop = if *stop == StopRequest::No { StopRequest::Graceful } else { StopRequest::Immediate }
    })
}

/// Replaces the deployment of a study file, and returns notes for the user. The study keeps its own command, variables
/// and fixed flags.
fn adopt_deployment(
    job: &mut Job,
    deployment: Option<&Deployment>,
    version: EngineVersion,
) -> Result<Vec<String>, CommandFailure> {
    let Some(deployment) = deployment else { return Ok(Vec::new()) };
    let flags = DeployedFlags::read(deployment, &*job.engine.engine, version)?;
    job.deployment = Some(flags.first_point(deployment));
    let notes = deployment.notes.iter().chain(&flags.notes).map(|note| format!("deployment: {note}"));
    Ok(std::iter::once(format!("today's deployment: {}", deployment.source)).chain(notes).collect())
}

/// Returns the command's result. `conclusion` is the result of printing the findings.
fn finish(ending: StudyEnding, conclusion: Result<(), CommandFailure>) -> Result<(), CommandFailure> {
    match ending {
        // All findings so far have been printed. The exit code marks them as incomplete.
        StudyEnding::Interrupted => Err(CommandFailure::new(INTERRUPTED, StudyEnding::Interrupted.to_string())),
        StudyEnding::Paused(pause) => {
            Err(CommandFailure::new(ENGINE_NEVER_HEALTHY, pause.to_string()).with_hint(pause.hint))
        }
        ending @ StudyEnding::EngineBroken { .. } => Err(CommandFailure::new(ENGINE_NEVER_HEALTHY, ending.to_string())
            .with_hint("`setpoint trials` lists the failures, `setpoint show N` names the log file")),
        ending @ StudyEnding::NothingValid { .. } => conclusion
            .map_err(|failure| failure.with_hint(format!("{ending}; widen the space or change the fixed flags"))),
        _ => conclusion,
    }
}

/// Returns the failure of a run whose time ended before any launch of the study had an outcome. `None` if a launch had
/// one.
async fn untried(store: &Store, study: &Study, time: Duration) -> Result<Option<CommandFailure>, CommandFailure> {
    let counts = store.counts(study.id).await?;
    if counts.measured + counts.failed > 0 {
        return Ok(None);
    }
    let message = format!("the time budget of {time:?} ended before any launch of study {:?} was measured", study.name);
    let incidents = store.incidents(study, None).await?;
    Ok(Some(match (incidents_line(&incidents), incidents.last()) {
        (Some(text), Some(last)) => CommandFailure::new(ENGINE_NEVER_HEALTHY, format!("{message}; {text}")).with_hint(
            format!("`setpoint show {}` lists them; remove the cause and run the same command again", last.number),
        ),
        _ => CommandFailure::new(NOTHING_FEASIBLE, message).with_hint(MORE_TIME_HINT),
    }))
}

/// Prints the card of the study. Fails if there is no best configuration.
async fn print_findings(global: &GlobalOptions, store: &Store, study: &Study, job: &Job) -> Result<(), CommandFailure> {
    let report = StudyReport::read(store, study.clone(), 1).await?;
    if report.winner().is_none() {
        return Err(match NoWinner::read(store, &report).await? {
            NoWinner::Unmeasured { failed, furthest } if failed > 0 => nothing_measured(study, failed, furthest),
            reason => no_winner(study, &reason),
        });
    }
    let commands = command_names(global).of_winner(&report);
    let cost = StudyCost::read(store, study, !job.engine.engine.runs_model()).await?;
    print_styled(&card_text(&report, &cost, &commands, layout_of(&console::Term::stdout())))
}

/// Returns the failure of a study whose launches all failed. `failed` is their number.
fn nothing_measured(study: &Study, failed: usize, furthest: FurthestPhase) -> CommandFailure {
    let code = match furthest {
        FurthestPhase::Starting => ENGINE_NEVER_HEALTHY,
        FurthestPhase::Ready => NOTHING_FEASIBLE,
        FurthestPhase::Loaded => NO_VALID_MEASUREMENT,
    };
    let message = format!("none of {failed} launches of study {:?} was measured", study.name);
    CommandFailure::new(code, message).with_hint("`setpoint trials` shows why each of them failed")
}

/// Prints the commands that a fresh study would launch first.
async fn dry_run(job: &Job, installed: &ExecutionEnvironment, global: &GlobalOptions) -> Result<(), CommandFailure> {
    let search = job.search(installed.version, installed.device, installed.host);
    let removal = search.removal();
    let is_empty = search.is_empty(&removal);
    let mut tests = RuleVerdicts::default().planned(&search, &removal);
    if is_empty && tests.is_empty() {
        let message = StudyEnding::NothingAllowed(removal).to_string();
        return Err(CommandFailure::new(NOTHING_FEASIBLE, message).with_hint(SEE_CHECK_HINT));
    }
    // A dry run creates no files, not even a database.
    let (priors, _) = read_priors(job, installed, None, &search, &Calibration::none()).await?;
    let mut history: Vec<PastTrial> = Vec::new();
    let mut shown = 0;
    // A rule that allows the defaults is tested after the first measurement, so its test is omitted here. In an empty
    // space nothing else can be launched, so all tests come first.
    tests.retain(|test| is_empty || test.removes_defaults);
    for test in tests {
        print_command(job, installed, &test.config)?;
        shown += 1;
    }
    let mut first_points = search.first_points().into_iter().peekable();
    while shown < DRY_RUN_COMMANDS || first_points.peek().is_some() {
        // The defaults come first.
        let first_point = if history.is_empty() { None } else { first_points.next() };
        let is_named = first_point.is_some();
        let next = first_point.or_else(|| search.question(history.clone(), priors.clone()).next());
        let Some((origin, Suggestion { config, why, .. })) = next else {
            break;
        };
        match search.rejection(&config) {
            None => {
                print_command(job, installed, &config)?;
                shown += 1;
            }
            Some(finding) if is_named => {
                note(global, &format!("{why} is rejected before launch, {}: {}", finding.rule, finding.message));
            }
            Some(_) => {}
        }
        history.push(PastTrial::new(origin, config, KnownOutcome::Pending));
    }
    Ok(())
}

fn print_command(job: &Job, installed: &ExecutionEnvironment, config: &Config) -> Result<(), CommandFailure> {
    let command = crate::tuner::command_line(job, installed, config, None).map_err(TuneError::from)?;
    // A shell treats `NAME=value` as a variable only if the name is not quoted.
    let variables =
        job.launch_env(installed.device, config).into_iter().map(|(name, value)| format!("{name}={}", quote(&value)));
    let words: Vec<String> = variables.chain(command.words.iter().map(|word| quote(&redact(word)))).collect();
    print(&words.join(" "))
}

impl LogFormat {
    pub(super) fn is_json(self) -> bool {
        self == Self::Json
    }
}
