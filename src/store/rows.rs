//! Conversion of rows to trials and proposals.

use std::path::PathBuf;

use super::{ScoredTrial, Store, StoreError, StoredProposal, Study};
use crate::objective::Score;
use crate::trial::{
    CommandLine, ExpectedValue, Failure, FailureKind, LaunchCommand, Origin, Outcome, Proposal, Rejection, Trial,
};

#[derive(sqlx::FromRow)]
pub(super) struct StudyRow {
    id: i64,
    name: String,
    definition: String,
    host: String,
    setpoint_version: String,
    created_at: String,
}

impl From<StudyRow> for Study {
    fn from(row: StudyRow) -> Self {
        let json = |text: &str| serde_json::from_str(text).unwrap_or_default();
        Self {
            id: row.id,
            name: row.name,
            definition: json(&row.definition),
            host: json(&row.host),
            setpoint_version: row.setpoint_version,
            created_at: row.created_at,
        }
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct TrialRow {
    #[sqlx(flatten)]
    pub(super) proposal: ProposalRow,
    command: String,
    env: String,
    command_parts: Option<String>,
    state: String,
    reason_code: Option<String>,
    reason: Option<String>,
    started_at: String,
    startup_s: Option<f64>,
    elapsed_s: Option<f64>,
    engine_version: Option<String>,
    log: Option<String>,
    metrics: Option<String>,
    value: Option<f64>,
    violation: Option<f64>,
    probe: Option<u32>,
    prepared: bool,
    fast: bool,
}

/// The columns of a model's expectation.
#[derive(Clone, Copy, sqlx::FromRow)]
struct ExpectedColumns {
    #[sqlx(rename = "expected_mean")]
    mean: Option<f64>,
    #[sqlx(rename = "expected_low")]
    low: Option<f64>,
    #[sqlx(rename = "expected_high")]
    high: Option<f64>,
}

impl ExpectedColumns {
    fn value(self) -> Option<ExpectedValue> {
        Some(ExpectedValue { mean: self.mean?, low: self.low?, high: self.high? })
    }
}

/// The columns of a proposal.
#[derive(sqlx::FromRow)]
pub(super) struct ProposalRow {
    pub(super) number: u32,
    proposed_by: String,
    why: Option<String>,
    expected_gain: Option<f64>,
    #[sqlx(flatten)]
    expected: ExpectedColumns,
    config: String,
    server_of: Option<u32>,
}

impl ProposalRow {
    /// Converts the row.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub(super) fn proposal(self) -> Result<Proposal, serde_json::Error> {
        Ok(Proposal {
            number: self.number,
            origin: Origin::from_name(self.proposed_by),
            why: self.why,
            expected_gain: self.expected_gain,
            expected: self.expected.value(),
            config: serde_json::from_str(&self.config)?,
            server_of: self.server_of,
        })
    }
}

impl TrialRow {
    /// Converts the row. An unknown kind of failure becomes `StartupExit`.
    ///
    /// # Errors
    /// If a JSON column cannot be read.
    pub(super) fn scored(self) -> Result<ScoredTrial, serde_json::Error> {
        let message = self.reason.unwrap_or_default();
        let code = self.reason_code.unwrap_or_default();
        let outcome = match self.state.as_str() {
            "measured" => Outcome::Measured(serde_json::from_str(&self.metrics.unwrap_or_default())?),
            "rejected" => Outcome::Rejected(Rejection { rule: code, message }),
            _ => {
                let kind = FailureKind::from_name(&code).unwrap_or(FailureKind::StartupExit);
                Outcome::Failed(Failure { kind, message })
            }
        };
        let score = Score::from_stored(self.value, self.violation);
        let trial = Trial {
            proposal: self.proposal.proposal()?,
            // Earlier versions stored values that look like secrets.
            launch: LaunchCommand {
                is_fast: self.fast,
                ..LaunchCommand::redacted(
                    &CommandLine {
                        words: serde_json::from_str(&self.command)?,
                        parts: self.command_parts.as_deref().map(serde_json::from_str).transpose()?,
                        is_prepared: self.prepared,
                    },
                    serde_json::from_str(&self.env)?,
                )
            },
            started_at: self.started_at,
            startup_s: self.startup_s,
            elapsed_s: self.elapsed_s.unwrap_or_default(),
            engine_version: self.engine_version,
            log: self.log.map(PathBuf::from),
            outcome,
            probe: self.probe,
        };
        Ok(ScoredTrial { trial, score })
    }
}

/// The query for a study's trials with an outcome, joined with the measurement that determines their value.
macro_rules! ended_trials {
    () => {
        "SELECT trials.*, measurements.metrics FROM trials LEFT JOIN measurements \
         ON measurements.study_id = trials.study_id AND measurements.number = trials.number AND kind = 'trial' \
         WHERE trials.study_id = ? AND state <> 'running'"
    };
}

impl Store {
    /// Returns every trial with an outcome, ordered by number.
    pub async fn trials(&self, study: &Study) -> Result<Vec<ScoredTrial>, StoreError> {
        let query = concat!(ended_trials!(), " ORDER BY trials.number");
        let rows: Vec<TrialRow> =
            sqlx::query_as(query).bind(study.id).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        rows.into_iter().map(|row| self.scored(study, row)).collect()
    }

