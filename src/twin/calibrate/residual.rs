//! Residuals: scaled distances of simulated times from observed ones.

use super::replay::RequestTimes;
use crate::stats::to_f64;

/// Effective number of independent requests in a run. It is small, because requests wait for each other.
const EFFECTIVE_REQUESTS: f64 = 10.0;
/// Scale of the relative error of one request's time.
const REQUEST_SCALE: f64 = 0.05;
/// Scale of the relative error of a mean.
const MEAN_SCALE: f64 = 0.01;
/// Scale of the relative error of the number of steps. One more or one less step at the begin of each batch is random.
const STEPS_SCALE: f64 = 0.02;
/// Multiple of its scale beyond which the loss of an error grows linearly.
const HUBER: f64 = 2.0;
/// Uncertainty of a time as a share of the mean TPOT. The instant of a request's arrival within a step is random.
const ARRIVAL_PHASE_SHARE: f64 = 0.4;

/// TTFT, latency and TPOT of one request in seconds, simulated and observed. The TPOT is 0 if there is only one token.
pub(super) struct ResidualPair {
    simulated: [f64; 3],
    observed: [f64; 3],
}

const TPOT: usize = 2;

/// Logarithms of simulated over observed values, divided by their scales.
pub(super) struct Residuals {
    /// Errors of single requests.
    requests: Vec<f64>,
    /// Weight of each error in `requests`.
    weight: f64,
    /// Errors of the means, and of the number of steps if it is known.
    means: Vec<f64>,
}

impl ResidualPair {
    pub(super) fn new(output_len: u32, simulated: &RequestTimes, observed: &RequestTimes) -> Self {
        let numbers = |times: &RequestTimes| {
            let tpot = times.tpot(output_len).unwrap_or_default();
            [times.ttft, times.latency, tpot].map(|time| time.as_secs_f64())
        };
        Self { simulated: numbers(simulated), observed: numbers(observed) }
    }
}

impl Residuals {
    /// Computes the residuals of one run. `steps` contains the simulated and the observed number. `noise` multiplies
    /// every scale.
    pub(super) fn new(pairs: &[ResidualPair], steps: Option<[u64; 2]>, noise: f64) -> Self {
        let count = f64::from(u32::try_from(pairs.len()).unwrap_or(u32::MAX)).max(1.0);
        let simulated = |kind: usize| pairs.iter().map(|pair| pair.simulated[kind]).sum::<f64>() / count;
        let observed = |kind: usize| pairs.iter().map(|pair| pair.observed[kind]).sum::<f64>() / count;
        let phase = ARRIVAL_PHASE_SHARE * observed(TPOT);
        let compare = |simulated: f64, observed: f64, scale: f64, phase: f64| {
            if simulated > 0.0 && observed > 0.0 {
                (simulated / observed).ln() / scale.hypot(phase / observed) / noise
            } else {
                0.0
            }
        };
        // A TPOT is a mean over many steps, so the instant of arrival hardly affects it.
        let phase = |kind: usize| if kind == TPOT { 0.0 } else { phase };
        let each = |pair: &ResidualPair| {
            let of = |kind| compare(pair.simulated[kind], pair.observed[kind], REQUEST_SCALE, phase(kind));
            std::array::from_fn::<f64, 3, _>(of)
        };
        let mean = |kind| compare(simulated(kind), observed(kind), MEAN_SCALE, phase(kind) / count.sqrt());
        Self {
            requests: pairs.iter().flat_map(each).collect(),
            weight: EFFECTIVE_REQUESTS / count,
            means: std::array::from_fn::<f64, 3, _>(mean)
                .into_iter()
                .chain(steps.map(|steps| step_count_error(steps) / noise))
                .collect(),
        }
    }

    /// Returns the run's part of the loss.
    pub(super) fn loss(&self) -> f64 {
        let huber = |x: &f64| HUBER * HUBER * ((1.0 + (x / HUBER).powi(2)).sqrt() - 1.0);
        let means: f64 = self.means.iter().map(|mean| mean * mean / 2.0).sum();
        means + self.weight * self.requests.iter().map(huber).sum::<f64>()
    }

    /// Returns the weighted errors of requests and of means. Half the sum of their squares is approximately the loss.
    pub(super) fn weighted(&self) -> [Vec<f64>; 2] {
        let soft = |x: &f64| x * (self.weight / (1.0 + (x / HUBER).powi(2)).sqrt()).sqrt();
        [self.requests.iter().map(soft).collect(), self.means.clone()]
    }

    /// Returns the effective number of independent errors.
    pub(super) fn count(&self) -> f64 {
        if self.requests.is_empty() { 0.0 } else { 3.0 * EFFECTIVE_REQUESTS + to_f64(self.means.len() as u64) }
    }
}

/// Returns the error of the number of steps, in units of its scale.
fn step_count_error([simulated, observed]: [u64; 2]) -> f64 {
    if simulated == 0 || observed == 0 {
        return 0.0;
    }
    (to_f64(simulated) / to_f64(observed)).ln() / STEPS_SCALE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn residuals(scale: f64) -> Residuals {
        let pairs = (1..=20).map(|number| {
            let observed =
                RequestTimes { ttft: Duration::from_secs(50 + number), latency: Duration::from_secs(70 + number) };
            let simulated =
                RequestTimes { ttft: observed.ttft.mul_f64(scale), latency: observed.latency.mul_f64(scale) };
            ResidualPair::new(11, &simulated, &observed)
        });
        Residuals::new(&pairs.collect::<Vec<_>>(), None, 1.0)
    }

    #[test]
    fn equal_times_cost_nothing_and_faster_costs_as_much_as_slower() {
        assert!(residuals(1.0).loss().abs() < 1e-9);
        let (faster, slower) = (residuals(1.0 / 1.1).loss(), residuals(1.1).loss());
        assert!(slower > 50.0 && (faster / slower - 1.0).abs() < 1e-6, "{faster} {slower}");
    }

    #[test]
    fn steps_count_if_they_are_known() {
        let loss = |simulated| Residuals::new(&[], Some([simulated, 1000]), 1.0).loss();
        assert!(loss(1000).abs() < 1e-9 && (loss(1020) - 0.5).abs() < 0.02 && loss(900) > 10.0);
    }

    #[test]
    fn small_errors_are_weighted_as_the_loss_takes_them() {
        let residuals = residuals(1.003);
        let half_squares = residuals.weighted().concat().iter().map(|part| part * part / 2.0).sum::<f64>();
        assert!((half_squares / residuals.loss() - 1.0).abs() < 1e-3, "{half_squares} {}", residuals.loss());
    }
}
