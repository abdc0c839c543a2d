//! The contexts (release, devices, host) of a study's trials, and the study's present context.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;

use super::{Store, StoreError, Study, json};
use crate::facts::TrialContext;

/// The stored context of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredContext {
    /// `None` for trials stored by older versions of setpoint, which recorded no context.
    pub context: Option<TrialContext>,
    /// Whether the study's context has changed since, so that the trial is not compared with later ones.
    pub is_earlier: bool,
}

impl Store {
    /// Returns the study's present context; `None` if none is stored yet.
    pub async fn context(&self, study: &Study) -> Result<Option<TrialContext>, StoreError> {
        let query = "SELECT contexts.context FROM studies JOIN contexts ON contexts.id = studies.context \
                     WHERE studies.id = ?";
        let row: Option<String> =
            sqlx::query_scalar(query).bind(study.id).fetch_optional(&self.pool).await.map_err(|e| self.error(e))?;
        let unreadable = |error: serde_json::Error| StoreError::UnreadableContext {
            path: self.path.clone(),
            study: study.name.clone(),
            reason: error.to_string(),
        };
        row.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()
    }

    /// Returns the contexts of all trials, by their numbers.
    pub async fn contexts(&self, study: &Study) -> Result<BTreeMap<u32, StoredContext>, StoreError> {
        let query = "SELECT trials.number, contexts.context, trials.accepted_changes <> studies.accepted_changes \
                     FROM trials JOIN studies ON studies.id = trials.study_id \
                     LEFT JOIN contexts ON contexts.id = trials.context WHERE studies.id = ?";
        let rows: Vec<(u32, Option<String>, bool)> =
            sqlx::query_as(query).bind(study.id).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        let read = |(number, text, is_earlier): (u32, Option<String>, bool)| {
            let context = text.map(|text| serde_json::from_str(&text)).transpose();
            let context = context.map_err(|error| self.corrupt(&study.name, i64::from(number), &error))?;
            Ok((number, StoredContext { context, is_earlier }))
        };
        rows.into_iter().map(read).collect()
    }

    /// Replaces the description of the study's present context. Unlike `accept_context`, it starts no new context:
    /// the study's trials stay comparable with later ones.
    pub async fn set_context(&self, study: i64, context: &TrialContext) -> Result<(), StoreError> {
        let write = async {
            let mut connection = self.pool.acquire().await?;
            let id = store_context(&mut connection, study, context).await?;
            write_study_context(&mut connection, study, id).await
        };
        write.await.map_err(|error| self.error(error))
    }

    /// Replaces the study's present context. Finished trials then belong to an earlier context, and unfinished ones are
    /// launched in the new one. All changes are made in one transaction.
    pub async fn accept_context(&self, study: i64, context: &TrialContext) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(|error| self.error(error))?;
        let id = store_context(&mut transaction, study, context).await.map_err(|error| self.error(error))?;
        for query in [
            "UPDATE studies SET context = ?1, accepted_changes = accepted_changes + 1 WHERE id = ?2",
            "UPDATE trials SET context = ?1, accepted_changes = (SELECT accepted_changes FROM studies WHERE id = ?2) \
             WHERE study_id = ?2 AND state = 'running'",
            // The judgement and the importance use trials of the earlier context. `?1 = ?1` is always true: all queries are bound
            // to the same two parameters.
            "DELETE FROM judgements WHERE study_id = ?2 AND ?1 = ?1",
            "DELETE FROM explanations WHERE study_id = ?2 AND ?1 = ?1",
        ] {
            let query = sqlx::query(query).bind(id).bind(study);
            query.execute(&mut *transaction).await.map_err(|error| self.error(error))?;
        }
        transaction.commit().await.map_err(|error| self.error(error))
    }
}

/// Stores the context of a trial that has begun. If its server has reported a release, the context becomes the study's.
pub(super) async fn write_trial_context(
    connection: &mut SqliteConnection,
    study: i64,
    number: u32,
    context: &TrialContext,
) -> sqlx::Result<()> {
    let id = store_context(connection, study, context).await?;
    let query = "UPDATE trials SET context = ? WHERE study_id = ? AND number = ? AND state = 'running'";
    sqlx::query(query).bind(id).bind(study).bind(number).execute(&mut *connection).await?;
    match context.release {
        Some(_) => write_study_context(connection, study, id).await,
        None => Ok(()),
    }
}

