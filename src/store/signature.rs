//! Cheap signs of a change of the database, for those that watch a study.

use super::{Store, StoreError, Study};

/// Everything that changes with a study's trials or findings, as one text.
const SIGNATURE: &str = "
    SELECT (SELECT json_group_array(json_array(state, trials, latest, sum))
            FROM (SELECT state, count(*) AS trials, max(number) AS latest, total(value) AS sum FROM trials
                  WHERE study_id = ?1 GROUP BY state ORDER BY state))
        || '/' || accepted_changes
        || '/' || coalesce((SELECT outcomes || judgement FROM judgements WHERE study_id = ?1), '')
        || '/' || (SELECT json_group_array(decision) FROM decisions WHERE study_id = ?1)
        || '/' || coalesce((SELECT outcomes FROM explanations WHERE study_id = ?1), '')
        || '/' || (SELECT count(*) FROM incidents WHERE study_id = ?1)
    FROM studies WHERE id = ?1";

impl Store {
    /// Returns a hash that changes with the trials or the findings of a study.
    pub(crate) async fn study_signature(&self, study: &Study) -> Result<u64, StoreError> {
        let query = sqlx::query_scalar(SIGNATURE).bind(study.id).fetch_optional(&self.pool);
        let text: Option<String> = query.await.map_err(|error| self.error(error))?;
        Ok(crate::stats::Fnv1a::new().with(text.unwrap_or_default().as_bytes()).value())
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
    async fn a_signature_changes_with_the_own_study_only() {
        let store = Store::in_memory().await.unwrap();
        let [one, other] = ["one", "other"];
        let one = store.create_study(one, &json!({}), &Host::detect()).await.unwrap();
        let other = store.create_study(other, &json!({}), &Host::detect()).await.unwrap();
        let before = [store.study_signature(&one).await.unwrap(), store.study_signature(&other).await.unwrap()];
        let trial = Trial::example(0, "auto", Outcome::Measured(Measurement::default()));
        store.append(one.id, &trial, Score::Feasible { value: 1.0 }).await.unwrap();
        let after = store.study_signature(&one).await.unwrap();
        assert_ne!(after, before[0]);
        assert_eq!(store.study_signature(&other).await.unwrap(), before[1]);
        store.store_explanation(one.id, &json!({})).await.unwrap();
        assert_ne!(store.study_signature(&one).await.unwrap(), after);
    }
}
