//! What was tried and what happened.

mod measurement;
mod outcome;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::config::Config;

pub use measurement::{Direction, Distribution, Measurement};
pub use outcome::{Failure, FailureKind, Outcome, Rejection};

/// The exact command line and the environment variables that were added to the tuner's own.
///
/// Values of variables that look like secrets never get here: they are [`REDACTED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
}

/// Stands for the value of a secret wherever something is stored, shown or exported.
pub const REDACTED: &str = "(redacted)";

/// Whether a variable's name says that its value is a secret.
#[must_use]
pub fn is_secret(variable: &str) -> bool {
    let name = variable.to_ascii_uppercase();
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY"]
        .iter()
        .any(|word| name.contains(word))
}

/// One configuration, tried or rejected. Numbers begin at 0, the engine's defaults, and have no gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    pub number: u32,
    /// The sampler that proposed the configuration.
    pub proposed_by: String,
    pub config: Config,
    pub launch: Launch,
    /// RFC 3339, UTC, milliseconds.
    pub started_at: String,
    /// Seconds from spawn to readiness, where the server became ready.
    pub startup_s: Option<f64>,
    /// Seconds from the trial's begin to its outcome.
    pub elapsed_s: f64,
    /// The release that the server reported.
    pub engine_version: Option<String>,
    pub log: Option<PathBuf>,
    pub outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_hold_secrets_are_recognised_by_name() {
        for name in ["HF_TOKEN", "OPENAI_API_KEY", "aws_secret_access_key", "DB_PASSWORD"] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS"] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
