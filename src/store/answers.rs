//! Greedy replies of launches to the bundled prompts, with their comparison.

use sqlx::SqliteConnection;

use super::{Store, StoreError, Study, json};
use crate::guard::{CheckedReplies, GreedyReplies};

impl Store {
    /// Returns the replies of a trial; `None` if the guard did not request any.
    pub async fn answers(&self, study: &Study, number: u32) -> Result<Option<CheckedReplies>, StoreError> {
        let query = sqlx::query_scalar("SELECT answers FROM answers WHERE study_id = ? AND number = ?");
        let query = query.bind(study.id).bind(number).fetch_optional(&self.pool);
        let text: Option<String> = query.await.map_err(|error| self.error(error))?;
        let read = |text: String| serde_json::from_str(&text);
        text.map(read).transpose().map_err(|error| self.corrupt(&study.name, i64::from(number), &error))
    }

    /// Returns the replies of the baseline in the study's present context, in the order of the trials. Those of trial
    /// `except` are left out.
    pub async fn reference_replies(&self, study: &Study, except: u32) -> Result<Vec<GreedyReplies>, StoreError> {
        let context = self.present_context(study).await?;
        let query = "SELECT answers.number, answers FROM answers JOIN trials USING (study_id, number) \
                     WHERE study_id = ? AND is_reference AND number <> ? AND accepted_changes = ? ORDER BY number";
        let query = sqlx::query_as(query).bind(study.id).bind(except).bind(context).fetch_all(&self.pool);
        let rows: Vec<(i64, String)> = query.await.map_err(|error| self.error(error))?;
        let read = |(number, text): (i64, String)| {
            let checked: Result<CheckedReplies, _> = serde_json::from_str(&text);
            checked.map(|checked| checked.replies).map_err(|error| self.corrupt(&study.name, number, &error))
        };
        rows.into_iter().map(read).collect()
    }

    /// Returns the trials of the present context that exceed a limit and whose replies differ from the baseline's or are
    /// absent, in their order.
    pub async fn differing_replies(&self, study: &Study) -> Result<Vec<(u32, CheckedReplies)>, StoreError> {
        let context = self.present_context(study).await?;
        let query = "SELECT answers.number, answers FROM answers JOIN trials USING (study_id, number) \
                     WHERE study_id = ? AND NOT is_reference AND coalesce(verdict, 'differs') = 'differs' \
                     AND state = 'measured' AND violation > 0 AND accepted_changes = ? ORDER BY number";
        let query = sqlx::query_as(query).bind(study.id).bind(context).fetch_all(&self.pool);
        let rows: Vec<(u32, String)> = query.await.map_err(|error| self.error(error))?;
        let read = |(number, text): (u32, String)| match serde_json::from_str(&text) {
            Ok(checked) => Ok((number, checked)),
            Err(error) => Err(self.corrupt(&study.name, i64::from(number), &error)),
        };
        rows.into_iter().map(read).collect()
    }
}

/// Stores the replies of a trial.
pub(super) async fn write_answers(
    connection: &mut SqliteConnection,
    study: i64,
    number: u32,
    answers: &CheckedReplies,
) -> sqlx::Result<()> {
    let comparison = answers.comparison.as_ref();
    let query = "INSERT OR REPLACE INTO answers (study_id, number, is_reference, verdict, agreement, own_agreement, answers) \
                 VALUES (?, ?, ?, ?, ?, ?, ?)";
    sqlx::query(query)
        .bind(study)
        .bind(number)
        .bind(answers.is_reference)
        .bind(comparison.map(|comparison| comparison.verdict.name()))
        .bind(comparison.map(|comparison| comparison.agreement))
        .bind(comparison.map(|comparison| comparison.own_agreement))
        .bind(json(answers))
        .execute(connection)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;
    use crate::guard::{PASSES, PROMPTS, compare};
    use crate::objective::Score;
    use crate::store::TrialRecord;
    use crate::trial::{LaunchRecords, Measurement, Outcome, Trial};

    fn replies(text: &str) -> GreedyReplies {
        GreedyReplies { passes: vec![vec![text.to_owned(); PROMPTS.len()]; PASSES.len()] }
    }

    #[tokio::test]
    async fn replies_are_read_back_and_the_baselines_are_the_reference() {
        let store = Store::in_memory().await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let (same, other) = (replies("12"), replies("unknown"));
        let reference = CheckedReplies { replies: same.clone(), is_reference: true, comparison: None };
        let comparison = compare(&other, &[&same], 0.01);
        let lossy = CheckedReplies { replies: other, is_reference: false, comparison };
        for (number, answers, score) in [
            (0, reference, Score::Feasible { value: 1.0 }),
            (1, lossy.clone(), Score::Infeasible { violation: 0.5, value: 2.0 }),
        ] {
            let trial = Trial::example(number, "random", Outcome::Measured(Measurement::default()));
            let records = LaunchRecords { answers: Some(answers), ..LaunchRecords::default() };
            let record = TrialRecord { records: &records, ..TrialRecord::new(&trial, score) };
            store.append_record(study.id, record).await.unwrap();
        }
        assert_eq!(store.answers(&study, 1).await.unwrap(), Some(lossy.clone()));
        assert_eq!(store.answers(&study, 2).await.unwrap(), None);
        assert_eq!(store.reference_replies(&study, 1).await.unwrap(), [same]);
        assert_eq!(store.reference_replies(&study, 0).await.unwrap(), []);
        assert_eq!(store.differing_replies(&study).await.unwrap(), [(1, lossy)]);
    }
}
