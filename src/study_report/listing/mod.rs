//! Lists of trials: filtered, sorted, and with columns of the user's choice.

mod column;
mod filter;

use std::collections::BTreeSet;

use super::question::QuestionError;
use crate::store::{ListedTrial, MetricValues, Store, StoreError, Study};

pub(crate) use column::{TrialCell, TrialColumn};

use column::KnownColumns;
use filter::TrialFilter;

/// The options of a list, as texts of the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListOptions {
    /// Names of states; empty for all.
    pub states: Vec<String>,
    /// Conditions that all hold.
    pub conditions: Vec<String>,
    /// `NAME`, `NAME:asc` or `NAME:desc`.
    pub sort: Option<String>,
    /// Names of columns; empty for the usual ones.
    pub columns: Vec<String>,
    /// The number of trials from the beginning of the list.
    pub first: Option<usize>,
    /// The number of trials from the end of the list.
    pub last: Option<usize>,
}

/// A list of trials, and the metrics that its columns need.
#[derive(Clone, Debug)]
pub(crate) struct TrialList {
    pub trials: Vec<ListedTrial>,
    /// The chosen columns; empty for the usual ones.
    pub columns: Vec<TrialColumn>,
    /// The number of trials before the filters.
    pub total: usize,
    metrics: ListedMetrics,
}

/// Values of the metrics that a list needs.
#[derive(Clone, Debug, Default)]
struct ListedMetrics {
    names: Vec<String>,
    values: MetricValues,
}

/// The reason for which there is no list.
#[derive(Debug)]
pub(crate) enum ListError {
    Question(QuestionError),
    Store(StoreError),
}

impl From<QuestionError> for ListError {
    fn from(error: QuestionError) -> Self {
        Self::Question(error)
    }
}

impl From<StoreError> for ListError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl TrialList {
    /// Reads the trials of a study that have an outcome.
    pub(crate) fn read(store: &Store, study: &Study, options: &ListOptions) -> Result<Self, ListError> {
        let trials = store.list(study)?;
        let joint = study.objective().and_then(|objective| objective.joint);
        let workloads = joint.map_or_else(Vec::new, |joint| joint.workloads);
        let workloads: Vec<_> = workloads.into_iter().map(|workload| workload.name).collect();
        let known = KnownColumns::of(&trials, &workloads);
        let filters = options.conditions.iter().map(|text| TrialFilter::parse(text, &known));
        let filters = filters.collect::<Result<Vec<_>, _>>()?;
        let sort = options.sort.as_deref().map(|text| sort_order(text, &known)).transpose()?;
        let columns = options.columns.iter().map(|name| known.find(name.trim())).collect::<Result<Vec<_>, _>>()?;
        let used =
            filters.iter().flat_map(TrialFilter::columns).chain(sort.iter().map(|(column, _)| column)).chain(&columns);
        let names: BTreeSet<_> = used.filter_map(TrialColumn::metric).collect();
        let names: Vec<_> = names.into_iter().collect();
        let values = if names.is_empty() { MetricValues::new() } else { store.metric_values(study, &names)? };
        let metrics = ListedMetrics { names: names.into_iter().map(str::to_owned).collect(), values };
        let total = trials.len();
        let mut list = Self { trials, columns, total, metrics };
        list.keep(options, &filters);
        if let Some((column, is_descending)) = &sort {
            list.sort(column, *is_descending);
        }
        list.trials.truncate(options.first.unwrap_or(usize::MAX));
        let excess = list.trials.len().saturating_sub(options.last.unwrap_or(usize::MAX));
        list.trials.drain(..excess);
        Ok(list)
    }

    /// Returns the value of a column in a trial.
    #[must_use]
    pub(crate) fn cell(&self, trial: &ListedTrial, column: &TrialColumn) -> TrialCell {
        column.cell(trial, &self.metrics)
    }

    fn keep(&mut self, options: &ListOptions, filters: &[TrialFilter]) {
        let metrics = &self.metrics;
        self.trials.retain(|trial| {
            (options.states.is_empty() || options.states.contains(&trial.state))
                && filters.iter().all(|filter| filter.holds(trial, metrics))
        });
    }

    /// Sorts by a column. Trials without a value come last in either direction, and equal ones stay in their order.
    fn sort(&mut self, column: &TrialColumn, is_descending: bool) {
        let mut keyed: Vec<_> =
            self.trials.drain(..).map(|trial| (column.cell(&trial, &self.metrics), trial)).collect();
        keyed.sort_by(|(a, _), (b, _)| {
            let order = a.order(b);
            let by_value = if is_descending { order.reverse() } else { order };
            a.is_empty().cmp(&b.is_empty()).then(by_value)
        });
        self.trials = keyed.into_iter().map(|(_, trial)| trial).collect();
    }
}

impl ListedMetrics {
    fn value(&self, trial: u32, name: &str) -> Option<f64> {
        let index = self.names.iter().position(|known| known == name)?;
        self.values.get(&trial)?[index]
    }
}

/// Parses `NAME`, `NAME:asc` or `NAME:desc`. Returns whether the order is descending.
fn sort_order(text: &str, known: &KnownColumns) -> Result<(TrialColumn, bool), QuestionError> {
    let (name, is_descending) = match text.rsplit_once(':') {
        None => (text, false),
        Some((name, "asc")) => (name, false),
        Some((name, "desc")) => (name, true),
        Some((_, other)) => {
            return Err(QuestionError::new(format!("there is no order {other:?}"))
                .with_hint("write NAME, NAME:asc or NAME:desc"));
        }
    };
    Ok((known.find(name)?, is_descending))
}

#[cfg(test)]
mod tests;
