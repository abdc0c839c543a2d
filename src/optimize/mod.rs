//! The optimizer alone, for other programs: one JSON object a line, in and out.
//!
//! | the caller sends | the reply |
//! |---|---|
//! | `{"type":"space","protocol":1,"params":[...],"objectives":[...],...}` | `{"type":"ready","name":...}` |
//! | `{"type":"ask","id":1}` | `{"type":"config","id":1,"config":{...},"why":"..."}`, or an error if nothing is left |
//! | `{"type":"tell","id":1,"config":{...},"status":"ok","values":{...},"constraints":{...}}` | nothing |
//! | `{"type":"judge","id":2}` | `{"type":"judgement","id":2,"pick":...,"remaining":...,"next_gain":...,"notes":[...]}` |
//! | `{"type":"explain","id":3}` | `{"type":"explanation","id":3,"about":[...]}` |
//! | `{"type":"end"}` | nothing; the run is over |
//!
//! - **space** has parameters of four types. An `int` has `low`, `high` and perhaps `log` or `"grid":"pow2"`. A `float`
//!   has `low`, `high` and perhaps `log`. A `categorical` has `choices`. A `bool` has no further field. A parameter may
//!   have a condition, `"when":{"param":...,"in":[...]}`: it is active only then, and absent otherwise. `objectives`
//!   have a `direction`, `maximize` or `minimize`. `constraints` are measured numbers; a trial keeps one at 0 or below.
//!   `known_constraints` are comparisons (grammar: `src/expression/mod.rs`) that every proposed configuration keeps.
//!   `budget`, `seed` and `context` are optional. `budget` is the total number of asks: the last ones never explore.
//!   With a context the sampler uses the twin's predictions for the space. The `notes` of the reply report gaps in
//!   these predictions, or the reason for their absence.
//! - **ask**: identifiers are any JSON values. Several asks may be open. An identifier of an open ask cannot be used
//!   again.
//! - **tell**: `status` is `ok`, `infeasible` or `failed`. An infeasible trial needs a constraint above 0. A trial that
//!   is `ok` may have one too, and then counts as infeasible. A number that is absent, null or not finite was not
//!   measured. `deviations` may contain standard deviations: in `values` as shares of the value, in `constraints`
//!   absolute. A tell may repeat an identifier (one more measurement). It may have another configuration than the ask
//!   (that one was tried). It may have an identifier without an ask (a measurement from elsewhere, whose configuration
//!   is part of the space). `cost` may contain the cost of the trial, in any one unit. The expected gain of a further
//!   trial is then divided by its expected cost.
//! - **judge**, an extension: the assessment of the measurements. `pick` has the configuration that is probably the
//!   best one (`config`) and its expected value by objective (`values`). It also has their standard deviations as
//!   shares (`deviations`) and the probability that it keeps every constraint (`feasible`). `remaining` is the gain of
//!   the space's best configuration over the pick, as a share (5th, 50th and 95th percentile). `next_gain` is the
//!   expected gain of the next trial, as a share. All three are null if no configuration is probably feasible, and for
//!   a sampler without a model. With several objectives `remaining` and `next_gain` are null. The pick then has the
//!   highest sum of expected values, each in units of its spread. `front` has every measured configuration that is
//!   probably feasible and not dominated: no other is expected to beat it in all objectives. Its entries have the
//!   fields of the pick.
//! - **explain**, an extension: the importance of the parameters, by the measurements alone, for any sampler. `about`
//!   has an entry for each objective and constraint that was measured. It is empty if no estimate is possible. An entry
//!   has the data behind it (`measured`, `held_out_r2`) and reasons not to rely on it (`doubts`). `parameters` have
//!   their shares of the variance and the expected result by value (`dependence`), and `pairs` are those that act
//!   together. The fields are those of [`ExplainedNumber`](crate::sampler::ExplainedNumber).
//!
//! A line that cannot be followed is an error that names the field and its value, and the run ends. Unknown fields are
//! ignored. This module does no input or output: [`OptimizeSession`] gets a line and returns at most one.

