//! A model's parameters, or a difference of two, as one flat vector.

use thiserror::Error;

use crate::model::ModelSpec;

/// All numbers of a model's tensors in their order. Nothing is promised about the numbers: a
/// diverged run has NaN in them, and [`Params::is_finite`] tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Params(Vec<f32>);

/// Why numbers are no parameters of a model, or two vectors do not belong together.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ParamsError {
    /// Too few or too many.
    #[error("{got} parameters: must be {expected}")]
    Length {
        /// How many there should be.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A norm that nothing can be clipped to.
    #[error("a norm cannot be clipped to {given}: must be a positive finite number")]
    Norm {
        /// What was asked for.
        given: String,
    },
    /// Only finite numbers have a norm to clip.
    #[error("the parameters hold NaN or infinity: nothing can be clipped")]
    NotFinite,
}

impl Params {
    /// Takes numbers as the parameters of `model`, if there are as many as it has.
    pub fn from_vec(model: &ModelSpec, values: Vec<f32>) -> Result<Self, ParamsError> {
        same_length(model.parameters(), values.len())?;
        Ok(Self(values))
    }

    pub(crate) fn from_flat(values: Vec<f32>) -> Self {
        Self(values)
    }

    /// The numbers in order.
    pub fn as_slice(&self) -> &[f32] {
        &self.0
    }

    /// The numbers in order, to keep.
    pub fn into_vec(self) -> Vec<f32> {
        self.0
    }

    /// How far these are from `base`: `self − base`, number by number.
    pub fn delta_from(&self, base: &[f32]) -> Result<Self, ParamsError> {
        same_length(base.len(), self.0.len())?;
        Ok(Self(self.0.iter().zip(base).map(|(own, base)| own - base).collect()))
    }

    /// Moves these by a difference: `self + delta`, number by number.
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

    /// Scales these down until their norm is at most `max`, as [`norm`] measures it on any machine:
    /// a receiver who repeats the measurement never finds more. Shorter ones stay as they are.
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
            // Rounding to f32 may have lengthened it by a few parts in 10^8.
            scale *= 1.0 - f64::from(f32::EPSILON);
        }
    }
}

/// The Euclidean norm in `f64`. Additions run in one fixed order, so that every machine finds the
/// same bits.
pub fn norm(values: &[f32]) -> f64 {
    squares(values).sqrt()
}

/// Sum of squares over eight interleaved lanes, then over the lanes.
pub(crate) fn squares(values: &[f32]) -> f64 {
    let mut squares = Squares::default();
    squares.add(0, values);
    squares.sum()
}

/// The lanes of a [`norm`] that is taken piece by piece. A number's lane is its place, so that the
/// norm has the same bits however the numbers are cut, and whether or not zeros are left out.
#[derive(Debug, Clone, Default)]
pub struct Squares([f64; 8]);

impl Squares {
    /// Adds the numbers from place `from` on. Places ascend from call to call.
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

    /// The norm of all that was added: bit for bit what [`norm`] says of the whole vector.
    pub fn norm(&self) -> f64 {
        self.sum().sqrt()
    }

    fn sum(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// Where the first NaN or infinity stands. Looks at a block at a time, which the compiler turns into
/// wide comparisons; only a bad block is searched.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<usize> {
    const BLOCK: usize = 1024;
    let bad = |block: &[f32]| block.iter().fold(false, |bad, value| bad | !value.is_finite());
    let block = values.chunks(BLOCK).position(bad)?;
    let from = block * BLOCK;
    values[from..].iter().position(|value| !value.is_finite()).map(|at| from + at)
}

fn same_length(expected: usize, got: usize) -> Result<(), ParamsError> {
    if expected == got { Ok(()) } else { Err(ParamsError::Length { expected, got }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_delta_brings_one_model_to_the_other() {
        let model = ModelSpec::Softmax { inputs: 1, classes: 2 };
        let base = Params::from_vec(&model, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let trained = Params::from_vec(&model, vec![1.5, 2.0, 2.0, 4.25]).unwrap();
        let delta = trained.delta_from(base.as_slice()).unwrap();
        assert_eq!(delta.as_slice(), [0.5, 0.0, -1.0, 0.25]);
        assert_eq!(base.apply(delta.as_slice()).unwrap(), trained);
        let short = ParamsError::Length { expected: 4, got: 3 };
        assert_eq!(Params::from_vec(&model, vec![0.0; 3]), Err(short.clone()));
        assert_eq!(base.apply(&[0.0; 3]), Err(short));
    }

    #[test]
    fn three_four_five() {
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
    fn the_first_bad_number_is_found_wherever_it_stands() {
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
        fn a_norm_taken_in_pieces_and_without_zeros_has_the_same_bits(
            values in prop::collection::vec(-1e3_f32..1e3, 1..100), cut in 0_usize..100,
            dropped in 0_usize..100,
        ) {
            let mut values = values;
            let (cut, dropped) = (cut % values.len(), dropped % values.len());
            values[dropped] = 0.0;
            let whole = norm(&values);
            let mut pieces = Squares::default();
            pieces.add(0, &values[..cut]);
            pieces.add(cut, &values[cut..]);
            prop_assert_eq!(pieces.norm().to_bits(), whole.to_bits());
            let mut without = Squares::default();
            for (at, value) in values.iter().enumerate().filter(|(at, _)| *at != dropped) {
                without.add(at, &[*value]);
            }
            prop_assert_eq!(without.norm().to_bits(), whole.to_bits());
        }

        #[test]
        fn a_clipped_norm_is_never_above_the_limit_and_hardly_below(
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
