//! The flags of a deployment as a configuration of one release.

use super::arguments::is_flag;
use super::{Deployment, DeploymentError};
use crate::config::Config;
use crate::engine::{ADAPTERS_FLAG, adapter_names};
use crate::flag::{FlagError, FlagTable};

/// The flags of a deployment as one release reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct DeploymentFlags {
    /// All flags with their values.
    pub config: Config,
    /// The names under which requests address the model. Empty if it has its own name only.
    pub served_names: Vec<String>,
    /// The names of `LoRA` adapters, which requests may address as well.
    pub adapters: Vec<String>,
}

impl Deployment {
    /// Reads the flags as the release of `table` does.
    ///
    /// # Errors
    /// If the release does not have a flag or does not accept its value. The error names each such flag, and the most
    /// similar flag that the release has.
    pub fn configuration(&self, table: FlagTable) -> Result<DeploymentFlags, DeploymentError> {
        let (config, errors) = table.parse_lenient(&self.args);
        if errors.is_empty() {
            let served_names = self.values_of("served-model-name");
            let adapters = config.get_str(ADAPTERS_FLAG).map(adapter_names).unwrap_or_default();
            return Ok(DeploymentFlags { config, served_names, adapters });
        }
        let problems: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let is_unknown = errors.iter().any(|error| matches!(error, FlagError::Unknown { .. }));
        let hint = if is_unknown {
            "remove the flag from the deployment, or install the release that the deployment runs"
        } else {
            "correct the value in the deployment"
        };
        Err(DeploymentError {
            place: self.source.place.clone(),
            line: self.source.line,
            problem: format!("release {} does not accept the flags: {}", table.release(), problems.join("; ")),
            hint: Some(hint.to_owned()),
        })
    }

    /// Returns the values of a flag that takes several.
    fn values_of(&self, name: &str) -> Vec<String> {
        let mut values = Vec::new();
        let mut is_within = false;
        for word in &self.args {
            if is_flag(word) {
                let (flag, attached) = word.split_once('=').map_or((word.as_str(), None), |(a, b)| (a, Some(b)));
                is_within = flag.trim_start_matches('-').replace('_', "-") == name;
                values.extend(attached.filter(|_| is_within).map(str::to_owned));
            } else if is_within {
                values.push(word.clone());
            }
        }
        values
    }
}
