//! The sampler's judgement of a study: the best configurations and the estimated remaining gain.

use serde::{Deserialize, Serialize};

use super::{Store, StoreError, Study, json};

/// The largest number of configurations of a judgement that are stored.
const MAX_STORED: usize = 100;

/// A sampler's judgement. It refers to trials by number instead of by position in the sampler's history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredJudgement {
    /// The sampler's name.
    pub sampler: String,
    /// Configurations that are probably feasible, the best first.
    pub ranking: Vec<ExpectedConfiguration>,
    /// Remaining gain: the advantage of the best configuration of the space over the first of `ranking`, as a share of
    /// the latter's value. The 5th, 50th and 95th percentile.
    pub remaining: Option<[f64; 3]>,
    /// The expected gain of the next trial, as a share of the same value.
    pub next_gain: Option<f64>,
}

/// The model's estimate of a measured configuration, from its measurements and those of its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedConfiguration {
    /// The number of its first measured trial.
    pub trial: u32,
    /// The expected value of the objective, and its standard deviation as a share of that value.
    pub value: f64,
    pub deviation: f64,
    /// Probability, 0 to 1, that it keeps every limit.
    pub feasible: f64,
}

impl Store {
    /// Stores the judgement of all trials that have an outcome now. An earlier judgement is replaced.
    pub async fn store_judgement(&self, study: i64, judgement: &StoredJudgement) -> Result<(), StoreError> {
        let mut kept = judgement.clone();
        kept.ranking.truncate(MAX_STORED);
        sqlx::query(
            "INSERT OR REPLACE INTO judgements (study_id, outcomes, judgement) VALUES (?1, \
             (SELECT count(*) FROM trials WHERE study_id = ?1 AND state <> 'running'), ?2)",
        )
        .bind(study)
        .bind(json(&kept))
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns the judgement of all trials with an outcome; `None` if there is none, or if trials have ended since.
    pub async fn judgement(&self, study: &Study) -> Result<Option<StoredJudgement>, StoreError> {
        let query = "SELECT judgement FROM judgements WHERE study_id = ?1 AND outcomes = \
                     (SELECT count(*) FROM trials WHERE study_id = ?1 AND state <> 'running')";
        let row: Option<(String,)> =
            sqlx::query_as(query).bind(study.id).fetch_optional(&self.pool).await.map_err(|error| self.error(error))?;
        // An unreadable judgement counts as none: the measurements are still there.
        Ok(row.and_then(|(text,)| serde_json::from_str(&text).ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::objective::Score;
    use crate::trial::{Measurement, Outcome, Trial};

    #[tokio::test]
    async fn a_judgement_counts_until_another_trial_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let end = async |number| {
            let trial = Trial::example(number, "auto", Outcome::Measured(Measurement::default()));
            store.append(study.id, &trial, Score::Failed).await.unwrap();
        };
        let expected = |trial| ExpectedConfiguration { trial, value: 0.1 + 0.2, deviation: 1.0 / 3.0, feasible: 0.9 };
        let judgement = StoredJudgement {
            sampler: "auto".to_owned(),
            ranking: (0..150).map(expected).collect(),
            remaining: Some([0.0, 0.01, 0.05]),
            next_gain: Some(1e-9),
        };
        assert_eq!(store.judgement(&study).await.unwrap(), None);
        end(0).await;
        store.store_judgement(study.id, &judgement).await.unwrap();
        let kept = StoredJudgement { ranking: judgement.ranking[..MAX_STORED].to_vec(), ..judgement.clone() };
        assert_eq!(store.judgement(&study).await.unwrap(), Some(kept.clone()));
        end(1).await;
        assert_eq!(store.judgement(&study).await.unwrap(), None, "it does not know of the second trial");
        store.store_judgement(study.id, &judgement).await.unwrap();
        assert_eq!(store.judgement(&study).await.unwrap(), Some(kept));
    }
}
