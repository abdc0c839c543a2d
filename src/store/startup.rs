//! The start-ups of launches.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;

use super::{Store, StoreError, Study, json, write_row};
use crate::trial::Startup;

impl Store {
    /// Returns the start-ups of a study's trials, by their numbers.
    pub async fn startups(&self, study: &Study) -> Result<BTreeMap<u32, Startup>, StoreError> {
        let rows: Vec<(u32, String)> = sqlx::query_as("SELECT number, startup FROM startups WHERE study_id = ?")
            .bind(study.id)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let read = |(number, text): (u32, String)| match serde_json::from_str(&text) {
            Ok(startup) => Ok((number, startup)),
            Err(error) => Err(self.corrupt(&study.name, i64::from(number), &error)),
        };
        rows.into_iter().map(read).collect()
    }

    /// Returns the start-up of a trial's launch; `None` if it was not launched, or if an older version launched it.
    pub async fn startup(&self, study: &Study, number: u32) -> Result<Option<Startup>, StoreError> {
        let row: Option<(String,)> = sqlx::query_as("SELECT startup FROM startups WHERE study_id = ? AND number = ?")
            .bind(study.id)
            .bind(number)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let read = |(text,): (String,)| serde_json::from_str(&text);
        row.map(read).transpose().map_err(|error| self.corrupt(&study.name, i64::from(number), &error))
    }
}

/// Stores the start-up of a trial's launch.
pub(super) async fn write_startup(
    connection: &mut SqliteConnection,
    study: i64,
    number: u32,
    startup: &Startup,
) -> sqlx::Result<()> {
    let query = "INSERT OR REPLACE INTO startups (study_id, number, startup) VALUES (?, ?, ?)";
    write_row(connection, query, study, number, [json(startup)]).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Host, MeasurementCondition};
    use crate::trial::{FlagDifference, PhaseTime};
    use serde_json::json;

    #[tokio::test]
    async fn a_start_comes_back_unchanged_and_the_latest_counts() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &json!({}), &Host::detect()).await.unwrap();
        let startup = |duration_s| Startup {
            phases: vec![PhaseTime { phase: "import".to_owned(), duration_s }],
            resolved: BTreeMap::from([("dtype".to_owned(), "bfloat16".to_owned())]),
            differences: vec![FlagDifference {
                flag: "block-size".to_owned(),
                asked: "16".to_owned(),
                resolved: "32".to_owned(),
            }],
            conditions: MeasurementCondition::of_launch(),
        };
        assert_eq!(store.startup(&study, 2).await.unwrap(), None);
        write_startup(&mut store.pool.acquire().await.unwrap(), study.id, 2, &startup(0.1)).await.unwrap();
        write_startup(&mut store.pool.acquire().await.unwrap(), study.id, 2, &startup(1.0 / 3.0)).await.unwrap();
        assert_eq!(store.startup(&study, 2).await.unwrap(), Some(startup(1.0 / 3.0)));
        assert_eq!(store.startup(&study, 3).await.unwrap(), None);
        assert_eq!(store.startups(&study).await.unwrap(), BTreeMap::from([(2, startup(1.0 / 3.0))]));
    }
}