/// Makes a stored context the present one of a study.
async fn write_study_context(connection: &mut SqliteConnection, study: i64, id: i64) -> sqlx::Result<()> {
    let query = "UPDATE studies SET context = ?1 WHERE id = ?2 AND context IS NOT ?1";
    sqlx::query(query).bind(id).bind(study).execute(connection).await?;
    Ok(())
}

/// Stores a context unless it exists. Returns its id.
async fn store_context(connection: &mut SqliteConnection, study: i64, context: &TrialContext) -> sqlx::Result<i64> {
    let text = json(context);
    let query = "INSERT OR IGNORE INTO contexts (study_id, context) VALUES (?, ?)";
    sqlx::query(query).bind(study).bind(&text).execute(&mut *connection).await?;
    let query = "SELECT id FROM contexts WHERE study_id = ? AND context = ?";
    sqlx::query_scalar(query).bind(study).bind(&text).fetch_one(connection).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::facts::Host;
    use crate::objective::{Goal, Score};
    use crate::store::{TrialBegin, now};
    use crate::trial::{LaunchCommand, Measurement, Outcome, Proposal, Trial};

    fn context(release: &str) -> TrialContext {
        TrialContext { release: Some(release.to_owned()), ..TrialContext::default() }
    }

    #[tokio::test]
    async fn an_unreadable_context_of_a_study_is_not_reported_as_a_trial() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        store.set_context(study.id, &context("1.0")).await.unwrap();
        sqlx::query("UPDATE contexts SET context = '{'").execute(&store.pool).await.unwrap();
        let error = store.context(&study).await.unwrap_err().to_string();
        assert!(error.contains("a.db: the context of study \"s\" cannot be read: "), "{error}");
    }

    #[tokio::test]
    async fn trials_of_an_earlier_context_are_kept_and_not_ranked() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        assert_eq!(store.context(&study).await.unwrap(), None);
        let measure = async |number, origin, value| {
            // The defaults are equal in every context.
            let config = Config::new().with("a", if origin == "baseline" { 0 } else { i64::from(number) });
            let trial = Trial::example(number, origin, Outcome::Measured(Measurement::default())).with_config(config);
            store.append(study.id, &trial, Score::Feasible { value }).await.unwrap();
        };
        let best = async || -> Vec<u32> {
            let best = store.best(&study, Goal::Maximize, 9).await.unwrap();
            best.iter().map(|ranked| ranked.first.trial.proposal.number).collect()
        };
        store.set_context(study.id, &context("1.0")).await.unwrap();
        measure(0, "baseline", 1.0).await;
        measure(1, "auto", 9.0).await;
        let (config, launch) = (Config::new().with("a", 2_i64), LaunchCommand::default());
        let proposal = Proposal { config, ..Proposal::example(2, "auto") };
        let begin = TrialBegin { proposal: &proposal, launch: &launch, started_at: &now(), log: directory.path() };
        store.begin_trial(study.id, &begin).await.unwrap();
        write_trial_context(&mut store.pool.acquire().await.unwrap(), study.id, 2, &context("1.0.1")).await.unwrap();
        assert_eq!(store.context(&study).await.unwrap(), Some(context("1.0.1")), "as its latest server reports");

        store.accept_context(study.id, &context("2.0")).await.unwrap();
        assert_eq!(best().await, [] as [u32; 0]);
        assert!(store.baseline(&study).await.unwrap().is_none());
        measure(2, "auto", 2.0).await;
        measure(3, "baseline", 3.0).await;
        assert_eq!(best().await, [3, 2], "what was unfinished belongs to the new context");
        assert_eq!(store.baseline(&study).await.unwrap().unwrap().first.trial.proposal.number, 3);
        assert_eq!(store.trials(&study).await.unwrap().len(), 4);
        assert_eq!(store.present_trials(&study).await.unwrap().len(), 2);
        let contexts = store.contexts(&study).await.unwrap();
        let stored = |release: &str, is_earlier| StoredContext { context: Some(context(release)), is_earlier };
        let expected = [stored("1.0", true), stored("1.0", true), stored("2.0", false), stored("2.0", false)];
        assert_eq!(contexts.into_values().collect::<Vec<_>>(), expected);

        // A return to the first context is a change as well.
        store.accept_context(study.id, &context("1.0")).await.unwrap();
        assert_eq!(best().await, [] as [u32; 0]);
        assert_eq!(store.context(&study).await.unwrap(), Some(context("1.0")));
    }
}
