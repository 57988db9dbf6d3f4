//! Parameters as safetensors bytes, and back from bytes that a stranger sent.
//!
//! ```text
//! 8 bytes     length of the header, little-endian
//! header      {"layer0.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},…}, then
//!             spaces up to a multiple of 8
//! the rest    the numbers, f32 little-endian, in the order of the model's tensors
//! ```
//! These bytes are canonical: one model and one vector make one string of bytes, and only that is
//! read. What other writers make of the same tensors is refused with what is different.

mod error;
pub(crate) mod header;

pub use error::DecodeError;
pub use header::HEADER_BYTES_MAX;
use header::{Dtype, Section};

use crate::model::ModelSpec;
use crate::params::{ParamsError, first_not_finite};

/// So many numbers are decoded at a time. A multiple of the lanes of a norm.
pub(crate) const PIECE: usize = 4096;

fn sections(model: &ModelSpec) -> Vec<Section> {
    let section = |tensor: crate::TensorSpec| Section {
        name: tensor.name,
        dtype: Dtype::F32,
        shape: tensor.shape,
    };
    model.tensors().into_iter().map(section).collect()
}

/// Length of what [`encode`] writes for a model, in bytes.
pub fn encoded_len(model: &ModelSpec) -> usize {
    header::write(&sections(model)).len() + 4 * model.parameters()
}

/// The canonical bytes of `values`, which must be as many as the model has parameters; whether they
/// are finite is not looked at here.
pub fn encode(model: &ModelSpec, values: &[f32]) -> Result<Vec<u8>, ParamsError> {
    let expected = model.parameters();
    if values.len() != expected {
        return Err(ParamsError::Length { expected, got: values.len() });
    }
    let mut bytes = header::write(&sections(model));
    bytes.reserve_exact(4 * values.len());
    put_words(&mut bytes, values.iter().copied());
    Ok(bytes)
}

/// Puts numbers behind bytes, each as four of them.
pub(crate) fn put_words(bytes: &mut Vec<u8>, values: impl ExactSizeIterator<Item = f32>) {
    let from = bytes.len();
    bytes.resize(from + 4 * values.len(), 0);
    for (word, value) in bytes[from..].as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *word = value.to_le_bytes();
    }
}

/// The numbers of a model's tensors in the model's order. Lengths are checked before the header is
/// looked at, the header before a number is read; every number is finite when this succeeds.
pub fn decode(model: &ModelSpec, bytes: &[u8]) -> Result<Vec<f32>, DecodeError> {
    let sections = sections(model);
    let body = header::open(&sections, bytes)?;
    let mut values = Vec::with_capacity(model.parameters());
    walk_body(&sections, body, f32::from_le_bytes, &mut |_, piece| {
        values.extend_from_slice(piece)
    })?;
    Ok(values)
}

/// Gives the numbers behind a header, of `WIDTH` bytes each, to `take` in pieces, each with the place of
/// its first number. Every number is finite when this succeeds.
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

/// Names the tensor that number `at` of all belongs to.
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
