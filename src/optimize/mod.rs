//! The optimizer alone, for other programs: one JSON object a line, in and out.
//!
//! | the caller sends | what comes back |
//! |---|---|
//! | `{"type":"space","protocol":1,"params":[...],"objectives":[...],...}` | `{"type":"ready","name":...}` |
//! | `{"type":"ask","id":1}` | `{"type":"config","id":1,"config":{...},"why":"..."}`, or an error where nothing is left |
//! | `{"type":"tell","id":1,"config":{...},"status":"ok","values":{...},"constraints":{...}}` | nothing |
//! | `{"type":"judge","id":2}` | `{"type":"judgement","id":2,"pick":...,"remaining":...,"next_gain":...,"notes":[...]}` |
//! | `{"type":"explain","id":3}` | `{"type":"explanation","id":3,"about":[...]}` |
//! | `{"type":"end"}` | nothing; the run is over |
//!
//! - **space** has parameters (`int` with `low`, `high` and perhaps `log` or `"grid":"pow2"`; `float` with `low`, `high` and
//!   perhaps `log`; `bool`; `categorical` with `choices`), each perhaps with `"when":{"param":...,"in":[...]}`: it is active
//!   only then, and absent otherwise. `objectives` have a `direction`, `maximize` or `minimize`. `constraints` are measured, and
//!   kept at 0 and below; `known_constraints` are comparisons (grammar: `src/expression/mod.rs`) that no proposed configuration breaks.
//!   `budget` (asks in all: the last ones explore no more), `seed` and `context` are optional. With a context the twin says
//!   what it believes of the space; what it does not know, or why it says nothing, is in the `notes` of the answer.
//! - **ask**: identifiers are any JSON values. Several asks may be open; one that is open cannot be asked again.
//! - **tell**: `status` is `ok`, `infeasible` or `failed`. What is infeasible has a constraint above 0: the numbers decide.
//!   A number that is absent, null or not finite was not measured; `deviations` may say how well one is known, by standard
//!   deviations: in `values` shares of the value, in `constraints` as they are. A tell may come again (one more
//!   measurement), with another configuration than was asked for (that one was tried), and under an identifier that nobody
//!   has asked for (a measurement from elsewhere, whose configuration is part of the space). `cost` may say what the trial
//!   has cost, in any one unit: what a further one promises is then divided by what it is expected to cost.
//! - **judge**, an extension: what the measurements say so far. `pick` has the configuration that is probably the best one
//!   (`config`), what is expected of it by objective (`values`), their standard deviations as shares (`deviations`) and the
//!   probability that it keeps every limit (`feasible`). `remaining` is by which share of that the best one of the space is
//!   better (5th, 50th and 95th percentile), `next_gain` what the next trial is expected to gain of it. All are null where
//!   nothing is probably within the limits, and of a sampler that has no model. Of several objectives the last two are null, the
//!   pick is the one with the highest sum of what is expected, each in units of its spread, and `front` has every measured
//!   configuration, described as the pick is, that is probably within the limits and that no other one is expected to beat in
//!   all objectives.
//! - **explain**, an extension: which parameters matter, by the measurements alone, whatever the sampler. `about` has an entry
//!   for each objective and constraint that was measured, none where nothing can be said: what it rests on (`measured`,
//!   `held_out_r2`), why not to rely on it (`doubts`), `parameters` with their shares of the variance and what is expected by
//!   value (`dependence`), and `pairs` that act together. The fields are those of [`About`](crate::sampler::About).
//!
//! A line that cannot be followed is an error that names the field and its value, and the end of the run. Fields that are
//! unknown are ignored. Nothing here reads or writes: [`Session`] gets a line and gives at most one.

mod constraint;
mod error;
mod exhausted;
mod field;
mod log;
mod message;
mod parameter;
mod problem;

use serde_json::{Map, Value as Json, json};

use crate::config::Config;
use crate::prior;
use crate::sampler::{self, Ask, Judgement, Pick, Prior, Sampler};
use crate::trial::Origin;

pub(crate) use error::ProtocolError;
use field::Place;
use log::Log;
use message::{MessageHead, MessageKind, QuestionMessage, TellMessage};
pub(crate) use problem::Problem;

/// What a line leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nothing,
    /// One line for the caller, without its end.
    Line(String),
    /// The caller has said that it is done.
    End,
}

/// What the twin believes of the space, where there is a context, and what is to be said of it.
fn believed(problem: &Problem, seed: u64) -> (Vec<Prior>, Vec<String>) {
    let Some(context) = &problem.context else { return (Vec::new(), Vec::new()) };
    match prior::of_context(context, &problem.space, &problem.aim, &|config| problem.allows(config), seed) {
        Ok(belief) => (vec![belief.prior], belief.notes),
        Err(error) => (Vec::new(), vec![format!("the twin says nothing: {error}")]),
    }
}

/// One run: a space, then questions and answers.
pub(crate) struct Session {
    sampler: &'static dyn Sampler,
    seed: Option<u64>,
    run: Option<Run>,
}

struct Run {
    problem: Problem,
    seed: u64,
    /// What the context leads to expect.
    priors: Vec<Prior>,
    log: Log,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let told = self.run.as_ref().map(|run| run.log.history().len());
        f.debug_struct("Session").field("sampler", &self.sampler.name()).field("history", &told).finish_non_exhaustive()
    }
}

