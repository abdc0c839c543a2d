//! A function that is known at some points and linear between them.

/// Seconds of a pass of the weights over a batch, by its tokens; or of the output head, by its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Curve {
    /// The larger of reading the weights once and multiplying every row with them, with a smooth transition.
    Roofline { read_s: f64, row_s: f64 },
    /// Measured points, strictly ascending, at least one. Beyond the last one the last slope goes on.
    Points(Vec<(f64, f64)>),
}

impl Curve {
    pub(super) fn at(&self, rows: f64) -> f64 {
        match self {
            // Matrix products reach neither limit near the transition. At equal shares, `aiconfigurator`'s tables of an
            // A100, H100 and L40S show a quarter more.
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

    /// Returns the cost of a single row, nearly all of it for reading.
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
