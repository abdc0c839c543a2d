//! Conversion of outcomes for samplers: the objective and the excess over each limit, with their precision.
//!
//! ```text
//! value               as measured, or the joint value of several workloads; its deviation is relative
//! excess              ln(measured / limit) for `at_most`, its negative for `at_least`, if both are above 0
//!                     (measured - limit) / max(|measured|, |limit|) otherwise, 0 if both are 0
//! deviation           half the width of the metric's 95 % interval / 1.96, divided by the measured value
//!                     for an excess without a logarithm divided by max(|measured|, |limit|)
//! ```
//!
//! With several workloads an excess is that of the workload with the largest one.
//!
//! A metric that the window does not provide is not a number (`NaN`), and neither is its excess.

use crate::objective::{Constraint, MetricLimit, Objective, Score};
use crate::sampler::{KnownOutcome, MeasuredNumbers, NumberReading, PastTrial};
use crate::trial::{Measurement, Outcome, Trial, is_configuration_failure};

/// Half the width of a 95 % interval, in standard deviations of the normal distribution.
const HALF_WIDTH: f64 = 1.959_963_984_540_054;

/// Converts an outcome for samplers. A failure that the configuration did not cause becomes [`KnownOutcome::Inconclusive`]: the
/// configuration is not proposed again, and models ignore it.
fn known_outcome(objective: &Objective, outcome: &Outcome, value: Option<f64>, probe: Option<u32>) -> KnownOutcome {
    match outcome {
        Outcome::Rejected(_) => KnownOutcome::Rejected,
        Outcome::Failed(failure) if is_configuration_failure(failure.kind, probe) => KnownOutcome::Failed,
        Outcome::Failed(_) => KnownOutcome::Inconclusive,
        Outcome::Measured(measurement) => KnownOutcome::Measured(measured_numbers(objective, measurement, value)),
    }
}

/// Converts a trial with an outcome and its score for samplers. Its cost is its duration in seconds. A rejected trial has
/// none.
#[must_use]
pub fn past_trial(objective: &Objective, trial: Trial, score: Score) -> PastTrial {
    let cost = (!matches!(trial.outcome, Outcome::Rejected(_))).then_some(trial.elapsed_s);
    // The guard's violation belongs to no limit of the objective. Samplers learn it as a property of the configuration.
    let of_limits = objective.score_of(&trial.outcome, score.value());
    let known = if of_limits.is_feasible() && !score.is_feasible() {
        KnownOutcome::Failed
    } else {
        known_outcome(objective, &trial.outcome, score.value(), trial.probe)
    };
    PastTrial { outcome: known, cost, ..PastTrial::pending(trial.proposal) }
}

/// Returns the objective and the excesses of a measurement, or of a prediction in the form of a measurement. `value` is
/// that of the objective.
fn measured_numbers(objective: &Objective, measurement: &Measurement, value: Option<f64>) -> MeasuredNumbers {
    MeasuredNumbers {
        values: vec![NumberReading {
            value: value.unwrap_or(f64::NAN),
            deviation: objective_deviation(objective, measurement),
        }],
        excesses: objective.constraints.iter().map(|constraint| largest_excess(constraint, measurement)).collect(),
    }
}

/// Returns the standard deviation of the objective as a share of its value.
fn objective_deviation(objective: &Objective, measurement: &Measurement) -> Option<f64> {
    let of = |measurement: &Measurement| {
        deviation(measurement, &objective.metric, measurement.metric(&objective.metric).unwrap_or(f64::NAN))
    };
    match &objective.joint {
        None => of(measurement),
        Some(joint) => {
            let deviations: Vec<_> = measurement.workloads.iter().map(|part| of(&part.measurement)).collect();
            joint.deviation(&deviations)
        }
    }
}

/// Returns the excess over a limit, with several workloads the largest one. Not a number if one of them lacks the metric.
fn largest_excess(constraint: &Constraint, measurement: &Measurement) -> NumberReading {
    let excesses = measurement.workloads.iter().map(|part| excess(constraint, &part.measurement));
    let larger = |a: NumberReading, b: NumberReading| if b.value.is_nan() || b.value > a.value { b } else { a };
    excesses.reduce(larger).unwrap_or_else(|| excess(constraint, measurement))
}

fn excess(constraint: &Constraint, measurement: &Measurement) -> NumberReading {
    let Some(value) = measurement.metric(&constraint.metric) else { return NumberReading::exact(f64::NAN) };
    let (limit, sign) = match constraint.limit {
        MetricLimit::AtMost(limit) => (limit, 1.0),
        MetricLimit::AtLeast(limit) => (limit, -1.0),
    };
    let (over, scale) = if value > 0.0 && limit > 0.0 {
        (libm::log(value / limit), value)
    } else {
        let scale = value.abs().max(limit.abs());
        (if scale > 0.0 { (value - limit) / scale } else { 0.0 }, scale)
    };
    // Rounding must not decide: a kept constraint has an excess of at most 0.
    let over = sign * over;
    let is_kept = constraint.violation(measurement) <= 0.0;
    let over = if is_kept { over.min(0.0) } else { over.max(f64::MIN_POSITIVE) };
    NumberReading { value: over, deviation: deviation(measurement, &constraint.metric, scale) }
}

