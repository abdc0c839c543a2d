//! Support of the measurements for an expectation at one value of a parameter.
//!
//! A process that was fitted to a plateau predicts a plateau with certainty, even far from every measurement. The
//! variance of an expectation therefore has two further terms:
//!
//! ```text
//! m^2 / max(k, 1/2)      m^2: mean square error of held-out predictions, k: measurements at or near the value
//! (a / 1.64)^2           a: distance from the measured values, outside of their range
//! ```
//!
//! The distance of two positive numbers is the logarithm of their ratio, because a result may change in proportion to a
//! launch parameter. The throughput, for example, grows with the number of sequences while nothing else limits it. The
//! distance of other numbers is their difference as a share of the range, times `WHOLE_RANGE`. The distance of a choice
//! that was never measured is `UNMEASURED_DISTANCE`.

use crate::config::{Config, Value};
use crate::stats::to_f64;

/// 95th percentile of a normal distribution, in standard deviations.
pub(super) const PERCENTILE_95: f64 = 1.644_853_626_951_472;
const WHOLE_RANGE: f64 = 2.0;
const UNMEASURED_DISTANCE: f64 = 0.7;
/// Distance of two values below which their measurements are near each other.
const NEAR: f64 = 0.2;

/// The measurements of one number.
pub(super) struct Support<'a> {
    /// The configurations completed with the engine's defaults, one for each measurement.
    pub(super) configs: &'a [Config],
    /// Mean square error of held-out predictions.
    pub(super) squared_error: f64,
}

impl Support<'_> {
    /// Returns the variance to add to that of the model, as modelled, for a parameter at `value`. The ends of the
    /// parameter's range are the unit of differences.
    pub(super) fn variance(&self, parameter: &str, value: &Value, ends: (&Value, &Value)) -> f64 {
        let measured: Vec<_> = self.configs.iter().filter_map(|config| config.get(parameter)).collect();
        let width = ends.0.as_f64().zip(ends.1.as_f64()).map_or(1.0, |(low, high)| (high - low).abs());
        let distances = || measured.iter().map(|other| distance(value, other, width));
        let near = to_f64(distances().filter(|distance| *distance < NEAR).count());
        let is_inside = value.as_f64().is_some_and(|own| {
            let numbers = || measured.iter().filter_map(|other| other.as_f64());
            numbers().any(|other| other <= own) && numbers().any(|other| other >= own)
        });
        let away = if is_inside { 0.0 } else { distances().fold(f64::INFINITY, f64::min) };
        let away = if away.is_finite() { away } else { UNMEASURED_DISTANCE };
        self.squared_error / near.max(0.5) + (away / PERCENTILE_95) * (away / PERCENTILE_95)
    }
}

fn distance(one: &Value, other: &Value, width: f64) -> f64 {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) if one > 0.0 && other > 0.0 => libm::log(one / other).abs(),
        (Some(one), Some(other)) => WHOLE_RANGE * (one - other).abs() / width.max(f64::MIN_POSITIVE),
        _ if one == other => 0.0,
        _ => UNMEASURED_DISTANCE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variance_grows_with_the_distance_from_the_data_and_with_the_error_of_the_model() {
        let configs: Vec<_> = [16, 32, 256].map(|value| Config::new().with("seqs", i64::from(value))).into();
        let of = |missed: f64, value: i64| {
            let support = Support { configs: &configs, squared_error: missed };
            support.variance("seqs", &Value::Int(value), (&Value::Int(1), &Value::Int(256)))
        };
        let ratio = |value: i64| PERCENTILE_95 * of(0.0, value).sqrt();
        assert!((libm::exp(ratio(1)) - 16.0).abs() < 1e-9 && (libm::exp(ratio(8)) - 2.0).abs() < 1e-9);
        assert!(of(0.0, 64) < 1e-12, "between measured values the model decides");
        assert!((of(0.1, 32) - 0.1).abs() < 1e-12 && (of(0.1, 64) - 0.2).abs() < 1e-12);
        let backends = [Config::new().with("backend", "a"), Config::new().with("backend", "b")];
        let support = Support { configs: &backends, squared_error: 0.0 };
        let never =
            |name: &str| support.variance("backend", &Value::from(name), (&Value::from("a"), &Value::from("c")));
        assert!(never("a") < 1e-12 && never("c") > 0.1);
    }
}
