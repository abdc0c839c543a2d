//! Arrival instants of sessions, a pure function of the arrival, the seed and the number of sessions.
//!
//! All arrivals share one renewal process with gaps of mean 1. `N(t)` is the expected number of sessions by the time
//! `t`. A session at the position `u` of the renewal process arrives at the `t` with `N(t) = u`. The process therefore
//! advances faster while the rate is higher (Cinlar, Introduction to Stochastic Processes, 1975, section 4.7).
//!
//! ```text
//! a constant rate r            N(t) = r t                                t = u / r
//! a ramp from a to b over T    N(t) = a t + (b - a) t^2 / (2 T)          t = 2 u / (a + sqrt(a^2 + 2 u (b - a) / T))
//!                              and N(T) + b (t - T) after it             t = T + (u - N(T)) / b
//! ```
//!
//! Gaps are drawn from a gamma distribution of shape `burstiness` and mean 1. A shape of 1 is a Poisson process, a
//! smaller one has bursts, and an infinite one has constant gaps. As in `vllm bench serve` (`get_request` in
//! vllm/benchmarks/serve.py), the first session comes after the first gap. If the number `n` of sessions is known and
//! the rate is constant, the instants are stretched so that the last is due at `n / rate`. Runs with different seeds
//! then offer the same rate.

use std::iter;
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Gamma};

use super::ArrivalPattern;
use crate::stats::to_f64;

/// Stream of the random number generator for arrivals. Workloads number their streams from 0, by session.
const STREAM: u64 = u64::MAX;

/// A parameter of an arrival outside of its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} must be {limit}, not {actual}")]
pub struct ArrivalError {
    pub name: &'static str,
    pub limit: &'static str,
    pub actual: f64,
}

impl ArrivalPattern {
    /// Checks every number of the arrival.
    ///
    /// # Errors
    /// If a rate, a burstiness or a factor is outside of its range. The error names the first such parameter.
    pub fn check(&self) -> Result<(), ArrivalError> {
        const POSITIVE: &str = "finite and above 0";
        let positive = |name, actual: f64| {
            let fits = actual > 0.0 && actual.is_finite();
            if fits { Ok(()) } else { Err(ArrivalError { name, limit: POSITIVE, actual }) }
        };
        let shape = |actual: f64| {
            let fits = actual > 0.0;
            if fits { Ok(()) } else { Err(ArrivalError { name: "burstiness", limit: "above 0", actual }) }
        };
        match *self {
            Self::Closed | Self::AtOnce => Ok(()),
            Self::Rate { per_s, burstiness } => positive("the rate", per_s).and(shape(burstiness)),
            Self::Ramp { from_per_s, to_per_s, burstiness, .. } => {
                if !(from_per_s >= 0.0 && from_per_s.is_finite()) {
                    let limit = "finite and at least 0";
                    return Err(ArrivalError { name: "the rate at the start of the ramp", limit, actual: from_per_s });
                }
                positive("the rate at the end of the ramp", to_per_s).and(shape(burstiness))
            }
            Self::Trace { factor } => positive("the time factor", factor),
        }
    }
}

/// Returns the instants at which sessions are due, ascending, counted from the window's start. The iterator ends only
/// if `sessions` is given. Equal arguments give equal instants.
///
/// The iterator is empty for [`ArrivalPattern::Closed`] and [`ArrivalPattern::Trace`]. Their instants come from the
/// replies and from the workload. It is also empty for numbers that [`ArrivalPattern::check`] rejects.
pub fn instants(arrival: &ArrivalPattern, seed: u64, sessions: Option<u64>) -> impl Iterator<Item = Duration> + use<> {
    let arrival = if arrival.check().is_ok() { arrival.clone() } else { ArrivalPattern::Closed };
    let (burstiness, stretch) = match (&arrival, sessions) {
        (ArrivalPattern::Rate { burstiness, .. }, Some(sessions)) => {
            (*burstiness, stretch(*burstiness, seed, sessions))
        }
        (ArrivalPattern::Rate { burstiness, .. } | ArrivalPattern::Ramp { burstiness, .. }, _) => (*burstiness, 1.0),
        _ => (f64::INFINITY, 1.0),
    };
    let instants = renewals(burstiness, seed).map_while(move |place| match arrival {
        ArrivalPattern::AtOnce => Some(Duration::ZERO),
        ArrivalPattern::Rate { per_s, .. } => Some(duration(place * stretch / per_s)),
        ArrivalPattern::Ramp { from_per_s, to_per_s, over, .. } => {
            Some(duration(ramp(place, from_per_s, to_per_s, over.as_secs_f64())))
        }
        ArrivalPattern::Closed | ArrivalPattern::Trace { .. } => None,
    });
    instants.take(sessions.map_or(usize::MAX, |sessions| usize::try_from(sessions).unwrap_or(usize::MAX)))
}

