//! The measurements of a trial, one row each.

use sqlx::SqliteConnection;

use super::{Store, StoreError, Study, TrialRecord, json};

/// The kind of the measurement that determines a trial's value and violation.
const TRIAL_KIND: &str = "trial";

/// Stores all measurements of a launch in the order of measuring. The trial's own measurement is the last.
pub(super) async fn write_measurements(
    connection: &mut SqliteConnection,
    study: i64,
    record: TrialRecord<'_>,
) -> sqlx::Result<()> {
    let number = record.trial.proposal.number;
    let set_aside = record.records.set_aside.iter().map(|sample| (sample.flaw.name(), &sample.measurement));
    let own = record.trial.outcome.measurement().map(|measurement| (TRIAL_KIND, measurement));
    for (sequence, (kind, measurement)) in (0_i64..).zip(set_aside.chain(own)) {
        let query = "INSERT INTO measurements (study_id, number, sequence, kind, metrics) VALUES (?, ?, ?, ?, ?)";
        let query = sqlx::query(query).bind(study).bind(number).bind(sequence).bind(kind).bind(json(measurement));
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// Loads of a study that ended before their planned length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EarlyEnds {
    pub(crate) loads: i64,
    /// Seconds of the planned loads that the early ends saved.
    pub(crate) saved_s: f64,
}

impl Store {
    /// Counts the loads of a study that ended early, over all of its runs.
    pub(crate) async fn early_ends(&self, study: &Study) -> Result<EarlyEnds, StoreError> {
        // The loads of several workloads, and those of a search for the highest load, have windows of their own.
        let query = "SELECT count(saved_s), total(saved_s) FROM ( \
                     SELECT json_extract(metrics, '$.window.saved_s') AS saved_s FROM measurements \
                     WHERE study_id = ?1 AND kind = ?2 AND json_extract(metrics, '$.load_curve') IS NULL \
                     UNION ALL SELECT json_extract(part.value, '$.window.saved_s') \
                     FROM measurements, json_each(metrics, '$.load_curve.probes') AS part \
                     WHERE study_id = ?1 AND kind = ?2 \
                     UNION ALL SELECT json_extract(part.value, '$.window.saved_s') \
                     FROM measurements, json_each(metrics, '$.workloads') AS part WHERE study_id = ?1 AND kind = ?2)";
        let query = sqlx::query_as(query).bind(study.id).bind(TRIAL_KIND).fetch_one(&self.pool);
        let (loads, saved_s) = query.await.map_err(|error| self.error(error))?;
        Ok(EarlyEnds { loads, saved_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::objective::Score;
    use crate::store::Store;
    use crate::trial::{
        LaunchRecords, MeasuredWindow, Measurement, Outcome, SampleFlaw, SetAsideMeasurement, Trial,
        WorkloadMeasurement,
    };

    #[tokio::test]
    async fn early_ends_are_counted_with_the_time_that_they_saved() {
        let store = Store::in_memory().await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let window = |saved_s| MeasuredWindow {
            from_s: 0.0,
            to_s: 1.0,
            steady: true,
            reason: String::new(),
            saved_s,
            overloaded: false,
        };
        for (number, window) in
            [None, Some(window(None)), Some(window(Some(2.5))), Some(window(Some(4.0)))].into_iter().enumerate()
        {
            let outcome = Outcome::Measured(Measurement { window, ..Measurement::default() });
            let trial = Trial::example(u32::try_from(number).unwrap(), "random", outcome);
            store.append(study.id, &trial, Score::Feasible { value: 1.0 }).await.unwrap();
        }
        assert_eq!(store.early_ends(&study).await.unwrap(), EarlyEnds { loads: 2, saved_s: 6.5 });
        let part = |name: &str, saved_s| WorkloadMeasurement {
            name: name.to_owned(),
            measurement: Measurement { window: Some(window(saved_s)), ..Measurement::default() },
        };
        let joint = Measurement::joint(vec![part("a", Some(1.5)), part("b", None), part("c", Some(2.0))]);
        assert_eq!(joint.saved_s(), Some(3.5));
        let trial = Trial::example(9, "random", Outcome::Measured(joint));
        store.append(study.id, &trial, Score::Feasible { value: 1.0 }).await.unwrap();
        assert_eq!(store.early_ends(&study).await.unwrap(), EarlyEnds { loads: 4, saved_s: 10.0 });
    }

    #[tokio::test]
    async fn every_measurement_of_a_trial_has_a_row_and_one_is_the_trials_own() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let measured = |completed| Measurement { completed, duration_s: 1.0, ..Measurement::default() };
        let trial = Trial::example(0, "baseline", Outcome::Measured(measured(2)));
        let set_aside = vec![SetAsideMeasurement { flaw: SampleFlaw::Disturbed, measurement: measured(1) }];
        let records = LaunchRecords { set_aside, ..LaunchRecords::default() };
        let record = TrialRecord { records: &records, ..TrialRecord::new(&trial, Score::Feasible { value: 2.0 }) };
        store.append_record(study.id, record).await.unwrap();
        // An outcome is never overwritten, and neither are its measurements.
        store.append_record(study.id, record).await.unwrap();
        let rows: Vec<(i64, String, f64)> = sqlx::query_as(
            "SELECT sequence, kind, json_extract(metrics, '$.completed') * 1.0 FROM measurements ORDER BY sequence",
        )
        .fetch_all(&store.pool)
        .await
        .unwrap();
        assert_eq!(rows, [(0, "disturbed".to_owned(), 1.0), (1, "trial".to_owned(), 2.0)]);
        assert_eq!(store.trial(&study, 0).await.unwrap().unwrap().trial.outcome, trial.outcome);
    }
}
