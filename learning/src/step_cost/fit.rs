//! Least squares with coefficients that are not negative, by coordinate descent.

/// Passes over the coefficients, at most.
const PASSES_MAX: usize = 20_000;
/// A pass that changes every scaled coefficient by less ends the descent.
const CHANGE_MIN: f64 = 1e-10;

/// The coefficients `x ≥ 0` with the least `Σ (1 − rows[i]·x / seconds[i])²`: relative errors count, so that
/// short steps weigh as much as long ones. A kind of work that no row has gets 0.
pub(super) fn fit<const N: usize>(rows: &[[f64; N]], seconds: &[f64]) -> [f64; N] {
    let relative: Vec<[f64; N]> = rows
        .iter()
        .zip(seconds)
        .map(|(row, &seconds)| row.map(|amount| amount / seconds))
        .collect();
    let norms: [f64; N] =
        std::array::from_fn(|at| relative.iter().map(|row| row[at] * row[at]).sum::<f64>().sqrt());
    let scaled: Vec<[f64; N]> = relative
        .iter()
        .map(|row| {
            std::array::from_fn(|at| if norms[at] > 0.0 { row[at] / norms[at] } else { 0.0 })
        })
        .collect();
    let mut found = [0.0; N];
    let mut left = vec![1.0; rows.len()];
    for _ in 0..PASSES_MAX {
        let mut change = 0.0_f64;
        for at in 0..N {
            // Scaled columns have norm 1: the best step is the correlation with what is left.
            let step: f64 = scaled.iter().zip(&left).map(|(row, left)| row[at] * left).sum();
            let new = (found[at] + step).max(0.0);
            let moved = new - found[at];
            for (row, left) in scaled.iter().zip(&mut left) {
                *left -= moved * row[at];
            }
            found[at] = new;
            change = change.max(moved.abs());
        }
        if change < CHANGE_MIN {
            break;
        }
    }
    std::array::from_fn(|at| if norms[at] > 0.0 { found[at] / norms[at] } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_found_and_not_negative() {
        let rows = [[1.0, 2.0, 0.0], [1.0, 5.0, 0.0], [1.0, 1.0, 0.0], [2.0, 9.0, 0.0]];
        let seconds: Vec<f64> = rows.iter().map(|row| 0.3 * row[0] + 0.01 * row[1]).collect();
        let found = fit(&rows, &seconds);
        assert!((found[0] - 0.3).abs() < 1e-6 && (found[1] - 0.01).abs() < 1e-6, "{found:?}");
        assert_eq!(found[2], 0.0, "no row has this kind");
        // The second column would need a negative coefficient.
        let seconds: Vec<f64> = rows.iter().map(|row| 1.0 * row[0] - 0.05 * row[1]).collect();
        let found = fit(&rows, &seconds);
        assert!(found.iter().all(|&number| number >= 0.0), "{found:?}");
    }
}
