//! Means and standard errors. Sums have one fixed order: first row to last, no reassociation.

/// The arithmetic mean; 0 for no rows.
pub(crate) fn mean(rows: &[f64]) -> f64 {
    if rows.is_empty() {
        return 0.0;
    }
    rows.iter().sum::<f64>() / rows.len() as f64
}

/// One standard error of the mean of independent rows: √(Σ(x − mean)² / (m − 1) / m). `None` for
/// fewer than two rows.
pub(crate) fn standard_error(rows: &[f64]) -> Option<f64> {
    if rows.len() < 2 {
        return None;
    }
    let centre = mean(rows);
    let squares: f64 = rows.iter().map(|row| (row - centre) * (row - centre)).sum();
    let count = rows.len() as f64;
    Some((squares / (count - 1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_error_of_the_mean_matches_a_hand_computed_value() {
        // Mean 2, squares 1 + 0 + 1 = 2, variance 1, standard error √(1/3).
        assert_eq!(standard_error(&[1.0, 2.0, 3.0]), Some((1.0_f64 / 3.0).sqrt()));
        assert_eq!(standard_error(&[0.0, 0.0]), Some(0.0));
        assert_eq!(standard_error(&[7.0]), None);
        assert_eq!(mean(&[]), 0.0);
    }
}
