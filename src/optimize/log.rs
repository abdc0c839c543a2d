//! What was asked for and told in one run.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::error::ProtocolError;
use super::field::Fields;
use super::parameter::read_config;
use super::problem::Problem;
use crate::config::Config;
use crate::sampler::{Known, Measured, Past, Reading};
use crate::trial::Origin;

/// Every proposal with what came of it. Whatever happens takes the same time, however long it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    history: Vec<Past>,
    /// Where the newest question of each identifier stands in the history.
    places: HashMap<String, usize>,
    asked: u32,
}

impl Log {
    pub(super) fn history(&self) -> &[Past] {
        &self.history
    }

    /// How many were asked for.
    pub(super) fn asked(&self) -> u32 {
        self.asked
    }

    /// # Errors
    /// When this question has been asked and what came of it has not been told: nobody could tell the two apart.
    pub(super) fn check_new(&self, id: &Json) -> Result<(), ProtocolError> {
        let known = self.places.get(&id.to_string()).map(|place| &self.history[*place].known);
        match known {
            Some(Known::Pending) => {
                Err(ProtocolError::unusable("id", id, "that of a configuration that is still pending"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn ask(&mut self, id: &Json, origin: Origin, config: Config) {
        self.places.insert(id.to_string(), self.history.len());
        self.asked = self.asked.saturating_add(1);
        self.append(origin, config, Known::Pending, None);
    }

    fn append(&mut self, origin: Origin, config: Config, known: Known, cost: Option<f64>) {
        self.history.push(Past { cost, ..Past::new(origin, config, known) });
    }

    /// Keeps a `tell`. What was told of a pending configuration is its outcome, with the configuration that was told where
    /// that is another one. All else is one more measurement.
    ///
    /// # Errors
    /// Names what of the message cannot be used.
    pub(super) fn tell(&mut self, message: &Fields<'_>, problem: &Problem) -> Result<(), ProtocolError> {
        let known = read_outcome(message, problem)?;
        let cost = message.amount("cost")?;
        let id = message.raw("id").to_string();
        let place = self.places.get(&id).copied();
        let config = match (message.get("config"), place) {
            (Some(json), _) => read_config(&problem.space, json)?,
            (None, Some(place)) => self.history[place].config.clone(),
            (None, None) => return Err(ProtocolError::Missing { place: "config".to_owned() }),
        };
        let pending = place.filter(|place| matches!(self.history[*place].known, Known::Pending));
        if let Some(place) = pending {
            let past = &mut self.history[place];
            (past.config, past.known, past.cost) = (config, known, cost);
        } else {
            self.places.entry(id).or_insert(self.history.len());
            self.append(Origin::Caller, config, known, cost);
        }
        Ok(())
    }
}

fn read_outcome(message: &Fields<'_>, problem: &Problem) -> Result<Known, ProtocolError> {
    let status = message.required("status", message.text("status")?)?;
    match status {
        "failed" => Ok(Known::Failed),
        "ok" | "infeasible" => {
            let objectives: Vec<_> = problem.aim.objectives.iter().map(|target| &target.name).collect();
            let constraints: Vec<_> = problem.aim.constraints.iter().collect();
            let mut values = read_readings(message, "values", &objectives)?;
            let mut excesses = read_readings(message, "constraints", &constraints)?;
            if status == "infeasible" && !excesses.iter().any(|excess| excess.value > 0.0) {
                let problem = "the status of a trial with a constraint above 0, and no finite number above 0 was told of one: \
                               tell what was measured of it, \"ok\" where all are kept, or \"failed\" where nothing was \
                               measured";
                return Err(ProtocolError::unusable("status", message.raw("status"), problem));
            }
            if let Some(deviations) = message.fields("deviations")? {
                if let Some((other, json)) =
                    deviations.iter().find(|(other, _)| !["values", "constraints"].contains(&other.as_str()))
                {
                    return Err(ProtocolError::unusable(
                        deviations.place(other),
                        json,
                        "of no known name; there are values and constraints",
                    ));
                }
                read_deviations(&deviations, "values", &objectives, &mut values)?;
                read_deviations(&deviations, "constraints", &constraints, &mut excesses)?;
            }
            Ok(Known::Measured(Measured { values, excesses }))
        }
        _ => Err(message.unfit("status", "one of ok, infeasible, failed")),
    }
}

/// A reading for each of these names; what is absent, null or not finite was not measured. Other names are nobody's business,
/// but where one of these is missing they are a misspelling of it.
fn read_readings(message: &Fields<'_>, key: &str, names: &[&String]) -> Result<Vec<Reading>, ProtocolError> {
    let Some(fields) = message.fields(key)? else { return Ok(vec![Reading::exact(f64::NAN); names.len()]) };
    let given = |name: &str| fields.iter().any(|(other, _)| other == name);
    if let Some(missing) = names.iter().find(|name| !given(name))
        && let Some((other, json)) = fields.iter().find(|(other, _)| !names.contains(other))
    {
        let problem = format!("no known name, while {missing:?} is missing");
        return Err(ProtocolError::unusable(fields.place(other), json, problem));
    }
    let read = |name: &&String| match fields.raw(name) {
        Json::Null => Ok(f64::NAN),
        Json::String(text) if ["NaN", "Infinity", "-Infinity"].contains(&text.as_str()) => Ok(f64::NAN),
        Json::Number(number) => Ok(number.as_f64().unwrap_or(f64::NAN)),
        _ => Err(fields.unfit(name, "a number")),
    };
    names.iter().map(|name| read(name).map(Reading::exact)).collect()
}

/// How well each of these is known, where that is told.
fn read_deviations(
    deviations: &Fields<'_>,
    key: &str,
    names: &[&String],
    readings: &mut [Reading],
) -> Result<(), ProtocolError> {
    let Some(fields) = deviations.fields(key)? else { return Ok(()) };
    if let Some((other, json)) = fields.iter().find(|(other, _)| !names.contains(other)) {
        return Err(ProtocolError::unusable(fields.place(other), json, "of no known name"));
    }
    for (name, reading) in names.iter().zip(readings) {
        reading.deviation = fields.amount(name)?;
    }
    Ok(())
}
