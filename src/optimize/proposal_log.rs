//! The asks and outcomes of one run.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::error::ProtocolError;
use super::field::FieldPlace;
use super::message::{MessageDeviations, TellMessage, TrialStatus};
use super::parameter::read_config;
use super::problem::OptimizeProblem;
use crate::config::Config;
use crate::sampler::{KnownOutcome, MeasuredNumbers, NumberReading, PastTrial};
use crate::trial::Origin;

/// Every proposal with its outcome. The time of an operation does not depend on the number of proposals.
#[derive(Clone, Debug, Default)]
pub(super) struct ProposalLog {
    history: Vec<PastTrial>,
    /// For each identifier, the index in the history of its newest ask. Without an ask it is the first outcome.
    index_by_id: HashMap<String, usize>,
    /// Number of asks.
    ask_count: u32,
}

impl ProposalLog {
    pub(super) fn history(&self) -> &[PastTrial] {
        &self.history
    }

    /// Returns the number of asks.
    pub(super) fn ask_count(&self) -> u32 {
        self.ask_count
    }

    /// Checks that the identifier has no open ask.
    ///
    /// # Errors
    /// If it has one: a later outcome could belong to either.
    pub(super) fn check_new(&self, id: &Json) -> Result<(), ProtocolError> {
        let known = self.index_by_id.get(&id.to_string()).map(|place| &self.history[*place].outcome);
        match known {
            Some(KnownOutcome::Pending) => {
                Err(ProtocolError::unusable("id", id, "a configuration with this id is still pending"))
            }
            _ => Ok(()),
        }
    }

    /// Stores a proposal as pending.
    pub(super) fn ask(&mut self, id: &Json, origin: Origin, config: Config) {
        self.index_by_id.insert(id.to_string(), self.history.len());
        self.ask_count = self.ask_count.saturating_add(1);
        self.append(origin, config, KnownOutcome::Pending, None);
    }

    fn append(&mut self, origin: Origin, config: Config, known: KnownOutcome, cost: Option<f64>) {
        self.history.push(PastTrial { cost, ..PastTrial::new(origin, config, known) });
    }

    /// Stores a `tell`. If the identifier is pending, the message is that trial's outcome and may replace its
    /// configuration. Otherwise it is stored as an additional measurement.
    ///
    /// # Errors
    /// If a part of the message cannot be used; the error names it.
    pub(super) fn tell(&mut self, message: &TellMessage, problem: &OptimizeProblem) -> Result<(), ProtocolError> {
        let known = read_outcome(message, problem)?;
        let cost = message.cost;
        let id = message.id.to_string();
        let place = self.index_by_id.get(&id).copied();
        let config = match (&message.config, place) {
            (Json::Null, Some(place)) => self.history[place].config.clone(),
            (json, _) if !json.is_null() => read_config(&problem.space, json)?,
            _ => return Err(ProtocolError::Missing { place: "config".to_owned() }),
        };
        let pending = place.filter(|place| matches!(self.history[*place].outcome, KnownOutcome::Pending));
        if let Some(place) = pending {
            let past = &mut self.history[place];
            (past.config, past.outcome, past.cost) = (config, known, cost);
        } else {
            self.index_by_id.entry(id).or_insert(self.history.len());
            self.append(Origin::Caller, config, known, cost);
        }
        Ok(())
    }
}

fn read_outcome(message: &TellMessage, problem: &OptimizeProblem) -> Result<KnownOutcome, ProtocolError> {
    let status = FieldPlace::line().required("status", message.status)?;
    if let TrialStatus::Failed = status {
        return Ok(KnownOutcome::Failed);
    }
    let objectives: Vec<_> = problem.aim.objectives.iter().map(|target| &target.name).collect();
    let constraints: Vec<_> = problem.aim.constraints.iter().collect();
    let mut values = read_readings(&message.values, "values", &objectives)?;
    let mut excesses = read_readings(&message.constraints, "constraints", &constraints)?;
    if matches!(status, TrialStatus::Infeasible) && !excesses.iter().any(|excess| excess.value > 0.0) {
        let problem = "no constraint has a finite value above 0; send the measured values, \"ok\" if all constraints \
                       are kept, or \"failed\" if nothing was measured";
        return Err(ProtocolError::unusable("status", &"infeasible".into(), problem));
    }
    if !message.deviations.is_null() {
        let place = FieldPlace::object("deviations");
        let deviations = place.fields(&message.deviations)?;
        for (key, json) in deviations {
            match key.as_str() {
                "values" => read_deviations(json, &place.inner(key), &objectives, &mut values)?,
                "constraints" => read_deviations(json, &place.inner(key), &constraints, &mut excesses)?,
                _ => {
                    let problem = "unknown name; known are values and constraints";
                    return Err(ProtocolError::unusable(place.field(key), json, problem));
                }
            }
        }
    }
    Ok(KnownOutcome::Measured(MeasuredNumbers { values, excesses }))
}

/// Reads a number for each of these names. A number that is absent, null or not finite was not measured. Other names
/// are ignored, unless one of these is missing: another name is then an error, as a probable misspelling.
fn read_readings(json: &Json, key: &str, names: &[&String]) -> Result<Vec<NumberReading>, ProtocolError> {
    if json.is_null() {
        return Ok(vec![NumberReading::exact(f64::NAN); names.len()]);
    }
    let place = FieldPlace::object(key);
    let fields = place.fields(json)?;
    if let Some(missing) = names.iter().find(|name| !fields.contains_key(**name))
        && let Some((other, json)) = fields.iter().find(|(other, _)| !names.contains(other))
    {
        let problem = format!("unknown name, and {missing:?} is missing");
        return Err(ProtocolError::unusable(place.field(other), json, problem));
    }
    let read = |name: &&String| match fields.get(*name) {
        None | Some(Json::Null) => Ok(f64::NAN),
        Some(Json::String(text)) if ["NaN", "Infinity", "-Infinity"].contains(&text.as_str()) => Ok(f64::NAN),
        Some(Json::Number(number)) => Ok(number.as_f64().unwrap_or(f64::NAN)),
        Some(other) => Err(place.unexpected(name, other, "a number")),
    };
    names.iter().map(|name| read(name).map(NumberReading::exact)).collect()
}

/// Reads the standard deviations of the readings, as far as the message contains them.
fn read_deviations(
    json: &Json,
    place: &FieldPlace,
    names: &[&String],
    readings: &mut [NumberReading],
) -> Result<(), ProtocolError> {
    if json.is_null() {
        return Ok(());
    }
    if let Some((other, json)) = place.fields(json)?.iter().find(|(other, _)| !names.contains(other)) {
        return Err(ProtocolError::unusable(place.field(other), json, "unknown name"));
    }
    let deviations: MessageDeviations = place.read(json)?;
    for (name, reading) in names.iter().zip(readings) {
        reading.deviation = deviations.0.get(*name).copied();
    }
    Ok(())
}
