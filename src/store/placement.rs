//! The placements of launches: slots, devices, processors and ports.

use super::{Store, StoreError, Study, json};
use crate::trial::Placement;

/// Slots, devices, processors, first and last port, and whether it was alone.
type Row = (String, Option<String>, Option<String>, u16, u16, bool);

impl Store {
    /// Stores the placement of a trial's launch. That of an earlier launch of the trial is replaced.
    pub async fn store_placement(&self, study: i64, number: u32, placement: &Placement) -> Result<(), StoreError> {
        let columns = "study_id, number, slots, devices, processors, first_port, last_port, alone";
        let query = format!("INSERT OR REPLACE INTO placements ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
        sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(study)
            .bind(number)
            .bind(json(&placement.slots))
            .bind(&placement.devices)
            .bind(&placement.processors)
            .bind(placement.ports.0)
            .bind(placement.ports.1)
            .bind(placement.alone)
            .execute(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns the placement of a trial's launch; `None` if trials ran one at a time.
    pub async fn placement(&self, study: &Study, number: u32) -> Result<Option<Placement>, StoreError> {
        let query = "SELECT slots, devices, processors, first_port, last_port, alone FROM placements \
                     WHERE study_id = ? AND number = ?";
        let row: Option<Row> = sqlx::query_as(query)
            .bind(study.id)
            .bind(number)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let Some((slots, devices, processors, first, last, alone)) = row else { return Ok(None) };
        let slots =
            serde_json::from_str(&slots).map_err(|error| self.corrupt(&study.name, i64::from(number), &error))?;
        Ok(Some(Placement { slots, devices, processors, ports: (first, last), alone }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;

    #[tokio::test]
    async fn a_placement_comes_back_unchanged_and_the_latest_counts() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let bare = Placement { slots: vec![3], ports: (20_000, 65_535), ..Placement::default() };
        let (devices, processors) = (Some("2,GPU-11aa".to_owned()), Some("0-3,8".to_owned()));
        let full = Placement { slots: vec![2, 5], devices, processors, alone: true, ..bare.clone() };
        assert_eq!(store.placement(&study, 7).await.unwrap(), None);
        for placement in [bare, full] {
            store.store_placement(study.id, 7, &placement).await.unwrap();
            assert_eq!(store.placement(&study, 7).await.unwrap(), Some(placement));
        }
    }
}