mod constraint;
mod error;
mod exhausted;
mod field;
mod proposal_log;
mod message;
mod parameter;
mod problem;

use serde_json::{Map, Value as Json, json};

use crate::config::Config;
use crate::prior;
use crate::sampler::{self, Judgement, Pick, Sampler, SamplerAsk, SamplerPrior};
use crate::trial::Origin;

pub(crate) use error::ProtocolError;
use field::FieldPlace;
use message::{MessageHead, MessageKind, QuestionMessage, TellMessage};
pub(crate) use problem::OptimizeProblem;
use proposal_log::ProposalLog;

/// The result of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionReply {
    NoReply,
    /// One line for the caller, without its end.
    Line(String),
    /// The caller has ended the run.
    End,
}

/// Returns the twin's predictions for the space, if there is a context. Also returns notes on gaps in them.
fn context_priors(problem: &OptimizeProblem, seed: u64) -> (Vec<SamplerPrior>, Vec<String>) {
    let Some(context) = &problem.context else { return (Vec::new(), Vec::new()) };
    match prior::context_prior(context, &problem.space, &problem.aim, &|config| problem.allows(config), seed) {
        Ok(belief) => (vec![belief.prior], belief.notes),
        Err(error) => (Vec::new(), vec![format!("no predictions by the twin: {error}")]),
    }
}

/// One run: a space, then questions and answers.
pub(crate) struct OptimizeSession {
    sampler: &'static dyn Sampler,
    seed: Option<u64>,
    run: Option<Run>,
}

struct Run {
    problem: OptimizeProblem,
    seed: u64,
    /// Predictions from the context.
    priors: Vec<SamplerPrior>,
    log: ProposalLog,
}

impl std::fmt::Debug for OptimizeSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let told = self.run.as_ref().map(|run| run.log.history().len());
        f.debug_struct("Session").field("sampler", &self.sampler.name()).field("history", &told).finish_non_exhaustive()
    }
}

impl OptimizeSession {
    /// Creates a session before its space. `seed` has precedence over the one that the caller sends.
    #[must_use]
    pub(crate) fn new(sampler: &'static dyn Sampler, seed: Option<u64>) -> Self {
        Self { sampler, seed, run: None }
    }

    /// Processes one line, with or without its end. Empty lines are ignored.
    ///
    /// # Errors
    /// If the line is not UTF-8, not JSON or not understood. The session is then unchanged.
    pub(crate) fn process_line(&mut self, line: &[u8]) -> Result<SessionReply, ProtocolError> {
        if line.trim_ascii().is_empty() {
            return Ok(SessionReply::NoReply);
        }
        let json = field::parse(line)?;
        let line = FieldPlace::line();
        let MessageHead { kind } = line.read(&json)?;
        match line.required("type", kind)? {
            MessageKind::Space => self.begin(&json),
            MessageKind::Ask => self.ask(&line.read(&json)?),
            MessageKind::Tell => self.tell(&line.read(&json)?),
            MessageKind::Judge => self.judge(&line.read(&json)?),
            MessageKind::Explain => self.explain(&line.read(&json)?),
            MessageKind::End => Ok(SessionReply::End),
        }
    }

    fn begin(&mut self, message: &Json) -> Result<SessionReply, ProtocolError> {
        if self.run.is_some() {
            return Err(ProtocolError::OutOfTurn { message: "space", when: "for the second time" });
        }
        let problem = OptimizeProblem::read(message)?;
        let seed = self.seed.unwrap_or(problem.seed);
        let (priors, notes) = context_priors(&problem, seed);
        self.run = Some(Run { problem, seed, priors, log: ProposalLog::default() });
        let name = format!("setpoint {}, {}", env!("CARGO_PKG_VERSION"), self.sampler.name());
        let mut ready = json!({"type": "ready", "name": name});
        if !notes.is_empty() {
            ready["notes"] = notes.into();
        }
        Ok(line(&ready))
    }

