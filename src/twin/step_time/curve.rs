//! A function of the batch size: a roofline formula, or measured points with linear interpolation.

/// Seconds of the linear layers as a function of the batch's tokens, or of the output head as a function of its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Curve {
    /// The larger of two times with a smooth transition: `read_s` reads the weights once, and `row_s` multiplies one
    /// row with them.
    Roofline { read_s: f64, row_s: f64 },
    /// Measured points of size and seconds: at least one, in strictly ascending order. They are extrapolated with the
    /// last slope.
    Points(Vec<(f64, f64)>),
}

impl Curve {
    pub(super) fn at(&self, rows: f64) -> f64 {
        match self {
            // Near the transition, matrix products are slower than both limits. If both times are equal,
            // `aiconfigurator`'s tables of A100, H100 and L40S show a quarter more.
            Self::Roofline { read_s, row_s } => (read_s.powi(3) + (row_s * rows).powi(3)).cbrt(),
            Self::Points(points) => {
                let above = points.partition_point(|(x, _)| *x < rows);
                let (left, right) = match (above, points.len()) {
                    (_, 1) | (0, _) => return points[0].1,
                    (above, length) if above == length => (length - 2, length - 1),
                    (above, _) => (above - 1, above),
                };
                let ((x0, y0), (x1, y1)) = (points[left], points[right]);
                y0 + (y1 - y0) * (rows - x0) / (x1 - x0)
            }
        }
    }

    /// Returns the seconds of a single row, nearly all of them for reading.
    pub(super) fn base(&self) -> f64 {
        self.at(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn measured_points_are_met_and_the_last_slope_goes_on() {
        let curve = Curve::Points(vec![(1.0, 2.0), (3.0, 4.0), (5.0, 10.0)]);
        let seen: Vec<_> = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|x| curve.at(x)).to_vec();
        assert_eq!(seen, [2.0, 2.0, 3.0, 4.0, 7.0, 10.0, 13.0]);
        assert_eq!(Curve::Points(vec![(4.0, 2.0)]).at(9.0).to_bits(), 2.0_f64.to_bits());
    }

    proptest! {
        #[test]
        fn a_roofline_is_above_both_of_its_limits_and_grows(read in 1e-6_f64..1.0, row in 1e-9_f64..1e-3, rows in 1.0_f64..1e5) {
            let curve = Curve::Roofline { read_s: read, row_s: row };
            let limit = read.max(row * rows);
            prop_assert!(curve.at(rows) >= limit && curve.at(rows) <= 1.27 * limit);
            prop_assert!(curve.at(2.0 * rows) >= curve.at(rows));
        }
    }
}
