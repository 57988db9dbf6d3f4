//! The parameters of a model, or a difference of two models, as a flat vector.

use thiserror::Error;

/// All elements of a model's tensors in order. Elements may be NaN or infinite after a diverged
/// training: see [`Params::is_finite`].
#[derive(Debug, Clone, PartialEq)]
pub struct Params(Vec<f32>);

/// A vector does not fit a model or another vector, or cannot be clipped.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ParamsError {
    /// The number of elements is wrong.
    #[error("{got} parameters: must be {expected}")]
    Length {
        /// Number of elements expected.
        expected: usize,
        /// Number of elements given.
        got: usize,
    },
    /// The norm to clip to is invalid.
    #[error("a norm cannot be clipped to {given}: must be a positive finite number")]
    Norm {
        /// The given norm.
        given: String,
    },
    /// A vector with NaN or infinity cannot be clipped.
    #[error("the parameters contain NaN or infinity; only finite parameters can be clipped")]
    NotFinite,
}

impl Params {
    pub(crate) fn from_flat(values: Vec<f32>) -> Self {
        Self(values)
    }

    /// The elements in order.
    pub fn as_slice(&self) -> &[f32] {
        &self.0
    }

    /// The elements in order, owned.
    pub fn into_vec(self) -> Vec<f32> {
        self.0
    }

    /// The difference `self − base`, elementwise.
    pub fn delta_from(&self, base: &[f32]) -> Result<Self, ParamsError> {
        same_length(base.len(), self.0.len())?;
        Ok(Self(self.0.iter().zip(base).map(|(own, base)| own - base).collect()))
    }

    /// The sum `self + delta`, elementwise.
    pub fn apply(&self, delta: &[f32]) -> Result<Self, ParamsError> {
        same_length(self.0.len(), delta.len())?;
        Ok(Self(self.0.iter().zip(delta).map(|(own, delta)| own + delta).collect()))
    }

    /// The Euclidean norm, see [`norm`].
    pub fn norm(&self) -> f64 {
        norm(&self.0)
    }

    /// Whether every number is finite.
    pub fn is_finite(&self) -> bool {
        first_not_finite(&self.0).is_none()
    }

    /// Scales the vector down until its norm, as computed by [`norm`] on any machine, is at most
    /// `max`, so that a receiver's own computation never exceeds it. Shorter vectors stay
    /// unchanged.
    pub fn clip_norm(&mut self, max: f64) -> Result<(), ParamsError> {
        if !(max.is_finite() && max > 0.0) {
            return Err(ParamsError::Norm { given: max.to_string() });
        }
        if !self.is_finite() {
            return Err(ParamsError::NotFinite);
        }
        let mut scale = max / self.norm();
        if scale >= 1.0 || self.norm() <= max {
            return Ok(());
        }
        loop {
            let clipped: Vec<f32> =
                self.0.iter().map(|&value| (f64::from(value) * scale) as f32).collect();
            if norm(&clipped) <= max {
                self.0 = clipped;
                return Ok(());
            }
            // Rounding to f32 may have increased the norm by a few parts in 10^8.
            scale *= 1.0 - f64::from(f32::EPSILON);
        }
    }
}

/// The Euclidean norm in `f64`. Additions have one fixed order, so that every machine gets the same
/// bits.
pub fn norm(values: &[f32]) -> f64 {
    squares(values).sqrt()
}

/// The sum of squares over eight interleaved lanes, then over the lanes.
pub(crate) fn squares(values: &[f32]) -> f64 {
    let mut squares = NormAccumulator::default();
    squares.add(0, values);
    squares.sum()
}

/// The lanes of a [`norm`] that is computed piece by piece. An element's lane is its index modulo
/// 8, so that the norm has the same bits for any division into pieces, and with or without zeros.
#[derive(Debug, Clone, Default)]
pub struct NormAccumulator([f64; 8]);

impl NormAccumulator {
    /// Adds the elements from index `from` on. The index ascends from call to call.
    pub fn add(&mut self, from: usize, values: &[f32]) {
        let lead = (8 - from % 8) % 8;
        let (ahead, aligned) = values.split_at(lead.min(values.len()));
        for (lane, &value) in self.0[from % 8..].iter_mut().zip(ahead) {
            *lane += f64::from(value) * f64::from(value);
        }
        let chunks = aligned.chunks_exact(8);
        let rest = chunks.remainder();
        let mut lanes = self.0;
        for chunk in chunks {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(value) * f64::from(value);
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(value) * f64::from(value);
        }
        self.0 = lanes;
    }

