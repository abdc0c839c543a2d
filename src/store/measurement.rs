//! The measurements of a trial, one row each.

use sqlx::SqliteConnection;

use super::{TrialRecord, json};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::objective::Score;
    use crate::store::Store;
    use crate::trial::{LaunchRecords, Measurement, Outcome, SampleFlaw, SetAsideMeasurement, Trial};

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