/// Returns the event positions of a renewal process with gamma-distributed gaps of shape `burstiness` and mean 1.
fn renewals(burstiness: f64, seed: u64) -> impl Iterator<Item = f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(STREAM);
    // An infinite shape has no gamma distribution. Its gaps are constant.
    let gaps = Gamma::new(burstiness, 1.0 / burstiness).ok().filter(|_| burstiness.is_finite());
    let mut place = 0.0;
    iter::repeat_with(move || {
        place += gaps.map_or(1.0, |gaps| gaps.sample(&mut rng));
        place
    })
}

/// Returns the factor that moves the last of `sessions` sessions to its expected position.
fn stretch(burstiness: f64, seed: u64, sessions: u64) -> f64 {
    let last = usize::try_from(sessions).ok().and_then(|n| renewals(burstiness, seed).nth(n.checked_sub(1)?));
    let expected = to_f64(sessions);
    match last {
        Some(last) if last > 0.0 => expected / last,
        _ => 1.0,
    }
}

/// Returns the time in seconds at which a ramp has reached `place` sessions.
fn ramp(place: f64, from: f64, to: f64, over: f64) -> f64 {
    let whole = f64::midpoint(from, to) * over;
    if place >= whole {
        return over + (place - whole) / to;
    }
    // This form avoids the usual formula's difference of two nearly equal numbers.
    2.0 * place / (from + (from * from + 2.0 * place * (to - from) / over).max(0.0).sqrt())
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::f64_to_usize;

    fn seconds(arrival: &ArrivalPattern, seed: u64, sessions: Option<u64>, n: usize) -> Vec<f64> {
        instants(arrival, seed, sessions).take(n).map(|at| at.as_secs_f64()).collect()
    }

    fn gaps(at: &[f64]) -> Vec<f64> {
        let before = iter::once(0.0).chain(at.iter().copied());
        at.iter().zip(before).map(|(at, before)| at - before).collect()
    }

    /// Returns the largest distance between the sample's distribution function and `cdf`, times the square root of the
    /// sample's size. It exceeds 1.63 in one case of a hundred (Kolmogorov).
    fn distance(mut sample: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
        sample.sort_by(f64::total_cmp);
        let n = f64::from(u32::try_from(sample.len()).unwrap());
        let steps = sample.iter().zip(0_u32..).map(|(x, i)| {
            let at = cdf(*x);
            (at - f64::from(i) / n).abs().max((f64::from(i + 1) / n - at).abs())
        });
        steps.fold(0.0, f64::max) * n.sqrt()
    }

    /// Returns the distribution function of a gamma distribution of mean 1, by the series of the incomplete gamma
    /// function.
    fn gamma_cdf(shape: f64, x: f64) -> f64 {
        let x = x * shape;
        if x <= 0.0 {
            return 0.0;
        }
        let (mut term, mut sum, mut k) = (1.0 / shape, 1.0 / shape, shape);
        while term > sum * 1e-15 {
            k += 1.0;
            term *= x / k;
            sum += term;
        }
        (sum.ln() + shape * x.ln() - x - libm::lgamma(shape)).exp().min(1.0)
    }

    #[test]
    fn gaps_follow_their_gamma_distribution_whatever_the_seed() {
        for (shape, seed) in [(1.0, 1), (1.0, 2), (0.25, 3), (0.5, 4), (4.0, 5), (30.0, 6)] {
            let gaps = gaps(&seconds(&ArrivalPattern::Rate { per_s: 8.0, burstiness: shape }, seed, None, 5000));
            let gaps: Vec<f64> = gaps.iter().map(|gap| gap * 8.0).collect();
            let own = distance(gaps.clone(), |x| gamma_cdf(shape, x));
            assert!(own < 1.63, "shape {shape}, seed {seed}: {own}");
            let other = distance(gaps, |x| gamma_cdf(shape * 1.5, x));
            assert!(other > 1.63, "shape {shape}, seed {seed} looks like {} as well: {other}", shape * 1.5);
        }
        let poisson = gaps(&seconds(&ArrivalPattern::Rate { per_s: 1.0, burstiness: 1.0 }, 9, None, 5000));
        assert!(distance(poisson, |x| 1.0 - (-x).exp()) < 1.63);
    }

    #[test]
    fn the_dispersion_of_counts_follows_the_burstiness() {
        for (shape, expected) in [(0.25, 4.0), (1.0, 1.0), (4.0, 0.25)] {
            let at = seconds(&ArrivalPattern::Rate { per_s: 10.0, burstiness: shape }, 11, None, 60_000);
            // In intervals of 100 expected sessions, the index of dispersion is near its limit, the squared coefficient
            // of variation of the gaps.
            let mut counts = vec![0.0_f64; 500];
            for at in at {
                if let Some(count) = counts.get_mut(f64_to_usize(at / 10.0)) {
                    *count += 1.0;
                }
            }
            let mean = counts.iter().sum::<f64>() / 500.0;
            let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 499.0;
            let index = variance / mean;
            assert!((mean - 100.0).abs() < 3.0, "shape {shape}: {mean}");
            assert!((index / expected - 1.0).abs() < 0.25, "shape {shape}: {index}");
        }
    }

    #[test]
    fn an_infinite_burstiness_has_constant_gaps() {
        let arrival = ArrivalPattern::Rate { per_s: 4.0, burstiness: f64::INFINITY };
        assert_eq!(seconds(&arrival, 1, None, 4), [0.25, 0.5, 0.75, 1.0]);
        assert_eq!(seconds(&arrival, 2, Some(4), 9), [0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn a_known_number_of_sessions_ends_at_its_time() {
        for (sessions, burstiness) in [(1, 1.0), (200, 1.0), (1000, 0.3)] {
            let arrival = ArrivalPattern::Rate { per_s: 16.0, burstiness };
            let at = seconds(&arrival, 3, Some(sessions), usize::MAX);
            let n = f64::from(u32::try_from(sessions).unwrap());
            assert_eq!(at.len() as u64, sessions);
            assert!(at.is_sorted() && (at[at.len() - 1] - n / 16.0).abs() < 1e-6, "{:?}", at.last());
            // The instants are those without a known number, stretched.
            let free = seconds(&arrival, 3, None, at.len());
            let factor = at[at.len() - 1] / free[at.len() - 1];
            assert!(at.iter().zip(&free).all(|(at, free)| (at - free * factor).abs() < 1e-6));
        }
        assert_eq!(instants(&ArrivalPattern::Rate { per_s: 1.0, burstiness: 1.0 }, 3, Some(0)).count(), 0);
    }

    #[test]
    fn the_sessions_of_a_ramp_follow_its_integral() {
        let ramp = |from_per_s, to_per_s, over| ArrivalPattern::Ramp {
            from_per_s,
            to_per_s,
            over: Duration::from_secs(over),
            burstiness: f64::INFINITY,
        };
        for (from, to) in [(2.0, 10.0), (10.0, 2.0), (0.0, 8.0), (5.0, 5.0)] {
            let at = seconds(&ramp(from, to, 20), 0, Some(300), usize::MAX);
            for (at, place) in at.iter().zip(1_u32..) {
                let within = at.min(20.0);
                let asked = from * within + (to - from) * within * within / 40.0 + to * (at - within);
                assert!((asked - f64::from(place)).abs() < 1e-6, "{from} to {to}: {asked} at {at}, not {place}");
            }
        }
        assert_eq!(seconds(&ramp(3.0, 4.0, 0), 0, None, 2), [0.25, 0.5]);
    }

    #[test]
    fn the_seed_decides_the_instants_and_nothing_else_does() {
        let arrival = ArrivalPattern::Rate { per_s: 1.0, burstiness: 1.0 };
        let literal = [2_582_833_832, 3_338_768_282, 5_140_047_313].map(Duration::from_nanos);
        let first: Vec<_> = instants(&arrival, 42, None).take(3).collect();
        assert_eq!(first, literal);
        assert_ne!(first, instants(&arrival, 43, None).take(3).collect::<Vec<_>>());
        let twice: Vec<_> = instants(&ArrivalPattern::Rate { per_s: 2.0, burstiness: 1.0 }, 42, None).take(3).collect();
        assert!(
            twice.iter().zip(&first).all(|(twice, first)| (*twice * 2).abs_diff(*first) < Duration::from_micros(1))
        );
    }

    #[test]
    fn at_once_is_now_and_the_drivers_own_arrivals_have_no_instants_here() {
        assert_eq!(seconds(&ArrivalPattern::AtOnce, 0, Some(3), 9), [0.0; 3]);
        assert_eq!(instants(&ArrivalPattern::Closed, 0, Some(3)).count(), 0);
        assert_eq!(instants(&ArrivalPattern::Trace { factor: 1.0 }, 0, Some(3)).count(), 0);
    }

    #[test]
    fn numbers_that_give_no_instants_are_named() {
        let rate = |per_s, burstiness| ArrivalPattern::Rate { per_s, burstiness };
        let message = |arrival: &ArrivalPattern| arrival.check().unwrap_err().to_string();
        assert_eq!(message(&rate(0.0, 1.0)), "the rate must be finite and above 0, not 0");
        assert_eq!(message(&rate(f64::INFINITY, 1.0)), "the rate must be finite and above 0, not inf");
        assert_eq!(message(&rate(1.0, f64::NAN)), "burstiness must be above 0, not NaN");
        assert_eq!(
            message(&ArrivalPattern::Trace { factor: -1.0 }),
            "the time factor must be finite and above 0, not -1"
        );
        let ramp =
            |from_per_s, to_per_s| ArrivalPattern::Ramp { from_per_s, to_per_s, over: Duration::ZERO, burstiness: 1.0 };
        assert!(message(&ramp(-1.0, 1.0)).contains("start of the ramp must be finite and at least 0"));
        assert!(message(&ramp(0.0, 0.0)).contains("the end of the ramp"));
        for fits in [rate(1.0, f64::INFINITY), ramp(0.0, 1.0), ArrivalPattern::AtOnce, ArrivalPattern::Closed] {
            assert_eq!(fits.check(), Ok(()));
        }
        assert_eq!(instants(&rate(0.0, 1.0), 0, Some(3)).count(), 0);
    }
}
