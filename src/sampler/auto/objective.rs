//! The unit of an objective's modelled values: 0.01 is a small difference and larger is better, for any unit and sign
//! of the objective.

use crate::objective::Goal;

/// The transformation of one objective's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ObjectiveUnit {
    goal: Goal,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Every value is positive. Logarithms make differences relative.
    Positive,
    /// Every value is negative. The logarithms are those of the absolute values.
    Negative,
    /// Some values are 0, or they have both signs. The differences are in this unit.
    Mixed(f64),
}

impl ObjectiveUnit {
    /// Chooses the form by all measured and predicted values.
    pub(super) fn new(goal: Goal, values: Vec<f64>) -> Self {
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

    /// Returns the modelled value; larger is better.
    pub(super) fn modelled(self, value: f64) -> f64 {
        self.sign()
            * match self.form {
                Form::Positive => libm::log(value),
                Form::Negative => -libm::log(-value),
                Form::Mixed(unit) => value / unit,
            }
    }

    /// Inverts `modelled`.
    pub(super) fn value(self, modelled: f64) -> f64 {
        let modelled = self.sign() * modelled;
        match self.form {
            Form::Positive => libm::exp(modelled),
            Form::Negative => -libm::exp(-modelled),
            Form::Mixed(unit) => modelled * unit,
        }
    }

    /// Returns a standard deviation as modelled, given as a share of the value.
    pub(super) fn modelled_deviation(self, share: f64, value: f64) -> f64 {
        match self.form {
            Form::Positive | Form::Negative => share,
            Form::Mixed(unit) => share * (value / unit).abs(),
        }
    }

    /// Returns a modelled standard deviation as a share of the value that is modelled as `level`, or of the unit if
    /// that is larger.
    pub(super) fn deviation(self, deviation: f64, level: f64) -> f64 {
        match self.form {
            Form::Positive | Form::Negative => deviation,
            Form::Mixed(_) => deviation / level.abs().max(1.0),
        }
    }

    /// Returns a modelled gain over the modelled value `level` as a share of that value. If smaller sizes are better,
    /// the largest share is 1. With values of both signs it is a share of the unit if the unit is larger than the
    /// value.
    pub(super) fn share(self, gain: f64, level: f64) -> f64 {
        match (self.form, self.goal) {
            (Form::Positive, Goal::Maximize) | (Form::Negative, Goal::Minimize) => libm::expm1(gain),
            (Form::Positive, Goal::Minimize) | (Form::Negative, Goal::Maximize) => -libm::expm1(-gain),
            (Form::Mixed(_), _) => gain / level.abs().max(1.0),
        }
    }
}

/// Returns the interquartile range of the values. If it is 0, returns their whole range, or else their size. The result
/// is rounded down to a power of two, so that one more value seldom changes it.
fn usual_difference(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    // Symmetric, so that negated values give the same result.
    let between = |left_out: usize| values[last - left_out] - values[left_out];
    let differences = [between(last / 4), between(0), values[0].abs()];
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
    fn larger_modelled_values_are_better_and_the_transformation_is_invertible() {
        for goal in [Goal::Maximize, Goal::Minimize] {
            for values in [[3.0, 20.0, 7000.0], [-9000.0, -30.0, -0.5], [-4.0, 0.0, 1000.0], [0.0, 0.0, 3.0]] {
                let unit = ObjectiveUnit::new(goal, values.into());
                let modelled = values.map(|value| unit.modelled(value));
                let is_better = |a: usize, b: usize| modelled[a] >= modelled[b] && values[a] >= values[b];
                assert!(
                    if goal == Goal::Maximize { is_better(2, 0) } else { modelled[0] >= modelled[2] },
                    "{values:?}"
                );
                assert!(values.iter().zip(modelled).all(|(value, modelled)| close(unit.value(modelled), *value)));
            }
        }
    }

    #[test]
    fn a_gain_is_a_share_of_the_value() {
        for (goal, level, better, share) in [
            (Goal::Maximize, 100.0, 130.0, 0.3),
            (Goal::Minimize, 100.0, 70.0, 0.3),
            (Goal::Maximize, -100.0, -70.0, 0.3),
            (Goal::Minimize, -100.0, -130.0, 0.3),
        ] {
            for more in [vec![], vec![0.0, 0.9 * level, 1.1 * level]] {
                let unit = ObjectiveUnit::new(goal, [level, better].into_iter().chain(more).collect());
                let [from, to] = [level, better].map(|value| unit.modelled(value));
                let found = unit.share(to - from, from);
                assert!(close(found, share), "{goal:?} {level}: {found}");
            }
        }
        let latency = ObjectiveUnit::new(Goal::Minimize, vec![100.0]);
        // A count of preemptions that is 0 cannot fall further. Its gain is a share of the unit, because a share of 0
        // is infinite.
        let count = ObjectiveUnit::new(Goal::Minimize, vec![0.0, 8.0, 4.0, 0.0, 8.0]);
        assert!(close(count.share(0.5, count.modelled(0.0)), 0.5) && close(count.deviation(0.5, 0.0), 0.5));
        assert!(latency.share(50.0, latency.modelled(100.0)) <= 1.0, "a latency cannot fall by more than all of it");
    }

    #[test]
    fn the_unit_of_values_of_both_signs_is_their_usual_difference() {
        let scaled = |by: f64| {
            let unit = ObjectiveUnit::new(Goal::Maximize, [-3.0, 1.0, 2.0, 5.0, 9.0].map(|value| by * value).into());
            unit.modelled(by * 5.0) - unit.modelled(by)
        };
        assert!(close(scaled(1.0), scaled(1024.0)) && (0.5..2.0).contains(&scaled(1.0)), "{}", scaled(1.0));
        assert!((0.5..2.0).contains(&scaled(1e-7)));
        assert!(close(ObjectiveUnit::new(Goal::Maximize, vec![0.0, 0.0]).modelled(3.0), 3.0));
        let mixed = ObjectiveUnit::new(Goal::Maximize, vec![-4.0, 0.0, 4.0, 8.0]);
        assert!(close(mixed.modelled(8.0), 1.0), "the unit is 8: {mixed:?}");
        assert!(close(mixed.modelled_deviation(0.1, 40.0), 0.5) && close(mixed.deviation(1.0, 10.0), 0.1));
        // Negated values have the same unit, and it is a power of two.
        for values in [vec![-4.0, 0.0, 1000.0], vec![-4.0, 0.0, 1000.0, 1003.0], vec![-3.0, 1.0, 2.0, 5.0, 9.0]] {
            let [one, other] = [1.0, -1.0].map(|sign| {
                let values = values.iter().map(|value| sign * value).collect();
                ObjectiveUnit::new(Goal::Maximize, values).modelled(1.0)
            });
            assert!(close(one, other) && close(libm::log2(one), libm::round(libm::log2(one))), "{one} and {other}");
        }
    }
}
