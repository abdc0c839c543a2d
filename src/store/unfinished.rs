//! Trials without an outcome: launched or waiting for a slot, or interrupted.

use super::rows::ProposalRow;
use super::{Store, StoreError, Study};
use crate::trial::{CommandLine, LaunchCommand, Proposal};

/// A trial without an outcome.
#[derive(Clone, Debug)]
pub struct UnfinishedTrial {
    pub proposal: Proposal,
    pub launch: LaunchCommand,
    /// In the format of `store::now`.
    pub started_at: String,
}

impl Store {
    /// Returns the trials of a study that have no outcome, ordered by number.
    pub async fn unfinished_trials(&self, study: &Study) -> Result<Vec<UnfinishedTrial>, StoreError> {
        #[derive(sqlx::FromRow)]
        struct Row {
            #[sqlx(flatten)]
            proposal: ProposalRow,
            command: String,
            env: String,
            started_at: String,
        }
        // A live look is stored when it has ended.
        let query = "SELECT number, proposed_by, why, expected_gain, expected_mean, expected_low, expected_high, config, \
                     NULL AS server_of, command, env, started_at FROM trials WHERE study_id = ? AND state = 'running' ORDER BY number";
        let rows: Vec<Row> =
            sqlx::query_as(query).bind(study.id).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        let read = |Row { proposal, command, env, started_at }: Row| {
            let number = i64::from(proposal.number);
            let corrupt = |error| self.corrupt(&study.name, number, &error);
            let proposal = proposal.proposal().map_err(corrupt)?;
            let command = CommandLine::from_words(serde_json::from_str(&command).map_err(corrupt)?);
            let launch = LaunchCommand::redacted(&command, serde_json::from_str(&env).map_err(corrupt)?);
            Ok(UnfinishedTrial { proposal, launch, started_at })
        };
        rows.into_iter().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::objective::Score;
    use crate::store::TrialBegin;
    use crate::trial::{Measurement, Outcome, Trial};

    #[tokio::test]
    async fn only_trials_without_an_outcome_are_unfinished() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let launch = LaunchCommand { command: vec!["serve".to_owned()], ..LaunchCommand::default() };
        for number in 0..2 {
            let proposal = Proposal::example(number, "auto");
            let begin = TrialBegin {
                proposal: &proposal,
                launch: &launch,
                started_at: "2030-01-02T03:04:05.000Z",
                log: directory.path(),
            };
            store.begin_trial(study.id, &begin).await.unwrap();
        }
        let ended = Trial::example(0, "auto", Outcome::Measured(Measurement::default()));
        store.append(study.id, &ended, Score::Failed).await.unwrap();
        let unfinished = store.unfinished_trials(&study).await.unwrap();
        let [only] = unfinished.as_slice() else { panic!("{unfinished:?}") };
        assert_eq!((only.proposal.number, only.started_at.as_str()), (1, "2030-01-02T03:04:05.000Z"));
        assert_eq!(only.launch, launch);
    }
}
