//! The problem of a caller: the `space` message.

use std::num::NonZeroU32;

use serde_json::Value as Json;

use super::constraint::KnownConstraint;
use super::error::ProtocolError;
use super::field::FieldPlace;
use super::message::{ConstraintItem, NamedItem, ObjectiveDirection, ObjectiveItem, SpaceMessage};
use super::parameter::read_space;
use crate::config::Config;
use crate::objective::Goal;
use crate::prior::OptimizeContext;
use crate::sampler::{ObjectiveTarget, SearchAim};
use crate::space::Space;

/// The version of the protocol.
const PROTOCOL: u64 = 1;

/// The only value that a constraint's `feasible` may have, apart from white space.
const FEASIBLE: &str = "<=0";

/// A caller's problem: all input of the sampler except the measurements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OptimizeProblem {
    pub space: Space,
    pub aim: SearchAim,
    /// Constraints that are decided without a measurement.
    pub known_constraints: Vec<KnownConstraint>,
    /// Total number of asks, if it is known.
    pub budget: Option<u32>,
    /// 0 if the caller sends none.
    pub seed: u64,
    pub context: Option<OptimizeContext>,
}

impl OptimizeProblem {
    /// Reads a `space` message.
    ///
    /// # Errors
    /// If a field cannot be used; the error names it and its value.
    pub(super) fn read(json: &Json) -> Result<Self, ProtocolError> {
        let line = FieldPlace::line();
        let message: SpaceMessage = line.read(json)?;
        if let Some(version) = message.protocol.filter(|version| *version != PROTOCOL) {
            return Err(line.unexpected("protocol", &version.into(), PROTOCOL.to_string()));
        }
        let space = read_space(&line.required("params", message.params)?)?;
        let known = message.known_constraints.unwrap_or_default();
        let known = known.iter().enumerate().map(|(index, json)| {
            KnownConstraint::read(json, &FieldPlace::object(format!("known_constraints[{index}]")), &space.parameters)
        });
        Ok(Self {
            known_constraints: known.collect::<Result<_, _>>()?,
            aim: read_aim(message.objectives, &message.constraints.unwrap_or_default())?,
            budget: message.budget.map(NonZeroU32::get),
            seed: message.seed.unwrap_or(0),
            context: message.context,
            space,
        })
    }

    /// Returns whether a configuration keeps every known constraint.
    #[must_use]
    pub(crate) fn allows(&self, config: &Config) -> bool {
        self.known_constraints.iter().all(|constraint| constraint.holds(config))
    }
}

fn read_aim(objectives: Option<Vec<Json>>, constraints: &[Json]) -> Result<SearchAim, ProtocolError> {
    let mut aim = SearchAim::default();
    for ListItem { name, place, json } in named("objectives", objectives.as_deref().unwrap_or_default())? {
        let ObjectiveItem { direction } = place.read(json)?;
        let goal = match place.required("direction", direction)? {
            ObjectiveDirection::Maximize => Goal::Maximize,
            ObjectiveDirection::Minimize => Goal::Minimize,
        };
        aim.objectives.push(ObjectiveTarget { name, goal });
    }
    if aim.objectives.is_empty() {
        return Err(ProtocolError::unexpected("objectives", &objectives.into(), "a list with at least one objective"));
    }
    for ListItem { name, place, json } in named("constraints", constraints)? {
        let ConstraintItem { feasible } = place.read(json)?;
        if let Some(feasible) = feasible
            && feasible.chars().filter(|c| !c.is_whitespace()).ne(FEASIBLE.chars())
        {
            return Err(place.unexpected("feasible", &feasible.into(), format!("{FEASIBLE:?}")));
        }
        aim.constraints.push(name);
    }
    Ok(aim)
}

/// An item of a list.
struct ListItem<'j> {
    name: String,
    place: FieldPlace,
    json: &'j Json,
}

