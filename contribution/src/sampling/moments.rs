//! Running means and variances in one pass, in the order of the numbers.

/// Count, mean and sum of squares of a sequence of numbers (B. P. Welford, "Note on a method for
/// calculating corrected sums of squares and products", 1962). Equal numbers give exactly their
/// value as the mean and exactly 0 as the sum of squares.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Moments {
    pub(super) count: u64,
    pub(super) mean: f64,
    /// `Σ (x − mean)²`.
    pub(super) squares: f64,
}

impl Moments {
    pub(super) fn add(&mut self, number: f64) {
        self.count += 1;
        let off = number - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (number - self.mean);
    }

    /// The variance of one number, from at least two.
    pub(super) fn variance(&self) -> Option<f64> {
        (self.count >= 2).then(|| self.squares / (self.count - 1) as f64)
    }

    /// One standard error of the mean of independent numbers, from at least two.
    pub(super) fn standard_error(&self) -> Option<f64> {
        self.variance().map(|variance| (variance / self.count as f64).sqrt())
    }
}

/// Moments of vectors, component by component.
pub(super) struct VectorMoments(Vec<Moments>);

impl VectorMoments {
    pub(super) fn new(width: usize) -> Self {
        Self(vec![Moments::default(); width])
    }

    pub(super) fn add(&mut self, sample: &[f64]) {
        self.0.iter_mut().zip(sample).for_each(|(moments, number)| moments.add(*number));
    }

    pub(super) fn count(&self) -> u64 {
        self.0.first().map_or(0, |moments| moments.count)
    }

    #[cfg(feature = "comparison")]
    pub(super) fn moments(&self) -> &[Moments] {
        &self.0
    }

    pub(super) fn means(&self) -> Vec<f64> {
        self.0.iter().map(|moments| moments.mean).collect()
    }

    pub(super) fn standard_errors(&self) -> Option<Vec<f64>> {
        self.0.iter().map(Moments::standard_error).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_match_hand_computed_values() {
        // Of 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, variance 7, error √(7/3).
        let mut tally = VectorMoments::new(2);
        for number in [1.0, 2.0, 6.0] {
            tally.add(&[number, 0.1]);
        }
        assert_eq!(tally.count(), 3);
        assert_eq!(tally.means(), [3.0, 0.1]);
        assert_eq!(tally.moments()[0].variance(), Some(7.0));
        let errors = tally.standard_errors().unwrap();
        assert!((errors[0] - (7.0_f64 / 3.0).sqrt()).abs() < 1e-15, "{errors:?}");
        assert_eq!(errors[1], 0.0, "equal numbers have zero variance");
    }

    #[test]
    fn one_number_has_no_standard_error() {
        let mut tally = VectorMoments::new(1);
        assert_eq!((tally.count(), tally.standard_errors()), (0, None));
        tally.add(&[5.0]);
        assert_eq!((tally.means(), tally.standard_errors()), (vec![5.0], None));
    }
}
