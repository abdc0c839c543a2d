//! The little linear algebra that a handful of factors needs.

use super::N;

pub(super) type Matrix = [[f64; N]; N];

/// The lower triangle whose product with its transpose is this symmetric, positive definite matrix.
pub(super) fn cholesky(matrix: &Matrix) -> Matrix {
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

/// Of a symmetric, positive definite matrix.
pub(super) fn inverse(matrix: &Matrix) -> Matrix {
    let root = cholesky(matrix);
    // Its columns are the inverse's rows as well.
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

    #[test]
    fn a_matrix_times_its_inverse_is_one() {
        let entry = |row: usize, at: usize| if row == at { 3.0 } else { 0.5 / [1.0, 2.0, 4.0][(row + at) % 3] };
        let matrix: Matrix = std::array::from_fn(|row| std::array::from_fn(|at| entry(row, at)));
        let inverse = inverse(&matrix);
        for (number, row) in matrix.iter().enumerate() {
            for column in 0..N {
                let product: f64 = row.iter().zip(&inverse).map(|(value, line)| value * line[column]).sum();
                assert!((product - f64::from(u8::from(number == column))).abs() < 1e-12, "{number} {column} {product}");
            }
        }
    }
}
