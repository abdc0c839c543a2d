//! What a sampler's model says of a study's measurements: which configuration is the best, and what is left to gain.

use serde::{Deserialize, Serialize};

use super::{Store, StoreError, Study, json};

/// So many configurations of a judgement are kept.
const MOST: usize = 100;

/// A sampler's judgement, with trials in place of places in its history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Who judged.
    pub sampler: String,
    /// Configurations that are probably within the limits, the best first.
    pub ranking: Vec<Expected>,
    /// By how much the best configuration of the space is better than the first of them, as a share of the latter's value: the
    /// 5th, 50th and 95th percentile.
    pub remaining: Option<[f64; 3]>,
    /// What the next trial is expected to gain, as a share of the same value.
    pub next_gain: Option<f64>,
}

/// A measured configuration by all that is known of it and of its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// Its first measurement.
    pub trial: u32,
    /// What the objective is expected to be, and its standard deviation as a share of it.
    pub value: f64,
    pub deviation: f64,
    /// Probability, 0 to 1, that it keeps every limit.
    pub feasible: f64,
}

impl Store {
    /// Stores the judgement of all trials that have an outcome at present, in place of an earlier one.
    pub async fn judge(&self, study: i64, verdict: &Verdict) -> Result<(), StoreError> {
        let mut kept = verdict.clone();
        kept.ranking.truncate(MOST);
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

    /// The judgement of all trials that have an outcome; `None` where there is none, or where trials have ended since.
    pub async fn verdict(&self, study: &Study) -> Result<Option<Verdict>, StoreError> {
        let query = "SELECT judgement FROM judgements WHERE study_id = ?1 AND outcomes = \
                     (SELECT count(*) FROM trials WHERE study_id = ?1 AND state <> 'running')";
        let row: Option<(String,)> =
            sqlx::query_as(query).bind(study.id).fetch_optional(&self.pool).await.map_err(|error| self.error(error))?;
        // One that cannot be read is as good as none: the measurements are still there.
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
        let expected = |trial| Expected { trial, value: 0.1 + 0.2, deviation: 1.0 / 3.0, feasible: 0.9 };
        let verdict = Verdict {
            sampler: "auto".to_owned(),
            ranking: (0..150).map(expected).collect(),
            remaining: Some([0.0, 0.01, 0.05]),
            next_gain: Some(1e-9),
        };
        assert_eq!(store.verdict(&study).await.unwrap(), None);
        end(0).await;
        store.judge(study.id, &verdict).await.unwrap();
        let kept = Verdict { ranking: verdict.ranking[..MOST].to_vec(), ..verdict.clone() };
        assert_eq!(store.verdict(&study).await.unwrap(), Some(kept.clone()));
        end(1).await;
        assert_eq!(store.verdict(&study).await.unwrap(), None, "it does not know of the second trial");
        store.judge(study.id, &verdict).await.unwrap();
        assert_eq!(store.verdict(&study).await.unwrap(), Some(kept));
    }
}
