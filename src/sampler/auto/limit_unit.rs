//! The unit of a constraint's modelled excesses: 0 stays the limit, 0.01 is a small excess and 1 a large one.

/// If the usual excess is in this range, the unit is 1. Excesses that are logarithms, `ln(measured / limit)`, mostly
/// are. Otherwise the unit follows from the excesses themselves.
const SMALL: f64 = 0.03;
const LARGE: f64 = 4.0;
/// Up to this number of excesses their usual size is unknown and the unit is 1.
const MAX_UNSCALED_COUNT: usize = 3;
/// Largest modelled excess.
const MAX_MODELLED_EXCESS: f64 = 2.5;

/// The unit of the excesses of one constraint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LimitUnit(f64);

impl LimitUnit {
    pub(super) fn new(excesses: Vec<f64>) -> Self {
        let mut sizes: Vec<_> = excesses.into_iter().map(f64::abs).filter(|size| *size > 0.0).collect();
        sizes.sort_by(f64::total_cmp);
        // The upper quartile.
        let usual = sizes.get(sizes.len() * 3 / 4).copied().filter(|_| sizes.len() > MAX_UNSCALED_COUNT);
        let Some(usual) = usual.filter(|usual| !(SMALL..LARGE).contains(usual)) else { return Self(1.0) };
        // A power of two, so that one more measurement seldom changes it.
        Self(libm::exp2((libm::floor(libm::log2(usual)) + 1.0).clamp(-1000.0, 1000.0)))
    }

    /// Returns the modelled excess. Beyond 1 only the logarithm counts: the size of an excess far from the limit has
    /// little meaning.
    pub(super) fn to_modelled(self, excess: f64) -> f64 {
        let size = (excess / self.0).abs();
        let softened = if size <= 1.0 { size } else { 1.0 + libm::log(size) };
        softened.min(MAX_MODELLED_EXCESS).copysign(excess)
    }

    /// Returns the standard deviation of a modelled excess.
    pub(super) fn modelled_deviation(self, deviation: f64, excess: f64) -> f64 {
        deviation / self.0 / (excess / self.0).abs().max(1.0)
    }

    /// Inverts `modelled`, up to its bound.
    pub(super) fn original_excess(self, modelled: f64) -> f64 {
        let size = modelled.abs();
        let hard = if size <= 1.0 { size } else { libm::exp(size - 1.0) };
        self.0 * hard.copysign(modelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs().max(1e-300)
    }

    #[test]
    fn excesses_of_unusual_size_have_a_unit_of_their_own() {
        let usual = [-0.5, 0.2, -0.03, 1.0];
        let scaled = |by: f64| LimitUnit::new(usual.map(|excess| by * excess).into());
        assert_eq!(scaled(1.0), LimitUnit(1.0));
        assert!(close(scaled(1.0).to_modelled(0.2), 0.2));
        for by in [1e-9, 1e-3, 1e3, 1e9] {
            let unit = scaled(by);
            assert!((0.05..0.2).contains(&unit.to_modelled(0.2 * by)), "{by}: {}", unit.to_modelled(0.2 * by));
            for excess in usual.map(|excess| by * excess) {
                assert!(close(unit.original_excess(unit.to_modelled(excess)), excess));
            }
        }
        assert_eq!(LimitUnit::new(Vec::new()), LimitUnit(1.0));
        assert_eq!(LimitUnit::new(vec![1e3; 3]), LimitUnit(1.0), "too few");
        assert_eq!(LimitUnit::new(vec![0.0, -0.0]), LimitUnit(1.0));
    }

    #[test]
    fn large_excesses_and_their_deviations_are_compressed_to_logarithms() {
        let unit = LimitUnit(1.0);
        assert!(close(unit.to_modelled(-3.0), -1.0 - libm::log(3.0)) && close(unit.to_modelled(1e300), 2.5));
        let step = 1e-6;
        for excess in [0.3, -0.3, 2.0, -3.0] {
            let slope = (unit.to_modelled(excess + step) - unit.to_modelled(excess)) / step;
            assert!((unit.modelled_deviation(1.0, excess) - slope).abs() < 1e-5, "{excess}: {slope}");
        }
    }
}
