//! The decisions of a study's confirmations.

use serde::{Deserialize, Serialize};

use super::{Store, StoreError, Study, json};
use crate::decision::{AblationPlan, ConfirmationPlan, Decision, standing_decision};

/// A confirmation with its decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredDecision {
    /// The number of the confirmation's first trial.
    pub began_at: u32,
    pub plan: ConfirmationPlan,
    /// `None` unless the confirmed winner is better than the defaults.
    #[serde(default)]
    pub ablation: Option<AblationPlan>,
    /// `None` until a launch of the confirmation was measured.
    pub decision: Option<Decision>,
}

impl Store {
    /// Stores a confirmation in the study's present context. One that began at the same trial is replaced.
    pub async fn store_decision(&self, study: &Study, stored: &StoredDecision) -> Result<(), StoreError> {
        let context = self.present_context(study).await?;
        let query =
            "INSERT OR REPLACE INTO decisions (study_id, accepted_changes, began_at, decision) VALUES (?, ?, ?, ?)";
        let query = sqlx::query(query).bind(study.id).bind(context).bind(stored.began_at).bind(json(stored));
        query.execute(&self.pool).await.map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns the confirmations of the study's present context, in the order of their trials. One that cannot be read
    /// counts as none: its launches are still there.
    pub async fn confirmations(&self, study: &Study) -> Result<Vec<StoredDecision>, StoreError> {
        let context = self.present_context(study).await?;
        let query = "SELECT decision FROM decisions WHERE study_id = ? AND accepted_changes = ? ORDER BY began_at";
        let query = sqlx::query_scalar(query).bind(study.id).bind(context);
        let texts: Vec<String> = query.fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    /// Returns the decision that counts (`decision::standing_decision`). `None` before a confirmation.
    pub async fn decision(&self, study: &Study) -> Result<Option<Decision>, StoreError> {
        let confirmations = self.confirmations(study).await?;
        let decisions: Vec<_> = confirmations.into_iter().filter_map(|stored| stored.decision).collect();
        Ok(standing_decision(&decisions).cloned())
    }
}
