//! The excess of a measured load over a set of limits.

use crate::objective::{Constraint, MetricLimit};
use crate::stats::to_f64;
use crate::trial::Measurement;

/// The logarithm of a value divided by its limit, positive beyond the limit, with its standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Excess {
    pub(super) value: f64,
    pub(super) deviation: f64,
}

/// Excesses beyond this, in either direction, contain no more information about the distance to the crossing.
const MAX_EXCESS: f64 = 4.0;

/// The deviation of a value without an interval, because its sample is small.
const UNKNOWN_DEVIATION: f64 = 0.1;

/// Half the width of a 95 % interval, in standard deviations.
const HALF_WIDTH: f64 = 1.96;

impl Excess {
    /// The excess of a load whose requests failed, or whose queue grows without end.
    pub(super) const FAILED: Self = Self { value: MAX_EXCESS, deviation: 0.0 };
}

/// Returns the largest excess over `limits`, and over the share of requests that must keep the limits of the goodput.
pub(super) fn excess(limits: &[Constraint], good_share: Option<f64>, measurement: &Measurement) -> Excess {
    if measurement.window.as_ref().is_some_and(|window| window.overloaded) {
        return Excess::FAILED;
    }
    let of_limits = limits.iter().map(|limit| of_limit(limit, measurement));
    let of_goodput = good_share.map(|share| of_goodput(share, measurement));
    of_limits.chain(of_goodput).max_by(|a, b| a.value.total_cmp(&b.value)).unwrap_or(Excess::FAILED)
}

fn of_limit(constraint: &Constraint, measurement: &Measurement) -> Excess {
    // An absent metric counts as a miss, because nothing else is safe.
    let Some(value) = measurement.metric(&constraint.metric) else { return Excess::FAILED };
    let (limit, sign) = match constraint.limit {
        MetricLimit::AtMost(limit) => (limit, 1.0),
        MetricLimit::AtLeast(limit) => (limit, -1.0),
    };
    let is_kept = constraint.violation(measurement) <= 0.0;
    let (log, scale) = if value > 0.0 && limit > 0.0 {
        (sign * libm::log(value / limit), value)
    } else {
        let scale = value.abs().max(limit.abs()).max(f64::MIN_POSITIVE);
        (sign * (value - limit) / scale, scale)
    };
    // Rounding must not decide.
    let log = if is_kept { log.min(0.0) } else { log.max(f64::MIN_POSITIVE) };
    let interval = measurement.confidence.get(&constraint.metric).copied().unwrap_or_default();
    let half = match (interval.low, interval.high) {
        (Some(low), Some(high)) => Some((high - low) / 2.0),
        (Some(low), None) => Some(value - low),
        (None, Some(high)) => Some(high - value),
        (None, None) => None,
    };
    let deviation = half.map_or(UNKNOWN_DEVIATION, |half| half.max(0.0) / HALF_WIDTH / scale.abs());
    Excess { value: log.clamp(-MAX_EXCESS, MAX_EXCESS), deviation: deviation.min(MAX_EXCESS) }
}

/// Returns the excess of the share of bad requests over the allowed one. Half a request is added to each side, so that
/// no share is 0.
fn of_goodput(share: f64, measurement: &Measurement) -> Excess {
    let Some(good) = measurement.good_requests else { return Excess::FAILED };
    let (all, bad) = (to_f64(measurement.completed), to_f64(measurement.completed.saturating_sub(good)));
    let (bad_share, allowed) = ((bad + 0.5) / (all + 1.0), (1.0 - share).max(0.5 / (all + 1.0)));
    let value = libm::log(bad_share / allowed);
    // Rounding must not decide.
    let is_kept = bad <= allowed * all + 1e-9;
    let value = if is_kept { value.min(0.0) } else { value.max(f64::MIN_POSITIVE) };
    let deviation = ((1.0 - bad_share) / (bad_share * (all + 1.0))).sqrt();
    Excess { value: value.clamp(-MAX_EXCESS, MAX_EXCESS), deviation: deviation.min(MAX_EXCESS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Distribution, Interval, MeasuredWindow};

    fn at_most(limit: f64) -> Constraint {
        Constraint { metric: "p95_ttft_ms".to_owned(), limit: MetricLimit::AtMost(limit) }
    }

    fn measured(p95: f64) -> Measurement {
        let interval = Interval { low: Some(p95 * 0.9), high: Some(p95 * 1.1) };
        Measurement {
            ttft_ms: Some(Distribution { p95, ..Distribution::default() }),
            confidence: [("p95_ttft_ms".to_owned(), interval)].into(),
            ..Measurement::default()
        }
    }

    #[test]
    fn the_excess_is_the_logarithm_with_its_deviation() {
        let excess = excess(&[at_most(100.0)], None, &measured(200.0));
        assert!((excess.value - 2.0_f64.ln()).abs() < 1e-12);
        assert!((excess.deviation - 0.1 / 1.96).abs() < 1e-12, "{excess:?}");
    }

    #[test]
    fn an_overloaded_server_and_an_absent_metric_exceed_every_limit() {
        let window = MeasuredWindow { overloaded: true, ..MeasuredWindow::default() };
        let overloaded = Measurement { window: Some(window), ..measured(1.0) };
        assert_eq!(excess(&[at_most(100.0)], None, &overloaded), Excess::FAILED);
        assert_eq!(excess(&[at_most(100.0)], None, &Measurement::default()), Excess::FAILED);
    }

    #[test]
    fn a_share_of_good_requests_is_a_limit() {
        let of = |good, completed| {
            let measurement = Measurement { good_requests: Some(good), completed, ..Measurement::default() };
            excess(&[], Some(0.9), &measurement)
        };
        assert!(of(100, 100).value < -1.0);
        assert!(of(90, 100).value <= 0.0 && of(90, 100).deviation > 0.2);
        assert!(of(70, 100).value > 1.0);
    }
}
