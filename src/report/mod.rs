//! Renders studies, trials, benchmarks and predictions as tables, JSON, CSV and pages.

mod bench;
mod comparison;
mod configuration_results;
mod context;
mod csv;
mod engines;
mod explanation;
mod front;
mod grid;
mod guard;
mod json;
mod startup;
mod leftover;
mod page;
mod listing;
mod placement;
mod predict;
#[cfg(test)]
mod read_back_tests;
mod sql;
mod study;
mod table;
mod telemetry;
mod terminal;
mod winning_flags;
mod load_curve;
mod workloads;

pub(crate) use bench::{BENCH_FORMATS, BenchResult, BenchRuns, benchmark_json};
pub(crate) use comparison::{comparison_csv, comparison_json, comparison_text};
pub(crate) use configuration_results::{
    deployment_gain_text, deployment_text, expectation, gain_text, mean_metrics, value_text,
};
pub(crate) use context::{add_context, context_text};
pub(crate) use csv::{ranking_csv, trials_csv};
pub(crate) use engines::{ComparedEngine, engine_comparison_text};
pub(crate) use explanation::{explanation_csv, explanation_text};
pub(crate) use front::{front_csv, front_json, front_text, nearest_text};
pub(crate) use guard::answers_text;
pub(crate) use json::deployment_json;
pub(crate) use json::{incident_json, study_json, trial_json};
pub(crate) use leftover::{leftovers_json, leftovers_table};
pub(crate) use listing::{list_csv, list_json, list_table};
pub(crate) use page::{
    EMBEDDED_LICENSES, PROMETHEUS_TYPE, PageError, PageOptions, StudyDocument, Timeline, comparison_page, live_page,
    page_assets, page_fronts, prometheus_text, report_html, report_markdown, studies_comparison, studies_page,
};
pub(crate) use placement::placement_text;
pub(crate) use predict::{PredictedConfiguration, Predictions, predictions_json, predictions_page, predictions_text};
pub(crate) use sql::{sql_csv, sql_json, sql_table};
pub(crate) use startup::startup_text;
pub(crate) use study::{best_json, best_text, incidents_line};
pub(crate) use table::{incidents_text, number, show_text, spaces_table, studies_table};
pub(crate) use telemetry::{telemetry_json, telemetry_text};
pub(crate) use terminal::{
    CardCommands, ShortFlagNames, TextLayout, TrialRows, card_text, metric_title, metric_unit, wrap_text,
};
pub(crate) use winning_flags::{add_flags, flag_lines};