    /// The norm of all elements added so far: the same bits as [`norm`] of the whole vector.
    pub fn norm(&self) -> f64 {
        self.sum().sqrt()
    }

    fn sum(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// Index of the first NaN or infinity. Checks a block at a time, which the compiler vectorises;
/// only a block with such a number is searched.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<usize> {
    const BLOCK: usize = 1024;
    let bad = |block: &[f32]| block.iter().fold(false, |bad, value| bad | !value.is_finite());
    let block = values.chunks(BLOCK).position(bad)?;
    let from = block * BLOCK;
    values[from..].iter().position(|value| !value.is_finite()).map(|at| from + at)
}

pub(crate) fn same_length(expected: usize, got: usize) -> Result<(), ParamsError> {
    if expected == got { Ok(()) } else { Err(ParamsError::Length { expected, got }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::ModelSpec;

    #[test]
    fn applying_a_delta_gives_the_other_model() {
        let model = ModelSpec::Softmax { inputs: 1, classes: 2 };
        let base = Params::for_model(&model, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let trained = Params::for_model(&model, vec![1.5, 2.0, 2.0, 4.25]).unwrap();
        let delta = trained.delta_from(base.as_slice()).unwrap();
        assert_eq!(delta.as_slice(), [0.5, 0.0, -1.0, 0.25]);
        assert_eq!(base.apply(delta.as_slice()).unwrap(), trained);
        let short = ParamsError::Length { expected: 4, got: 3 };
        assert_eq!(Params::for_model(&model, vec![0.0; 3]), Err(short.clone()));
        assert_eq!(base.apply(&[0.0; 3]), Err(short));
    }

    #[test]
    fn norm_and_clipping_of_a_3_4_5_vector() {
        let mut params = Params(vec![3.0, 0.0, -4.0]);
        assert_eq!(params.norm(), 5.0);
        params.clip_norm(10.0).unwrap();
        assert_eq!(params.as_slice(), [3.0, 0.0, -4.0]);
        params.clip_norm(2.5).unwrap();
        assert_eq!(params.as_slice(), [1.5, 0.0, -2.0]);
        assert!(params.clip_norm(0.0).is_err() && params.clip_norm(f64::NAN).is_err());
        assert_eq!(Params(vec![f32::NAN]).clip_norm(1.0), Err(ParamsError::NotFinite));
        let mut zero = Params(vec![0.0; 3]);
        zero.clip_norm(1.0).unwrap();
        assert_eq!(zero.as_slice(), [0.0; 3]);
    }

    #[test]
    fn the_first_non_finite_number_is_found_at_any_index() {
        for at in [0, 1, 1023, 1024, 2500] {
            let mut values = vec![1.0; 2501];
            assert_eq!(first_not_finite(&values), None);
            values[at] = f32::NAN;
            values[2500] = f32::INFINITY;
            assert_eq!(first_not_finite(&values), Some(at));
        }
    }

    proptest! {
        #[test]
        fn a_norm_computed_in_pieces_and_without_zeros_has_the_same_bits(
            values in prop::collection::vec(-1e3_f32..1e3, 1..100), cut in 0_usize..100,
            dropped in 0_usize..100,
        ) {
            let mut values = values;
            let (cut, dropped) = (cut % values.len(), dropped % values.len());
            values[dropped] = 0.0;
            let whole = norm(&values);
            let mut pieces = NormAccumulator::default();
            pieces.add(0, &values[..cut]);
            pieces.add(cut, &values[cut..]);
            prop_assert_eq!(pieces.norm().to_bits(), whole.to_bits());
            let mut without = NormAccumulator::default();
            for (at, value) in values.iter().enumerate().filter(|(at, _)| *at != dropped) {
                without.add(at, &[*value]);
            }
            prop_assert_eq!(without.norm().to_bits(), whole.to_bits());
        }

        #[test]
        fn a_clipped_norm_is_at_most_the_limit_and_close_to_it(
            values in prop::collection::vec(-1e6_f32..1e6, 1..100), max in 1e-3_f64..1e3,
        ) {
            let mut params = Params(values);
            let before = params.norm();
            params.clip_norm(max).unwrap();
            prop_assert!(params.norm() <= max);
            prop_assert!(params.norm() >= before.min(max) * (1.0 - 1e-5));
        }
    }
}
