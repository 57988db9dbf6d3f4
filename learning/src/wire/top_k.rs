//! The top-k format: the largest numbers with their indices; all other numbers are zero.
//!
//! The selection is over the whole model, not per tensor, so that the largest changes are sent
//! wherever they are. Among numbers of equal magnitude the first ones are selected, so that a delta
//! has one encoding.

use std::cmp::Ordering;

use super::{scaled_down, words};
use crate::params::NormAccumulator;
use crate::tensors::{DecodeError, PIECE};

/// Number of selected elements out of `numbers`.
pub(super) fn selected_count(numbers: usize, permille: u16) -> usize {
    (numbers * usize::from(permille)).div_ceil(1000).clamp(1, numbers)
}

/// Encodes the `count` largest numbers with a norm of at most `norm_max`; returns the residual.
pub(super) fn encode(delta: &[f32], count: usize, norm_max: f64, bytes: &mut Vec<u8>) -> Vec<f32> {
    let chosen = largest(delta, count);
    let mut squares = NormAccumulator::default();
    for &at in &chosen {
        squares.add(at as usize, &[delta[at as usize]]);
    }
    let factor = norm_max / squares.norm();
    bytes.extend(chosen.iter().flat_map(|at| at.to_le_bytes()));
    let mut residual = delta.to_vec();
    for &at in &chosen {
        let value = std::mem::take(&mut residual[at as usize]);
        bytes.extend_from_slice(&scaled_down(value, factor).to_le_bytes());
    }
    residual
}

/// Indices of the `count` largest magnitudes, ascending. Models have fewer than 2³² parameters.
fn largest(delta: &[f32], count: usize) -> Vec<u32> {
    // The magnitudes of finite numbers have the same order as their bits.
    let magnitude = |value: &f32| value.abs().to_bits();
    let mut magnitudes: Vec<u32> = delta.iter().map(magnitude).collect();
    let (_, least, _) = magnitudes.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
    let least = *least;
    let above = delta.iter().filter(|value| magnitude(value) > least).count();
    let mut equal = count - above;
    let mut chosen = Vec::with_capacity(count);
    for (at, value) in (0..).zip(delta) {
        let keep = match magnitude(value).cmp(&least) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal if equal == 0 => false,
            Ordering::Equal => {
                equal -= 1;
                true
            }
        };
        if keep {
            chosen.push(at);
        }
    }
    chosen
}

pub(super) fn walk(
    numbers: usize,
    body: &[u8],
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), DecodeError> {
    let (indices, values) = body.split_at(body.len() / 2);
    check_indices(numbers, indices)?;
    // Adjacent selected numbers form one piece.
    let mut piece = [0.0; PIECE];
    let (mut from, mut length) = (0, 0);
    for (place, (index, value)) in words(indices).zip(words(values)).enumerate() {
        let (at, value) = (u32::from_le_bytes(index) as usize, f32::from_le_bytes(value));
        if !value.is_finite() {
            return Err(DecodeError::NotFinite { tensor: "values".to_owned(), index: place });
        }
        if length == PIECE || at != from + length {
            take(from, &piece[..length]);
            (from, length) = (at, 0);
        }
        piece[length] = value;
        length += 1;
    }
    take(from, &piece[..length]);
    Ok(())
}

/// Checks that indices are strictly ascending and within the model.
fn check_indices(numbers: usize, indices: &[u8]) -> Result<(), DecodeError> {
    let mut least = 0;
    for (place, word) in words(indices).enumerate() {
        let got = u32::from_le_bytes(word);
        let index = u64::from(got);
        if index < least || index >= numbers as u64 {
            return Err(DecodeError::WrongIndex { place, got, least, numbers });
        }
        least = index + 1;
    }
    Ok(())
}