/// Reads the items of a list, each with a name that no other one has.
fn named<'j>(key: &str, list: &'j [Json]) -> Result<Vec<ListItem<'j>>, ProtocolError> {
    let mut items: Vec<ListItem<'_>> = Vec::new();
    for (index, json) in list.iter().enumerate() {
        let place = FieldPlace::object(format!("{key}[{index}]"));
        let NamedItem { name } = place.read(json)?;
        let name = place.required("name", name)?;
        if items.iter().any(|above| above.name == name) {
            return Err(ProtocolError::repeated(place.field("name"), &name.into()));
        }
        items.push(ListItem { name, place, json });
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(changes: &Json) -> Result<OptimizeProblem, String> {
        let mut message = json!({
            "type": "space", "protocol": 1, "problem": "chat", "params": [{"name": "a", "type": "int", "low": 1, "high": 9}],
            "objectives": [{"name": "throughput", "direction": "maximize"}, {"name": "ttft", "direction": "minimize"}],
            "constraints": [{"name": "ttft_p99", "feasible": "<=0", "scale": "ln(measured/limit)"}, {"name": "tpot"}],
            "known_constraints": [{"expr": "a >= 4"}], "budget": 60, "parallel": 4, "seed": 7,
            "context": {"model": {"parameters": 8e9}},
        });
        message.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        OptimizeProblem::read(&message).map_err(|error| error.to_string())
    }

    #[test]
    fn all_of_a_problem_is_read() {
        let problem = read(&json!({})).unwrap();
        let goals: Vec<_> = problem.aim.objectives.iter().map(|target| (target.name.as_str(), target.goal)).collect();
        assert_eq!(goals, [("throughput", Goal::Maximize), ("ttft", Goal::Minimize)]);
        assert_eq!(problem.aim.constraints, ["ttft_p99", "tpot"]);
        assert_eq!((problem.budget, problem.seed), (Some(60), 7));
        assert_eq!(problem.context.as_ref().unwrap().model.parameters, Some(8e9));
        let allowed = |a: i64| problem.allows(&Config::new().with("a", a));
        assert!(allowed(4) && !allowed(3));
    }

    #[test]
    fn optional_fields_may_be_absent_or_null() {
        let keys = ["protocol", "constraints", "known_constraints", "budget", "seed", "context"];
        let nulls: serde_json::Map<_, _> = keys.map(|key| (key.to_owned(), Json::Null)).into_iter().collect();
        let problem = read(&Json::Object(nulls)).unwrap();
        assert_eq!((problem.budget, problem.seed, problem.context), (None, 0, None));
        assert!(problem.aim.constraints.is_empty() && problem.known_constraints.is_empty());
    }

    #[test]
    fn a_wrong_problem_is_refused_with_name_and_value() {
        for (changes, expected) in [
            (json!({"protocol": 2}), "protocol is 2, expected 1"),
            (json!({"params": null}), "params is missing"),
            (json!({"params": {}}), "params is {}, expected a list"),
            (json!({"objectives": []}), "objectives is [], expected a list with at least one objective"),
            (json!({"objectives": [{"name": "x"}]}), "objectives[0].direction is missing"),
            (
                json!({"objectives": [{"name": "x", "direction": "up"}]}),
                "objectives[0].direction is \"up\", expected maximize or minimize",
            ),
            (json!({"constraints": [{"name": "x"}, {"name": "x"}]}), "constraints[1].name repeats \"x\""),
            (json!({"constraints": ["x"]}), "constraints[0] is \"x\", expected an object"),
            (
                json!({"constraints": [{"name": "x", "feasible": ">=0"}]}),
                "constraints[0].feasible is \">=0\", expected \"<=0\"",
            ),
            (
                json!({"known_constraints": [{"expr": "b > 1"}]}),
                "known_constraints[0].expr: \"b\" is neither a number nor a parameter in \"b > 1\"",
            ),
            (json!({"budget": 0}), "budget is 0, expected a whole number from 1 to 4294967295"),
            (json!({"seed": -1}), "seed is -1, expected a whole number from 0 to 18446744073709551615"),
            (json!({"context": 1}), "context is 1, expected an object"),
            (
                json!({"context": {"device": {"count": -1}}}),
                "context.device.count is -1, expected a whole number from 0 to 18446744073709551615",
            ),
        ] {
            assert_eq!(read(&changes).unwrap_err(), expected);
        }
    }
}
