//! Studies and trials as tables and as JSON.

mod json;
mod table;

pub use json::{study_json, trial_json};
pub use table::{best_table, columns_csv, show_text, studies_table, trials_table};
