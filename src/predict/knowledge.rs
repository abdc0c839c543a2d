//! Factors on the step time of the device in question, and their uncertainty.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::LaunchNoise;
use crate::twin::{Calibration, Factors, TermFactor};

/// The factors that depend on the host and not on the device: launching kernels, preparing steps, the front end.
const HOST: [TermFactor; 3] = [TermFactor::Launch, TermFactor::Host, TermFactor::Frontend];

/// A calibration, as far as it applies to the device in question, and the noise between launches.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    calibration: &'a Calibration,
    /// Whether the device in question differs from the calibrated one.
    is_other_device: bool,
    /// The noise between launches, if the ranges should include it.
    noise: Option<&'a LaunchNoise>,
}

impl<'a> Knowledge<'a> {
    /// Creates it for the calibrated device.
    #[must_use]
    pub fn for_same_device(calibration: &'a Calibration) -> Self {
        Self { calibration, is_other_device: false, noise: None }
    }

    /// Creates it for another device in the same host. The factors of the device return to the prior with all of its
    /// uncertainty. Those of the host stay calibrated.
    #[must_use]
    pub fn for_other_device(calibration: &'a Calibration) -> Self {
        Self { calibration, is_other_device: true, noise: None }
    }

    /// Sets the noise between launches that widens the ranges.
    #[must_use]
    pub fn with_noise(self, noise: Option<&'a LaunchNoise>) -> Self {
        Self { noise, ..self }
    }

    pub(super) fn noise(&self) -> Option<&'a LaunchNoise> {
        self.noise
    }

    /// Returns whether the device itself was calibrated.
    #[must_use]
    pub fn is_calibrated(&self) -> bool {
        !self.is_other_device && self.calibration.simulations > 0
    }

    /// Returns the expected factors.
    pub(super) fn expected(&self) -> Factors {
        self.combine(&Calibration::none().factors, &self.calibration.factors)
    }

    /// Draws factors from their uncertainty. Equal numbers give equal factors.
    pub(super) fn draw(&self, number: u64) -> Factors {
        // The prior gets another seed. With an equal one, both draws would use the same random numbers.
        self.combine(&Calibration::none().draw(!number), &self.calibration.draw(number))
    }

    /// Draws factors of another launch. The noise between launches multiplies all of them by one number.
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

    /// Returns factors that are all two standard deviations above their expected values.
    pub(super) fn slow_factors(&self) -> Factors {
        let prior = Calibration::none();
        let spread = self.combine(&prior.spread, &self.calibration.spread);
        let mut factors = self.expected();
        for factor in TermFactor::ALL {
            factors[factor] *= libm::exp(2.0 * spread[factor]);
        }
        factors
    }

    /// Returns `known`, but with the device's factors from `expected` if the device is another one.
    fn combine(&self, expected: &Factors, known: &Factors) -> Factors {
        let mut factors = *known;
        for factor in TermFactor::ALL {
            if self.is_other_device && !HOST.contains(&factor) {
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
    fn another_device_keeps_only_the_factors_of_the_host() {
        let mut calibration = Calibration::none();
        for factor in TermFactor::ALL {
            calibration.factors[factor] = 2.0;
        }
        let (here, elsewhere) = (Knowledge::for_same_device(&calibration), Knowledge::for_other_device(&calibration));
        assert_eq!(here.draw(3), calibration.draw(3));
        for factor in TermFactor::ALL {
            let expected = if HOST.contains(&factor) { 2.0 } else { 1.0 };
            assert!((elsewhere.expected()[factor] - expected).abs() < 1e-12, "{factor:?}");
            assert!((here.expected()[factor] - 2.0).abs() < 1e-12, "{factor:?}");
            assert!((elsewhere.draw(1)[factor] - elsewhere.draw(2)[factor]).abs() > 1e-12, "{factor:?}");
        }
        assert!(!here.is_calibrated() && !elsewhere.is_calibrated(), "nothing was observed");
    }
}
