//! A function of several numbers, measured on a grid and interpolated linearly.

/// A grid with `N` axes. Each axis is ascending and has at least two points. In `values` the coordinate of the last
/// axis varies fastest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KernelGrid<const N: usize> {
    axes: [Vec<f64>; N],
    values: Vec<f64>,
}

impl<const N: usize> KernelGrid<N> {
    /// Builds a grid from its axes and the value at each crossing. `None` if an axis has fewer than two points or does
    /// not ascend.
    pub(crate) fn new(axes: [Vec<f64>; N], value: impl Fn([f64; N]) -> f64) -> Option<Self> {
        let ascends = |axis: &Vec<f64>| axis.len() >= 2 && axis.windows(2).all(|pair| pair[0] < pair[1]);
        if !axes.iter().all(ascends) {
            return None;
        }
        let count: usize = axes.iter().map(Vec::len).product();
        let values = (0..count)
            .map(|mut index| {
                let mut point = [0.0; N];
                for (coordinate, axis) in point.iter_mut().zip(&axes).rev() {
                    *coordinate = axis[index % axis.len()];
                    index /= axis.len();
                }
                value(point)
            })
            .collect();
        Some(Self { axes, values })
    }

    /// Returns the first point of the first axis.
    pub(super) fn first(&self) -> f64 {
        self.axes[0][0]
    }

    /// Interpolates between points. Below the first point of an axis the value there applies. Beyond the last point it
    /// extrapolates with the last slope.
    pub(super) fn at(&self, point: [f64; N]) -> f64 {
        let mut cells = [(0_usize, 0.0); N];
        for ((cell, axis), x) in cells.iter_mut().zip(&self.axes).zip(point) {
            let left = axis.partition_point(|at| *at <= x).saturating_sub(1).min(axis.len() - 2);
            *cell = (left, ((x - axis[left]) / (axis[left + 1] - axis[left])).max(0.0));
        }
        let mut sum = 0.0;
        for corner in 0..1_usize << N {
            let (mut weight, mut index) = (1.0, 0);
            for (number, ((left, share), axis)) in cells.iter().zip(&self.axes).enumerate() {
                let upper = corner >> number & 1;
                weight *= if upper == 1 { *share } else { 1.0 - share };
                index = index * axis.len() + left + upper;
            }
            if weight != 0.0 {
                sum += weight * self.values[index];
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_axis_needs_two_ascending_points() {
        assert!(KernelGrid::new([vec![1.0]], |_| 0.0).is_none());
        assert!(KernelGrid::new([vec![2.0, 1.0]], |_| 0.0).is_none());
    }

    proptest! {
        #[test]
        fn a_plane_is_met_everywhere_above_its_first_points(a in 1.0_f64..100.0, b in 0.0_f64..100.0, c in 3.0_f64..100.0) {
            let plane = |[a, b, c]: [f64; 3]| 2.0 * a + 3.0 * b - c;
            let grid = KernelGrid::new([vec![1.0, 2.0, 40.0], vec![0.0, 5.0], vec![3.0, 7.0, 8.0]], plane).unwrap();
            prop_assert!((grid.at([a, b, c]) - plane([a, b, c])).abs() < 1e-6);
            prop_assert!((grid.at([0.5, b, c]) - plane([1.0, b, c])).abs() < 1e-6);
        }
    }
}
