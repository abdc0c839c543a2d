//! The details of a trial with an outcome, which are read when someone asks for them.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::log_excerpt::LogExcerpt;
use crate::server::log_directory;
use crate::store::{ScoredTrial, Store, StoreError, Study};
use crate::trial::PhaseTime;

/// The details of one trial.
#[derive(Clone, Debug)]
pub(crate) struct TrialDetail {
    pub scored: ScoredTrial,
    /// The phases of its start. Empty if no process was started.
    pub phases: Vec<PhaseTime>,
    /// Output tokens per second of the server over the time of its load. Empty without telemetry.
    pub generation_rates: Vec<f64>,
    /// The last lines of its log, without control characters and secrets.
    pub log_lines: Vec<String>,
}

impl TrialDetail {
    /// `None` if the trial has no outcome.
    pub(super) async fn read(store: &Store, study: &Study, number: u32) -> Result<Option<Self>, StoreError> {
        let Some(scored) = store.trial(study, number).await? else { return Ok(None) };
        let startup = store.startup(study, number).await?;
        let telemetry = store.telemetry(study, number).await?;
        let log_lines = log_path(store, study, &scored).map(|path| LogExcerpt::read(&path).lines());
        Ok(Some(Self {
            phases: startup.map(|startup| startup.phases).unwrap_or_default(),
            generation_rates: telemetry.map(|found| generation_rates(&found.series)).unwrap_or_default(),
            log_lines: log_lines.unwrap_or_default(),
            scored,
        }))
    }
}

/// Returns the path of a trial's log. The stored path may be relative to another directory, or the database may have been
/// moved with its logs.
fn log_path(store: &Store, study: &Study, scored: &ScoredTrial) -> Option<PathBuf> {
    let stored = scored.trial.log.as_deref()?;
    let beside = log_directory(store.path(), &study.name).join(stored.file_name()?);
    Some(if beside.exists() { beside } else { stored.to_owned() })
}

/// Returns the rate of the counter of generated tokens between neighbouring samples.
fn generation_rates(series: &Json) -> Vec<f64> {
    let column = |name: &str| series.pointer(&format!("/server/{name}")).and_then(Json::as_array);
    let (Some(at), Some(tokens)) = (column("at_s"), column("generation_tokens")) else { return Vec::new() };
    let points: Vec<_> = at.iter().zip(tokens).filter_map(|(at, tokens)| at.as_f64().zip(tokens.as_f64())).collect();
    let rate = |pair: &[(f64, f64)]| match pair {
        [(from, before), (to, after)] if to > from => Some(((after - before) / (to - from)).max(0.0)),
        _ => None,
    };
    points.windows(2).filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rate_needs_two_samples_and_a_missing_one_is_bridged() {
        let series = json!({"server": {"at_s": [0.0, 1.0, 2.0, 4.0], "generation_tokens": [0.0, 10.0, null, 70.0]}});
        assert_eq!(generation_rates(&series), [10.0, 20.0]);
        assert!(generation_rates(&json!({"server": {"at_s": [0.0]}})).is_empty());
        assert!(generation_rates(&Json::Null).is_empty());
    }
}
