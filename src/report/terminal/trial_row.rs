//! One row for each trial of a running study, in columns that fit the terminal.

use std::collections::BTreeMap;

use anstyle::{AnsiColor, Style};
use console::measure_text_width;

use super::flag_changes::ShortFlagNames;
use super::layout::TextLayout;
use super::metric_title::{metric_title, metric_unit};
use crate::config::Config;
use crate::objective::{Constraint, MetricLimit, Objective};
use crate::report::number;
use crate::store::ScoredTrial;
use crate::trial::{Measurement, Origin, Outcome, Proposal, redact, without_controls};

/// The least columns for a row with measured values of broken limits and the time of the start.
const WIDE: usize = 120;
/// Columns below which a row shows no duration, and no name of a broken limit.
const NARROW: usize = 70;
/// The least columns of a failure's cause that leave space for the changed flags beside it.
const MIN_CAUSE_COLUMNS: usize = 44;
/// The least columns of changed flags behind a short cause.
const MIN_CHANGES_COLUMNS: usize = 12;

const NUMBER_COLUMNS: usize = 6;
const CHANGE_COLUMNS: usize = 7;
const TIME_COLUMNS: usize = 6;
const GAP: &str = "  ";

/// The facts of a study that its rows depend on.
#[derive(Clone, Debug)]
pub(crate) struct TrialRows {
    objective: Objective,
    /// Flags with the same value in every trial. The rows omit them.
    fixed: Config,
    /// The values that the engine chooses for the flags of the space, as far as they are known.
    pub(crate) defaults: Config,
    /// Today's deployment, if the study has one.
    pub(crate) deployment: Option<Config>,
    names: ShortFlagNames,
    /// The first trial of each configuration, by the configuration's key.
    first_trials: BTreeMap<String, u32>,
}

/// The columns of rows, by the width of the output and the length of the study's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowColumns {
    objective: usize,
    /// `None` for an objective without limits.
    limits: Option<usize>,
    start: Option<usize>,
    time: Option<usize>,
    changes: usize,
}

impl TrialRows {
    #[must_use]
    pub(crate) fn new(objective: Objective, fixed: Config, defaults: Config, names: ShortFlagNames) -> Self {
        Self { objective, fixed, defaults, deployment: None, names, first_trials: BTreeMap::new() }
    }

    /// Remembers the trial by whose number a later trial of the same configuration is named.
    pub(crate) fn remember(&mut self, proposal: &Proposal) {
        self.first_trials.entry(proposal.config.key()).or_insert(proposal.number);
    }

    /// Returns the line above the rows.
    #[must_use]
    pub(crate) fn header(&self, layout: TextLayout) -> String {
        let columns = self.columns(layout);
        let mut cells = vec![
            layout.right("trial", NUMBER_COLUMNS - 1) + " ",
            layout.right(&self.objective_head(), columns.objective),
            layout.right("change", CHANGE_COLUMNS),
        ];
        cells.extend(columns.limits.map(|width| layout.left("limits", width)));
        cells.extend(columns.start.map(|width| layout.right("start", width)));
        cells.extend(columns.time.map(|width| layout.right("time", width)));
        cells.push("changed flags".to_owned());
        line(&cells, layout)
    }

