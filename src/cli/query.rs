//! `studies` and `show`, and the choice of a study.

use clap::Args;
use serde_json::Value as Json;

use super::failure::{CommandFailure, INVALID, NOTHING_FEASIBLE, USAGE};
use super::output::{print, print_json};
use super::{GlobalOptions, OutputFormat};
use crate::report;
use crate::store::{ScoredTrial, Store, Study};
use crate::study_report::NoWinner;

#[derive(Debug, Args)]
pub(super) struct StudiesCommand {
    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,
}

#[derive(Debug, Args)]
pub(super) struct ShowCommand {
    /// Number of the trial.
    trial: u32,
    #[command(flatten)]
    which: StudyChoice,
    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,
}

#[derive(Debug, Args)]
pub(super) struct StudyChoice {
    /// Name of the study. Required if the database contains several.
    #[arg(long, value_name = "NAME")]
    pub(super) study: Option<String>,
}

impl StudyChoice {
    /// Returns the study that `--study` names, or the only one of the database.
    pub(super) async fn find(&self, store: &Store) -> Result<Study, CommandFailure> {
        let studies = store.studies().await?;
        let names = || studies.iter().map(|(study, _)| study.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = match (&self.study, studies.as_slice()) {
            (_, []) => {
                return Err(CommandFailure::new(INVALID, "the database contains no study")
                    .with_hint("run one with `setpoint tune STUDY.toml`, or name another database with --db"));
            }
            (Some(name), _) => studies.iter().find(|(study, _)| study.name == *name).map(|(study, _)| study.clone()),
            (None, [(only, _)]) => Some(only.clone()),
            (None, _) => {
                let message = format!("the database contains several studies: {}", names());
                return Err(CommandFailure::new(USAGE, message).with_hint("name one with --study"));
            }
        };
        found.ok_or_else(|| {
            let name = self.study.as_deref().unwrap_or_default();
            CommandFailure::new(INVALID, format!("there is no study {name:?}"))
                .with_hint(format!("the database contains: {}", names()))
        })
    }
}

impl StudiesCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let store = Store::open(&global.db, false).await?;
        let studies = store.studies().await?;
        match self.format {
            OutputFormat::Table => print(&report::studies_table(&studies)),
            OutputFormat::Json => {
                print_json(&studies.iter().map(|(study, counts)| report::study_json(study, *counts)).collect())
            }
        }
    }
}

impl ShowCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        let scored = find_trial(&store, &study, self.trial).await?;
        let startup = store.startup(&study, self.trial).await?;
        let placement = store.placement(&study, self.trial).await?;
        let incidents = store.incidents(&study, Some(self.trial)).await?;
        let telemetry = store.telemetry(&study, self.trial).await?;
        let answers = store.answers(&study, self.trial).await?;
        let context = store.context_of(&study, self.trial).await?;
        match self.format {
            OutputFormat::Table => {
                let start = startup.as_ref().map(report::startup_text).unwrap_or_default();
                let telemetry_text = telemetry.as_ref().map(report::telemetry_text).unwrap_or_default();
                let incidents = report::incidents_text(&incidents);
                let placement_text = placement.as_ref().map(report::placement_text).unwrap_or_default();
                let context = context.as_ref().map(report::context_text).unwrap_or_default();
                let trial = report::show_text(&study, &scored);
                let replies = answers.as_ref().map(report::answers_text).unwrap_or_default();
                print(&format!("{trial}{context}{placement_text}{incidents}{start}{telemetry_text}{replies}"))
            }
            OutputFormat::Json => {
                let mut json = report::trial_json(&study, &scored);
                report::add_context(&mut json, context.as_ref());
                json["startup"] = serde_json::to_value(&startup).unwrap_or_default();
                json["placement"] = serde_json::to_value(&placement).unwrap_or_default();
                json["telemetry"] = telemetry.as_ref().map_or(Json::Null, report::telemetry_json);
                json["answers"] = serde_json::to_value(&answers).unwrap_or_default();
                json["incidents"] = incidents.iter().map(report::incident_json).collect();
                print_json(&json)
            }
        }
    }
}

/// Returns a trial that has an outcome, or the failure that explains its absence.
pub(super) async fn find_trial(store: &Store, study: &Study, number: u32) -> Result<ScoredTrial, CommandFailure> {
    if let Some(scored) = store.trial(study, number).await? {
        return Ok(scored);
    }
    let missing = CommandFailure::new(INVALID, format!("study {:?} has no finished trial {number}", study.name));
    // The trial that paused a study has incidents but no outcome yet.
    let incidents = store.incidents(study, Some(number)).await?;
    Err(missing.with_hint(if incidents.is_empty() {
        "`setpoint trials` lists the finished ones".to_owned()
    } else {
        format!("it will be launched again after these incidents:\n{}", report::incidents_text(&incidents).trim_end())
    }))
}

/// Returns the failure of a command that needs the best configuration of a study without one.
pub(super) fn no_winner(study: &Study, reason: &NoWinner) -> CommandFailure {
    let name = &study.name;
    let message = match reason {
        NoWinner::WithoutValue { measured, metric, first } => {
            let message = format!("none of the {measured} measured trials of study {name:?} has a value of {metric}");
            let hint = format!("`setpoint show {first}` gives the reason");
            return CommandFailure::new(NOTHING_FEASIBLE, message).with_hint(hint);
        }
        NoWinner::Unmeasured { .. } => format!("no trial of study {name:?} has been measured"),
        NoWinner::OverLimits { measured } => {
            format!("none of the {measured} measured trials of study {name:?} kept the limits")
        }
    };
    CommandFailure::new(NOTHING_FEASIBLE, message).with_hint("`setpoint trials` shows the outcome of each")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;

    #[tokio::test]
    async fn a_study_that_is_absent_is_reported_with_the_present_ones_if_there_are_any() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let choice = StudyChoice { study: Some("slow".to_owned()) };
        let failure = async || {
            let failure = choice.find(&store).await.unwrap_err();
            format!("{failure:?}")
        };
        let empty = failure().await;
        assert!(empty.contains("contains no study") && empty.contains("run one with"), "{empty}");
        store.create_study("fast", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let absent = failure().await;
        assert!(absent.contains("there is no study") && absent.contains("the database contains: fast"), "{absent}");
    }
}
