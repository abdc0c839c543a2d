//! The importance of a study's parameters as it was computed last.

use serde_json::Value as Json;

use super::{Store, StoreError, Study};

/// The importance of the parameters by all trials that had an outcome when it was computed.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredExplanation {
    /// The number of these trials.
    pub outcomes: u32,
    /// The `sampler::Explanation`, serialized.
    pub explanation: Json,
}

impl Store {
    /// Stores the importance by all trials that have an outcome now. An earlier one is replaced.
    pub async fn store_explanation(&self, study: i64, explanation: &Json) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT OR REPLACE INTO explanations (study_id, outcomes, explanation) VALUES (?1, \
             (SELECT count(*) FROM trials WHERE study_id = ?1 AND state <> 'running'), ?2)",
        )
        .bind(study)
        .bind(explanation.to_string())
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns the importance that was stored last; `None` if there is none, or if it cannot be read.
    pub async fn explanation(&self, study: &Study) -> Result<Option<StoredExplanation>, StoreError> {
        let query = "SELECT outcomes, explanation FROM explanations WHERE study_id = ?";
        let row: Option<(u32, String)> =
            sqlx::query_as(query).bind(study.id).fetch_optional(&self.pool).await.map_err(|error| self.error(error))?;
        // An unreadable explanation counts as none: the measurements are still there.
        let read = |(outcomes, text): (u32, String)| {
            Some(StoredExplanation { outcomes, explanation: serde_json::from_str(&text).ok()? })
        };
        Ok(row.and_then(read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::objective::Score;
    use crate::trial::{Measurement, Outcome, Trial};
    use serde_json::json;

    #[tokio::test]
    async fn the_last_explanation_replaces_the_earlier_one_and_counts_its_trials() {
        let store = Store::in_memory().await.unwrap();
        let study = store.create_study("s", &json!({}), &Host::detect()).await.unwrap();
        assert_eq!(store.explanation(&study).await.unwrap(), None);
        for (number, text) in [(0, "first"), (1, "second")] {
            let trial = Trial::example(number, "auto", Outcome::Measured(Measurement::default()));
            store.append(study.id, &trial, Score::Feasible { value: 1.0 }).await.unwrap();
            store.store_explanation(study.id, &json!({"about": text})).await.unwrap();
        }
        let expected = StoredExplanation { outcomes: 2, explanation: json!({"about": "second"}) };
        assert_eq!(store.explanation(&study).await.unwrap(), Some(expected));
    }
}
