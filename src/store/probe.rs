//! A probe's verdict on the failures before it: their cause is the configuration, or the environment.

use super::incident::insert;
use super::{Incident, Store, StoreError, Study};

impl Store {
    /// Records that the trial `probe` started although the launches of these trials had failed. The cause of each
    /// failure is then the trial's own configuration.
    pub async fn blame_configurations(&self, study: i64, numbers: &[u32], probe: u32) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await.map_err(|error| self.error(error))?;
        for number in numbers {
            sqlx::query("UPDATE trials SET probe = ? WHERE study_id = ? AND number = ? AND state = 'failed'")
                .bind(probe)
                .bind(study)
                .bind(number)
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.error(error))?;
        }
        transaction.commit().await.map_err(|error| self.error(error))
    }

    /// Withdraws the outcome of failed trials: each becomes an incident, and its trial is unfinished again. All changes
    /// are made in one transaction.
    pub async fn withdraw(&self, study: i64, incidents: &[Incident]) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await.map_err(|error| self.error(error))?;
        for incident in incidents {
            insert(study, incident).execute(&mut *transaction).await.map_err(|error| self.error(error))?;
            sqlx::query(
                "UPDATE trials SET state = 'running', reason_code = NULL, reason = NULL, startup_s = NULL, \
                 elapsed_s = NULL, engine_version = NULL, probe = NULL \
                 WHERE study_id = ? AND number = ? AND state = 'failed'",
            )
            .bind(study)
            .bind(incident.number)
            .execute(&mut *transaction)
            .await
            .map_err(|error| self.error(error))?;
            // A start that the environment broke is no evidence on memory, and the next launch measures again.
            for query in [
                "DELETE FROM memory_observations WHERE study_id = ? AND number = ?",
                "DELETE FROM measurements WHERE study_id = ? AND number = ?",
                "DELETE FROM telemetry WHERE study_id = ? AND number = ?",
                "DELETE FROM startups WHERE study_id = ? AND number = ?",
                "DELETE FROM replies WHERE study_id = ? AND number = ?",
                "DELETE FROM answers WHERE study_id = ? AND number = ?",
            ] {
                let query = sqlx::query(query).bind(study).bind(incident.number);
                query.execute(&mut *transaction).await.map_err(|error| self.error(error))?;
            }
        }
        transaction.commit().await.map_err(|error| self.error(error))
    }

    /// Marks the last incident of a trial as the reason for a pause of the study or for giving up slots.
    pub async fn mark_paused(&self, study: i64, number: u32) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE incidents SET paused = 1 WHERE study_id = ?1 AND number = ?2 AND attempt = \
             (SELECT max(attempt) FROM incidents WHERE study_id = ?1 AND number = ?2)",
        )
        .bind(study)
        .bind(number)
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns whether the study has paused or given up slots because of this trial.
    pub async fn has_paused(&self, study: &Study, number: u32) -> Result<bool, StoreError> {
        Ok(self.incidents(study, Some(number)).await?.iter().any(|incident| incident.paused))
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::Host;
    use crate::guard::{CheckedReplies, GreedyReplies};
    use crate::objective::{Goal, Score};
    use crate::store::{Incident, Store, TrialRecord};
    use crate::trial::{
        Failure, FailureKind, LaunchRecords, Measurement, Outcome, Replies, SampleFlaw, ServerTelemetry,
        SetAsideMeasurement, Startup, Trial,
    };

    #[tokio::test]
    async fn a_withdrawn_failure_is_an_incident_and_no_longer_an_outcome() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let failure = Failure { kind: FailureKind::StartupExit, message: "gone".to_owned() };
        let measured = Trial::example(0, "baseline", Outcome::Measured(Measurement::default()));
        store.append(study.id, &measured, Score::Feasible { value: 1.0 }).await.unwrap();
        let failed = Trial::example(1, "confirmation", Outcome::Failed(failure.clone()));
        store.append(study.id, &failed, Score::Failed).await.unwrap();
        assert!(store.best(&study, Goal::Maximize, 1).await.unwrap().is_empty(), "it failed when launched again");
        let incident = Incident { number: 1, attempt: 1, at: crate::store::now(), failure, log: None, paused: true };
        store.withdraw(study.id, std::slice::from_ref(&incident)).await.unwrap();
        assert_eq!(store.incidents(&study, Some(1)).await.unwrap(), [incident]);
        assert_eq!(store.trial(&study, 1).await.unwrap().map(|scored| scored.trial.proposal.number), None);
        assert_eq!(store.best(&study, Goal::Maximize, 1).await.unwrap().len(), 1);
        assert!(store.has_paused(&study, 1).await.unwrap() && !store.has_paused(&study, 0).await.unwrap());
        // It may end again with another outcome.
        let again = Trial::example(1, "confirmation", Outcome::Measured(Measurement::default()));
        store.append(study.id, &again, Score::Feasible { value: 3.0 }).await.unwrap();
        assert_eq!(store.best(&study, Goal::Maximize, 1).await.unwrap()[0].measurements, 2);
    }

    #[tokio::test]
    async fn a_withdrawn_trial_leaves_no_measurement_and_can_be_measured_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let failure = Failure { kind: FailureKind::ClientBound, message: "late".to_owned() };
        let failed = Trial::example(0, "auto", Outcome::Failed(failure.clone()));
        let flawed = SetAsideMeasurement { flaw: SampleFlaw::ClientBound, measurement: Measurement::default() };
        let records = LaunchRecords {
            answers: Some(CheckedReplies { replies: GreedyReplies::default(), is_reference: true, comparison: None }),
            set_aside: vec![flawed],
            telemetry: Some(ServerTelemetry::default()),
            startup: Some(Startup::default()),
            replies: Some(Replies::default()),
        };
        let record = TrialRecord { records: &records, ..TrialRecord::new(&failed, Score::Failed) };
        store.append_record(study.id, record).await.unwrap();
        let incident = Incident { number: 0, attempt: 1, at: crate::store::now(), failure, log: None, paused: true };
        store.withdraw(study.id, &[incident]).await.unwrap();
        for table in ["measurements", "telemetry", "startups", "replies", "answers"] {
            let count: i64 =
                sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table} WHERE number = 0")))
                    .fetch_one(&store.pool)
                    .await
                    .unwrap();
            assert_eq!(count, 0, "{table}");
        }
        let again = Trial::example(0, "auto", Outcome::Measured(Measurement::default()));
        store.append(study.id, &again, Score::Feasible { value: 1.0 }).await.unwrap();
        let kinds: Vec<String> =
            sqlx::query_scalar("SELECT kind FROM measurements").fetch_all(&store.pool).await.unwrap();
        assert_eq!(kinds, ["trial"]);
    }

    #[tokio::test]
    async fn a_failure_that_a_probe_attributes_to_its_configuration_counts_for_every_kind() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let measured = Trial::example(0, "baseline", Outcome::Measured(Measurement::default()));
        store.append(study.id, &measured, Score::Feasible { value: 1.0 }).await.unwrap();
        let failure = Failure { kind: FailureKind::DeviceBusy, message: String::new() };
        let failed = Trial::example(1, "confirmation", Outcome::Failed(failure));
        store.append(study.id, &failed, Score::Failed).await.unwrap();
        assert_eq!(store.best(&study, Goal::Maximize, 1).await.unwrap().len(), 1);
        store.blame_configurations(study.id, &[0, 1], 2).await.unwrap();
        assert_eq!(store.trial(&study, 1).await.unwrap().unwrap().trial.probe, Some(2));
        assert_eq!(store.trial(&study, 0).await.unwrap().unwrap().trial.probe, None, "it did not fail");
        assert!(store.best(&study, Goal::Maximize, 1).await.unwrap().is_empty());
    }
}
