//! A configuration as something to run elsewhere. Every format is one file and one line in [`EXPORTERS`].

mod json;
mod shell;

use crate::store::{Scored, Study};

/// What is exported.
#[derive(Debug)]
pub struct Winner<'a> {
    pub study: &'a Study,
    pub scored: &'a Scored,
}

pub trait Exporter: Sync {
    /// The name after `--format`.
    fn name(&self) -> &'static str;

    fn summary(&self) -> &'static str;

    /// Whether the file is meant to be run.
    fn executable(&self) -> bool {
        false
    }

    fn export(&self, winner: &Winner<'_>) -> String;
}

pub const EXPORTERS: [&dyn Exporter; 2] = [&shell::Shell, &json::Json];

#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.into_iter().find(|exporter| exporter.name() == name)
}

impl Winner<'_> {
    /// The command without the address that only the trial used, so that the engine's own default or the caller's
    /// arguments decide.
    fn command(&self) -> &[String] {
        let command = self.scored.trial.launch.command.as_slice();
        // The address is what a launch adds last: `--host H --port P`.
        match command {
            [kept @ .., host, _, port, _] if host == "--host" && port == "--port" => kept,
            _ => command,
        }
    }

    /// The metrics that a reader wants first, as `name value`.
    fn headline(&self) -> Vec<String> {
        let Some(measurement) = self.scored.trial.outcome.measurement() else { return Vec::new() };
        let mut names = vec!["output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"];
        let objective = self.study.objective();
        let constraints = objective.iter().flat_map(|objective| objective.constraints.iter());
        let asked = objective.iter().map(|objective| objective.metric.as_str());
        for name in asked.chain(constraints.map(|constraint| constraint.metric.as_str())) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.into_iter().filter_map(|name| Some(format!("{name} {:.2}", measurement.metric(name)?))).collect()
    }
}
