//! One JSON object with everything that is known of the trial.

use super::{Exporter, Winner};
use crate::trial::json_for_terminal;

pub(super) struct Json;

impl Exporter for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn summary(&self) -> &'static str {
        "command, environment, configuration and metrics as one object"
    }

    fn export(&self, winner: &Winner<'_>) -> String {
        let trial = &winner.scored.trial;
        let object = serde_json::json!({
            "study": winner.study.name,
            "trial": trial.number,
            "engine_version": trial.engine_version,
            "config": trial.config,
            "command": winner.command(),
            "env": trial.launch.env,
            "metrics": trial.outcome.measurement(),
            "measured_at": trial.started_at,
        });
        format!("{}\n", json_for_terminal(&format!("{object:#}")))
    }
}
