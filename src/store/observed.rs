//! Narrow reads for observers of a running study, which ask again every moment.

use super::{ListedTrial, Store, StoreError, Study};

/// The parts of a trial's row that may change after its outcome was stored: its value over several workloads, the verdict
/// of a probe, its context, and its withdrawal after failures of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialMark {
    pub number: u32,
    /// Whether it has no outcome.
    pub is_running: bool,
    pub value: Option<f64>,
    pub violation: Option<f64>,
    /// Number of the probe that started although this launch had failed.
    pub probe: Option<u32>,
    /// Whether it belongs to a context that the study has left.
    pub is_earlier: bool,
}

const MARKS: &str = "
    SELECT number, state = 'running', value, violation, probe, trials.accepted_changes <> studies.accepted_changes
    FROM trials JOIN studies ON studies.id = trials.study_id WHERE trials.study_id = ? ORDER BY number";

impl Store {
    /// Returns a number that changes whenever another connection has changed the database. It costs no read of the file's
    /// pages.
    pub async fn data_version(&self) -> Result<i64, StoreError> {
        sqlx::query_scalar("PRAGMA data_version").fetch_one(&self.pool).await.map_err(|error| self.error(error))
    }

    /// Returns the marks of a study's trials, ordered by number. No configuration and no measurement is read.
    ///
    /// # Errors
    /// If the file cannot be read, and for a database in memory.
    pub fn trial_marks(&self, study: &Study) -> Result<Vec<TrialMark>, StoreError> {
        let read = || -> rusqlite::Result<Vec<TrialMark>> {
            let connection = self.reader_connection()?;
            let mut statement = connection.prepare(MARKS)?;
            let rows = statement.query_map([study.id], |row| {
                Ok(TrialMark {
                    number: row.get(0)?,
                    is_running: row.get(1)?,
                    value: row.get(2)?,
                    violation: row.get(3)?,
                    probe: row.get(4)?,
                    is_earlier: row.get(5)?,
                })
            })?;
            rows.collect()
        };
        read().map_err(|error| self.unread(error))
    }

    /// Like [`list`](Self::list), but only the trials of these numbers.
    ///
    /// # Errors
    /// If the file cannot be read, and for a database in memory.
    pub fn list_of(&self, study: &Study, numbers: &[u32]) -> Result<Vec<ListedTrial>, StoreError> {
        self.list_matching(study, Some(&super::json(&numbers)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::objective::Score;
    use crate::trial::{Failure, FailureKind, Measurement, Outcome, Trial};

    #[tokio::test]
    async fn the_version_changes_with_foreign_writes_and_marks_follow_later_changes_of_a_trial() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db").to_string_lossy().into_owned();
        let writer = Store::open(&path, true).await.unwrap();
        let study = writer.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let reader = Store::open(&path, false).await.unwrap();
        let before = reader.data_version().await.unwrap();
        assert_eq!(reader.data_version().await.unwrap(), before);
        let failure = Failure { kind: FailureKind::Crash, message: String::new() };
        let outcomes = [Outcome::Measured(Measurement::default()), Outcome::Failed(failure)];
        for (number, outcome) in (0..).zip(outcomes) {
            let score = if number == 0 { Score::Feasible { value: 4.0 } } else { Score::Failed };
            writer.append(study.id, &Trial::example(number, "auto", outcome), score).await.unwrap();
        }
        assert_ne!(reader.data_version().await.unwrap(), before);
        let marks = reader.trial_marks(&study).unwrap();
        assert_eq!((marks[0].value, marks[1].value, marks[1].probe), (Some(4.0), None, None));
        writer.blame_configurations(study.id, &[1], 9).await.unwrap();
        assert_eq!(reader.trial_marks(&study).unwrap()[1].probe, Some(9));
        let listed = reader.list_of(&study, &[1, 7]).unwrap();
        assert_eq!(listed.iter().map(|trial| trial.number).collect::<Vec<_>>(), [1]);
    }
}
