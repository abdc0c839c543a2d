//! Integrity check of a database, without migration.

use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::StoreError;
use super::open::{BUSY_TIMEOUT, database_error, refuse_foreign};

/// Checks a database's pages and rows, and returns the names of its studies. It is opened read-only: tables of an older
/// version are not migrated. Only a transaction whose writer was killed is rolled back first.
///
/// # Errors
/// If it is not ours, cannot be read, or is damaged.
pub async fn quick_check(path: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |error| database_error(path, error);
    refuse_foreign(path, false).await.map_err(failed)??;
    let options = SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(BUSY_TIMEOUT);
    let mut connection = options.connect().await.map_err(failed)?;
    let told: Vec<String> =
        sqlx::query_scalar("PRAGMA quick_check(1)").fetch_all(&mut connection).await.map_err(failed)?;
    let names = sqlx::query_scalar("SELECT name FROM studies ORDER BY name").fetch_all(&mut connection).await;
    connection.close().await.map_err(failed)?;
    if told.iter().any(|line| line != "ok") {
        return Err(StoreError::Damaged { path: path.to_owned(), reason: told.join("; ") });
    }
    names.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[tokio::test]
    async fn the_check_returns_the_studies_of_a_sound_database_and_refuses_a_damaged_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let name = path.to_str().unwrap();
        let store = Store::open(name, true).await.unwrap();
        let host = crate::facts::Host::detect();
        for study in ["b", "a"] {
            store.create_study(study, &serde_json::json!({}), &host).await.unwrap();
        }
        store.close().await;
        assert_eq!(quick_check(&path).await.unwrap(), ["a", "b"]);

        let mut bytes = std::fs::read(&path).unwrap();
        let page = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
        for byte in &mut bytes[page..] {
            *byte = 0x55;
        }
        std::fs::write(&path, bytes).unwrap();
        assert!(quick_check(&path).await.is_err());
        std::fs::write(&path, "not a database, but long enough to be read as one").unwrap();
        assert!(quick_check(&path).await.is_err());
    }
}
