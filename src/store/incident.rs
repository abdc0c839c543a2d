//! Launches that failed because of their environment and were repeated.

use std::path::PathBuf;

use super::{Store, StoreError, Study};
use crate::trial::{Failure, FailureKind};

/// A failed launch that was repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The trial's number.
    pub number: u32,
    /// The number of this incident within its trial, from 1.
    pub attempt: u32,
    /// The time of the failure, in the format of [`super::now`].
    pub at: String,
    pub failure: Failure,
    /// The path of the launch's log.
    pub log: Option<PathBuf>,
    /// Whether the study paused or gave up slots because of it.
    pub paused: bool,
}

/// Number, attempt, time, kind, message, log, and whether it led to a pause.
type Row = (i64, i64, String, String, String, Option<String>, bool);

type Insert<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

/// Returns the statement that stores an incident.
pub(super) fn insert(study: i64, incident: &Incident) -> Insert<'_> {
    let query = "INSERT INTO incidents (study_id, number, attempt, at, kind, message, log, paused) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    sqlx::query(query)
        .bind(study)
        .bind(incident.number)
        .bind(incident.attempt)
        .bind(&incident.at)
        .bind(incident.failure.kind.name())
        .bind(&incident.failure.message)
        .bind(incident.log.as_ref().map(|path| path.to_string_lossy().into_owned()))
        .bind(incident.paused)
}

impl Store {
    /// Stores an incident; the trial itself needs no outcome.
    pub async fn append_incident(&self, study: i64, incident: &Incident) -> Result<(), StoreError> {
        insert(study, incident).execute(&self.pool).await.map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns the incidents of a study in order, or those of one of its trials.
    pub async fn incidents(&self, study: &Study, number: Option<u32>) -> Result<Vec<Incident>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT number, attempt, at, kind, message, log, paused FROM incidents \
             WHERE study_id = ?1 AND number = ifnull(?2, number) ORDER BY number, attempt",
        )
        .bind(study.id)
        .bind(number)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let whole = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        let incident = |(number, attempt, at, kind, message, log, paused): Row| Incident {
            number: whole(number),
            attempt: whole(attempt),
            at,
            failure: Failure { kind: FailureKind::from_name(&kind).unwrap_or(FailureKind::StartupExit), message },
            log: log.map(PathBuf::from),
            paused,
        };
        Ok(rows.into_iter().map(incident).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use serde_json::json;

    fn incident(number: u32, attempt: u32, kind: FailureKind) -> Incident {
        let failure = Failure { kind, message: format!("{number}.{attempt}") };
        Incident {
            number,
            attempt,
            at: crate::store::now(),
            failure,
            log: Some(PathBuf::from("/logs/a.1.log")),
            paused: attempt == 1,
        }
    }

    #[tokio::test]
    async fn incidents_come_back_in_order_and_only_those_of_the_study() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &json!({}), &Host::detect()).await.unwrap();
        let other = store.create_study("t", &json!({}), &Host::detect()).await.unwrap();
        let all = [
            incident(0, 1, FailureKind::Disk),
            incident(3, 1, FailureKind::Killed),
            Incident { log: None, ..incident(3, 2, FailureKind::DeviceBusy) },
        ];
        for index in [2, 0, 1] {
            store.append_incident(study.id, &all[index]).await.unwrap();
        }
        assert_eq!(store.incidents(&study, None).await.unwrap(), all);
        assert_eq!(store.incidents(&study, Some(3)).await.unwrap(), all[1..]);
        assert_eq!(store.incidents(&study, Some(1)).await.unwrap(), []);
        assert_eq!(store.incidents(&other, None).await.unwrap(), []);
        assert!(store.append_incident(study.id, &all[0]).await.is_err(), "an attempt is never overwritten");
    }
}
