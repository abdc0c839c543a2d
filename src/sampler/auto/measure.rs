//! The unit in which an objective is modelled: so that 0.01 is a small difference and larger is better, whatever its own unit
//! and sign.

use crate::objective::Goal;
use crate::sampler::{Ask, Prior};

/// How the values of one objective are modelled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measure {
    goal: Goal,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Every value is positive: logarithms, so that differences are relative.
    Positive,
    /// Every value is negative: the same of their sizes.
    Negative,
    /// Some are 0, or they have both signs: differences in units of this.
    Mixed(f64),
}

impl Measure {
    /// For each objective by all values that are known or believed.
    pub(super) fn all(ask: &Ask<'_>) -> Vec<Self> {
        let believed = ask.priors.iter().flat_map(Prior::points).map(|(_, known)| known);
        let known: Vec<_> = ask.history.iter().map(|past| &past.known).chain(believed).collect();
        let of = |index: usize, goal: Goal| {
            let readings = known.iter().filter_map(|known| known.measured()?.values.get(index));
            Self::new(goal, readings.map(|reading| reading.value).filter(|value| value.is_finite()))
        };
        ask.aim.objectives.iter().enumerate().map(|(index, target)| of(index, target.goal)).collect()
    }

    fn new(goal: Goal, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<_> = values.collect();
        let form = if values.iter().all(|value| *value > 0.0) {
            Form::Positive
        } else if values.iter().all(|value| *value < 0.0) {
            Form::Negative
        } else {
            Form::Mixed(usual_difference(values))
        };
        Self { goal, form }
    }

    fn sign(self) -> f64 {
        if self.goal == Goal::Maximize { 1.0 } else { -1.0 }
    }

    /// A value as it is modelled; larger is better.
    pub(super) fn modelled(self, value: f64) -> f64 {
        self.sign()
            * match self.form {
                Form::Positive => libm::log(value),
                Form::Negative => -libm::log(-value),
                Form::Mixed(unit) => value / unit,
            }
    }

    /// What is modelled as this.
    pub(super) fn value(self, modelled: f64) -> f64 {
        let modelled = self.sign() * modelled;
        match self.form {
            Form::Positive => libm::exp(modelled),
            Form::Negative => -libm::exp(-modelled),
            Form::Mixed(unit) => modelled * unit,
        }
    }

    /// A standard deviation that is a share of the value, as it is modelled.
    pub(super) fn modelled_deviation(self, share: f64, value: f64) -> f64 {
        match self.form {
            Form::Positive | Form::Negative => share,
            Form::Mixed(unit) => share * (value / unit).abs(),
        }
    }

    /// A modelled standard deviation as a share of the value that is modelled as `level`.
    pub(super) fn deviation(self, deviation: f64, level: f64) -> f64 {
        match self.form {
            Form::Positive | Form::Negative => deviation,
            Form::Mixed(_) => deviation / level.abs().max(f64::MIN_POSITIVE),
        }
    }

    /// A modelled gain over what is modelled as `level`, as a share of its value. Where smaller sizes are better, all of it is
    /// the most that can be gained.
    pub(super) fn share(self, gain: f64, level: f64) -> f64 {
        match (self.form, self.goal) {
            (Form::Positive, Goal::Maximize) | (Form::Negative, Goal::Minimize) => libm::expm1(gain),
            (Form::Positive, Goal::Minimize) | (Form::Negative, Goal::Maximize) => -libm::expm1(-gain),
            (Form::Mixed(_), _) => gain / level.abs().max(f64::MIN_POSITIVE),
        }
    }
}

/// What the middle half of some values differs by, as a power of two, so that one more value seldom changes it; of values
/// that mostly do not differ what all of them do.
fn usual_difference(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |share: usize| values[(values.len() - 1) * share / 100];
    let differences = [at(75) - at(25), at(100) - at(0), at(0).abs()];
    let difference = differences.into_iter().find(|difference| *difference > 0.0 && difference.is_finite());
    difference.map_or(1.0, |difference| libm::exp2(libm::floor(libm::log2(difference)).clamp(-1000.0, 1000.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs().max(1.0)
    }

    #[test]
    fn larger_is_better_and_the_value_comes_back() {
        for goal in [Goal::Maximize, Goal::Minimize] {
            for values in [[3.0, 20.0, 7000.0], [-9000.0, -30.0, -0.5], [-4.0, 0.0, 1000.0], [0.0, 0.0, 3.0]] {
                let measure = Measure::new(goal, values.into_iter());
                let modelled = values.map(|value| measure.modelled(value));
                let is_better = |a: usize, b: usize| modelled[a] >= modelled[b] && values[a] >= values[b];
                assert!(
                    if goal == Goal::Maximize { is_better(2, 0) } else { modelled[0] >= modelled[2] },
                    "{values:?}"
                );
                assert!(values.iter().zip(modelled).all(|(value, modelled)| close(measure.value(modelled), *value)));
            }
        }
    }

    #[test]
    fn a_gain_is_told_as_a_share_of_the_value() {
        for (goal, level, better, share) in [
            (Goal::Maximize, 100.0, 130.0, 0.3),
            (Goal::Minimize, 100.0, 70.0, 0.3),
            (Goal::Maximize, -100.0, -70.0, 0.3),
            (Goal::Minimize, -100.0, -130.0, 0.3),
        ] {
            for more in [vec![], vec![0.0]] {
                let measure = Measure::new(goal, [level, better].into_iter().chain(more));
                let [from, to] = [level, better].map(|value| measure.modelled(value));
                let found = measure.share(to - from, from);
                assert!(close(found, share), "{goal:?} {level}: {found}");
            }
        }
        let latency = Measure::new(Goal::Minimize, [100.0].into_iter());
        assert!(latency.share(50.0, latency.modelled(100.0)) <= 1.0, "a latency cannot fall by more than all of it");
    }

    #[test]
    fn the_unit_of_values_of_both_signs_is_what_they_usually_differ_by() {
        let scaled = |by: f64| {
            let measure = Measure::new(Goal::Maximize, [-3.0, 1.0, 2.0, 5.0, 9.0].map(|value| by * value).into_iter());
            measure.modelled(by * 5.0) - measure.modelled(by)
        };
        assert!(close(scaled(1.0), scaled(1024.0)) && (0.5..2.0).contains(&scaled(1.0)), "{}", scaled(1.0));
        assert!((0.5..2.0).contains(&scaled(1e-7)));
        assert!(close(Measure::new(Goal::Maximize, [0.0, 0.0].into_iter()).modelled(3.0), 3.0));
    }
}
