//! Columns of a list of trials: fields, metrics and flags, by one name each.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::ListedMetrics;
use crate::config::Value;
use crate::document::nearest;
use crate::objective::Score;
use crate::stats::to_f64;
use crate::store::ListedTrial;
use crate::study_report::question::QuestionError;
use crate::trial::Measurement;

/// A column of a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TrialColumn {
    Field(TrialField),
    /// A metric, or `WORKLOAD/METRIC` in a study with several workloads.
    Metric(String),
    /// A flag of the configurations, by its name.
    Flag(String),
}

/// A property that every trial has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrialField {
    name: &'static str,
    is_numeric: bool,
    read: fn(&ListedTrial) -> TrialCell,
}

/// Fields are equal if their names are.
impl PartialEq for TrialField {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A value of a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TrialCell {
    Empty,
    Number(f64),
    Bool(bool),
    Text(String),
}

const fn field(name: &'static str, is_numeric: bool, read: fn(&ListedTrial) -> TrialCell) -> TrialField {
    TrialField { name, is_numeric, read }
}

/// The fields, with the names of `setpoint trials --format json`.
const FIELDS: [TrialField; 16] = [
    field("trial", true, |trial| TrialCell::Number(f64::from(trial.number))),
    field("state", false, |trial| TrialCell::Text(trial.state.clone())),
    field("proposed_by", false, |trial| TrialCell::Text(trial.origin.name().to_owned())),
    field("config", false, |trial| TrialCell::Text(trial.config.to_string())),
    field("value", true, |trial| trial.score.value().into()),
    field("violation", true, |trial| match trial.score {
        Score::Failed => TrialCell::Empty,
        Score::Infeasible { violation, .. } => TrialCell::Number(violation),
        Score::Feasible { .. } => TrialCell::Number(0.0),
    }),
    field("feasible", false, |trial| TrialCell::Bool(trial.score.is_feasible())),
    field("reason_code", false, |trial| trial.reason_code.clone().into()),
    field("reason", false, |trial| trial.reason.clone().into()),
    field("started_at", false, |trial| TrialCell::Text(trial.started_at.clone())),
    field("startup_s", true, |trial| trial.startup_s.into()),
    field("elapsed_s", true, |trial| TrialCell::Number(trial.elapsed_s)),
    field("engine_version", false, |trial| trial.engine_version.clone().into()),
    field("earlier_context", false, |trial| TrialCell::Bool(trial.is_earlier)),
    field("disturbed", false, |trial| TrialCell::Bool(trial.is_disturbed)),
    field("measured_by", false, |trial| TrialCell::Text(trial.measured_by.name().to_owned())),
];

impl TrialColumn {
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Field(field) => field.name,
            Self::Metric(name) | Self::Flag(name) => name,
        }
    }

    pub(super) fn metric(&self) -> Option<&str> {
        if let Self::Metric(name) = self { Some(name) } else { None }
    }

    pub(super) fn cell(&self, trial: &ListedTrial, metrics: &ListedMetrics) -> TrialCell {
        match self {
            Self::Field(field) => (field.read)(trial),
            Self::Metric(name) => metrics.value(trial.number, name).into(),
            Self::Flag(name) => match trial.config.get(name) {
                None => TrialCell::Empty,
                Some(Value::Bool(flag)) => TrialCell::Bool(*flag),
                Some(Value::Int(number)) => TrialCell::Number(to_f64(*number)),
                Some(Value::Float(number)) => TrialCell::Number(*number),
                Some(Value::Text(text)) => TrialCell::Text(text.clone()),
            },
        }
    }

    /// Returns the number of a trial; `None` if it has none.
    pub(super) fn number(&self, trial: &ListedTrial, metrics: &ListedMetrics) -> Option<f64> {
        match self {
            // Without a copy of the text.
            Self::Flag(name) => trial.config.get_f64(name),
            Self::Metric(name) => metrics.value(trial.number, name),
            Self::Field(field) if field.is_numeric => match (field.read)(trial) {
                TrialCell::Number(number) => Some(number),
                _ => None,
            },
            Self::Field(_) => None,
        }
    }
}