    fn ask(&mut self, QuestionMessage { id }: &QuestionMessage) -> Result<SessionReply, ProtocolError> {
        let run =
            self.run.as_mut().ok_or(ProtocolError::OutOfTurn { message: "ask", when: "before the space message" })?;
        run.log.check_new(id)?;
        let Some(suggestion) = run.question(|ask| self.sampler.ask(ask)) else {
            let message = exhausted::exhaustion_reason(&run.problem, run.log.history(), run.seed);
            return Ok(line(&json!({"type": "error", "id": id, "message": message})));
        };
        let reply = line(&json!({"type": "config", "id": id, "config": suggestion.config, "why": suggestion.why}));
        run.log.ask(id, Origin::Sampler(self.sampler.name().into()), suggestion.config);
        Ok(reply)
    }

    fn tell(&mut self, message: &TellMessage) -> Result<SessionReply, ProtocolError> {
        let run =
            self.run.as_mut().ok_or(ProtocolError::OutOfTurn { message: "tell", when: "before the space message" })?;
        run.log.tell(message, &run.problem)?;
        Ok(SessionReply::NoReply)
    }

    fn judge(&self, QuestionMessage { id }: &QuestionMessage) -> Result<SessionReply, ProtocolError> {
        let run =
            self.run.as_ref().ok_or(ProtocolError::OutOfTurn { message: "judge", when: "before the space message" })?;
        let judgement = run.question(|ask| self.sampler.judge(ask));
        let Judgement { pick, front, remaining_gain: remaining, next_gain, notes, .. } = judgement.unwrap_or_default();
        let mut answer = json!({
            "type": "judgement", "id": id, "pick": pick.map(|pick| run.describe(&pick)),
            "remaining": remaining, "next_gain": next_gain, "notes": notes,
        });
        if run.problem.aim.objectives.len() > 1 {
            answer["front"] = front.iter().map(|pick| run.describe(pick)).collect();
        }
        Ok(line(&answer))
    }

    fn explain(&self, QuestionMessage { id }: &QuestionMessage) -> Result<SessionReply, ProtocolError> {
        let run = self
            .run
            .as_ref()
            .ok_or(ProtocolError::OutOfTurn { message: "explain", when: "before the space message" })?;
        let explanation = run.question(|ask| sampler::explain(self.sampler, ask));
        let numbers = explanation.map_or_else(Vec::new, |explanation| explanation.numbers);
        Ok(line(&json!({"type": "explanation", "id": id, "about": numbers})))
    }
}

impl Run {
    /// Calls `put` with a question that contains all data so far, and returns its result.
    fn question<T>(&self, put: impl FnOnce(&SamplerAsk<'_>) -> T) -> T {
        let nothing = Config::new();
        let allowed = |config: &Config| self.problem.allows(config);
        let question = SamplerAsk::new(&self.problem.space, &self.problem.aim, self.log.history(), self.seed, &allowed);
        put(&SamplerAsk {
            defaults: self.problem.context.as_ref().map_or(&nothing, |context| &context.defaults),
            priors: &self.priors,
            trials_left: self.problem.budget.map(|trials| trials.saturating_sub(self.log.ask_count())),
            ..question
        })
    }

    fn describe(&self, pick: &Pick) -> Json {
        let by_name = |number: fn(&(f64, f64)) -> f64| -> Map<String, Json> {
            let targets = self.problem.aim.objectives.iter().zip(&pick.values);
            targets.map(|(target, value)| (target.name.clone(), json!(value.as_ref().map(number)))).collect()
        };
        json!({
            "config": self.log.history().get(pick.history_index).map(|past| &past.config), "values": by_name(|(value, _)| *value),
            "deviations": by_name(|(_, deviation)| *deviation), "feasible": pick.feasible,
        })
    }
}

fn line(json: &Json) -> SessionReply {
    SessionReply::Line(json.to_string())
}

#[cfg(test)]
mod tests;
