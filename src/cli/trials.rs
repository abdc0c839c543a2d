//! `trials`: the trials of a study, filtered, sorted and with chosen columns.

use clap::{Args, ValueEnum};

use super::failure::CommandFailure;
use super::output::{note, print, print_json};
use super::query::StudyChoice;
use super::{GlobalOptions, ListFormat};
use crate::report;
use crate::store::{ScoredTrial, Store, Study};
use crate::study_report::{ListError, ListOptions, TrialList};

#[derive(Debug, Args)]
pub(super) struct TrialsCommand {
    #[command(flatten)]
    which: StudyChoice,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    /// Only trials with one of these outcomes.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "STATE,...")]
    state: Vec<TrialState>,
    /// Only trials for which a condition on flags, metrics or fields holds, such as `max-num-seqs >= 64` or `state ==
    /// failed`. With several, all hold. A trial without the value is left out.
    #[arg(long = "where", value_name = "CONDITION")]
    conditions: Vec<String>,
    /// Order by a flag, metric or field. Trials without a value come last.
    #[arg(long, value_name = "NAME[:desc]")]
    sort: Option<String>,
    /// Columns by the names of flags, metrics and fields.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    columns: Vec<String>,
    /// Only the first N trials of the list.
    #[arg(long, value_name = "N", conflicts_with = "last")]
    first: Option<usize>,
    /// Only the last N trials of the list.
    #[arg(long, value_name = "N")]
    last: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TrialState {
    Measured,
    Failed,
    Rejected,
}

impl TrialsCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        let list = TrialList::read(&store, &study, &self.options())?;
        if list.trials.is_empty() && list.total > 0 {
            note(global, &format!("none of the {} trials of study {:?} matches", list.total, study.name));
        }
        let has_columns = !list.columns.is_empty();
        match self.format {
            ListFormat::Table => print(&report::list_table(&study, &list)),
            ListFormat::Json if has_columns => print_json(&report::list_json(&list)),
            ListFormat::Csv if has_columns => print(&report::list_csv(&list)?),
            ListFormat::Json => {
                let contexts = store.contexts(&study).await?;
                let json = |scored: &ScoredTrial| {
                    let mut json = report::trial_json(&study, scored);
                    report::add_context(&mut json, contexts.get(&scored.trial.proposal.number));
                    json
                };
                print_json(&whole_trials(&store, &study, &list).await?.iter().map(json).collect())
            }
            ListFormat::Csv => {
                let trials = whole_trials(&store, &study, &list).await?;
                let earlier = |number| list.trials.iter().any(|trial| trial.number == number && trial.is_earlier);
                print(&report::trials_csv(&trials, earlier)?)
            }
        }
    }

    fn options(&self) -> ListOptions {
        let name = |state: &TrialState| match state {
            TrialState::Measured => "measured".to_owned(),
            TrialState::Failed => "failed".to_owned(),
            TrialState::Rejected => "rejected".to_owned(),
        };
        ListOptions {
            states: self.state.iter().map(name).collect(),
            conditions: self.conditions.clone(),
            sort: self.sort.clone(),
            columns: self.columns.clone(),
            first: self.first,
            last: self.last,
        }
    }
}

/// Reads the listed trials with their measurements, in the order of the list.
async fn whole_trials(store: &Store, study: &Study, list: &TrialList) -> Result<Vec<ScoredTrial>, CommandFailure> {
    if list.trials.len() == list.total && list.trials.is_sorted_by_key(|trial| trial.number) {
        return Ok(store.trials(study).await?);
    }
    let numbers: Vec<_> = list.trials.iter().map(|trial| trial.number).collect();
    let places: std::collections::HashMap<_, _> = numbers.iter().copied().zip(0_usize..).collect();
    let mut trials = store.trials_of(study, &numbers).await?;
    trials.sort_by_key(|scored| places.get(&scored.trial.proposal.number).copied());
    Ok(trials)
}

impl From<ListError> for CommandFailure {
    fn from(error: ListError) -> Self {
        match error {
            ListError::Question(error) => error.into(),
            ListError::Store(error) => error.into(),
        }
    }
}
