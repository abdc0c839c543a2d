//! Narrow reads for lists of trials. None of them parses a whole measurement, so that lists of 10,000 trials are fast.

use std::collections::BTreeMap;

use rusqlite::{Connection, OpenFlags, Row};

use super::{ScoredTrial, Store, StoreError, StoredContext, Study};
use crate::config::Config;
use crate::objective::Score;
use crate::trial::{MeasuredBy, Measurement, Origin};

/// The part of a trial that lists filter, sort and show.
#[derive(Clone, Debug)]
pub struct ListedTrial {
    pub number: u32,
    /// The name of its outcome.
    pub state: String,
    pub origin: Origin,
    pub config: Config,
    pub reason_code: Option<String>,
    pub reason: Option<String>,
    pub score: Score,
    pub started_at: String,
    pub startup_s: Option<f64>,
    pub elapsed_s: f64,
    pub engine_version: Option<String>,
    /// Whether it belongs to a context that the study has left.
    pub is_earlier: bool,
    /// Whether other processes or a slowed device have disturbed its measurement.
    pub is_disturbed: bool,
    pub measured_by: MeasuredBy,
}

/// The values of some metrics, by the number of the trial and in the order of the names.
pub type MetricValues = BTreeMap<u32, Vec<Option<f64>>>;

/// The query for lists. A search for the key is far cheaper than parsing the metrics of each trial.
const LISTED: &str = "
    SELECT trials.number, state, proposed_by, config, reason_code, reason, value, violation, started_at, startup_s,
           elapsed_s, engine_version, trials.accepted_changes <> studies.accepted_changes,
           CASE WHEN instr(metrics, '\"disturbed\"') THEN json_array_length(metrics, '$.disturbed') > 0 ELSE 0 END,
           server_of, prepared, fast
    FROM trials
    JOIN studies ON studies.id = trials.study_id
    LEFT JOIN measurements
        ON measurements.study_id = trials.study_id AND measurements.number = trials.number AND kind = 'trial'
    WHERE trials.study_id = ?1 AND state <> 'running'
        AND (?2 IS NULL OR trials.number IN (SELECT value FROM json_each(?2)))
    ORDER BY trials.number";

impl Store {
    /// Returns every trial with an outcome, without its measurement, ordered by number.
    ///
    /// # Errors
    /// If the file cannot be read, and for a database in memory.
    pub fn list(&self, study: &Study) -> Result<Vec<ListedTrial>, StoreError> {
        self.list_matching(study, None)
    }

    /// Returns the trials whose numbers are in a JSON list, or all of them.
    pub(super) fn list_matching(&self, study: &Study, numbers: Option<&str>) -> Result<Vec<ListedTrial>, StoreError> {
        let connection = self.reader()?;
        let mut statement = connection.prepare(LISTED).map_err(|error| self.unread(error))?;
        let mut rows = statement.query((study.id, numbers)).map_err(|error| self.unread(error))?;
        let mut trials = Vec::new();
        while let Some(row) = rows.next().map_err(|error| self.unread(error))? {
            let trial = listed(row).map_err(|error| self.unread(error))?;
            let config = row.get_ref(3).and_then(|value| Ok(value.as_str()?)).map_err(|error| self.unread(error))?;
            let config = serde_json::from_str(config)
                .map_err(|error| self.corrupt(&study.name, i64::from(trial.number), &error))?;
            trials.push(ListedTrial { config, ..trial });
        }
        Ok(trials)
    }

    /// Returns the values of these metrics in the trials that were measured. In a study with several workloads
    /// `WORKLOAD/METRIC` is a metric of one of them.
    ///
    /// # Errors
    /// If the file cannot be read, and for a database in memory.
    pub fn metric_values(&self, study: &Study, names: &[&str]) -> Result<MetricValues, StoreError> {
        let joint = study.objective().and_then(|objective| objective.joint);
        let workloads = joint.map_or_else(Vec::new, |joint| joint.workloads);
        let read = || -> rusqlite::Result<_> {
            let columns = ", json_extract(metrics, ?)".repeat(names.len());
            let query = format!("SELECT number{columns} FROM measurements WHERE study_id = ? AND kind = 'trial'");
            let connection = self.reader_connection()?;
            let mut statement = connection.prepare(&query)?;
            for (index, name) in (1..).zip(names) {
                let part = name.split_once('/').and_then(|(workload, metric)| {
                    Some((workloads.iter().position(|known| known.name == workload)?, metric))
                });
                let (root, metric) = part.map_or(("$".to_owned(), *name), |(place, metric)| {
                    // A measurement has its workloads in the order of the study file.
                    (format!("$.workloads[{place}]"), metric)
                });
                let server = if Measurement::NAMES.contains(&metric) { "" } else { ".server" };
                statement.raw_bind_parameter(index, format!("{root}{server}.{metric}"))?;
            }
            statement.raw_bind_parameter(names.len() + 1, study.id)?;
            let (mut rows, mut values) = (statement.raw_query(), MetricValues::new());
            while let Some(row) = rows.next()? {
                let numbers = (1..=names.len()).map(|index| row.get(index)).collect::<rusqlite::Result<_>>()?;
                values.insert(row.get(0)?, numbers);
            }
            Ok(values)
        };
        read().map_err(|error| self.unread(error))
    }

