//! `importance`: lists the parameters of a study by their influence, with the predicted effect of their values.

use std::path::PathBuf;

use clap::Args;

use super::failure::{CommandFailure, INVALID, NOTHING_FEASIBLE};
use super::output::{note, print, print_json};
use super::{Global, ListFormat};
use crate::execution::detect;
use crate::job::{Job, differences, past};
use crate::report::{explanation_csv, explanation_text};
use crate::sampler::PastTrial;
use crate::store::{Store, Study};
use crate::trial::Origin;
use crate::tuner::{Slots, TuneError, learned};

#[derive(Debug, Args)]
pub(super) struct ImportanceCommand {
    /// The study file, for its search space and rules. The trials are read from the database.
    study: PathBuf,
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

impl ImportanceCommand {
    pub(super) async fn run(self, global: &Global) -> Result<(), CommandFailure> {
        let job = Job::read(&self.study)?;
        let store = Store::open(&global.db, false).await?;
        let Some(study) = store.study(&job.name).await? else {
            let message = format!("the database holds no study {:?}", job.name);
            return Err(CommandFailure::new(INVALID, message)
                .with_hint("`setpoint studies` lists them; --db names another one"));
        };
        let differences = differences(&job.definition(), &study.definition);
        if !differences.is_empty() {
            return Err(TuneError::Differs { name: study.name, differences }.into());
        }
        let mut installed = detect(&job).await;
        Slots::resolve(&job, &mut installed)?;
        job.check_release(installed.version)?;
        let memory = learned(&job, &installed, &store).await?;
        let history = history(&store, &study, &job).await?;
        store.close().await;
        let search = job.search(installed.version, installed.device, installed.host);
        let explanation = search.knowing(&memory, None).question(history, Vec::new()).explain();
        let Some(explanation) = explanation.filter(|explanation| !explanation.about.is_empty()) else {
            let message = format!("study {:?} has no measurements of its space that could be explained", job.name);
            return Err(CommandFailure::new(NOTHING_FEASIBLE, message).with_hint(
                "`setpoint trials` shows what happened to each trial, `setpoint check` what the rules leave",
            ));
        };
        match self.format {
            ListFormat::Table => print(&explanation_text(&explanation)),
            ListFormat::Json => {
                let about = serde_json::to_value(&explanation.about);
                let about = about.map_err(|error| CommandFailure::unexpected(error.to_string()))?;
                print_json(&serde_json::json!({"study": job.name, "about": about}))
            }
            ListFormat::Csv => {
                // The CSV has no column for reasons not to rely on a model, so they are printed as warnings.
                for about in &explanation.about {
                    about.doubts.iter().for_each(|doubt| note(global, &format!("warning: {}: {doubt}", about.name)));
                }
                print(&explanation_csv(&explanation).map_err(|error| CommandFailure::unexpected(error.to_string()))?)
            }
        }
    }
}

/// Returns the study's trials as the sampler's history, including those of other samplers and of callers. Trials in
/// an earlier context (release, devices, host) are excluded.
async fn history(store: &Store, study: &Study, job: &Job) -> Result<Vec<PastTrial>, CommandFailure> {
    let trials = store.present_trials(study).await?.into_iter().map(|scored| scored.trial);
    // Interference trials run on all slots at once and slow each other down. Their values are not comparable.
    let alone = trials.filter(|trial| trial.proposal.origin != Origin::Interference);
    Ok(alone.map(|trial| past(&job.objective, trial)).collect())
}
