//! Resolves and validates a study without a server.

use std::path::Path;

use super::engine::{self, PreflightAnswer};
use super::first_points::{CheckedPoint, check_first_points};
use super::render::{as_json, as_text};
use crate::cli::output::{print, print_json};
use crate::cli::{CommandFailure, GlobalOptions, OutputFormat};
use crate::execution::{ExecutionEnvironment, detect};
use crate::job::{Job, JobSearch, StudyFile};
use crate::memory::{LearnedMemory, MemoryPrediction};
use crate::rule::{Finding, SpaceRemoval, list_unchecked};
use crate::store::{Store, database_path};
use crate::trial::draft_bias;
use crate::tuner::{PlannedRuleTest, RuleVerdicts, Slots, StudyEstimate, estimate, read_learned_memory};

/// The results of `check` for one study. They are obtained without a launch.
pub(super) struct CheckedStudy<'a> {
    pub(super) job: &'a Job,
    pub(super) installed: ExecutionEnvironment,
    pub(super) search: JobSearch<'a>,
    /// The configurations of the space that the rules reject and leave.
    pub(super) removal: SpaceRemoval,
    /// The most severe finding of the rules about the baseline: the engine's defaults with the study's fixed flags.
    pub(super) defaults: Option<Finding>,
    /// Today's deployment and the start points, with the verdicts of the rules.
    pub(super) first_points: Vec<CheckedPoint<'a>>,
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

pub(super) async fn check(
    file: &Path,
    explain: bool,
    format: OutputFormat,
    global: &GlobalOptions,
) -> Result<(), CommandFailure> {
    let missing = match StudyFile::read(file)? {
        StudyFile::Single(job) => {
            match check_job(&job, explain, format, global).await? {
                CheckedText::Table(text) => print(&text)?,
                CheckedText::Json(json) => print_json(&json)?,
            }
            job.engine.missing_program(file)
        }
        StudyFile::Comparison(comparison) => {
            let mut all = serde_json::Map::new();
            for entrant in &comparison.entrants {
                match check_job(&entrant.job, explain, format, global).await? {
                    CheckedText::Table(text) => print(&format!("engine {}\n\n{text}", entrant.name))?,
                    CheckedText::Json(json) => drop(all.insert(entrant.name.clone(), json)),
                }
            }
            if format == OutputFormat::Json {
                print_json(&serde_json::json!({"engines": all}))?;
            }
            comparison.entrants.iter().find_map(|entrant| entrant.job.engine.missing_program(file))
        }
    };
    // A missing program fails the command after the output: the checks by rules do not need it.
    match missing {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// The output of one study's check.
enum CheckedText {
    Table(String),
    Json(serde_json::Value),
}

async fn check_job(
    job: &Job,
    explain: bool,
    format: OutputFormat,
    global: &GlobalOptions,
) -> Result<CheckedText, CommandFailure> {
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed)?;
    job.check_release(installed.version)?;
    let store = if database_path(&global.db).exists() { Some(Store::open(&global.db, false).await?) } else { None };
    let (known, verdicts) = match &store {
        Some(store) => {
            (read_learned_memory(job, &installed, store).await?, RuleVerdicts::read(job, &installed, store).await?)
        }
        None => (LearnedMemory::default(), RuleVerdicts::default()),
    };
    let aside = verdicts.rules_to_set_aside();
    let search = job.search(installed.version, installed.device, installed.host).without_rules(&aside);
    let now = search.with_learned(&known, None);
    let removal = now.removal();
    let possible = removal.complete.then_some(removal.remaining);
    let estimate = estimate(job, &installed, &slots, possible, store.as_ref()).await?;
    if let Some(store) = store {
        store.close().await;
    }
    let findings = now.findings(&search.space.fixed);
    let memory = now.predict_memory(&search.space.fixed);
    let defaults = findings.first().cloned();
    let first_points = check_first_points(job, &now);
    let preflight = engine::ask(job, &installed, findings, &removal, global).await?;
    let unchecked = list_unchecked(&search.space, &search.facts);
    let mut warnings = job.repetition_warnings();
    warnings.extend(draft_bias(&job.definition(), None));
    warnings.extend(installed.gpu_notices.iter().cloned());
    let rule_tests = verdicts.planned(&now, &removal);
    let checked = CheckedStudy {
        job,
        installed,
        search,
        removal,
        defaults,
        first_points,
        memory,
        preflight,
        rule_tests,
        verdicts,
        unchecked,
        warnings,
        estimate,
        slots,
    };
    Ok(match format {
        OutputFormat::Table => CheckedText::Table(as_text(&checked, explain)),
        OutputFormat::Json => CheckedText::Json(as_json(&checked)),
    })
}
