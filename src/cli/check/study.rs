//! Resolves and validates a study without a server.

use std::path::Path;

use super::engine::{self, PreflightAnswer};
use super::tell::{as_json, as_text};
use crate::cli::output::{print, print_json};
use crate::cli::{CommandFailure, Format, Global};
use crate::execution::{ExecutionEnvironment, detect};
use crate::job::{Job, JobSearch, repetition};
use crate::memory::{LearnedMemory, MemoryPrediction};
use crate::rule::{Finding, SpaceRemoval, unchecked};
use crate::store::{Store, database_path};
use crate::tuner::{PlannedRuleTest, RuleVerdicts, Slots, StudyEstimate, estimate, learned};

/// The results of `check` for one study. They are obtained without a launch.
pub(super) struct CheckedStudy<'a> {
    pub(super) job: &'a Job,
    pub(super) installed: ExecutionEnvironment,
    pub(super) search: JobSearch<'a>,
    /// The configurations of the space that the rules reject and leave.
    pub(super) removal: SpaceRemoval,
    /// The most severe finding of the rules about the baseline: the engine's defaults with the study's fixed flags.
    pub(super) defaults: Option<Finding>,
    /// The predicted memory use of the baseline. `None` if too few facts are known.
    pub(super) memory: Option<MemoryPrediction>,
    /// The installed engine's own verdict on the study's flags. `None` for an engine without a preflight.
    pub(super) preflight: Option<PreflightAnswer>,
    /// Launches that `tune` would use to test whether a rule is correct.
    pub(super) rule_tests: Vec<PlannedRuleTest>,
    /// Stored results of earlier rule tests with this engine, release and device class.
    pub(super) verdicts: RuleVerdicts,
    /// The parts of the space that the rules cannot check because a fact is unknown, one sentence each.
    pub(super) unchecked: Vec<String>,
    /// Warnings for users: prompts that the load repeats, and notices on the GPUs.
    pub(super) warnings: Vec<String>,
    pub(super) estimate: StudyEstimate,
    pub(super) slots: Slots,
}

pub(super) async fn check(file: &Path, explain: bool, format: Format, global: &Global) -> Result<(), CommandFailure> {
    let job = Job::read(file)?;
    let mut installed = detect(&job).await;
    let slots = Slots::resolve(&job, &mut installed)?;
    job.check_release(installed.version)?;
    let store = if database_path(&global.db).exists() { Some(Store::open(&global.db, false).await?) } else { None };
    let (known, verdicts) = match &store {
        Some(store) => (learned(&job, &installed, store).await?, RuleVerdicts::read(&job, &installed, store).await?),
        None => (LearnedMemory::default(), RuleVerdicts::default()),
    };
    let aside = verdicts.left_aside();
    let search = job.search(installed.version, installed.device, installed.host).distrusting(&aside);
    let now = search.knowing(&known, None);
    let removal = now.removal();
    let possible = removal.complete.then_some(removal.remaining);
    let estimate = estimate(&job, &installed, &slots, possible, store.as_ref()).await?;
    if let Some(store) = store {
        store.close().await;
    }
    let findings = now.findings(&search.space.fixed);
    let memory = now.memory(&search.space.fixed);
    let defaults = findings.first().cloned();
    let preflight = engine::ask(&job, &installed, findings, &removal, global).await?;
    let unchecked = unchecked(&search.space, &search.facts);
    let mut warnings: Vec<_> = repetition(&job.load.plan(job.seed), &*job.workload.built).into_iter().collect();
    warnings.extend(installed.gpu_notices.iter().cloned());
    let rule_tests = verdicts.planned(&now, &removal);
    let checked = CheckedStudy {
        job: &job,
        installed,
        search,
        removal,
        defaults,
        memory,
        preflight,
        rule_tests,
        verdicts,
        unchecked,
        warnings,
        estimate,
        slots,
    };
    match format {
        Format::Table => print(&as_text(&checked, explain))?,
        Format::Json => print_json(&as_json(&checked))?,
    }
    // A missing program fails the command after the output: the checks by rules do not need it.
    match job.engine.missing_program(file) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
