//! The Cholesky factor of a symmetric positive definite matrix, in rows.

/// A lower triangular matrix `L`; `L L^T` is the factored matrix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cholesky {
    size: usize,
    /// Row `i` begins at `i * size`; entries above the diagonal are unused.
    rows: Vec<f64>,
}

impl Cholesky {
    /// Factors the matrix with these rows. Only the lower triangle is read. `None` if it is not positive definite.
    pub(crate) fn new(size: usize, mut rows: Vec<f64>) -> Option<Self> {
        for i in 0..size {
            let (above, rest) = rows.split_at_mut(i * size);
            let row = &mut rest[..size];
            for j in 0..i {
                let other = &above[j * size..=j * size + j];
                row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
            }
            let pivot = row[i] - dot(&row[..i], &row[..i]);
            if pivot.is_nan() || pivot <= 0.0 {
                return None;
            }
            row[i] = pivot.sqrt();
        }
        Some(Self { size, rows })
    }

    /// Returns a row up to its diagonal.
    pub(crate) fn row(&self, i: usize) -> &[f64] {
        &self.rows[i * self.size..=i * self.size + i]
    }

    /// Returns `L x`.
    #[cfg(test)]
    pub(crate) fn times(&self, x: &[f64]) -> Vec<f64> {
        (0..self.size).map(|i| dot(self.row(i), &x[..=i])).collect()
    }

    /// Solves `L y = b` in place.
    pub(crate) fn forward(&self, b: &mut [f64]) {
        for i in 0..self.size {
            let row = self.row(i);
            b[i] = (b[i] - dot(&row[..i], &b[..i])) / row[i];
        }
    }

    /// Solves `L^T x = y` in place.
    pub(crate) fn backward(&self, y: &mut [f64]) {
        for i in (0..self.size).rev() {
            let row = self.row(i);
            y[i] /= row[i];
            let value = y[i];
            for (below, factor) in y[..i].iter_mut().zip(row) {
                *below -= value * factor;
            }
        }
    }

    /// Returns the logarithm of the determinant of the factored matrix.
    pub(crate) fn log_determinant(&self) -> f64 {
        2.0 * (0..self.size).map(|i| libm::log(self.row(i)[i])).sum::<f64>()
    }

    /// Returns the inverse of the factored matrix, in full rows.
    pub(crate) fn inverse(&self) -> Vec<f64> {
        let n = self.size;
        // Row j of `upper` is column j of the inverse factor, so that all sums run over adjacent values.
        let mut upper = vec![0.0; n * n];
        for j in 0..n {
            upper[j * n + j] = 1.0 / self.row(j)[j];
            for i in j + 1..n {
                let row = self.row(i);
                let (done, rest) = upper[j * n..(j + 1) * n].split_at_mut(i);
                rest[0] = -dot(&row[j..i], &done[j..]) / row[i];
            }
        }
        let mut inverse = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..=i {
                let value = dot(&upper[i * n + i..(i + 1) * n], &upper[j * n + i..(j + 1) * n]);
                inverse[i * n + j] = value;
                inverse[j * n + i] = value;
            }
        }
        inverse
    }
}

/// Returns the inner product, with four partial sums so that the additions do not depend on each other.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (quads, rest) = a.as_chunks::<4>();
    let (others, last) = b[..a.len()].as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (a, b) in quads.iter().zip(others) {
        for k in 0..4 {
            sums[k] += a[k] * b[k];
        }
    }
    let rest: f64 = rest.iter().zip(last).map(|(a, b)| a * b).sum();
    (sums[0] + sums[2]) + (sums[1] + sums[3]) + rest
}

#[cfg(test)]
mod tests;