    /// Explains the rows in a sentence.
    #[must_use]
    pub(crate) fn legend() -> &'static str {
        "changes are against trial 0, the defaults; * best so far; +N: N more flags"
    }

    /// Returns the row of a trial. `baseline` is the value of the defaults, if it was measured. `is_best` marks the first
    /// trial of the best configuration so far.
    #[must_use]
    pub(crate) fn row(&self, scored: &ScoredTrial, baseline: Option<f64>, is_best: bool, layout: TextLayout) -> String {
        match &scored.trial.outcome {
            Outcome::Measured(measurement) => {
                let text = self.measured(scored, measurement, baseline, is_best, layout);
                let style = AnsiColor::Green.on_default().bold();
                if is_best { paint(&text, style) } else { text }
            }
            Outcome::Failed(failure) => {
                let text = self.unmeasured(scored, &format!("failed, {}: {}", failure.kind, failure.message), layout);
                paint(&text, AnsiColor::Red.on_default().dimmed())
            }
            Outcome::Rejected(rejection) => {
                let cause = format!("rejected before launch, {}: {}", rejection.rule, rejection.message);
                paint(&self.unmeasured(scored, &cause, layout), AnsiColor::Red.on_default().dimmed())
            }
        }
    }

    fn measured(
        &self,
        scored: &ScoredTrial,
        measurement: &Measurement,
        baseline: Option<f64>,
        is_best: bool,
        layout: TextLayout,
    ) -> String {
        let (trial, columns) = (&scored.trial, self.columns(layout));
        let value = scored.score.value();
        let change = value.zip(baseline).filter(|_| trial.proposal.origin != Origin::Baseline);
        let change = change.map(|(value, baseline)| change_text(value, baseline)).unwrap_or_default();
        let mut cells = vec![
            number_cell(trial.proposal.number, is_best),
            layout.right(&value.map_or_else(|| "no value".to_owned(), number), columns.objective),
            layout.right(&change, CHANGE_COLUMNS),
        ];
        cells.extend(columns.limits.map(|width| layout.left(&self.limits(measurement, layout), width)));
        cells.extend(times(scored, columns, layout));
        cells.push(self.changes(scored, layout, columns.changes));
        line(&cells, layout)
    }

    /// Returns a row with a cause in place of the measured values. On a narrow output the cause takes the other columns
    /// as well.
    fn unmeasured(&self, scored: &ScoredTrial, cause: &str, layout: TextLayout) -> String {
        let columns = self.columns(layout);
        // A message may have further lines, such as the engine's traceback.
        let cause = without_controls(&redact(cause.lines().next().unwrap_or_default())).into_owned();
        let beside =
            columns.objective + CHANGE_COLUMNS + GAP.len() + columns.limits.map_or(0, |width| width + GAP.len());
        let mut cells = vec![number_cell(scored.trial.proposal.number, false)];
        if beside >= MIN_CAUSE_COLUMNS {
            cells.push(layout.left(&cause, beside));
            cells.extend(times(scored, columns, layout));
            cells.push(self.changes(scored, layout, columns.changes));
        } else {
            let rest = layout.width.saturating_sub(NUMBER_COLUMNS + GAP.len());
            let name = self.configuration_name(&scored.trial.proposal);
            let named = name.map(|[name, _]| format!("{name}: {cause}"));
            let cause = layout.cut(named.as_ref().unwrap_or(&cause), rest).into_owned();
            let left = rest.saturating_sub(measure_text_width(&cause) + GAP.len());
            cells.push(cause);
            if left >= MIN_CHANGES_COLUMNS && named.is_none() {
                cells.push(self.changes(scored, layout, left));
            }
        }
        line(&cells, layout)
    }

    /// Describes the changed flags after the origin of a trial that is not part of the search. Of a named configuration
    /// only the name is shown if there is no space for both.
    fn changes(&self, scored: &ScoredTrial, layout: TextLayout, columns: usize) -> String {
        let proposal = &scored.trial.proposal;
        let own = proposal.config.without(&self.fixed);
        let name = self.configuration_name(proposal);
        let prefix = match proposal.origin {
            Origin::Confirmation | Origin::Turn | Origin::BaselineRepeat => "again: ",
            Origin::Ablation => "fewer flags: ",
            Origin::Probe => "probe: ",
            Origin::Interference => "neighbours: ",
            Origin::RuleTest => "rule test: ",
            Origin::LiveLook => "live: ",
            _ if scored.trial.outcome.measurement().is_some_and(|found| found.saved_s().is_some()) => "early end: ",
            _ => "",
        };
        let Some([name, short_name]) = name else {
            let flags = self.names.changes(&own, &self.defaults, layout, columns.saturating_sub(prefix.len()));
            let flags = if flags.is_empty() { "equal to the defaults".to_owned() } else { flags };
            return layout.cut(&without_controls(&format!("{prefix}{flags}")), columns).into_owned();
        };
        let is_short = prefix.len() + measure_text_width(&name) > columns;
        let name = format!("{prefix}{}", if is_short { short_name } else { name });
        // A long source of a start point leaves space for the flags, if the column is wide enough for both.
        let has_space = columns >= 3 * MIN_CHANGES_COLUMNS && !own.is_empty();
        let reserved = if has_space { MIN_CHANGES_COLUMNS + GAP.len() } else { 0 };
        let name = layout.cut(&name, columns.saturating_sub(reserved)).into_owned();
        let left = columns.saturating_sub(measure_text_width(&name) + GAP.len());
        if own.is_empty() || left < MIN_CHANGES_COLUMNS {
            return name;
        }
        match self.names.changes(&own, &self.defaults, layout, left) {
            flags if flags.is_empty() => name,
            flags => format!("{name}: {}", without_controls(&flags)),
        }
    }

    /// Returns the name of a configuration that the search has not chosen, and a shorter form: the engine's defaults,
    /// today's deployment, a start point with its source, or an earlier trial that is repeated.
    fn configuration_name(&self, proposal: &Proposal) -> Option<[String; 2]> {
        let is_deployment = self.deployment.as_ref() == Some(&proposal.config);
        let is_defaults = proposal.config.without(&self.fixed).is_empty();
        let names = match (is_defaults, is_deployment || proposal.origin == Origin::Deployment) {
            (true, true) => ["engine's defaults, today's deployment", "defaults, deployment"].map(str::to_owned),
            (true, false) => ["engine's defaults", "defaults"].map(str::to_owned),
            (false, true) => ["today's deployment", "deployment"].map(str::to_owned),
            (false, false) if proposal.origin == Origin::Start => {
                let source = proposal.why.as_deref().unwrap_or("start point");
                let source = without_controls(&redact(source)).into_owned();
                [source.clone(), source]
            }
            (false, false) if matches!(proposal.origin, Origin::Confirmation | Origin::Turn | Origin::Probe) => {
                let first = self.first_trials.get(&proposal.config.key());
                let name = format!("trial {}", first.filter(|first| **first != proposal.number)?);
                [name.clone(), name]
            }
            (false, false) => return None,
        };
        Some(names)
    }

    /// Describes the limits of a measurement: all kept, or the one that is exceeded most, and the number of the others.
    fn limits(&self, measurement: &Measurement, layout: TextLayout) -> String {
        let broken = |limit: &&Constraint| limit.violation(measurement) > 0.0;
        let mut over: Vec<_> = self.objective.limits().filter(broken).collect();
        over.sort_by(|a, b| b.violation(measurement).total_cmp(&a.violation(measurement)));
        let Some(worst) = over.first() else { return "kept".to_owned() };
        if layout.width < NARROW {
            return "over".to_owned();
        }
        let others = if over.len() > 1 { format!(", +{}", over.len() - 1) } else { String::new() };
        format!("{}{others}", excess_text(worst, measurement, layout))
    }

    fn objective_head(&self) -> String {
        let metric = &self.objective.metric;
        if let Some(joint) = &self.objective.joint {
            return format!("{} ratio", joint.over.name());
        }
        let text = format!("{} {}", metric_title(metric), metric_unit(metric));
        text.trim_end().to_owned()
    }

    fn columns(&self, layout: TextLayout) -> RowColumns {
        let objective = measure_text_width(&self.objective_head()).clamp(8, 22);
        let name = |limit: &Constraint| match layout.width {
            WIDE.. => measure_text_width(&limit.metric) + 22,
            NARROW.. => measure_text_width(&metric_title(&limit.metric)) + 7,
            _ => 6,
        };
        let limits = self.objective.limits().map(name).max();
        let limits = limits.map(|columns| columns.clamp(6, if layout.width >= WIDE { 40 } else { 18 }));
        let start = (layout.width >= WIDE).then_some(TIME_COLUMNS);
        let time = (layout.width >= NARROW).then_some(TIME_COLUMNS);
        let optional = [limits, start, time].into_iter().flatten().map(|width| width + GAP.len()).sum::<usize>();
        let taken = NUMBER_COLUMNS + objective + CHANGE_COLUMNS + optional + 3 * GAP.len();
        RowColumns { objective, limits, start, time, changes: layout.width.saturating_sub(taken) }
    }
}

