//! Parameters as safetensors bytes, with a strict decoder for untrusted input.
//!
//! ```text
//! 8 bytes     length of the header, little-endian
//! header      {"layer0.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},…}, then
//!             spaces up to a multiple of 8
//! the rest    the numbers, f32 little-endian, in the order of the model's tensors
//! ```
//! The encoding is canonical: one model and one vector have exactly one encoding, and the decoder
//! accepts only that. Other encodings of the same tensors are refused with the difference.

mod error;
pub(crate) mod header;

pub use error::DecodeError;
pub use header::HEADER_BYTES_MAX;
use header::{Dtype, Section};

use crate::model::ModelSpec;
use crate::params::{ParamsError, first_not_finite};

/// Numbers decoded at a time: a multiple of the lanes of a norm.
pub(crate) const PIECE: usize = 4096;

fn sections(model: &ModelSpec) -> Vec<Section> {
    let section = |tensor: crate::TensorSpec| Section {
        name: tensor.name,
        dtype: Dtype::F32,
        shape: tensor.shape,
    };
    model.tensors().into_iter().map(section).collect()
}

/// Length of the output of [`encode`] for a model, in bytes.
pub fn encoded_len(model: &ModelSpec) -> usize {
    header::write(&sections(model)).len() + 4 * model.parameters()
}

/// The canonical bytes of `values`, whose number must equal the model's parameters; does not check
/// whether they are finite.
pub fn encode(model: &ModelSpec, values: &[f32]) -> Result<Vec<u8>, ParamsError> {
    let expected = model.parameters();
    if values.len() != expected {
        return Err(ParamsError::Length { expected, got: values.len() });
    }
    let mut bytes = header::write(&sections(model));
    bytes.reserve_exact(4 * values.len());
    append_floats(&mut bytes, values.iter().copied());
    Ok(bytes)
}

/// Appends numbers of four bytes each.
pub(crate) fn append_floats(bytes: &mut Vec<u8>, values: impl ExactSizeIterator<Item = f32>) {
    let from = bytes.len();
    bytes.resize(from + 4 * values.len(), 0);
    for (word, value) in bytes[from..].as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *word = value.to_le_bytes();
    }
}

/// Decodes the numbers of a model's tensors in the model's order. Checks lengths before the header,
/// and the header before the numbers; on success every number is finite.
pub fn decode(model: &ModelSpec, bytes: &[u8]) -> Result<Vec<f32>, DecodeError> {
    let sections = sections(model);
    let body = header::open(&sections, bytes)?;
    let mut values = Vec::with_capacity(model.parameters());
    walk_body(&sections, body, f32::from_le_bytes, &mut |_, piece| {
        values.extend_from_slice(piece)
    })?;
    Ok(values)
}

/// Decodes the numbers after a header, of `WIDTH` bytes each, and calls `take` with pieces and the
/// index of their first number. On success every number is finite.
pub(crate) fn walk_body<const WIDTH: usize>(
    sections: &[Section],
    body: &[u8],
    number: impl Fn([u8; WIDTH]) -> f32,
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), DecodeError> {
    let mut piece = [0.0; PIECE];
    let mut from = 0;
    for stored in body.as_chunks::<WIDTH>().0.chunks(PIECE) {
        let piece = &mut piece[..stored.len()];
        for (value, bytes) in piece.iter_mut().zip(stored) {
            *value = number(*bytes);
        }
        if let Some(at) = first_not_finite(piece) {
            return Err(not_finite(sections, from + at));
        }
        take(from, piece);
        from += piece.len();
    }
    Ok(())
}

/// The error for number `at` of all, with its tensor.
fn not_finite(sections: &[Section], at: usize) -> DecodeError {
    let mut index = at;
    for section in sections {
        if index < section.numbers() {
            return DecodeError::NotFinite { tensor: section.name.clone(), index };
        }
        index -= section.numbers();
    }
    DecodeError::NotFinite { tensor: String::new(), index }
}

#[cfg(test)]
mod tests;
