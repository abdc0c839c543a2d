//! The units of the modelled values of objectives and constraints.

use super::limit_unit::LimitUnit;
use super::objective::ObjectiveUnit;
use crate::sampler::{MeasuredNumbers, NumberReading, ObjectiveTarget, SamplerAsk, SamplerPrior};

/// The units of a question's modelled numbers. Those of objectives are computed from all measured and predicted values,
/// those of constraints from the measured ones only.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Units {
    pub(super) objectives: Vec<ObjectiveUnit>,
    pub(super) limits: Vec<LimitUnit>,
}

impl Units {
    pub(super) fn of(ask: &SamplerAsk<'_>) -> Self {
        let measured: Vec<&MeasuredNumbers> = ask.history.iter().filter_map(|past| past.outcome.measured()).collect();
        let points = ask.priors.iter().flat_map(SamplerPrior::points);
        let predicted: Vec<&MeasuredNumbers> = points.filter_map(|(_, known)| known.measured()).collect();
        let objective = |(index, target): (usize, &ObjectiveTarget)| {
            let of = |known: &[&MeasuredNumbers]| finite(known, |measured| measured.values.get(index));
            ObjectiveUnit::new(target.goal, [of(&measured), of(&predicted)].concat())
        };
        // A wrong prior's predictions for a constraint must not make the measured excesses small.
        let limit = |index: usize| LimitUnit::new(finite(&measured, |measured| measured.excesses.get(index)));
        Self {
            objectives: ask.aim.objectives.iter().enumerate().map(objective).collect(),
            limits: (0..ask.aim.constraints.len()).map(limit).collect(),
        }
    }
}

/// Returns the finite values of some readings.
fn finite(known: &[&MeasuredNumbers], reading: impl Fn(&MeasuredNumbers) -> Option<&NumberReading>) -> Vec<f64> {
    let values = known.iter().filter_map(|measured| reading(measured)).map(|reading| reading.value);
    values.filter(|value| value.is_finite()).collect()
}