    /// Returns the trials of the study's present context that have an outcome, in order.
    pub async fn present_trials(&self, study: &Study) -> Result<Vec<ScoredTrial>, StoreError> {
        let contexts = self.contexts(study).await?;
        let is_earlier = |number| contexts.get(&number).is_some_and(|stored| stored.is_earlier);
        let mut trials = self.trials(study).await?;
        trials.retain(|scored| !is_earlier(scored.trial.proposal.number));
        Ok(trials)
    }

    /// Returns the proposals of all trials so far, also of those without an outcome, ordered by number.
    pub async fn proposals(&self, study: &Study) -> Result<Vec<StoredProposal>, StoreError> {
        #[derive(sqlx::FromRow)]
        struct Row {
            #[sqlx(flatten)]
            proposal: ProposalRow,
            state: String,
            is_earlier: bool,
        }
        let query = "SELECT number, proposed_by, why, expected_gain, expected_mean, expected_low, expected_high, config, \
                     server_of, state, trials.accepted_changes <> studies.accepted_changes AS is_earlier FROM trials JOIN studies ON studies.id = study_id WHERE study_id = ? ORDER BY number";
        let rows: Vec<Row> =
            sqlx::query_as(query).bind(study.id).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        let proposed = |Row { proposal, state, is_earlier }: Row| {
            let number = i64::from(proposal.number);
            let proposal = proposal.proposal().map_err(|error| self.corrupt(&study.name, number, &error))?;
            Ok(StoredProposal { proposal, state, is_earlier })
        };
        rows.into_iter().map(proposed).collect()
    }

    /// Returns the trial of this number; `None` if there is none or if it has no outcome.
    pub async fn trial(&self, study: &Study, number: u32) -> Result<Option<ScoredTrial>, StoreError> {
        let query = concat!(ended_trials!(), " AND trials.number = ?");
        let row: Option<TrialRow> = sqlx::query_as(query)
            .bind(study.id)
            .bind(number)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        row.map(|row| self.scored(study, row)).transpose()
    }

    /// Returns the rows of the trials whose numbers are in a JSON list.
    pub(super) async fn rows_of(&self, study: &Study, numbers: &str) -> Result<Vec<TrialRow>, StoreError> {
        let query =
            concat!(ended_trials!(), " AND trials.number IN (SELECT value FROM json_each(?)) ORDER BY trials.number");
        let query = sqlx::query_as(query).bind(study.id).bind(numbers);
        query.fetch_all(&self.pool).await.map_err(|error| self.error(error))
    }

    pub(super) fn scored(&self, study: &Study, row: TrialRow) -> Result<ScoredTrial, StoreError> {
        let number = i64::from(row.proposal.number);
        row.scored().map_err(|error| self.corrupt(&study.name, number, &error))
    }
}
