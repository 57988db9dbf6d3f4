//! The loss of a row: cross-entropy for training, the bounded loss for evaluation.

/// The loss of a row as a function of its predicted probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowLoss {
    /// `−ln p` of the label, for training.
    CrossEntropy,
    /// The [`BoundedLoss`], for evaluation.
    Bounded,
}

/// The loss that evaluates models: `ℓ = −ln((1 − ε)·p + ε)` in nats, where p is the predicted
/// probability of the row's label and ε = C⁻² for C classes.
///
/// It is smooth, it is at most `2 ln C`, and it orders predictions as cross-entropy does. Therefore
/// no row can decide a round: the cross-entropy of one row has no bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundedLoss {
    floor: f64,
}

impl BoundedLoss {
    /// The loss for a number of classes.
    pub fn new(classes: usize) -> Self {
        let classes = classes.max(1) as f64;
        Self { floor: 1.0 / (classes * classes) }
    }

    /// ε, the probability that the loss adds to every label.
    pub fn floor(self) -> f64 {
        self.floor
    }

    /// The loss and its derivative with respect to the cross-entropy, which is from 0 to 1, for a
    /// row with this cross-entropy.
    pub fn of_cross_entropy(self, cross_entropy: f64) -> (f64, f64) {
        let share = (1.0 - self.floor) * libm::exp(-cross_entropy);
        let bounded = share + self.floor;
        (-libm::log(bounded), share / bounded)
    }

    /// The largest loss of a row: `2 ln C`.
    pub fn largest(self) -> f64 {
        -libm::log(self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_between_zero_and_two_logarithms_of_the_classes() {
        for classes in [2, 3, 10, 1_000] {
            let loss = BoundedLoss::new(classes);
            let most = 2.0 * (classes as f64).ln();
            assert_eq!(loss.of_cross_entropy(0.0).0, 0.0);
            assert!((loss.largest() - most).abs() < 1e-12);
            assert!((loss.of_cross_entropy(1e300).0 - most).abs() < 1e-12);
            assert!(loss.of_cross_entropy(f64::INFINITY).0 <= loss.largest());
            assert!(loss.of_cross_entropy(f64::NAN).0.is_nan());
            let uniform = loss.of_cross_entropy((classes as f64).ln()).0;
            assert!(uniform > 0.0 && uniform < (classes as f64).ln());
        }
    }

    #[test]
    fn the_derivative_is_that_of_the_loss() {
        let loss = BoundedLoss::new(4);
        for at in [0.0, 0.3, 1.0, 2.5, 7.0] {
            const STEP: f64 = 1e-6;
            let (after, before) =
                (loss.of_cross_entropy(at + STEP), loss.of_cross_entropy(at - STEP));
            let slope = (after.0 - before.0) / (2.0 * STEP);
            assert!((loss.of_cross_entropy(at).1 - slope).abs() < 1e-9, "{at}");
        }
    }
}
