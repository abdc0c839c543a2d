//! How alike the values at two points are expected to be.
//!
//! `k(x, y) = rough^2 M(r) + smooth^2 / d  sum_i p(x_i) p(y_i) + 1`, where `M` is the Matern function with smoothness 5/2, `r^2` the sum of the
//! squared differences of the coordinates, each over its length scale, and `p` the first two Legendre polynomials of a
//! number, or the indicators of a choice. The smooth part carries trends that hold in the whole space, learnt from a few
//! points and extrapolated; the rough part what is particular to a place. Two choices differ by a distance of one.
//!
//! Source of the rough part: C. Rasmussen and C. Williams, "Gaussian processes for machine learning", 2006, formula 4.17; of
//! sums of parts of one coordinate: D. Duvenaud et al., "Additive Gaussian processes", 2011.

use super::encoding::Axis;

/// Variance of the unknown level, in units of the variance of the values.
pub(super) const LEVEL: f64 = 1.0;

const SQRT_5: f64 = 2.236_067_977_499_79;

/// What the kernel sees of a point.
#[derive(Clone, Debug)]
pub(super) struct Features {
    /// For each of the rough part's features, the axis that it belongs to.
    pub(super) axis_of: Vec<usize>,
    pub(super) axes: Vec<Axis>,
    varying: usize,
}

impl Features {
    pub(super) fn new(axes: &[Axis]) -> Self {
        let mut axis_of = Vec::new();
        for (index, axis) in axes.iter().enumerate() {
            let features = match axis {
                Axis::Number { .. } => 1,
                Axis::Trend | Axis::Choice { count: 0 | 1 } => 0,
                Axis::Choice { count: 2 } => 1,
                Axis::Choice { count } => *count,
            };
            axis_of.extend(std::iter::repeat_n(index, features));
        }
        let varying =
            axes.iter().filter(|axis| !matches!(axis, Axis::Trend | Axis::Choice { count: 0 | 1 })).count().max(1);
        Self { axis_of, axes: axes.to_vec(), varying }
    }

    /// Coordinates whose squared differences, over the squared length scale of their axis, add up to the squared distance.
    pub(super) fn rough(&self, point: &[f64]) -> Vec<f64> {
        let mut seen = vec![0; point.len()];
        let feature = |&axis: &usize| match self.axes[axis] {
            Axis::Choice { count } if count > 2 => {
                let at = seen[axis];
                seen[axis] += 1;
                if is_choice(point[axis], at) { std::f64::consts::FRAC_1_SQRT_2 } else { 0.0 }
            }
            Axis::Number { .. } | Axis::Choice { .. } | Axis::Trend => point[axis],
        };
        self.axis_of.iter().map(feature).collect()
    }

    /// Functions of one coordinate each, whose inner product is the smooth part; with the axis that each belongs to.
    pub(super) fn smooth(&self, point: &[f64]) -> Vec<(usize, f64)> {
        #[expect(clippy::cast_precision_loss, reason = "a number of parameters")]
        let weight = (1.0 / self.varying as f64).sqrt();
        let mut features = Vec::with_capacity(2 * point.len());
        for (index, (axis, coordinate)) in self.axes.iter().zip(point).enumerate() {
            match axis {
                Axis::Number { .. } => {
                    let centred = 2.0 * coordinate - 1.0;
                    features.push((index, weight * centred));
                    features.push((index, weight * (1.5 * centred * centred - 0.5)));
                }
                Axis::Choice { count: 0 | 1 } => {}
                Axis::Trend => features.push((index, *coordinate)),
                Axis::Choice { count: 2 } => features.push((index, weight * (2.0 * coordinate - 1.0))),
                Axis::Choice { count } => {
                    let feature = |at| (index, if is_choice(*coordinate, at) { weight } else { 0.0 });
                    features.extend((0..*count).map(feature));
                }
            }
        }
        features
    }
}

#[expect(clippy::cast_precision_loss, reason = "an index")]
fn is_choice(coordinate: f64, index: usize) -> bool {
    (coordinate - index as f64).abs() < 0.5
}

/// The Matern function with smoothness 5/2 at a squared distance, and its derivative by the squared distance times -2.
pub(super) fn matern(squared: f64) -> (f64, f64) {
    let r = SQRT_5 * squared.sqrt();
    let decay = libm::exp(-r);
    ((1.0 + r + r * r / 3.0) * decay, 5.0 / 3.0 * (1.0 + r) * decay)
}
