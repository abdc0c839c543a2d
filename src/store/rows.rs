//! Rows of the tables and what they mean.

use std::path::PathBuf;

use super::{Scored, Study};
use crate::objective::Score;
use crate::trial::{Failure, FailureKind, Launch, Origin, Outcome, Proposal, Rejection, Trial};

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
    pub(super) number: i64,
    proposed_by: String,
    config: String,
    command: String,
    env: String,
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
    why: Option<String>,
    expected_gain: Option<f64>,
    probe: Option<u32>,
}

impl TrialRow {
    /// # Errors
    /// When a JSON column cannot be read.
    pub(super) fn scored(self) -> Result<Scored, serde_json::Error> {
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
        let score = match (self.value, self.violation) {
            (Some(value), Some(0.0)) => Score::Feasible { value },
            (Some(value), Some(violation)) => Score::Infeasible { violation, value },
            _ => Score::Failed,
        };
        let trial = Trial {
            proposal: Proposal {
                number: u32::try_from(self.number).unwrap_or(u32::MAX),
                origin: Origin::from_name(self.proposed_by),
                why: self.why,
                expected_gain: self.expected_gain,
                config: serde_json::from_str(&self.config)?,
            },
            // Earlier versions stored values that only look like secrets.
            launch: Launch::redacted(
                &serde_json::from_str::<Vec<String>>(&self.command)?,
                serde_json::from_str(&self.env)?,
            ),
            started_at: self.started_at,
            startup_s: self.startup_s,
            elapsed_s: self.elapsed_s.unwrap_or_default(),
            engine_version: self.engine_version,
            log: self.log.map(PathBuf::from),
            outcome,
            probe: self.probe,
        };
        Ok(Scored { trial, score })
    }
}
