//! Where rules and engine differed.

use super::{Store, StoreError};

/// A configuration on which a rule and the installed engine differ: a defect of the rules.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Difference {
    pub trial: u32,
    pub engine_version: String,
    /// `accept` or `reject`, the engine's verdict.
    pub engine: String,
    /// The rule that rejected what the engine accepts.
    pub rule: Option<String>,
    /// The words of whoever rejected.
    pub message: String,
}

impl Store {
    /// Stores a difference; a trial that was interrupted and is tried again has it only once.
    pub async fn differ(&self, study: i64, difference: &Difference) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT OR REPLACE INTO disagreements (study_id, trial, engine_version, engine, rule, message) \
             VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(study)
        .bind(difference.trial)
        .bind(&difference.engine_version)
        .bind(&difference.engine)
        .bind(&difference.rule)
        .bind(&difference.message)
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Every difference of a study, by trial.
    pub async fn differences(&self, study: i64) -> Result<Vec<Difference>, StoreError> {
        let query = "SELECT trial, engine_version, engine, rule, message FROM disagreements \
                     WHERE study_id = ? ORDER BY trial";
        sqlx::query_as(query).bind(study).fetch_all(&self.pool).await.map_err(|error| self.error(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;

    #[tokio::test]
    async fn a_difference_is_kept_once_for_each_trial() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let difference = |trial, rule: Option<&str>| Difference {
            trial,
            engine_version: "0.32.0".to_owned(),
            engine: if rule.is_some() { "accept" } else { "reject" }.to_owned(),
            rule: rule.map(str::to_owned),
            message: "why".to_owned(),
        };
        for given in [difference(7, None), difference(2, Some("R1")), difference(2, None)] {
            store.differ(study.id, &given).await.unwrap();
        }
        let stored = store.differences(study.id).await.unwrap();
        assert_eq!(stored, [difference(2, None), difference(7, None)]);
    }
}
