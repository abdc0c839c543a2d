//! Linear algebra of fixed, small sizes.
//!
//! Unlike those of [`super::Cholesky`], these sums add one term after the other: recorded calibrations and memory
//! predictions depend on their digits. A pivot below 0 counts as 0 and is no error.

pub(crate) type Matrix<const N: usize> = [[f64; N]; N];

/// Returns the inner product, summed in order.
pub(crate) fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the lower triangle whose product with its transpose is this symmetric, positive definite matrix.
pub(crate) fn cholesky<const N: usize>(matrix: &Matrix<N>) -> Matrix<N> {
    let mut root = [[0.0; N]; N];
    for row in 0..N {
        for column in 0..=row {
            let rest: f64 = (0..column).map(|at| root[row][at] * root[column][at]).sum();
            let value = matrix[row][column] - rest;
            root[row][column] = if row == column { value.max(0.0).sqrt() } else { value / root[column][column] };
        }
    }
    root
}

/// Inverts a symmetric, positive definite matrix.
pub(crate) fn inverse<const N: usize>(matrix: &Matrix<N>) -> Matrix<N> {
    let root = cholesky(matrix);
    // The inverse is symmetric: its columns are its rows.
    std::array::from_fn(|column| {
        let mut solution = [0.0; N];
        for row in 0..N {
            let rest: f64 = (0..row).map(|at| root[row][at] * solution[at]).sum();
            solution[row] = (f64::from(u8::from(row == column)) - rest) / root[row][row];
        }
        for row in (0..N).rev() {
            let rest: f64 = (row + 1..N).map(|at| root[at][row] * solution[at]).sum();
            solution[row] = (solution[row] - rest) / root[row][row];
        }
        solution
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 6;

    #[test]
    fn a_matrix_times_its_inverse_is_one() {
        let entry = |row: usize, at: usize| if row == at { 3.0 } else { 0.5 / [1.0, 2.0, 4.0][(row + at) % 3] };
        let matrix: Matrix<N> = std::array::from_fn(|row| std::array::from_fn(|at| entry(row, at)));
        let inverse = inverse(&matrix);
        for (number, row) in matrix.iter().enumerate() {
            for column in 0..N {
                let product: f64 = row.iter().zip(&inverse).map(|(value, line)| value * line[column]).sum();
                assert!((product - f64::from(u8::from(number == column))).abs() < 1e-12, "{number} {column} {product}");
            }
        }
    }
}
