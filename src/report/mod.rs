//! Studies, trials, benchmarks and predictions as tables, JSON, CSV and pages.

mod bench;
mod context;
mod csv;
mod explanation;
mod json;
mod startup;
mod leftover;
mod placement;
mod predict;
mod standing;
mod table;
mod telemetry;

pub use bench::{BENCH_FORMATS, BenchFormat, Benchmark, Runs, benchmark_json};
pub use context::{add_context, context_text};
pub use csv::{ranking_csv, trials_csv};
pub use explanation::{explanation_csv, explanation_text};
pub use json::{incident_json, ranked_json, standing_json, study_json, trial_json, verdict_json};
pub use leftover::{leftovers_json, leftovers_table};
pub use placement::placement_text;
pub use predict::{Predicted, Predictions, predictions_json, predictions_page, predictions_text};
pub use standing::{BOTH_GAINS, Order, Spread, Standing, expectation, gain, gain_text, is_significant, value_text};
pub use startup::startup_text;
pub use table::{best_table, incidents_text, number, show_text, spaces_table, studies_table, trials_table};
pub use telemetry::{telemetry_json, telemetry_text};
