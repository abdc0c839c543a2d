//! Renders lists of trials as a table, JSON and CSV.

use serde_json::{Map, Value as Json, json};

use super::grid::grid;
use super::table::{number, shorten};
use crate::objective::Score;
use crate::store::{ListedTrial, Study};
use crate::study_report::{TrialCell, TrialColumn, TrialList};

/// Returns one line for each trial: the chosen columns, or the usual ones. Without trials it is only the header.
#[must_use]
pub(crate) fn list_table(study: &Study, list: &TrialList) -> String {
    if !list.columns.is_empty() {
        return chosen_table(list);
    }
    let metric = study.objective().map_or_else(|| "value".to_owned(), |objective| objective.value_name());
    let header = ["trial", "state", &metric, "start s", "total s", "configuration or reason"];
    let rows = list.trials.iter().map(usual_row).collect();
    grid(&header, &[0, 2, 3, 4], rows)
}

fn usual_row(trial: &ListedTrial) -> Vec<String> {
    let state = match trial.score {
        Score::Infeasible { .. } => "over a limit",
        _ => trial.state.as_str(),
    };
    let mut text = trial.config.to_string();
    if let Some(code) = &trial.reason_code {
        text = format!("{text} ({code}: {})", trial.reason.as_deref().unwrap_or_default());
    }
    if trial.is_disturbed {
        text = format!("disturbed: {text}");
    }
    if trial.is_earlier {
        text = format!("earlier context: {text}");
    }
    vec![
        trial.number.to_string(),
        state.to_owned(),
        trial.score.value().map(number).unwrap_or_default(),
        trial.startup_s.map(number).unwrap_or_default(),
        number(trial.elapsed_s),
        shorten(&text),
    ]
}

fn chosen_table(list: &TrialList) -> String {
    let header: Vec<_> = list.columns.iter().map(TrialColumn::name).collect();
    let cells: Vec<Vec<_>> =
        list.trials.iter().map(|trial| list.columns.iter().map(|column| list.cell(trial, column)).collect()).collect();
    let is_numeric =
        |index: &usize| cells.iter().all(|row| !matches!(row[*index], TrialCell::Text(_) | TrialCell::Bool(_)));
    let numbers: Vec<_> = (0..header.len()).filter(is_numeric).collect();
    let rows = cells.iter().map(|row| row.iter().map(|cell| shorten(&cell_text(cell, number))).collect()).collect();
    grid(&header, &numbers, rows)
}

fn cell_text(cell: &TrialCell, number: impl Fn(f64) -> String) -> String {
    match cell {
        TrialCell::Empty => String::new(),
        TrialCell::Number(value) => number(*value),
        TrialCell::Bool(value) => value.to_string(),
        TrialCell::Text(text) => text.clone(),
    }
}

/// Returns an object with the chosen columns for each trial. An absent value is null.
#[must_use]
pub(crate) fn list_json(list: &TrialList) -> Json {
    let cell = |cell: TrialCell| match cell {
        TrialCell::Empty => Json::Null,
        // Whole numbers are written as such: 64, not 64.0.
        TrialCell::Number(value) => {
            format!("{value}").parse::<i64>().map_or_else(|_| json!(value), |whole| json!(whole))
        }
        TrialCell::Bool(value) => json!(value),
        TrialCell::Text(text) => json!(text),
    };
    let object = |trial: &ListedTrial| {
        let pair = |column: &TrialColumn| (column.name().to_owned(), cell(list.cell(trial, column)));
        Json::Object(list.columns.iter().map(pair).collect::<Map<_, _>>())
    };
    list.trials.iter().map(object).collect()
}

/// Writes the chosen columns of each trial with a header. An absent value is empty.
///
/// # Errors
/// Never in practice: the writer is a buffer in memory.
pub(crate) fn list_csv(list: &TrialList) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(list.columns.iter().map(TrialColumn::name))?;
    for trial in &list.trials {
        let cells = list.columns.iter().map(|column| cell_text(&list.cell(trial, column), |value| value.to_string()));
        writer.write_record(cells)?;
    }
    super::csv::text_of(writer)
}
