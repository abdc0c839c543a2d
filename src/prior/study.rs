//! Measurements of an earlier study as a prior of another one.

use crate::config::{Config, Value};
use crate::sampler::{KnownOutcome, NumberReading, SamplerPrior};
use crate::space::{Domain, Space};

/// Additional deviation of a trial for each flag that only one of the two studies sets, as a share. The engine's
/// default in the other study is mostly, but not always, equal to that value.
const UNSTATED_DEVIATION: f64 = 0.1;

/// Converts the trials of an earlier study to points of this space.
///
/// A trial is left out if it is not a point of the space:
///
/// - A parameter has a value beyond its range.
/// - A flag that the space fixes had another value.
/// - A flag that is not set here differed from trial to trial.
///
/// If only one of the two studies sets a flag, the trial counts, with 10 % more deviation (in quadrature) for each such
/// flag. Parameters that the trial did not set stay unset. Inactive parameters are removed.
#[must_use]
pub fn study_prior(name: &str, trials: &[(Config, KnownOutcome)], space: &Space) -> SamplerPrior {
    let differs = |flag: &str| trials.iter().any(|(config, _)| config.get(flag) != trials[0].0.get(flag));
    let point = |(config, known): &(Config, KnownOutcome)| {
        let parameter = |flag: &str| space.parameters.iter().find(|parameter| parameter.name == flag);
        let mut unstated = 0;
        for (flag, value) in config.iter() {
            match (parameter(flag), space.fixed.get(flag)) {
                (Some(parameter), _) if !holds(&parameter.domain, value) => return None,
                (None, Some(fixed)) if !is_equal(fixed, value) => return None,
                (Some(_), _) | (None, Some(_)) => {}
                (None, None) if differs(flag) => return None,
                (None, None) => unstated += 1,
            }
        }
        unstated += space.fixed.iter().filter(|(flag, _)| config.get(flag).is_none()).count();
        let here = space.assemble(|index| config.get(&space.parameters[index].name).cloned());
        Some((here, widen_deviation(known, unstated)?))
    };
    SamplerPrior::new(format!("study {name}"), trials.iter().filter_map(point).collect())
}

/// Returns the outcome with a larger deviation. `None` if the configuration was neither measured nor failed.
fn widen_deviation(known: &KnownOutcome, unstated: usize) -> Option<KnownOutcome> {
    let mut measured = match known {
        KnownOutcome::Measured(measured) => measured.clone(),
        KnownOutcome::Failed => return Some(KnownOutcome::Failed),
        KnownOutcome::Pending | KnownOutcome::Inconclusive | KnownOutcome::Rejected => return None,
    };
    let more: f64 = (0..unstated).map(|_| UNSTATED_DEVIATION * UNSTATED_DEVIATION).sum::<f64>().sqrt();
    let doubt = |reading: &mut NumberReading| {
        if unstated > 0 {
            reading.deviation = Some(libm::hypot(reading.deviation.unwrap_or(0.0), more));
        }
    };
    measured.values.iter_mut().for_each(doubt);
    measured.excesses.iter_mut().for_each(doubt);
    Some(KnownOutcome::Measured(measured))
}

/// Returns whether a parameter may have this value, on or off its grid.
pub(super) fn holds(domain: &Domain, value: &Value) -> bool {
    match domain {
        Domain::Bool => value.as_bool().is_some(),
        Domain::Categorical(values) => values.iter().any(|choice| is_equal(choice, value)),
        Domain::Int { low, high, .. } => value.as_i64().is_some_and(|value| (*low..=*high).contains(&value)),
        Domain::Float { low, high, .. } => value.as_f64().is_some_and(|value| (*low..=*high).contains(&value)),
    }
}

/// Compares values as the engine reads them: 1 equals 1.0.
fn is_equal(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| a.total_cmp(&b).is_eq())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::MeasuredNumbers;
    use crate::space::{Condition, IntScale, Parameter};

    fn space() -> Space {
        let parameter =
            |name: &str, domain, when| Parameter { name: name.to_owned(), domain, conditions: when, help: None };
        let when = vec![Condition { parameter: "a".to_owned(), values: vec![Value::Bool(true)] }];
        Space {
            parameters: vec![
                parameter("a", Domain::Bool, vec![]),
                parameter("b", Domain::int(1, 8, IntScale::Linear, 1), when),
            ],
            fixed: Config::new().with("c", 1_i64),
        }
    }

    fn measured(value: f64) -> KnownOutcome {
        KnownOutcome::Measured(MeasuredNumbers { values: vec![NumberReading::exact(value)], excesses: Vec::new() })
    }

    fn deviation(known: &KnownOutcome) -> Option<f64> {
        let KnownOutcome::Measured(measured) = known else { panic!("{known:?}") };
        measured.values[0].deviation
    }

    #[test]
    fn trials_of_the_same_space_are_taken_as_they_are() {
        let config = Config::new().with("a", true).with("b", 3_i64).with("c", 1_i64);
        let trials = [(config.clone(), measured(5.0)), (config.clone().with("b", 4_i64), KnownOutcome::Failed)];
        let prior = study_prior("earlier", &trials, &space());
        assert_eq!((prior.name.as_str(), prior.points()), ("study earlier", &trials[..]));
    }

    #[test]
    fn trials_outside_of_the_space_are_left_out() {
        let config = Config::new().with("a", true).with("b", 3_i64).with("c", 1_i64);
        for other in [
            config.clone().with("b", 9_i64),
            config.clone().with("a", 1_i64),
            config.clone().with("c", 2_i64),
            config.clone().with("d", 7_i64),
        ] {
            let trials = [(config.clone(), measured(5.0)), (other.clone(), measured(6.0))];
            assert_eq!(study_prior("earlier", &trials, &space()).points().len(), 1, "{other}");
        }
        let none = [(config.clone(), KnownOutcome::Pending), (config, KnownOutcome::Rejected)];
        assert!(study_prior("earlier", &none, &space()).points().is_empty());
        assert!(study_prior("earlier", &[], &space()).points().is_empty());
    }

    #[test]
    fn a_flag_that_only_one_study_states_makes_a_trial_less_certain() {
        let bare = Config::new().with("a", false).with("b", 3_i64);
        let prior = study_prior("earlier", &[(bare.clone(), measured(5.0))], &space());
        let (config, known) = &prior.points()[0];
        assert_eq!(config, &Config::new().with("a", false).with("c", 1_i64), "b is inactive, c is fixed here");
        assert_eq!(deviation(known), Some(0.1));
        let more = bare.with("e", true);
        let prior = study_prior("earlier", &[(more, measured(5.0))], &space());
        assert!((deviation(&prior.points()[0].1).unwrap() - 0.02_f64.sqrt()).abs() < 1e-12);
    }
}
