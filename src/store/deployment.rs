//! Today's deployment of a study: the second baseline of its reports.

use serde::{Deserialize, Serialize};

use super::{RankedConfiguration, ScoredTrial, Store, StoreError, Study, json};
use crate::config::Config;

/// Today's deployment as the study file named it in the last run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredDeployment {
    /// The place of its flags, for people.
    pub source: String,
    pub config: Config,
    /// Whether it is the engine's defaults, so that it has no trial of its own.
    pub is_defaults: bool,
}

impl Store {
    /// Replaces today's deployment of a study.
    pub async fn set_deployment(&self, study: i64, deployment: Option<&StoredDeployment>) -> Result<(), StoreError> {
        let query = "UPDATE studies SET deployment = ?1 WHERE id = ?2 AND deployment IS NOT ?1";
        let query = sqlx::query(query).bind(deployment.map(json)).bind(study);
        query.execute(&self.pool).await.map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns today's deployment of a study; `None` if it has none.
    pub async fn deployment(&self, study: &Study) -> Result<Option<StoredDeployment>, StoreError> {
        let query = sqlx::query_scalar("SELECT deployment FROM studies WHERE id = ?").bind(study.id);
        let text: Option<String> = query.fetch_one(&self.pool).await.map_err(|error| self.error(error))?;
        let unreadable = |error: serde_json::Error| StoreError::UnreadableDeployment {
            path: self.path.clone(),
            study: study.name.clone(),
            reason: error.to_string(),
        };
        text.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()
    }

    /// Returns a configuration with all its measurements in the study's present context; `None` if there are none.
    pub async fn measurements_of_config(
        &self,
        study: &Study,
        config: &Config,
    ) -> Result<Option<RankedConfiguration>, StoreError> {
        let context = self.present_context(study).await?;
        self.ranked_configuration(study, context, config.key()).await
    }

    /// Returns the last trial of a configuration in the study's present context that has an outcome; `None` if there is
    /// none.
    pub async fn last_trial_of_config(
        &self,
        study: &Study,
        config: &Config,
    ) -> Result<Option<ScoredTrial>, StoreError> {
        let query = "SELECT max(number) FROM trials WHERE study_id = ? AND config = ? AND accepted_changes = ? \
                     AND state <> 'running' AND proposed_by <> 'interference'";
        let context = self.present_context(study).await?;
        let query = sqlx::query_scalar(query).bind(study.id).bind(config.key()).bind(context);
        let number: Option<u32> = query.fetch_one(&self.pool).await.map_err(|error| self.error(error))?;
        match number {
            Some(number) => self.trial(study, number).await,
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;

    #[tokio::test]
    async fn a_deployment_is_read_back_replaced_and_removed() {
        let store = Store::in_memory().await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        assert_eq!(store.deployment(&study).await.unwrap(), None);
        let config = Config::new().with("max-num-seqs", 64_i64).with("kv-cache-dtype", "fp8");
        let first = StoredDeployment { source: "serve.sh, line 12".to_owned(), config, is_defaults: false };
        let second = StoredDeployment { config: Config::new(), is_defaults: true, ..first.clone() };
        for deployment in [Some(&first), Some(&second), None] {
            store.set_deployment(study.id, deployment).await.unwrap();
            assert_eq!(store.deployment(&study).await.unwrap().as_ref(), deployment);
        }
        sqlx::query("UPDATE studies SET deployment = '{'").execute(&store.pool).await.unwrap();
        let error = store.deployment(&study).await.unwrap_err().to_string();
        assert!(error.contains("the deployment of study \"s\" cannot be read: "), "{error}");
    }
}
