//! All measurements of one configuration.

use super::{Scored, Store, StoreError, Study};

impl Store {
    /// Returns the measured trials that have the configuration of trial `number`, of its context, in the order of their
    /// numbers. Interference trials are left out: they measure the defaults beside themselves.
    pub async fn repeats(&self, study: &Study, number: u32) -> Result<Vec<Scored>, StoreError> {
        let query = "SELECT number FROM trials WHERE study_id = ?1 AND state = 'measured' AND value IS NOT NULL \
                     AND proposed_by <> 'interference' \
                     AND (config, accepted_changes) = \
                     (SELECT config, accepted_changes FROM trials WHERE study_id = ?1 AND number = ?2) ORDER BY number";
        let numbers: Vec<(u32,)> = sqlx::query_as(query)
            .bind(study.id)
            .bind(number)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let mut repeats = Vec::with_capacity(numbers.len());
        for (number,) in numbers {
            repeats.extend(self.trial(study, number).await?);
        }
        Ok(repeats)
    }
}
