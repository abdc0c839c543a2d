//! Send and reply times of the requests of trials.

use sqlx::SqliteConnection;

use super::{Store, StoreError, Study, json, write_row};
use crate::trial::Replies;

impl Store {
    /// Returns the replies of a trial; `None` if it was not measured, or if an older version measured it.
    pub async fn replies(&self, study: &Study, number: u32) -> Result<Option<Replies>, StoreError> {
        let row: Option<(String,)> = sqlx::query_as("SELECT replies FROM replies WHERE study_id = ? AND number = ?")
            .bind(study.id)
            .bind(number)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let read = |(replies,): (String,)| {
            let replies: Replies = serde_json::from_str(&replies)?;
            if replies.is_consistent() {
                Ok(replies)
            } else {
                Err(serde::de::Error::custom("the columns are inconsistent"))
            }
        };
        row.map(read).transpose().map_err(|error| self.corrupt(&study.name, i64::from(number), &error))
    }
}

/// Stores the replies of a trial.
pub(super) async fn write_replies(
    connection: &mut SqliteConnection,
    study: i64,
    number: u32,
    replies: &Replies,
) -> sqlx::Result<()> {
    let query = "INSERT OR REPLACE INTO replies (study_id, number, replies) VALUES (?, ?, ?)";
    write_row(connection, query, study, number, [json(replies)]).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;

    #[tokio::test]
    async fn replies_are_read_back_unchanged_and_inconsistent_columns_are_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let replies = Replies {
            users: Some(4),
            warmup: 1,
            complete: true,
            sent_us: vec![0, 1_000_000],
            ttft_us: vec![Some(20_000), None],
            latency_us: vec![Some(900_000), None],
            prompt_tokens: vec![64, 64],
            output_tokens: vec![16, 16],
            shared_tokens: vec![0, 32],
            shared_with: vec![0, 0],
        };
        assert_eq!(store.replies(&study, 3).await.unwrap(), None);
        write_replies(&mut store.pool.acquire().await.unwrap(), study.id, 3, &replies).await.unwrap();
        assert_eq!(store.replies(&study, 3).await.unwrap().as_ref(), Some(&replies));
        let unsound = Replies { shared_with: vec![0, 1], ..replies };
        write_replies(&mut store.pool.acquire().await.unwrap(), study.id, 3, &unsound).await.unwrap();
        let error = store.replies(&study, 3).await.unwrap_err().to_string();
        assert!(error.contains("the columns are inconsistent"), "{error}");
    }
}
