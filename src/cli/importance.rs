//! `importance`: lists the parameters of a study by their influence, with the predicted effect of their values.

use std::path::PathBuf;

use clap::Args;

use super::failure::{CommandFailure, INVALID, NOTHING_FEASIBLE};
use super::output::{note, print, print_json};
use super::{GlobalOptions, ListFormat};
use crate::execution::{ExecutionEnvironment, detect};
use crate::job::{Job, differences, past_trial};
use crate::report::{explanation_csv, explanation_text};
use crate::sampler::{Explanation, PastTrial};
use crate::store::{Store, Study};
use crate::trial::Origin;
use crate::tuner::{Slots, TuneError, read_learned_memory};

#[derive(Debug, Args)]
pub(super) struct ImportanceCommand {
    /// The study file, for its search space and rules. The trials are read from the database.
    study: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

impl ImportanceCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let job = Job::read(&self.study)?;
        let store = Store::open(&global.db, false).await?;
        let Some(study) = store.study(&job.name).await? else {
            let message = format!("the database holds no study {:?}", job.name);
            return Err(CommandFailure::new(INVALID, message)
                .with_hint("`setpoint studies` lists the studies; --db names another database"));
        };
        let differences = differences(&job.definition(), &study.definition);
        if !differences.is_empty() {
            return Err(TuneError::DefinitionDiffers { name: study.name, differences }.into());
        }
        let mut installed = detect(&job).await;
        Slots::resolve(&job, &mut installed)?;
        job.check_release(installed.version)?;
        let explanation = store_importance(&job, &installed, &store, &study).await?;
        store.close().await;
        let Some(explanation) = explanation else {
            let message = format!("study {:?} has no measurements in its search space to explain", job.name);
            return Err(CommandFailure::new(NOTHING_FEASIBLE, message).with_hint(
                "`setpoint trials` shows the outcome of each trial, `setpoint check` the space that the rules leave",
            ));
        };
        match self.format {
            ListFormat::Table => print(&explanation_text(&explanation)),
            ListFormat::Json => {
                let numbers = serde_json::to_value(&explanation.numbers);
                let numbers = numbers.map_err(|error| CommandFailure::unexpected(error.to_string()))?;
                print_json(&serde_json::json!({"study": job.name, "about": numbers}))
            }
            ListFormat::Csv => {
                // The CSV has no column for reasons not to rely on a model, so they are printed as warnings.
                for number in &explanation.numbers {
                    number.doubts.iter().for_each(|doubt| note(global, &format!("warning: {}: {doubt}", number.name)));
                }
                print(&explanation_csv(&explanation).map_err(|error| CommandFailure::unexpected(error.to_string()))?)
            }
        }
    }
}

/// Computes the importance of the parameters by all trials of a study, and stores it for reports. `None` without
/// measurements to explain.
pub(super) async fn store_importance(
    job: &Job,
    installed: &ExecutionEnvironment,
    store: &Store,
    study: &Study,
) -> Result<Option<Explanation>, CommandFailure> {
    let learned_memory = read_learned_memory(job, installed, store).await?;
    let history = history(store, study, job).await?;
    let search = job.search(installed.version, installed.device, installed.host);
    let explanation = search.with_learned(&learned_memory, None).question(history, Vec::new()).explain();
    let Some(explanation) = explanation.filter(|explanation| !explanation.numbers.is_empty()) else { return Ok(None) };
    store.store_explanation(study.id, &serde_json::to_value(&explanation)?).await?;
    Ok(Some(explanation))
}

/// Returns the study's trials as the sampler's history, including those that another sampler or program proposed.
/// Trials in an earlier context (release, devices, host) are excluded.
async fn history(store: &Store, study: &Study, job: &Job) -> Result<Vec<PastTrial>, CommandFailure> {
    let trials = store.present_trials(study).await?.into_iter();
    // Interference trials run on all slots at once and slow each other down. Their values are not comparable.
    let alone = trials.filter(|scored| scored.trial.proposal.origin != Origin::Interference);
    Ok(alone.map(|scored| past_trial(&job.objective, scored.trial, scored.score)).collect())
}