impl Session {
    /// A session before its space. `seed` goes before the one that the caller sends.
    #[must_use]
    pub(crate) fn new(sampler: &'static dyn Sampler, seed: Option<u64>) -> Self {
        Self { sampler, seed, run: None }
    }

    /// Follows one line, with or without its end. Empty lines mean nothing.
    ///
    /// # Errors
    /// When it is not UTF-8, not JSON or not understood. The session is then as it was before.
    pub(crate) fn feed(&mut self, line: &[u8]) -> Result<Reply, ProtocolError> {
        if line.trim_ascii().is_empty() {
            return Ok(Reply::Nothing);
        }
        let json = field::parse(line)?;
        let line = Place::line();
        let MessageHead { kind } = line.read(&json)?;
        match line.required("type", kind)? {
            MessageKind::Space => self.begin(&json),
            MessageKind::Ask => self.ask(&line.read(&json)?),
            MessageKind::Tell => self.tell(&line.read(&json)?),
            MessageKind::Judge => self.judge(&line.read(&json)?),
            MessageKind::Explain => self.explain(&line.read(&json)?),
            MessageKind::End => Ok(Reply::End),
        }
    }

    fn begin(&mut self, message: &Json) -> Result<Reply, ProtocolError> {
        if self.run.is_some() {
            return Err(ProtocolError::OutOfTurn { message: "space", when: "for the second time" });
        }
        let problem = Problem::read(message)?;
        let seed = self.seed.unwrap_or(problem.seed);
        let (priors, notes) = believed(&problem, seed);
        self.run = Some(Run { problem, seed, priors, log: Log::default() });
        let name = format!("setpoint {}, {}", env!("CARGO_PKG_VERSION"), self.sampler.name());
        let mut ready = json!({"type": "ready", "name": name});
        if !notes.is_empty() {
            ready["notes"] = notes.into();
        }
        Ok(line(&ready))
    }

    fn ask(&mut self, QuestionMessage { id }: &QuestionMessage) -> Result<Reply, ProtocolError> {
        let run = self.run.as_mut().ok_or(ProtocolError::OutOfTurn { message: "ask", when: "before a space" })?;
        run.log.check_new(id)?;
        let Some(suggestion) = run.question(|ask| self.sampler.ask(ask)) else {
            let message = exhausted::reason(&run.problem, run.log.history(), run.seed);
            return Ok(line(&json!({"type": "error", "id": id, "message": message})));
        };
        let reply = line(&json!({"type": "config", "id": id, "config": suggestion.config, "why": suggestion.why}));
        run.log.ask(id, Origin::Sampler(self.sampler.name().into()), suggestion.config);
        Ok(reply)
    }

    fn tell(&mut self, message: &TellMessage) -> Result<Reply, ProtocolError> {
        let run = self.run.as_mut().ok_or(ProtocolError::OutOfTurn { message: "tell", when: "before a space" })?;
        run.log.tell(message, &run.problem)?;
        Ok(Reply::Nothing)
    }

    fn judge(&self, QuestionMessage { id }: &QuestionMessage) -> Result<Reply, ProtocolError> {
        let run = self.run.as_ref().ok_or(ProtocolError::OutOfTurn { message: "judge", when: "before a space" })?;
        let judgement = run.question(|ask| self.sampler.judge(ask));
        let Judgement { pick, front, remaining, next_gain, notes, .. } = judgement.unwrap_or_default();
        let mut answer = json!({
            "type": "judgement", "id": id, "pick": pick.map(|pick| run.describe(&pick)),
            "remaining": remaining, "next_gain": next_gain, "notes": notes,
        });
        if run.problem.aim.objectives.len() > 1 {
            answer["front"] = front.iter().map(|pick| run.describe(pick)).collect();
        }
        Ok(line(&answer))
    }

    fn explain(&self, QuestionMessage { id }: &QuestionMessage) -> Result<Reply, ProtocolError> {
        let run = self.run.as_ref().ok_or(ProtocolError::OutOfTurn { message: "explain", when: "before a space" })?;
        let explanation = run.question(|ask| sampler::explain(self.sampler, ask));
        let about = explanation.map_or_else(Vec::new, |explanation| explanation.about);
        Ok(line(&json!({"type": "explanation", "id": id, "about": about})))
    }
}

impl Run {
    /// Puts a question over everything that is known so far.
    fn question<T>(&self, put: impl FnOnce(&Ask<'_>) -> T) -> T {
        let nothing = Config::new();
        let allowed = |config: &Config| self.problem.allows(config);
        let question = Ask::new(&self.problem.space, &self.problem.aim, self.log.history(), self.seed, &allowed);
        put(&Ask {
            defaults: self.problem.context.as_ref().map_or(&nothing, |context| &context.defaults),
            priors: &self.priors,
            left: self.problem.budget.map(|trials| trials.saturating_sub(self.log.asked())),
            ..question
        })
    }

    fn describe(&self, pick: &Pick) -> Json {
        let by_name = |number: fn(&(f64, f64)) -> f64| -> Map<String, Json> {
            let targets = self.problem.aim.objectives.iter().zip(&pick.values);
            targets.map(|(target, value)| (target.name.clone(), json!(value.as_ref().map(number)))).collect()
        };
        json!({
            "config": self.log.history().get(pick.place).map(|past| &past.config), "values": by_name(|(value, _)| *value),
            "deviations": by_name(|(_, deviation)| *deviation), "feasible": pick.feasible,
        })
    }
}

fn line(json: &Json) -> Reply {
    Reply::Line(json.to_string())
}

#[cfg(test)]
mod tests;