    fn reader(&self) -> Result<Connection, StoreError> {
        self.reader_connection().map_err(|error| self.unread(error))
    }

    /// Opens a second connection, which only reads. Long lists are read three times faster than through the pool, which
    /// hands each value from its own thread to this one.
    pub(super) fn reader_connection(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(super::open::BUSY_TIMEOUT)?;
        Ok(connection)
    }

    pub(super) fn unread(&self, error: rusqlite::Error) -> StoreError {
        self.error(sqlx::Error::Decode(error.into()))
    }

    /// Returns the trials of these numbers that have an outcome, ordered by number.
    pub async fn trials_of(&self, study: &Study, numbers: &[u32]) -> Result<Vec<ScoredTrial>, StoreError> {
        let mut trials = Vec::with_capacity(numbers.len());
        let list = super::json(&numbers);
        for row in self.rows_of(study, &list).await? {
            trials.push(self.scored(study, row)?);
        }
        Ok(trials)
    }

    /// Returns the context of one trial; `None` if there is no such trial.
    pub async fn context_of(&self, study: &Study, number: u32) -> Result<Option<StoredContext>, StoreError> {
        let query = "SELECT contexts.context, trials.accepted_changes <> studies.accepted_changes \
                     FROM trials JOIN studies ON studies.id = trials.study_id \
                     LEFT JOIN contexts ON contexts.id = trials.context WHERE studies.id = ? AND trials.number = ?";
        let row: Option<(Option<String>, bool)> = sqlx::query_as(query)
            .bind(study.id)
            .bind(number)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let Some((text, is_earlier)) = row else { return Ok(None) };
        let context = text.map(|text| serde_json::from_str(&text)).transpose();
        let context = context.map_err(|error| self.corrupt(&study.name, i64::from(number), &error))?;
        Ok(Some(StoredContext { context, is_earlier }))
    }
}

/// Reads all columns but the configuration.
fn listed(row: &Row<'_>) -> rusqlite::Result<ListedTrial> {
    Ok(ListedTrial {
        number: row.get(0)?,
        state: row.get(1)?,
        origin: Origin::from_name(row.get::<_, String>(2)?),
        config: Config::new(),
        reason_code: row.get(4)?,
        reason: row.get(5)?,
        score: Score::from_stored(row.get(6)?, row.get(7)?),
        started_at: row.get(8)?,
        startup_s: row.get(9)?,
        elapsed_s: row.get::<_, Option<f64>>(10)?.unwrap_or_default(),
        engine_version: row.get(11)?,
        is_earlier: row.get(12)?,
        is_disturbed: row.get::<_, Option<bool>>(13)?.unwrap_or_default(),
        measured_by: MeasuredBy::new(row.get(14)?, row.get(15)?, row.get(16)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::trial::{Failure, FailureKind, Outcome, Trial};

    #[tokio::test]
    async fn a_narrow_read_has_the_values_of_the_whole_trial() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let config = Config::new().with("max-num-seqs", 8_i64).with("kv-cache-dtype", "fp8");
        let measurement = Measurement {
            completed: 4,
            duration_s: 2.0,
            disturbed: vec!["another process".to_owned()],
            server: BTreeMap::from([("preemptions".to_owned(), 7.0)]),
            ..Measurement::default()
        };
        let quiet = Measurement { disturbed: Vec::new(), ..measurement.clone() };
        let failure = Failure { kind: FailureKind::OutOfMemory, message: "\"disturbed\"".to_owned() };
        let outcomes = [Outcome::Measured(measurement), Outcome::Measured(quiet), Outcome::Failed(failure)];
        for (number, outcome) in (0..).zip(outcomes) {
            let score = match &outcome {
                Outcome::Measured(_) => Score::Feasible { value: 2.0 },
                _ => Score::Failed,
            };
            let trial = Trial::example(number, "auto", outcome).with_config(config.clone());
            store.append(study.id, &trial, score).await.unwrap();
        }
        let listed = store.list(&study).unwrap();
        let whole = store.trials(&study).await.unwrap();
        for (listed, whole) in listed.iter().zip(&whole) {
            assert_eq!(listed.number, whole.trial.proposal.number);
            assert_eq!((&listed.config, &listed.state[..]), (&config, whole.trial.outcome.name()));
            assert_eq!((listed.score, listed.is_disturbed), (whole.score, whole.is_disturbed()));
        }
        assert_eq!((listed.len(), listed[2].reason_code.as_deref()), (3, Some(FailureKind::OutOfMemory.name())));
        let values = store.metric_values(&study, &["completed", "preemptions", "p99_ttft_ms"]).unwrap();
        let expected = vec![Some(4.0), Some(7.0), None];
        assert_eq!(values, BTreeMap::from([(0, expected.clone()), (1, expected)]));
        let some = store.trials_of(&study, &[2, 0, 9]).await.unwrap();
        assert_eq!(some.iter().map(|scored| scored.trial.proposal.number).collect::<Vec<_>>(), [0, 2]);
    }
}
