//! The bf16 format: sign, exponent and seven mantissa bits of each number.

use super::scaled_down;
use crate::params::{NormAccumulator, norm};
use crate::tensors::header::Section;
use crate::tensors::{DecodeError, walk_body};

/// Largest relative rounding error.
pub(super) const ROUNDING: f64 = 1.0 / 256.0;

pub(super) fn encode(delta: &[f32], norm_max: f64, bytes: &mut Vec<u8>) {
    let mut squares = NormAccumulator::default();
    for (at, value) in delta.iter().enumerate() {
        squares.add(at, &[widened(rounded(*value))]);
    }
    let factor =
        if squares.norm() <= norm_max { 1.0 } else { norm_max / (norm(delta) * (1.0 + ROUNDING)) };
    for value in delta {
        bytes.extend_from_slice(&rounded(scaled_down(*value, factor)).to_le_bytes());
    }
}

/// The nearest bf16 number, ties to even. A finite number stays finite.
fn rounded(value: f32) -> u16 {
    const LARGEST: u32 = 0x7f7f;
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 31, bits & 0x7fff_ffff);
    let odd = (magnitude >> 16) & 1;
    let nearest = ((magnitude + 0x7fff + odd) >> 16).min(LARGEST);
    (sign << 15 | nearest) as u16
}

fn widened(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

pub(super) fn walk(
    sections: &[Section],
    body: &[u8],
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), DecodeError> {
    walk_body(sections, body, |half| widened(u16::from_le_bytes(half)), take)
}
