//! Means and their confidence intervals.

/// A mean with half the width of its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mean {
    pub(super) value: f64,
    pub(super) half: f64,
}

/// Student's t for 95 %, by degrees of freedom from 1. Beyond the last entry it is nearly constant.
const STUDENT: [f64; 15] =
    [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13];

impl Mean {
    /// The mean of at least one value; a single value has an infinite interval.
    pub(super) fn from_values(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let value = values.iter().sum::<f64>() / n;
        if values.len() < 2 {
            return Self { value, half: f64::INFINITY };
        }
        let squares: f64 = values.iter().map(|v| (v - value) * (v - value)).sum();
        let student = STUDENT[(values.len() - 2).min(STUDENT.len() - 1)];
        Self { value, half: student * (squares / (n - 1.0) / n).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_the_width_of_the_student_table() {
        // Standard deviation 2, n = 4: 3.18 · 2 / 2.
        let mean =
            Mean::from_values(&[8.0, 12.0, 10.0 - 6f64.sqrt() / 3f64.sqrt(), 10.0 + 2f64.sqrt()]);
        assert!((mean.value - 10.0).abs() < 1e-12);
        assert!((mean.half - 3.18).abs() < 1e-9, "{mean:?}");
    }
}
