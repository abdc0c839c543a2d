//! Imported trials: a study of their own, written in one transaction.

use serde_json::Value as Json;

use super::trial::write_record;
use super::{ScoredTrial, Store, StoreError, Study, TrialRecord, now};
use crate::objective::Objective;
use crate::trial::{Proposal, Trial};

/// The key of a definition that marks a study of imported trials.
const MARK: &str = "imported";

/// The first number. Number 0 belongs to the engine's defaults, which no document marks as such.
const FIRST: i64 = 1;

impl Study {
    /// Returns whether the study consists of imported trials.
    #[must_use]
    pub fn is_imported(&self) -> bool {
        self.definition.get(MARK) == Some(&Json::Bool(true))
    }
}

impl Store {
    /// Stores imported trials, all or none. The study is created if it is absent; otherwise the trials follow its last
    /// one. A trial is skipped if an equal one is stored already. Returns the number of stored trials.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub async fn import(&self, name: &str, objective: &Objective, trials: &[ScoredTrial]) -> Result<usize, StoreError> {
        let earlier = match self.study(name).await? {
            Some(study) => self.trials(&study).await?,
            None => Vec::new(),
        };
        let is_new = |scored: &&ScoredTrial| !earlier.iter().any(|stored| is_equal(&stored.trial, &scored.trial));
        let new: Vec<_> = trials.iter().filter(is_new).collect();
        let write = async {
            let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await?;
            sqlx::query(
                "INSERT INTO studies (name, definition, setpoint_version, host, created_at) VALUES (?, ?, ?, 'null', ?) \
                 ON CONFLICT (name) DO NOTHING",
            )
            .bind(name)
            .bind(serde_json::json!({MARK: true, "objective": objective}).to_string())
            .bind(env!("CARGO_PKG_VERSION"))
            .bind(now())
            .execute(&mut *transaction)
            .await?;
            let (study, last): (i64, Option<i64>) = sqlx::query_as(
                "SELECT id, (SELECT max(number) FROM trials WHERE study_id = studies.id) FROM studies WHERE name = ?",
            )
            .bind(name)
            .fetch_one(&mut *transaction)
            .await?;
            for (number, scored) in (last.map_or(FIRST, |last| last + 1)..).zip(&new) {
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                let proposal = Proposal { number, ..scored.trial.proposal.clone() };
                let trial = Trial { proposal, ..scored.trial.clone() };
                write_record(&mut transaction, study, TrialRecord::new(&trial, scored.score)).await?;
            }
            transaction.commit().await
        };
        write.await.map_err(|error| self.error(error))?;
        Ok(new.len())
    }
}

/// Returns whether two trials are the same result: equal in configuration, origin of the document and every number.
fn is_equal(stored: &Trial, new: &Trial) -> bool {
    stored.proposal.config == new.proposal.config
        && stored.proposal.why == new.proposal.why
        && stored.outcome == new.outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::objective::{Goal, Score};
    use crate::trial::{Measurement, Origin, Outcome};

    fn scored(value: f64) -> ScoredTrial {
        let measurement = Measurement::of_reported([("output_throughput".to_owned(), value)].into(), [].into());
        let trial = Trial::example(0, "import", Outcome::Measured(measurement));
        ScoredTrial { trial: trial.with_config(Config::new().with("a", value)), score: Score::Feasible { value } }
    }

    #[tokio::test]
    async fn imported_trials_are_a_study_that_is_ranked_and_has_no_defaults() {
        let store = Store::in_memory().await.unwrap();
        let objective = Objective {
            metric: "output_throughput".to_owned(),
            goal: Goal::Maximize,
            constraints: Vec::new(),
            joint: None,
            price_per_hour: None,
            load_goal: None,
        };
        assert_eq!(store.import("old", &objective, &[scored(3.0), scored(5.0)]).await.unwrap(), 2);
        assert_eq!(store.import("old", &objective, &[scored(5.0), scored(4.0)]).await.unwrap(), 1, "5.0 is stored");
        let study = store.study("old").await.unwrap().unwrap();
        assert!(study.is_imported() && study.objective() == Some(objective));
        let best = store.best(&study, Goal::Maximize, 9).await.unwrap();
        let numbers: Vec<_> = best.iter().map(|ranked| (ranked.first.trial.proposal.number, ranked.value)).collect();
        assert_eq!(numbers, [(2, 5.0), (3, 4.0), (1, 3.0)]);
        assert_eq!(best[0].first.trial.proposal.origin, Origin::Import);
        assert!(store.baseline(&study).await.unwrap().is_none());
    }
}
