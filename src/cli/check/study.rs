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

/// The facts about a study before its first launch.
pub(super) struct CheckedStudy<'a> {
    pub(super) job: &'a Job,
    pub(super) installed: ExecutionEnvironment,
    pub(super) search: JobSearch<'a>,
    pub(super) removal: SpaceRemoval,
    /// The most severe finding of the rules about the engine's defaults.
    pub(super) defaults: Option<Finding>,
    /// The predicted memory use of the defaults, if enough is known.
    pub(super) memory: Option<MemoryPrediction>,
    /// The installed engine's answer. `None` for an engine that cannot be asked.
    pub(super) preflight: Option<PreflightAnswer>,
    /// Planned launches that would test a rule.
    pub(super) rule_tests: Vec<PlannedRuleTest>,
    /// The database's test results of rules on this release and device class.
    pub(super) verdicts: RuleVerdicts,
    pub(super) unchecked: Vec<String>,
    /// Properties of the workload that distort its measurements.
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
    match job.engine.missing_program(file) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