impl TrialCell {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::Empty
    }

    /// Orders numbers by their value and all others by their text, numbers first.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Empty => 3,
            Self::Number(_) => 0,
            Self::Bool(_) => 1,
            Self::Text(_) => 2,
        }
    }
}

impl From<Option<f64>> for TrialCell {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::Empty, Self::Number)
    }
}

impl From<Option<String>> for TrialCell {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Empty, Self::Text)
    }
}

/// The names that a list of these trials knows.
pub(super) struct KnownColumns {
    /// Each flag, and whether it has a number in at least one trial.
    flags: BTreeMap<String, bool>,
    /// `WORKLOAD/METRIC`, for each of several workloads.
    workload_metrics: Vec<String>,
}

impl KnownColumns {
    /// `workloads` has the names of several workloads; empty for one.
    pub(super) fn of(trials: &[ListedTrial], workloads: &[String]) -> Self {
        let mut flags: BTreeMap<String, bool> = BTreeMap::new();
        for (name, value) in trials.iter().flat_map(|trial| trial.config.iter()) {
            match flags.get_mut(name) {
                Some(is_numeric) => *is_numeric |= value.as_f64().is_some(),
                None => _ = flags.insert(name.to_owned(), value.as_f64().is_some()),
            }
        }
        let mut workload_metrics = Vec::new();
        for name in workloads {
            workload_metrics.extend(Measurement::names().map(|metric| format!("{name}/{metric}")));
        }
        Self { flags, workload_metrics }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let fields = FIELDS.iter().map(|field| -> &str { field.name });
        let metrics = Measurement::names().map(|name| -> &str { name });
        let workload_metrics = self.workload_metrics.iter().map(String::as_str);
        fields.chain(metrics).chain(workload_metrics).chain(self.flags.keys().map(String::as_str))
    }

    /// Returns the column of this name.
    ///
    /// # Errors
    /// For an unknown name, with the nearest one.
    pub(super) fn find(&self, name: &str) -> Result<TrialColumn, QuestionError> {
        self.get(name).ok_or_else(|| {
            let hint = match nearest(name, self.names()) {
                Some(similar) => format!("did you mean {similar}?"),
                None => format!(
                    "names are metrics, the flags of the trials ({}), and fields ({})",
                    self.flag_list(),
                    fields()
                ),
            };
            QuestionError::new(format!("the trials have nothing named {name:?}")).with_hint(hint)
        })
    }

    pub(super) fn get(&self, name: &str) -> Option<TrialColumn> {
        if let Some(field) = FIELDS.iter().find(|field| field.name == name) {
            return Some(TrialColumn::Field(*field));
        }
        if Measurement::is_known(name) || self.workload_metrics.iter().any(|metric| metric == name) {
            return Some(TrialColumn::Metric(name.to_owned()));
        }
        self.flags.contains_key(name).then(|| TrialColumn::Flag(name.to_owned()))
    }

    /// Returns the longest known name that begins `text` and is not a part of a longer word.
    pub(super) fn at_begin(&self, text: &str, is_word: impl Fn(char) -> bool) -> Option<TrialColumn> {
        let here = |name: &&str| text.strip_prefix(*name).is_some_and(|after| !after.starts_with(&is_word));
        self.names().filter(here).max_by_key(|name| name.len()).and_then(|name| self.get(name))
    }

    pub(super) fn is_numeric(&self, column: &TrialColumn) -> bool {
        match column {
            TrialColumn::Field(field) => field.is_numeric,
            TrialColumn::Metric(_) => true,
            TrialColumn::Flag(name) => self.flags.get(name).copied().unwrap_or_default(),
        }
    }

    fn flag_list(&self) -> String {
        self.flags.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

fn fields() -> String {
    FIELDS.map(|field| field.name).join(", ")
}