/// Returns the standard deviation of a metric as a share of `scale`. `None` if the window gives no interval, or one of
/// no width.
fn deviation(measurement: &Measurement, metric: &str, scale: f64) -> Option<f64> {
    let interval = measurement.confidence.get(metric)?;
    let deviation = (interval.high? - interval.low?) / (2.0 * HALF_WIDTH) / scale.abs();
    // Zero, from a few equal values, is no estimate of the deviation.
    (deviation.is_finite() && deviation > 0.0).then_some(deviation)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::objective::Goal;
    use crate::trial::{Failure, FailureKind, Interval, Rejection};

    fn objective(limit: MetricLimit) -> Objective {
        let constraints = vec![Constraint { metric: "tokens_bought".to_owned(), limit }];
        Objective {
            metric: "output_throughput".to_owned(),
            goal: Goal::Maximize,
            constraints,
            joint: None,
            price_per_hour: None,
            load_goal: None,
        }
    }

    /// Creates a measurement of 100 tokens per second, and of `tokens_bought` as the server reports it.
    fn measurement(bought: f64) -> Measurement {
        let mut measurement = Measurement { duration_s: 1.0, total_output_tokens: 100, ..Measurement::default() };
        measurement.server.insert("tokens_bought".to_owned(), bought);
        measurement
    }

    fn numbers(objective: &Objective, measurement: &Measurement) -> MeasuredNumbers {
        measured_numbers(objective, measurement, measurement.metric(&objective.metric))
    }

    fn excess_of(bought: f64, limit: MetricLimit) -> f64 {
        numbers(&objective(limit), &measurement(bought)).excesses[0].value
    }

    #[test]
    fn an_excess_is_a_logarithm_if_there_is_one() {
        assert!((excess_of(20.0, MetricLimit::AtMost(10.0)) - 2.0_f64.ln()).abs() < 1e-12);
        assert!((excess_of(20.0, MetricLimit::AtLeast(10.0)) + 2.0_f64.ln()).abs() < 1e-12);
        for (bought, limit, excess) in [
            (5.0, MetricLimit::AtMost(0.0), 1.0),
            (0.0, MetricLimit::AtMost(0.0), 0.0),
            (0.0, MetricLimit::AtMost(8.0), -1.0),
            (0.0, MetricLimit::AtLeast(8.0), 1.0),
        ] {
            assert!((excess_of(bought, limit) - excess).abs() < 1e-12, "{bought} {limit:?}");
        }
    }

    proptest! {
        #[test]
        fn an_excess_is_above_zero_exactly_if_the_limit_is_exceeded(
            bought in -1e3..1e3_f64, limit in -1e3..1e3_f64, steps in -3_i64..4, upper: bool,
        ) {
            // Sometimes a neighbouring number.
            let close = (0..steps.abs()).fold(limit, |x, _| if steps > 0 { x.next_up() } else { x.next_down() });
            for bought in [bought, close] {
                let limit = if upper { MetricLimit::AtMost(limit) } else { MetricLimit::AtLeast(limit) };
                let objective = objective(limit);
                let measurement = measurement(bought);
                let kept = objective.constraints[0].violation(&measurement) <= 0.0;
                let measured = numbers(&objective, &measurement);
                prop_assert_eq!(measured.is_feasible(), kept, "{:?} {}", limit, measured.excesses[0].value);
                prop_assert!(measured.excesses[0].value.is_finite());
            }
        }
    }

    #[test]
    fn intervals_become_standard_deviations() {
        let mut measurement = measurement(20.0);
        let around = |middle: f64, half: f64| Interval { low: Some(middle - half), high: Some(middle + half) };
        measurement.confidence.insert("output_throughput".to_owned(), around(100.0, HALF_WIDTH));
        measurement.confidence.insert("tokens_bought".to_owned(), around(20.0, 2.0 * HALF_WIDTH));
        let of = |limit| {
            let measured = numbers(&objective(limit), &measurement);
            (measured.values[0].deviation.unwrap(), measured.excesses[0].deviation.unwrap())
        };
        let (value, excess) = of(MetricLimit::AtMost(10.0));
        assert!((value - 0.01).abs() < 1e-6 && (excess - 0.1).abs() < 1e-6, "{value} {excess}");
        let (_, excess) = of(MetricLimit::AtMost(-40.0));
        assert!((excess - 0.05).abs() < 1e-6, "{excess}");
        let open = Interval { low: None, high: Some(7.0) };
        measurement.confidence.insert("output_throughput".to_owned(), open);
        measurement.confidence.insert("tokens_bought".to_owned(), around(20.0, 0.0));
        let measured = numbers(&objective(MetricLimit::AtMost(10.0)), &measurement);
        assert_eq!((measured.values[0].deviation, measured.excesses[0].deviation), (None, None));
    }

    #[test]
    fn a_missing_value_is_neither_a_number_nor_a_failure() {
        let mut measurement = measurement(1.0);
        measurement.server.clear();
        measurement.duration_s = 0.0;
        let measured = numbers(&objective(MetricLimit::AtMost(10.0)), &measurement);
        assert!(measured.values[0].value.is_nan() && measured.excesses[0].value.is_nan());
    }

    #[test]
    fn only_failures_of_the_configuration_itself_are_learnt_from() {
        let objective = objective(MetricLimit::AtMost(1.0));
        let known = |outcome: &Outcome| known_outcome(&objective, outcome, None, None);
        let failed = |kind| known(&Outcome::Failed(Failure { kind, message: String::new() }));
        for kind in [FailureKind::OutOfMemory, FailureKind::Crash, FailureKind::StartupTimeout, FailureKind::Hang] {
            assert_eq!(failed(kind), KnownOutcome::Failed, "{kind}");
        }
        for kind in [FailureKind::PortInUse, FailureKind::Killed, FailureKind::ClientBound, FailureKind::DeviceBusy] {
            assert_eq!(failed(kind), KnownOutcome::Inconclusive, "{kind}");
        }
        let rejection = Rejection { rule: "R1".to_owned(), message: String::new() };
        assert_eq!(known(&Outcome::Rejected(rejection)), KnownOutcome::Rejected);
    }
}
