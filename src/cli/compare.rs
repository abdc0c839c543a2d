//! `compare`: two configurations side by side, also of different studies.

use clap::Args;

use super::failure::{CommandFailure, INVALID, USAGE};
use super::output::{print, print_json};
use super::query::{StudyChoice, find_trial, no_winner};
use super::{GlobalOptions, ListFormat};
use crate::report;
use crate::store::{Store, Study};
use crate::study_report::{ComparedSide, ConfigurationComparison, NoWinner, StudyReport};

#[derive(Debug, Args)]
pub(super) struct CompareCommand {
    /// First configuration: the number of a trial, `best` or `baseline`, with `STUDY:` before it if it is of another study.
    #[arg(value_name = "A")]
    first: String,
    /// Second configuration. Changes are from the first to the second.
    #[arg(value_name = "B")]
    second: String,
    #[command(flatten)]
    which: StudyChoice,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    /// Show every metric. JSON and CSV always have all.
    #[arg(long)]
    all: bool,
}

/// The trial that a text names, within its study.
enum NamedTrial {
    Number(u32),
    Best,
    Baseline,
}

impl CompareCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let store = Store::open(&global.db, false).await?;
        let sides = [self.side(&store, &self.first).await?, self.side(&store, &self.second).await?];
        let comparison = ConfigurationComparison::of(sides);
        match self.format {
            ListFormat::Table => print(&report::comparison_text(&comparison, self.all)),
            ListFormat::Json => print_json(&report::comparison_json(&comparison)),
            ListFormat::Csv => print(&report::comparison_csv(&comparison)?),
        }
    }

    async fn side(&self, store: &Store, text: &str) -> Result<ComparedSide, CommandFailure> {
        // A name may contain colons.
        let (study, name) = match text.rsplit_once(':') {
            Some((study, name)) => (StudyChoice { study: Some(study.to_owned()) }.find(store).await?, name),
            None => (self.which.find(store).await?, text),
        };
        let number = match parse(name)? {
            NamedTrial::Number(number) => number,
            NamedTrial::Best => best(store, &study).await?,
            NamedTrial::Baseline => baseline(store, &study).await?,
        };
        let scored = find_trial(store, &study, number).await?;
        Ok(ComparedSide::read(store, study, scored).await?)
    }
}

fn parse(name: &str) -> Result<NamedTrial, CommandFailure> {
    match name {
        "best" => Ok(NamedTrial::Best),
        "baseline" => Ok(NamedTrial::Baseline),
        _ => name.parse().map(NamedTrial::Number).map_err(|_| {
            CommandFailure::new(USAGE, format!("{name:?} names no trial"))
                .with_hint("write its number, `best` or `baseline`, and STUDY: before it for another study")
        }),
    }
}

async fn best(store: &Store, study: &Study) -> Result<u32, CommandFailure> {
    let report = StudyReport::read(store, study.clone(), 1).await?;
    match report.winner() {
        Some(winner) => Ok(winner.results.ranked.first.trial.proposal.number),
        None => Err(no_winner(study, &NoWinner::read(store, &report).await?)),
    }
}

async fn baseline(store: &Store, study: &Study) -> Result<u32, CommandFailure> {
    let ranked = store.baseline(study).await?;
    ranked.map(|ranked| ranked.first.trial.proposal.number).ok_or_else(|| {
        CommandFailure::new(INVALID, format!("the engine's defaults were not measured in study {:?}", study.name))
            .with_hint("`setpoint trials` shows the outcome of each trial")
    })
}
