//! Dense symmetric positive definite systems in `f64`, with every sum in one fixed order.
//!
//! Implemented here rather than taken from a library that selects its order of summation by
//! machine, so that the same game gives the same bits everywhere.

/// Number of parallel partial sums of a dot product; they are added pairwise at the end.
const LANES: usize = 8;

/// `Σ a_k·b_k` over the length of the shorter vector, in a fixed order that fits vector registers.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let length = a.len().min(b.len());
    let (a, b) = (&a[..length], &b[..length]);
    let mut lanes = [0.0; LANES];
    let (whole_a, rest_a) = a.as_chunks::<LANES>();
    let (whole_b, rest_b) = b.as_chunks::<LANES>();
    for (a, b) in whole_a.iter().zip(whole_b) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in rest_a.iter().zip(rest_b).enumerate() {
        lanes[lane] += a * b;
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The Cholesky factor: lower triangle `L` of `A = L·Lᵀ`, by rows of `n` numbers, zeros above the
/// diagonal.
pub(crate) struct Cholesky {
    n: usize,
    lower: Vec<f64>,
}

impl Cholesky {
    /// Factors the symmetric matrix `a` (`n × n`, by rows; only its lower triangle is read). `None`
    /// if it is not positive definite in `f64`.
    pub(crate) fn factor(mut a: Vec<f64>, n: usize) -> Option<Self> {
        assert_eq!(a.len(), n * n, "the matrix must be square");
        for row in 0..n {
            let (above, current) = a.split_at_mut(row * n);
            for column in 0..row {
                let other = &above[column * n..column * n + n];
                let rest = current[column] - dot(&current[..column], &other[..column]);
                current[column] = rest / other[column];
            }
            let pivot = current[row] - dot(&current[..row], &current[..row]);
            if !(pivot > 0.0 && pivot.is_finite()) {
                return None;
            }
            current[row] = pivot.sqrt();
            current[row + 1..n].fill(0.0);
        }
        Some(Self { n, lower: a })
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.lower[row * self.n..(row + 1) * self.n]
    }

    /// Solves `A·x = b`.
    pub(crate) fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for row in 0..self.n {
            let known = dot(&self.row(row)[..row], &x[..row]);
            x[row] = (x[row] - known) / self.row(row)[row];
        }
        for row in (0..self.n).rev() {
            let value = x[row] / self.row(row)[row];
            x[row] = value;
            let (before, _) = x.split_at_mut(row);
            for (x, lower) in before.iter_mut().zip(self.row(row)) {
                *x -= value * lower;
            }
        }
        x
    }

    /// `L⁻¹` by rows, zeros above the diagonal.
    pub(crate) fn inverse_lower(&self) -> Vec<f64> {
        let n = self.n;
        let mut inverse = vec![0.0; n * n];
        for row in 0..n {
            let (above, current) = inverse.split_at_mut(row * n);
            let current = &mut current[..n];
            for (k, &lower) in self.row(row)[..row].iter().enumerate() {
                let known = &above[k * n..k * n + k + 1];
                for (x, known) in current.iter_mut().zip(known) {
                    *x -= lower * known;
                }
            }
            let pivot = self.row(row)[row];
            current[row] = 1.0;
            current[..=row].iter_mut().for_each(|x| *x /= pivot);
        }
        inverse
    }

    /// The diagonal of `A⁻¹`.
    pub(crate) fn inverse_diagonal(&self) -> Vec<f64> {
        let mut diagonal = vec![0.0; self.n];
        for row in self.inverse_lower().chunks_exact(self.n) {
            for (sum, x) in diagonal.iter_mut().zip(row) {
                *sum += x * x;
            }
        }
        diagonal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRng;

    /// A = L·Lᵀ of L = (2 0 0; 1 3 0; −1 2 1).
    const A: [f64; 9] = [4.0, 2.0, -2.0, 2.0, 10.0, 5.0, -2.0, 5.0, 6.0];

    #[test]
    fn factor_and_solution_match_a_hand_computed_matrix() {
        let factor = Cholesky::factor(A.to_vec(), 3).unwrap();
        assert_eq!(factor.lower, [2.0, 0.0, 0.0, 1.0, 3.0, 0.0, -1.0, 2.0, 1.0]);
        // A·(1, 2, 3)ᵀ = (2, 37, 26)ᵀ.
        let x = factor.solve(&[2.0, 37.0, 26.0]);
        assert!(x.iter().zip([1.0, 2.0, 3.0]).all(|(x, right)| (x - right).abs() < 1e-12), "{x:?}");
    }

    #[test]
    fn inverse_diagonal_matches_solved_unit_vectors() {
        let seed = 11;
        println!("seed {seed}");
        let mut draw = SeededRng::new(seed, 0);
        let n = 21;
        let b: Vec<f64> = (0..n * n).map(|_| draw.uniform() - 0.5).collect();
        let mut a = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..n {
                a[i * n + j] = dot(&b[i * n..(i + 1) * n], &b[j * n..(j + 1) * n]);
            }
            a[i * n + i] += 0.1;
        }
        let factor = Cholesky::factor(a, n).unwrap();
        for (i, diagonal) in factor.inverse_diagonal().into_iter().enumerate() {
            let mut unit = vec![0.0; n];
            unit[i] = 1.0;
            let column = factor.solve(&unit);
            assert!((column[i] - diagonal).abs() < 1e-9 * diagonal, "{i}");
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_has_no_factor() {
        assert!(Cholesky::factor(vec![1.0, 2.0, 2.0, 1.0], 2).is_none());
        assert!(Cholesky::factor(vec![f64::NAN], 1).is_none());
    }
}
