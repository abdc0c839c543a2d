//! Observed starts, the training data of the memory model.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;

use super::{Store, StoreError, json};
use crate::config::Config;
use crate::trial::MemoryObservation;

/// The properties that must be equal for one start to inform the prediction of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartKey {
    /// The kind of engine, as in study files.
    pub engine: String,
    /// The engine's release.
    pub version: String,
    /// The properties of the device that determine the memory use: `cpu`, or `cuda BYTES CAPABILITY`.
    pub device: String,
    /// The fingerprint of the model's shape.
    pub fingerprint: String,
}

/// The memory figures of one start, with the settings that decide them.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredStart {
    /// The configuration, with the study's own arguments.
    pub config: Config,
    /// The environment variables that influence the memory of a launch.
    pub env: BTreeMap<String, String>,
    pub observed: MemoryObservation,
}

impl Store {
    /// Returns the latest starts with this key, of every study, in chronological order; at most `most`.
    pub async fn starts(&self, key: &StartKey, most: u32) -> Result<Vec<StoredStart>, StoreError> {
        let query = "SELECT name, number, config, env, observed FROM memory_observations AS starts JOIN studies ON studies.id = study_id \
                     WHERE fingerprint = ? AND device = ? AND engine = ? AND starts.engine_version = ? \
                     ORDER BY starts.id DESC LIMIT ?";
        let rows: Vec<(String, i64, String, String, String)> = sqlx::query_as(query)
            .bind(&key.fingerprint)
            .bind(&key.device)
            .bind(&key.engine)
            .bind(&key.version)
            .bind(most)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let read = |config: &str, env: &str, observed: &str| {
            Ok(StoredStart {
                config: serde_json::from_str(config)?,
                env: serde_json::from_str(env)?,
                observed: serde_json::from_str(observed)?,
            })
        };
        rows.iter()
            .rev()
            .map(|(study, number, config, env, observed)| {
                read(config, env, observed).map_err(|error| self.corrupt(study, *number, &error))
            })
            .collect()
    }
}

/// Stores the observed start of a trial. An earlier one of the same trial is replaced.
pub(super) async fn write_start(
    connection: &mut SqliteConnection,
    study: i64,
    number: u32,
    model: &str,
    key: &StartKey,
    start: &StoredStart,
) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT OR REPLACE INTO memory_observations (study_id, number, engine, engine_version, device, model, fingerprint, \
         config, env, observed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(study)
    .bind(number)
    .bind(&key.engine)
    .bind(&key.version)
    .bind(&key.device)
    .bind(model)
    .bind(&key.fingerprint)
    .bind(start.config.key())
    .bind(json(&start.env))
    .bind(json(&start.observed))
    .execute(connection)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn starts_of_the_same_key_come_back_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let host = crate::facts::Host::detect();
        let study = store.create_study("s", &serde_json::json!({}), &host).await.unwrap();
        let key = |device: &str| StartKey {
            engine: "vllm".to_owned(),
            version: "0.32.0".to_owned(),
            device: device.to_owned(),
            fingerprint: "f".to_owned(),
        };
        let start = |blocks| StoredStart {
            config: Config::new().with("max-num-seqs", 4_i64),
            env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            observed: MemoryObservation { blocks: Some(blocks), cache_gib: Some(1.25), ..MemoryObservation::default() },
        };
        for (number, device, blocks) in [(0, "a", 10), (1, "b", 20), (2, "a", 30), (2, "a", 40)] {
            write_start(&mut store.pool.acquire().await.unwrap(), study.id, number, "m", &key(device), &start(blocks))
                .await
                .unwrap();
        }
        assert_eq!(store.starts(&key("a"), 9).await.unwrap(), [start(10), start(40)]);
        assert_eq!(store.starts(&key("a"), 1).await.unwrap(), [start(40)]);
    }
}
