//! Knowledge of a device's speed, and its uncertainty.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::LaunchNoise;
use crate::twin::{Calibration, Factors, TermFactor};

/// The factors that are the host's work rather than the device's: launching kernels, preparing steps, the front end.
const HOST: [TermFactor; 3] = [TermFactor::Launch, TermFactor::Host, TermFactor::Frontend];

/// A calibration, as far as it applies to the device in question.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    calibration: &'a Calibration,
    /// Whether the device differs from the observed one.
    elsewhere: bool,
    /// The noise between launches, if ranges are to contain it.
    noise: Option<&'a LaunchNoise>,
}

impl<'a> Knowledge<'a> {
    /// Creates the knowledge of the observed device.
    #[must_use]
    pub fn here(calibration: &'a Calibration) -> Self {
        Self { calibration, elsewhere: false, noise: None }
    }

    /// Creates the knowledge of another device in the same host. The device's own factors return to the prior, with its
    /// whole uncertainty.
    #[must_use]
    pub fn elsewhere(calibration: &'a Calibration) -> Self {
        Self { calibration, elsewhere: true, noise: None }
    }

    /// Widens the ranges by the noise between launches.
    #[must_use]
    pub fn with_noise(self, noise: Option<&'a LaunchNoise>) -> Self {
        Self { noise, ..self }
    }

    pub(super) fn noise(&self) -> Option<&'a LaunchNoise> {
        self.noise
    }

    /// Returns whether anything was observed of the device itself.
    #[must_use]
    pub fn is_calibrated(&self) -> bool {
        !self.elsewhere && self.calibration.simulations > 0
    }

    pub(super) fn central(&self) -> Factors {
        self.mixed(&Calibration::none().factors, &self.calibration.factors)
    }

    /// Draws factors from their uncertainty.
    pub(super) fn draw(&self, number: u64) -> Factors {
        // The prior gets another seed. With an equal one, both draws would use the same normal numbers.
        self.mixed(&Calibration::none().draw(!number), &self.calibration.draw(number))
    }

    /// Draws factors of another launch. The noise between launches makes all of its steps faster or slower.
    pub(super) fn launch(&self, number: u64) -> Factors {
        let mut factors = self.draw(number);
        if let Some(noise) = self.noise {
            let mut rng = ChaCha8Rng::seed_from_u64(number);
            rng.set_stream(1);
            let normal: f64 = StandardNormal.sample(&mut rng);
            let slowness = libm::exp(noise.deviation("mean_tpot_ms").0 * normal);
            for factor in TermFactor::ALL {
                factors[factor] *= slowness;
            }
        }
        factors
    }

    /// Returns the factors of a machine on which everything takes longer than expected, by two standard deviations.
    pub(super) fn slow(&self) -> Factors {
        let prior = Calibration::none();
        let spread = self.mixed(&prior.spread, &self.calibration.spread);
        let mut factors = self.central();
        for factor in TermFactor::ALL {
            factors[factor] *= libm::exp(2.0 * spread[factor]);
        }
        factors
    }

    fn mixed(&self, expected: &Factors, known: &Factors) -> Factors {
        let mut factors = *known;
        for factor in TermFactor::ALL {
            if self.elsewhere && !HOST.contains(&factor) {
                factors[factor] = expected[factor];
            }
        }
        factors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_device_keeps_what_is_known_of_the_host_only() {
        let mut calibration = Calibration::none();
        for factor in TermFactor::ALL {
            calibration.factors[factor] = 2.0;
        }
        let (here, elsewhere) = (Knowledge::here(&calibration), Knowledge::elsewhere(&calibration));
        assert_eq!(here.draw(3), calibration.draw(3));
        for factor in TermFactor::ALL {
            let expected = if HOST.contains(&factor) { 2.0 } else { 1.0 };
            assert!((elsewhere.central()[factor] - expected).abs() < 1e-12, "{factor:?}");
            assert!((here.central()[factor] - 2.0).abs() < 1e-12, "{factor:?}");
            assert!((elsewhere.draw(1)[factor] - elsewhere.draw(2)[factor]).abs() > 1e-12, "{factor:?}");
        }
        assert!(!here.is_calibrated() && !elsewhere.is_calibrated(), "nothing was observed");
    }
}
