//! The environment variables of an exported launch.

use super::ExportedTrial;
use crate::engine::is_variable;
use crate::trial::REDACTED;

/// The variables of a launch by their use in an export.
#[derive(Debug, Default)]
pub(super) struct ExportedVariables<'a> {
    /// Names with their values.
    pub values: Vec<(&'a str, &'a str)>,
    /// Names of secrets, whose values are not stored.
    pub secrets: Vec<&'a str>,
    /// Names that no shell, container or service can set.
    pub impossible: Vec<&'a str>,
}

impl ExportedTrial<'_> {
    /// Returns the variables of the trial's launch.
    pub(super) fn variables(&self) -> ExportedVariables<'_> {
        let mut variables = ExportedVariables::default();
        for (name, value) in &self.scored.trial.launch.env {
            if !is_variable(name) {
                variables.impossible.push(name);
            } else if value.contains(REDACTED) {
                variables.secrets.push(name);
            } else {
                variables.values.push((name, value));
            }
        }
        variables
    }
}

impl ExportedVariables<'_> {
    /// Returns comment lines for a format that cannot set variables.
    pub(super) fn comments(&self) -> Vec<String> {
        let values =
            self.values.iter().map(|(name, value)| format!("Set this variable for the engine: {name}={value}"));
        values.chain(self.omissions()).collect()
    }

    /// Returns comment lines on variables without a value.
    pub(super) fn omissions(&self) -> Vec<String> {
        let secrets = self
            .secrets
            .iter()
            .map(|name| format!("Set this variable for the engine, a secret that was not stored: {name}"));
        let impossible =
            self.impossible.iter().map(|name| format!("omitted, because no variable can have this name: {name}"));
        secrets.chain(impossible).collect()
    }
}
