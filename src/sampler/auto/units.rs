//! The units in which objectives and limits are modelled.

use super::limit::LimitUnit;
use super::measure::Measure;
use crate::sampler::{Ask, Known, Measured, Prior, Reading, Target};

/// Those of a question, by all that is known or believed in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Units {
    pub(super) objectives: Vec<Measure>,
    pub(super) limits: Vec<LimitUnit>,
}

impl Units {
    pub(super) fn of(ask: &Ask<'_>) -> Self {
        let believed = ask.priors.iter().flat_map(Prior::points).map(|(_, known)| known);
        let known = ask.history.iter().map(|past| &past.known).chain(believed);
        let measured: Vec<&Measured> = known.filter_map(Known::measured).collect();
        let finite = |readings: &dyn Fn(&Measured) -> Option<Reading>| -> Vec<f64> {
            let values = measured.iter().filter_map(|measured| readings(measured)).map(|reading| reading.value);
            values.filter(|value| value.is_finite()).collect()
        };
        let objective = |(index, target): (usize, &Target)| {
            Measure::new(target.goal, finite(&|measured| measured.values.get(index).copied()))
        };
        let limit = |index: usize| LimitUnit::new(finite(&|measured| measured.excesses.get(index).copied()));
        Self {
            objectives: ask.aim.objectives.iter().enumerate().map(objective).collect(),
            limits: (0..ask.aim.constraints.len()).map(limit).collect(),
        }
    }
}
