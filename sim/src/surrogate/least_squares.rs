//! Linear least squares with a few terms.

/// The coefficients that minimise `Σ weight · (terms · coefficients − value)²`; terms without
/// influence get zero.
pub(super) fn least_squares<const N: usize>(rows: &[([f64; N], f64, f64)]) -> [f64; N] {
    let (mut m, mut right) = ([[0.0; N]; N], [0.0; N]);
    for (terms, value, weight) in rows {
        for i in 0..N {
            (0..N).for_each(|j| m[i][j] += weight * terms[i] * terms[j]);
            right[i] += weight * terms[i] * value;
        }
    }
    // A small ridge makes the system solvable if a term never changes.
    let size: f64 = (0..N).map(|i| m[i][i]).sum();
    (0..N).for_each(|i| m[i][i] += 1e-9 * size);
    for i in 0..N {
        if m[i][i].abs() <= f64::MIN_POSITIVE {
            continue;
        }
        let (pivot, pivot_right) = (m[i], right[i]);
        for j in (0..N).filter(|j| *j != i) {
            let factor = m[j][i] / pivot[i];
            m[j].iter_mut().zip(&pivot).for_each(|(own, p)| *own -= factor * p);
            right[j] -= factor * pivot_right;
        }
    }
    std::array::from_fn(
        |i| if m[i][i].abs() > f64::MIN_POSITIVE { right[i] / m[i][i] } else { 0.0 },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_squares_recovers_a_line() {
        let rows: Vec<_> = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]
            .map(|(x, y)| ([1.0, x, x * x], y, 1.0))
            .into_iter()
            .collect();
        let [a, b, c] = least_squares(&rows);
        assert!((a - 1.0).abs() < 1e-4 && (b - 2.0).abs() < 1e-4 && c.abs() < 1e-4, "{a} {b} {c}");
    }
}
