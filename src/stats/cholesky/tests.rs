//! Tests of factors, solutions, inverses and determinants against their definitions.

#![expect(clippy::float_cmp, reason = "exact by construction")]

use proptest::prelude::*;

use super::*;

/// Generates `B B^T` plus a small diagonal, for any square `B`.
fn positive_definite() -> impl Strategy<Value = (usize, Vec<f64>)> {
    let values = |size: usize| proptest::collection::vec(-2.0..2.0_f64, size * size);
    (1..13_usize).prop_flat_map(move |size| (Just(size), values(size))).prop_map(|(size, b)| {
        let entry = |at: usize| {
            let (i, j) = (at / size, at % size);
            let product: f64 = (0..size).map(|k| b[i * size + k] * b[j * size + k]).sum();
            product + if i == j { 0.1 } else { 0.0 }
        };
        (size, (0..size * size).map(entry).collect())
    })
}

/// Returns the matrix times a vector.
fn times(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

/// Returns the determinant by expansion along the first row.
fn determinant(matrix: &[Vec<f64>]) -> f64 {
    let Some((first, below)) = matrix.split_first() else { return 1.0 };
    let without = |column: usize| -> Vec<Vec<f64>> {
        below.iter().map(|row| [&row[..column], &row[column + 1..]].concat()).collect()
    };
    let term = |column: usize| {
        let sign = if column.is_multiple_of(2) { 1.0 } else { -1.0 };
        sign * first[column] * determinant(&without(column))
    };
    (0..first.len()).map(term).sum()
}

proptest! {
    #[test]
    fn the_factor_times_its_transpose_is_the_matrix((size, matrix) in positive_definite()) {
        let factor = Cholesky::new(size, matrix.clone()).unwrap();
        for i in 0..size {
            for j in 0..=i {
                let product: f64 = factor.row(i)[..=j].iter().zip(factor.row(j)).map(|(a, b)| a * b).sum();
                prop_assert!((product - matrix[i * size + j]).abs() < 1e-12 * matrix[i * size + i].max(1.0) * 10.0);
            }
        }
    }

    #[test]
    fn a_solution_times_the_matrix_is_the_right_hand_side((size, matrix) in positive_definite(), b in proptest::collection::vec(-5.0..5.0_f64, 13)) {
        let factor = Cholesky::new(size, matrix.clone()).unwrap();
        let mut solution = b[..size].to_vec();
        factor.forward(&mut solution);
        factor.backward(&mut solution);
        for (product, b) in times(&matrix, &solution).iter().zip(&b) {
            prop_assert!((product - b).abs() < 1e-9, "{product} for {b}");
        }
    }

    #[test]
    fn the_inverse_times_the_matrix_is_one((size, matrix) in positive_definite()) {
        let inverse = Cholesky::new(size, matrix.clone()).unwrap().inverse();
        for (j, column) in inverse.chunks(size).enumerate() {
            for (i, value) in times(&matrix, column).into_iter().enumerate() {
                let one = if i == j { 1.0 } else { 0.0 };
                prop_assert!((value - one).abs() < 1e-9, "{value} at {i}, {j}");
            }
        }
    }

    #[test]
    fn the_determinant_is_that_of_the_expansion((size, matrix) in positive_definite()) {
        prop_assume!(size <= 6);
        let rows: Vec<_> = matrix.chunks(size).map(<[f64]>::to_vec).collect();
        let expected = libm::log(determinant(&rows));
        let found = Cholesky::new(size, matrix).unwrap().log_determinant();
        prop_assert!((found - expected).abs() < 1e-8, "{found} and not {expected}");
    }

    #[test]
    fn a_matrix_with_a_direction_of_no_or_negative_length_has_no_factor((size, mut matrix) in positive_definite(), at in any::<prop::sample::Index>()) {
        let at = at.index(size);
        matrix[at * size + at] = -matrix[at * size + at];
        prop_assert!(Cholesky::new(size, matrix).is_none());
    }

    #[test]
    fn an_inner_product_is_the_sum_of_products(pairs in proptest::collection::vec((-9_i32..9, -9_i32..9), 0..20)) {
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(a, b)| (f64::from(*a), f64::from(*b))).unzip();
        let expected: i32 = pairs.iter().map(|(a, b)| a * b).sum();
        prop_assert_eq!(dot(&a, &b), f64::from(expected));
    }
}

#[test]
fn an_empty_matrix_has_a_factor_and_an_invalid_one_has_none() {
    assert!(Cholesky::new(2, vec![1.0, 1.0, 1.0, 1.0]).is_none(), "singular");
    assert!(Cholesky::new(2, vec![1.0, 0.0, f64::NAN, 1.0]).is_none());
    assert_eq!(Cholesky::new(0, Vec::new()).unwrap().log_determinant(), 0.0);
}
