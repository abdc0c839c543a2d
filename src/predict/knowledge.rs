//! What is known of a device's speed, and how well.

use crate::twin::{Calibration, Factor, Factors};

/// The factors that are the host's work rather than the device's: launching kernels, preparing steps, the front end.
const HOST: [Factor; 3] = [Factor::Launch, Factor::Host, Factor::Frontend];

/// A calibration, as far as it says something of the device in question.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    calibration: &'a Calibration,
    /// Whether the device is another one than the one that was observed.
    elsewhere: bool,
}

impl<'a> Knowledge<'a> {
    /// Of the device that was observed.
    #[must_use]
    pub fn here(calibration: &'a Calibration) -> Self {
        Self { calibration, elsewhere: false }
    }

    /// Of another one in the same host: what is the device's own has to be expected anew, with its whole uncertainty.
    #[must_use]
    pub fn elsewhere(calibration: &'a Calibration) -> Self {
        Self { calibration, elsewhere: true }
    }

    /// Whether anything was observed of the device itself.
    #[must_use]
    pub fn is_calibrated(&self) -> bool {
        !self.elsewhere && self.calibration.simulations > 0
    }

    pub(super) fn central(&self) -> Factors {
        self.mixed(&Calibration::none().factors, &self.calibration.factors)
    }

    /// Factors that are as likely as their uncertainty says.
    pub(super) fn draw(&self, number: u64) -> Factors {
        // Not those of the same number, which would be drawn from the same normal numbers.
        self.mixed(&Calibration::none().draw(!number), &self.calibration.draw(number))
    }

    fn mixed(&self, expected: &Factors, known: &Factors) -> Factors {
        let mut factors = *known;
        for factor in Factor::ALL {
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
        for factor in Factor::ALL {
            calibration.factors[factor] = 2.0;
        }
        let (here, elsewhere) = (Knowledge::here(&calibration), Knowledge::elsewhere(&calibration));
        assert_eq!(here.draw(3), calibration.draw(3));
        for factor in Factor::ALL {
            let expected = if HOST.contains(&factor) { 2.0 } else { 1.0 };
            assert!((elsewhere.central()[factor] - expected).abs() < 1e-12, "{factor:?}");
            assert!((here.central()[factor] - 2.0).abs() < 1e-12, "{factor:?}");
            assert!((elsewhere.draw(1)[factor] - elsewhere.draw(2)[factor]).abs() > 1e-12, "{factor:?}");
        }
        assert!(!here.is_calibrated() && !elsewhere.is_calibrated(), "nothing was observed");
    }
}
