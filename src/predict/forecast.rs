//! One run of a load without anything beside it: what is asked for hundreds of configurations.

use std::time::Duration;

use super::script::Script;
use super::setup::Setup;
use super::{PredictError, Question, run};
use crate::job::Job;
use crate::load::Run;
use crate::trial::{Outcome, Window};

/// Which part of a virtual run is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// What the load itself says.
    Own,
    /// From when as many sessions as this, the first ones, have ended, to the last send: of a closed load with so many
    /// users, each of whom has then begun a second session. The whole run where that leaves fewer than half a session for
    /// each of them: a window that is too short says nothing.
    Settled { users: u64 },
}

impl Span {
    /// `None` leaves it to the load.
    pub(super) fn window(self, run: &Run) -> Option<Window> {
        let Self::Settled { users } = self else { return None };
        let first = run.records.iter().filter(|record| record.session < users);
        let from: Duration = first.map(|record| record.end).max()?;
        let to: Duration = run.records.iter().map(|record| record.sent).max()?;
        let sent = run.records.iter().filter(|record| record.sent >= from).count();
        let is_long = from < to && (sent as u64).saturating_mul(2) >= users;
        let reason = format!("from the end of the first {users} sessions to the last send");
        is_long.then_some(Window { from_s: from.as_secs_f64(), to_s: to.as_secs_f64(), steady: true, reason })
    }
}

/// What one run gives.
#[derive(Clone, Debug)]
pub struct Forecasted {
    pub outcome: Outcome,
    /// What it has cost to compute, in units of some 100 ns; 0 of a rejection.
    pub cost: u64,
}

/// A job's prompts, made once for all runs of it.
#[derive(Debug)]
pub struct Outlook {
    script: Script,
}

impl Outlook {
    #[must_use]
    pub fn new(job: &Job) -> Self {
        Self { script: Script::new(std::sync::Arc::clone(&job.workload.built)) }
    }

    /// The outcome of one run of the question's load, as expected or with other step times, as likely as the calibration
    /// says. The question's job has to be that of this outlook.
    ///
    /// # Errors
    /// When the load cannot be driven, or one of its requests is longer than the engine takes.
    pub fn forecast(&self, question: &Question<'_>, span: Span, draw: Option<u64>) -> Result<Forecasted, PredictError> {
        let setup = match Setup::resolve(question) {
            Ok(setup) => setup,
            Err(rejection) => return Ok(Forecasted { outcome: Outcome::Rejected(rejection), cost: 0 }),
        };
        let factors = draw.map_or_else(|| question.knowledge.central(), |number| question.knowledge.draw(number));
        let ran = run::run_over(span, &setup, &self.script, question.load, question.job.seed, &factors)?;
        Ok(Forecasted { outcome: ran.outcome, cost: ran.cost })
    }
}
