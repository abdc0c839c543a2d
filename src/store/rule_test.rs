//! Launches that test rules, and failed starts that confirm a rule without such a test.

use std::collections::BTreeMap;

use super::{StartKey, Store, StoreError, Study, now};
use crate::config::Config;
use crate::trial::FailureKind;

/// Scope of a verdict about a rule: engine, release and device class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTestKey {
    /// Kind of engine, as in study files.
    pub engine: String,
    /// Its release.
    pub version: String,
    /// The properties of the device, as in `StartKey`.
    pub device: String,
}

/// Conclusion of a rule's test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// The engine serves a configuration that the rule rejects.
    Refuted,
    /// The start failed in the way that the rule predicts.
    Confirmed,
    /// The start failed in another way.
    Inconclusive,
}

impl RuleVerdict {
    const ALL: [Self; 3] = [Self::Refuted, Self::Confirmed, Self::Inconclusive];

    /// Returns the name in the database and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Refuted => "refuted",
            Self::Confirmed => "confirmed",
            Self::Inconclusive => "inconclusive",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.name() == name)
    }
}

/// One launch that tests a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTest {
    /// The study's name.
    pub study: String,
    /// The trial's number.
    pub number: u32,
    /// Identifier of the rule.
    pub rule: String,
    /// The rule's reason to reject the configuration.
    pub message: String,
    /// `None` until the trial has an outcome.
    pub verdict: Option<RuleVerdict>,
    /// The text of the failure, if there was one.
    pub failure: Option<String>,
}

/// A start that failed before the server was ready, and whose log has memory figures.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedStart {
    /// The configuration, with the study's own arguments.
    pub config: Config,
    /// The environment variables that influence the memory of a launch.
    pub env: BTreeMap<String, String>,
    pub kind: FailureKind,
}

/// Study, number, rule, message, verdict, failure.
type Row = (String, u32, String, String, Option<String>, Option<String>);

impl From<Row> for RuleTest {
    fn from((study, number, rule, message, verdict, failure): Row) -> Self {
        let verdict = verdict.as_deref().and_then(RuleVerdict::from_name);
        Self { study, number, rule, message, verdict, failure }
    }
}

impl Store {
    /// Records that a trial tests a rule. The test of an interrupted trial of the same number is replaced.
    pub async fn begin_rule_test(
        &self,
        study: i64,
        number: u32,
        key: &RuleTestKey,
        rule: &str,
        message: &str,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT OR REPLACE INTO rule_tests (study_id, number, rule, engine, engine_version, device, message, at) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(study)
        .bind(number)
        .bind(rule)
        .bind(&key.engine)
        .bind(&key.version)
        .bind(&key.device)
        .bind(message)
        .bind(now())
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Stores the conclusion of a trial that tests a rule.
    pub async fn end_rule_test(
        &self,
        study: i64,
        number: u32,
        verdict: RuleVerdict,
        failure: Option<&str>,
    ) -> Result<(), StoreError> {
        let query = "UPDATE rule_tests SET verdict = ?, failure = ?, at = ? WHERE study_id = ? AND number = ?";
        sqlx::query(query)
            .bind(verdict.name())
            .bind(failure)
            .bind(now())
            .bind(study)
            .bind(number)
            .execute(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Returns the tests of every study with this key, in the order of studies and trials.
    pub async fn rule_tests(&self, key: &RuleTestKey) -> Result<Vec<RuleTest>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT name, number, rule, message, verdict, failure FROM rule_tests \
             JOIN studies ON studies.id = study_id \
             WHERE engine = ? AND engine_version = ? AND device = ? ORDER BY study_id, number",
        )
        .bind(&key.engine)
        .bind(&key.version)
        .bind(&key.device)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(rows.into_iter().map(RuleTest::from).collect())
    }

    /// Returns the tests of one study, in order.
    pub async fn rule_tests_of(&self, study: &Study) -> Result<Vec<RuleTest>, StoreError> {
        let query = "SELECT name, number, rule, message, verdict, failure FROM rule_tests \
                     JOIN studies ON studies.id = study_id WHERE study_id = ? ORDER BY number";
        let rows: Vec<Row> =
            sqlx::query_as(query).bind(study.id).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        Ok(rows.into_iter().map(RuleTest::from).collect())
    }

    /// Returns the failed starts with this key, of every study, as far as their logs contain memory figures.
    pub async fn failed_starts(&self, key: &StartKey) -> Result<Vec<FailedStart>, StoreError> {
        let rows: Vec<(String, i64, String, String, String)> = sqlx::query_as(
            "SELECT studies.name, starts.number, starts.config, starts.env, trials.reason_code FROM memory_observations AS starts \
             JOIN trials ON trials.study_id = starts.study_id AND trials.number = starts.number \
             JOIN studies ON studies.id = starts.study_id \
             WHERE starts.fingerprint = ? AND starts.device = ? AND starts.engine = ? AND starts.engine_version = ? \
             AND trials.state = 'failed' AND trials.startup_s IS NULL ORDER BY starts.id",
        )
        .bind(&key.fingerprint)
        .bind(&key.device)
        .bind(&key.engine)
        .bind(&key.version)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let mut failed = Vec::new();
        for (study, number, config, env, kind) in rows {
            // A kind of a later release is unknown here.
            let Some(kind) = FailureKind::from_name(&kind) else { continue };
            let corrupt = |error: serde_json::Error| self.corrupt(&study, number, &error);
            let config = serde_json::from_str(&config).map_err(corrupt)?;
            let env = serde_json::from_str(&env).map_err(corrupt)?;
            failed.push(FailedStart { config, env, kind });
        }
        Ok(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Host;

    fn key(device: &str) -> RuleTestKey {
        RuleTestKey { engine: "vllm".to_owned(), version: "0.32.0".to_owned(), device: device.to_owned() }
    }

    #[tokio::test]
    async fn tests_are_found_by_release_and_device_class_in_every_study() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let host = Host::detect();
        let first = store.create_study("s", &serde_json::json!({}), &host).await.unwrap();
        let second = store.create_study("t", &serde_json::json!({}), &host).await.unwrap();
        store.begin_rule_test(second.id, 0, &key("a"), "R6", "why").await.unwrap();
        store.begin_rule_test(first.id, 4, &key("a"), "R7", "why").await.unwrap();
        store.begin_rule_test(first.id, 5, &key("b"), "R6", "why").await.unwrap();
        store.end_rule_test(first.id, 4, RuleVerdict::Confirmed, Some("no_kv_memory: none")).await.unwrap();
        let tests = store.rule_tests(&key("a")).await.unwrap();
        let seen: Vec<_> = tests.iter().map(|test| (&*test.study, test.number, &*test.rule, test.verdict)).collect();
        assert_eq!(seen, [("s", 4, "R7", Some(RuleVerdict::Confirmed)), ("t", 0, "R6", None)]);
        assert_eq!(tests[0].failure.as_deref(), Some("no_kv_memory: none"));
        let of_first = store.rule_tests_of(&first).await.unwrap();
        assert_eq!(of_first.iter().map(|test| test.number).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(of_first[0], tests[0]);
        // An interrupted trial is launched again and repeats its test.
        store.begin_rule_test(first.id, 4, &key("a"), "R7", "why").await.unwrap();
        assert_eq!(store.rule_tests(&key("a")).await.unwrap()[0].verdict, None);
        assert_eq!(store.rule_tests(&RuleTestKey { version: "0.33.0".to_owned(), ..key("a") }).await.unwrap(), []);
    }
}
