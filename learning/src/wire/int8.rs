//! The int8 format: each number as an integer multiple of its tensor's scale.
//!
//! The scale is the tensor's largest magnitude divided by 127, rounded down, so that the largest
//! code is 127. The other numbers are rounded stochastically, so that the decoded numbers are
//! unbiased. A tensor of zeros has scale 0. These rules make the scale unique, so that it cannot
//! carry hidden data: another scale for the same numbers is refused.

use rand_chacha::ChaCha20Rng;

use crate::TensorSpec;
use crate::model::ModelSpec;
use crate::params::NormAccumulator;
use crate::rng::{Purpose, rng, uniform};
use crate::tensors::header::{Dtype, Section};
use crate::tensors::{DecodeError, PIECE};

/// Largest code of a tensor; −128 is not used.
const LARGEST: i8 = 127;

/// The tensors of scales, which precede the others.
pub(super) fn scales(model: &ModelSpec) -> impl Iterator<Item = Section> {
    let section = |tensor: TensorSpec| Section {
        name: tensor.name + ".scale",
        dtype: Dtype::F32,
        shape: vec![1],
    };
    model.tensors().into_iter().map(section)
}

pub(super) fn encode(
    tensors: &[TensorSpec],
    delta: &[f32],
    norm_max: f64,
    seed: u64,
    bytes: &mut Vec<u8>,
) {
    let mut squares = NormAccumulator::default();
    let mut codes: Vec<i8> = Vec::with_capacity(delta.len());
    let mut scales = Vec::with_capacity(tensors.len());
    for (part, tensor) in (0..).zip(tensors) {
        let from = codes.len();
        let values = &delta[from..from + tensor.elements()];
        let scale = scale_of(values);
        let mut rng = rng(seed, Purpose::Rounding, part);
        for (at, value) in values.iter().enumerate() {
            let code = code(*value, scale, &mut rng);
            squares.add(from + at, &[decoded(code, scale)]);
            codes.push(code);
        }
        scales.push(scale);
    }
    // Stochastic rounding increases the norm; smaller scales shorten all numbers equally.
    let norm = squares.norm();
    if norm > norm_max {
        shorten(tensors, &mut scales, &mut codes, norm_max / norm);
    }
    bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
    bytes.extend(codes.iter().flat_map(|code| code.to_le_bytes()));
}

/// The scale of a tensor; 0 if all numbers are zero, or too small for a normal scale.
fn scale_of(values: &[f32]) -> f32 {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let scale = (f64::from(largest) / f64::from(LARGEST)) as f32;
    let too_long = f64::from(scale) * f64::from(LARGEST) > f64::from(largest);
    let scale = if too_long { scale.next_down() } else { scale };
    if scale.is_normal() { scale } else { 0.0 }
}

/// The code of one number, in units of the scale. Draws one random number for any input.
fn code(value: f32, scale: f32, rng: &mut ChaCha20Rng) -> i8 {
    let drawn = uniform(rng);
    if scale == 0.0 {
        return 0;
    }
    let (exact, largest) = (f64::from(value) / f64::from(scale), f64::from(LARGEST));
    (exact + drawn).floor().clamp(-largest, largest) as i8
}

fn decoded(code: i8, scale: f32) -> f32 {
    f32::from(code) * scale
}

fn shorten(tensors: &[TensorSpec], scales: &mut [f32], codes: &mut [i8], factor: f64) {
    // Small enough that rounding to f32 does not exceed the limit again.
    let factor = factor * (1.0 - 4.0 * f64::from(f32::EPSILON));
    let mut rest = codes;
    for (tensor, scale) in tensors.iter().zip(scales) {
        let (codes, behind) = rest.split_at_mut(tensor.elements());
        rest = behind;
        *scale = (f64::from(*scale) * factor) as f32;
        if !scale.is_normal() {
            *scale = 0.0;
            codes.fill(0);
        }
    }
}

pub(super) fn walk(
    tensors: &[TensorSpec],
    body: &[u8],
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), DecodeError> {
    let (scales, mut codes) = body.split_at(4 * tensors.len());
    let mut from = 0;
    for (tensor, word) in tensors.iter().zip(super::words(scales)) {
        let scale = f32::from_le_bytes(word);
        let name = || tensor.name.clone();
        let possible = scale.is_normal() && scale > 0.0 && decoded(LARGEST, scale).is_finite();
        if scale.to_bits() != 0 && !possible {
            return Err(DecodeError::WrongScale { tensor: name(), got: scale });
        }
        let (own, behind) = codes.split_at(tensor.elements());
        codes = behind;
        let largest = walk_tensor(tensor, own, scale, from, take)?;
        let needed = if scale == 0.0 { 0 } else { LARGEST };
        if largest != needed {
            return Err(DecodeError::ScaleNotMinimal { tensor: name(), scale, needed, largest });
        }
        from += tensor.elements();
    }
    Ok(())
}

/// Calls `take` with a tensor's numbers; returns the largest magnitude of its codes.
fn walk_tensor(
    tensor: &TensorSpec,
    codes: &[u8],
    scale: f32,
    from: usize,
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<i8, DecodeError> {
    let mut piece = [0.0; PIECE];
    let mut largest = 0;
    for (number, stored) in codes.chunks(PIECE).enumerate() {
        let begin = number * PIECE;
        let piece = &mut piece[..stored.len()];
        let mut lowest = 0;
        for (value, byte) in piece.iter_mut().zip(stored) {
            let code = i8::from_le_bytes([*byte]);
            lowest = lowest.min(code);
            largest = largest.max(code.saturating_abs());
            *value = decoded(code, scale);
        }
        if lowest < -LARGEST {
            let index = stored.iter().position(|byte| i8::from_le_bytes([*byte]) == lowest);
            let index = begin + index.unwrap_or_default();
            return Err(DecodeError::WrongCode { tensor: tensor.name.clone(), index });
        }
        take(from + begin, piece);
    }
    Ok(largest)
}