fn number_cell(number: u32, is_best: bool) -> String {
    format!("{number:>width$}{}", if is_best { "*" } else { " " }, width = NUMBER_COLUMNS - 1)
}

fn times(scored: &ScoredTrial, columns: RowColumns, layout: TextLayout) -> impl Iterator<Item = String> {
    let start = scored.trial.startup_s.map(short_duration).unwrap_or_default();
    let total = short_duration(scored.trial.elapsed_s);
    let start = columns.start.map(|width| layout.right(&start, width));
    start.into_iter().chain(columns.time.map(|width| layout.right(&total, width)))
}

/// Joins cells, without blanks at the end. A row is never wider than its output.
fn line(cells: &[String], layout: TextLayout) -> String {
    layout.cut(cells.join(GAP).trim_end(), layout.width).into_owned()
}

fn paint(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

/// Returns a text such as `+21.1 %`. Large changes have no decimals.
fn change_text(value: f64, baseline: f64) -> String {
    let percent = 100.0 * (value / baseline - 1.0);
    match percent {
        percent if !percent.is_finite() => String::new(),
        percent if percent.abs() < 0.05 => "0.0 %".to_owned(),
        percent if percent.abs() >= 99.95 => format!("{percent:+.0} %"),
        percent => format!("{percent:+.1} %"),
    }
}

/// Returns a text such as `p95 ITL +12 %`, on a wide output `p95_itl_ms 11.2 > 10 (+12 %)`.
fn excess_text(limit: &Constraint, measurement: &Measurement, layout: TextLayout) -> String {
    let is_wide = layout.width >= WIDE;
    let name = if is_wide { limit.metric.clone() } else { metric_title(&limit.metric) };
    let Some(value) = measurement.metric(&limit.metric) else { return format!("{name} missing") };
    let (bound, sign) = match limit.limit {
        MetricLimit::AtMost(bound) => (bound, '>'),
        MetricLimit::AtLeast(bound) => (bound, '<'),
    };
    // A limit of zero has no relative excess.
    let percent = (bound != 0.0).then(|| 100.0 * (value - bound) / bound.abs());
    let percent = percent.map(|percent| match percent.abs() {
        size if size >= 10.0 => format!("{percent:+.0} %"),
        size if size >= 0.1 => format!("{percent:+.1} %"),
        _ => format!("{percent:+.2} %"),
    });
    match (is_wide, percent) {
        (true, Some(percent)) => format!("{name} {} {sign} {} ({percent})", number(value), number(bound)),
        (false, Some(percent)) => format!("{name} {percent}"),
        (_, None) => format!("{name} {} {sign} 0", number(value)),
    }
}

/// Formats seconds such as `4.3 s`, `12 min` or `1.7 h`.
#[must_use]
pub(crate) fn short_duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 99.95 => format!("{seconds:.1} s"),
        seconds if seconds < 5970.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
#[path = "trial_row_tests.rs"]
mod tests;
