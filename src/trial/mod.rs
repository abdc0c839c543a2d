//! What was tried and what happened.

mod control;
mod measurement;
mod outcome;
mod placement;
mod replies;
mod secret;
mod startup;
mod telemetry;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::config::Config;

pub use control::{for_terminal, is_control, json_for_terminal, without_controls};
pub use measurement::{ClientReport, Direction, Distribution, Interval, Measurement, Speeds, Window};
pub use outcome::{Blame, Failure, FailureKind, Outcome, Rejection};
pub use placement::Placement;
pub use replies::Replies;
pub use secret::{REDACTED, is_secret, redact};
pub use startup::{Difference, PhaseTime, Startup};
pub use telemetry::{SERVER_METRICS, SERVER_NAMES};

/// The exact command line and the environment variables that were added to the tuner's own.
///
/// Secrets never get here: values of variables that are named like one are [`REDACTED`], and [`redact`] replaces those that
/// look like one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
}

impl Launch {
    /// Redacts what looks like a secret. The launch itself gets the original words.
    #[must_use]
    pub fn redacted(command: &[String], env: BTreeMap<String, String>) -> Self {
        let value = |(name, value): (String, String)| {
            let value = if is_secret(&name) { REDACTED.to_owned() } else { redact(&value).into_owned() };
            (name, value)
        };
        // `--api-key VALUE` and `--api-key=VALUE`, and `TOKEN=VALUE` behind `env` or `docker run -e`.
        let is_named = |word: &String| word.starts_with('-') && !word.contains('=') && is_secret(word);
        let before = std::iter::once(None).chain(command.iter().map(Some));
        let shown = |(before, word): (Option<&String>, &String)| match word.split_once('=') {
            _ if before.is_some_and(is_named) => REDACTED.to_owned(),
            Some((name, _)) if !name.contains(char::is_whitespace) && is_secret(name) => format!("{name}={REDACTED}"),
            _ => redact(word).into_owned(),
        };
        let command = before.zip(command).map(shown).collect();
        Self { command, env: env.into_iter().map(value).collect() }
    }
}

/// One configuration, tried or rejected. Numbers begin at 0, the engine's defaults, and have no gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    pub number: u32,
    /// The sampler that proposed the configuration.
    pub proposed_by: String,
    /// Why this configuration, in one line; older versions did not say.
    pub why: Option<String>,
    /// What it was expected to gain when it was proposed, as a share of the best; of samplers that expect anything.
    pub expected_gain: Option<f64>,
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
    /// Number of the probe that started although this launch had failed: the failure is the configuration's own.
    pub probe: Option<u32>,
}

#[cfg(test)]
impl Trial {
    /// One with this outcome, of which nothing else matters.
    pub(crate) fn example(number: u32, proposed_by: &str, outcome: Outcome) -> Self {
        Self {
            number,
            proposed_by: proposed_by.to_owned(),
            why: None,
            expected_gain: None,
            config: Config::new(),
            launch: Launch::default(),
            started_at: "2026-01-02T03:04:05.678Z".to_owned(),
            startup_s: None,
            elapsed_s: 1.0,
            engine_version: None,
            log: None,
            outcome,
            probe: None,
        }
    }
}
