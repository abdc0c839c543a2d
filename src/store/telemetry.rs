//! Telemetry of the server in a trial: summary and series.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use sqlx::SqliteConnection;

use super::{Store, StoreError, Study, json, write_row};
use crate::trial::ServerTelemetry;

impl Store {
    /// Returns the server's telemetry in a trial; `None` if no load was driven, or if an older version measured the
    /// trial. The list `disturbed` is not stored and stays empty.
    pub async fn telemetry(&self, study: &Study, number: u32) -> Result<Option<ServerTelemetry>, StoreError> {
        let row: Option<(String, String)> =
            sqlx::query_as("SELECT summary, series FROM telemetry WHERE study_id = ? AND number = ?")
                .bind(study.id)
                .bind(number)
                .fetch_optional(&self.pool)
                .await
                .map_err(|error| self.error(error))?;
        let read = |(summary, series): (String, String)| {
            Ok(ServerTelemetry {
                summary: serde_json::from_str(&summary)?,
                series: serde_json::from_str(&series)?,
                ..ServerTelemetry::default()
            })
        };
        row.map(read).transpose().map_err(|error| self.corrupt(&study.name, i64::from(number), &error))
    }
}

impl Store {
    /// Returns the samples over time of every trial that has some, by number. One that cannot be read is left out.
    pub async fn telemetry_series(&self, study: &Study) -> Result<BTreeMap<u32, Json>, StoreError> {
        let query = "SELECT number, series FROM telemetry WHERE study_id = ?";
        let rows: Vec<(u32, String)> =
            sqlx::query_as(query).bind(study.id).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        let read = |(number, text): (u32, String)| Some((number, serde_json::from_str(&text).ok()?));
        Ok(rows.into_iter().filter_map(read).collect())
    }
}

/// Stores the server's telemetry of a trial.
pub(super) async fn write_telemetry(
    connection: &mut SqliteConnection,
    study: i64,
    number: u32,
    telemetry: &ServerTelemetry,
) -> sqlx::Result<()> {
    let query = "INSERT OR REPLACE INTO telemetry (study_id, number, summary, series) VALUES (?, ?, ?, ?)";
    write_row(connection, query, study, number, [json(&telemetry.summary), telemetry.series.to_string()]).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[tokio::test]
    async fn a_time_series_is_read_back_unchanged_and_the_latest_counts() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &json!({}), &Host::detect()).await.unwrap();
        let telemetry = |value| ServerTelemetry {
            summary: BTreeMap::from([("kv_cache_usage_max".to_owned(), value)]),
            series: json!({"interval_s": 1.0, "server": {"at_s": [-0.5, 0.5], "kv_cache_usage": [null, 0.25]}}),
            ..ServerTelemetry::default()
        };
        assert_eq!(store.telemetry(&study, 3).await.unwrap(), None);
        write_telemetry(&mut store.pool.acquire().await.unwrap(), study.id, 3, &telemetry(0.1)).await.unwrap();
        write_telemetry(&mut store.pool.acquire().await.unwrap(), study.id, 3, &telemetry(1.0 / 3.0)).await.unwrap();
        assert_eq!(store.telemetry(&study, 3).await.unwrap(), Some(telemetry(1.0 / 3.0)));
        assert_eq!(store.telemetry(&study, 4).await.unwrap(), None);
    }
}
