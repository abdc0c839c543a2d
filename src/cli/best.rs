//! `best`: the ranking of a study, also within further limits, and its Pareto front.

use clap::Args;

use super::failure::{CommandFailure, NOTHING_FEASIBLE, USAGE};
use super::output::{print, print_json};
use super::query::{StudyChoice, no_winner};
use super::{GlobalOptions, ListFormat};
use crate::objective::{Constraint, Objective};
use crate::report;
use crate::store::{Store, Study};
use crate::study_report::{
    MetricGoal, NearestConfiguration, NoWinner, ParetoFront, QuestionError, StudyReport, parse_limit,
};

#[derive(Debug, Args)]
pub(super) struct BestCommand {
    #[command(flatten)]
    which: StudyChoice,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    /// Number of configurations to show.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "pareto")]
    top: u32,
    /// Further limit, such as `p99_ttft_ms<=500`. Only configurations that keep it in all of their measurements are shown.
    #[arg(long = "limit", value_name = "LIMIT")]
    limits: Vec<String>,
    /// Show the Pareto front over two or more metrics. `max:` or `min:` before a metric changes its direction.
    #[arg(long, value_name = "METRIC,METRIC", value_delimiter = ',')]
    pareto: Vec<String>,
}

impl BestCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let limits = self.limits.iter().map(|text| parse_limit(text)).collect::<Result<Vec<_>, _>>()?;
        let goals = self.goals()?;
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        if goals.is_empty() {
            self.show_ranking(&store, study, &limits).await
        } else {
            self.show_front(&store, study, goals, &limits).await
        }
    }

    /// Returns the metrics of the Pareto front; empty if none is asked for.
    fn goals(&self) -> Result<Vec<MetricGoal>, CommandFailure> {
        let goals = self.pareto.iter().map(|text| MetricGoal::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let is_repeated =
            |(index, goal): (usize, &MetricGoal)| goals[..index].iter().any(|other| other.metric == goal.metric);
        if goals.len() == 1 || goals.iter().enumerate().any(is_repeated) {
            let message = format!("--pareto needs two or more different metrics, and has {}", self.pareto.join(","));
            return Err(CommandFailure::new(USAGE, message).with_hint(
                "for instance --pareto output_throughput,p99_ttft_ms; `best` alone ranks by the objective",
            ));
        }
        Ok(goals)
    }

    async fn show_ranking(&self, store: &Store, study: Study, limits: &[Constraint]) -> Result<(), CommandFailure> {
        let report = StudyReport::read_within(store, study, limits, self.top).await?;
        if report.winner().is_none() {
            return Err(nothing_within(store, &report, limits).await?);
        }
        match self.format {
            ListFormat::Table => print(&report::best_text(&report)),
            ListFormat::Json => print_json(&report::best_json(&report)),
            ListFormat::Csv => print(&report::ranking_csv(&report.ranking)?),
        }
    }

    async fn show_front(
        &self,
        store: &Store,
        study: Study,
        goals: Vec<MetricGoal>,
        limits: &[Constraint],
    ) -> Result<(), CommandFailure> {
        let front = ParetoFront::read(store, &study, goals, limits).await?;
        if front.members.is_empty() {
            if front.incomplete == 0 {
                let report = StudyReport::read_within(store, study, limits, 1).await?;
                return Err(nothing_within(store, &report, limits).await?);
            }
            let metrics = self.pareto.join(", ");
            let message = format!("no configuration of study {:?} was measured with all of {metrics}", study.name);
            return Err(CommandFailure::new(NOTHING_FEASIBLE, message)
                .with_hint("`setpoint show N` lists the metrics of a trial"));
        }
        match self.format {
            ListFormat::Table => print(&report::front_text(&front)),
            ListFormat::Json => print_json(&report::front_json(&study, &front)),
            ListFormat::Csv => print(&report::front_csv(&front)?),
        }
    }
}

/// Returns the failure of a study whose configurations all exceed a limit, with the nearest one.
async fn nothing_within(
    store: &Store,
    report: &StudyReport,
    further: &[Constraint],
) -> Result<CommandFailure, CommandFailure> {
    let reason = NoWinner::read(store, report).await?;
    let measured = match reason {
        NoWinner::OverLimits { measured } => measured,
        // All measured trials kept the study's limits, and none the further ones.
        NoWinner::WithoutValue { .. } | NoWinner::Unmeasured { .. } => return Ok(no_winner(&report.study, &reason)),
    };
    let own = report.objective.iter().flat_map(Objective::limits);
    let limits: Vec<_> = own.chain(further).cloned().collect();
    let nearest = NearestConfiguration::read(store, &report.study, &limits).await?;
    let list: Vec<_> = limits.iter().map(ToString::to_string).collect();
    let (noun, name) = (if measured == 1 { "trial" } else { "trials" }, &report.study.name);
    let message =
        format!("none of the {measured} measured {noun} of study {name:?} kept the limits {}", list.join(", "));
    let failure = CommandFailure::new(NOTHING_FEASIBLE, message);
    Ok(match nearest {
        Some(nearest) => failure.with_hint(report::nearest_text(&nearest)),
        None => failure.with_hint("`setpoint trials` shows the outcome of each"),
    })
}

impl From<QuestionError> for CommandFailure {
    fn from(error: QuestionError) -> Self {
        let failure = Self::new(USAGE, error.message);
        match error.hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

impl From<csv::Error> for CommandFailure {
    fn from(error: csv::Error) -> Self {
        Self::unexpected(error.to_string())
    }
}
