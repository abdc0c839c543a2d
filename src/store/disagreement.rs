//! Differences between the rules and the installed engine.

use super::{Store, StoreError};

/// A configuration that the rules accept and the installed engine rejects, or the reverse: a defect of the rules.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct RuleDisagreement {
    /// The trial's number. `None` for an example: a configuration from the part of the space that a rule removes.
    pub trial: Option<u32>,
    /// The configuration of an example, as [`crate::config::Config::key`] spells it. A trial has its own.
    pub config: Option<String>,
    pub engine_version: String,
    /// `accept` or `reject`, the engine's verdict.
    pub engine: String,
    /// The rule that rejected a configuration that the engine accepts.
    pub rule: Option<String>,
    /// The message of the rule or the engine that rejected.
    pub message: String,
}

impl Store {
    /// Stores a difference. A trial has at most one, even if it is interrupted and repeated. A rule has at most one
    /// example. A later difference replaces the earlier one.
    pub async fn store_disagreement(&self, study: i64, difference: &RuleDisagreement) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT OR REPLACE INTO disagreements (study_id, trial, config, engine_version, engine, rule, message) \
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(study)
        .bind(difference.trial)
        .bind(&difference.config)
        .bind(&difference.engine_version)
        .bind(&difference.engine)
        .bind(&difference.rule)
        .bind(&difference.message)
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns the differences of a study: examples, then trials by their number.
    pub async fn disagreements(&self, study: i64) -> Result<Vec<RuleDisagreement>, StoreError> {
        let query = "SELECT trial, config, engine_version, engine, rule, message FROM disagreements \
                     WHERE study_id = ? ORDER BY trial, rule";
        sqlx::query_as(query).bind(study).fetch_all(&self.pool).await.map_err(|error| self.error(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;

    #[tokio::test]
    async fn a_difference_is_kept_once_for_each_trial_and_each_rule() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let difference = |trial: Option<u32>, rule: Option<&str>| RuleDisagreement {
            trial,
            config: trial.is_none().then(|| "{}".to_owned()),
            engine_version: "0.32.0".to_owned(),
            engine: if rule.is_some() { "accept" } else { "reject" }.to_owned(),
            rule: rule.map(str::to_owned),
            message: "why".to_owned(),
        };
        let trials = [(Some(7), None), (Some(2), Some("R1")), (Some(2), None)];
        let examples = [(None, Some("R2")), (None, Some("R1")), (None, Some("R2"))];
        for (trial, rule) in trials.into_iter().chain(examples) {
            store.store_disagreement(study.id, &difference(trial, rule)).await.unwrap();
        }
        let stored = store.disagreements(study.id).await.unwrap();
        let expected = [(None, Some("R1")), (None, Some("R2")), (Some(2), None), (Some(7), None)];
        assert_eq!(stored, expected.map(|(trial, rule)| difference(trial, rule)));
    }
}
