//! The wire format of an update, as selected by its task.
//!
//! Every format is a safetensors file with one canonical header, so that its length follows from
//! model and format alone, and no memory is allocated for bytes that cannot be an update:
//!
//! | format | the tensors of the file | bytes for n numbers in t tensors |
//! |---|---|---|
//! | f32 | the model's, `F32` | 4n |
//! | bf16 | the model's, `BF16`, rounded to nearest, ties to even | 2n |
//! | int8 | `NAME.scale`, `F32`, for each tensor; then the model's, `I8` | n + 4t |
//! | top_k | `indices`, `U32`, ascending; `values`, `F32` | 8 ⌈n · permille / 1000⌉ |
//!
//! The decoded delta is decisive: its numbers are finite, and an encoder limits its norm. Decoding
//! depends on the bytes alone and gives the same bits on every machine.

mod bf16;
mod int8;
mod top_k;

use std::fmt;

use thiserror::Error;

use crate::TensorSpec;
use crate::model::ModelSpec;
use crate::params::{NormAccumulator, ParamsError, first_not_finite, norm};
use crate::tensors::header::{self, Dtype, Section};
use crate::tensors::{self, DecodeError};

/// Largest permille of [`WireFormat::TopK`]: above it, plain `f32` is shorter.
pub const TOP_K_PERMILLE_MAX: u16 = 500;

/// The number format of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WireFormat {
    /// Unchanged `f32`.
    F32,
    /// The first 16 of the 32 bits.
    Bf16,
    /// Integer multiples, −127 to 127, of one scale per tensor.
    Int8,
    /// Only the largest numbers, with their indices.
    TopK {
        /// Share of the numbers to send, in permille, 1 to [`TOP_K_PERMILLE_MAX`]; at least one
        /// number.
        permille: u16,
    },
}

impl fmt::Display for WireFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.pad("f32"),
            Self::Bf16 => f.pad("bf16"),
            Self::Int8 => f.pad("int8"),
            Self::TopK { permille } => f.pad(&format!("top_k {permille} permille")),
        }
    }
}

/// Encoding a delta failed.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum EncodeError {
    /// The length or the norm limit is invalid.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// A number is NaN or infinite.
    #[error("number {index} of the delta is not finite: all numbers must be finite")]
    NotFinite {
        /// Index of the number, from 0.
        index: usize,
    },
    /// The permille is out of bounds.
    #[error("permille is {got}: must be 1 to {TOP_K_PERMILLE_MAX}")]
    Permille {
        /// The value given.
        got: u16,
    },
}

/// An encoded delta.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// The canonical bytes.
    pub bytes: Vec<u8>,
    /// The numbers that [`WireFormat::TopK`] dropped, to be added to the next delta (error feedback);
    /// `None` for other formats, which are unbiased (int8) or almost lossless.
    pub residual: Option<Vec<f32>>,
}

/// Length of every update of this model in this format, in bytes; the decoder accepts no other
/// length.
pub fn encoded_len(model: &ModelSpec, format: WireFormat) -> usize {
    let sections = sections(model, format);
    header::write(&sections).len() + header::body_len(&sections)
}

/// Encodes a delta such that the norm of the decoded delta is at most `norm_max` (positive and
/// finite), shortening it if necessary. The same delta and seed give the same bytes; only int8 uses
/// the seed.
pub fn encode(
    model: &ModelSpec,
    format: WireFormat,
    delta: &[f32],
    norm_max: f64,
    seed: u64,
) -> Result<Encoded, EncodeError> {
    let expected = model.parameters();
    if delta.len() != expected {
        return Err(ParamsError::Length { expected, got: delta.len() }.into());
    }
    if !(norm_max.is_finite() && norm_max > 0.0) {
        return Err(ParamsError::Norm { given: norm_max.to_string() }.into());
    }
    if let Some(index) = first_not_finite(delta) {
        return Err(EncodeError::NotFinite { index });
    }
    let sections = sections(model, format);
    let mut bytes = header::write(&sections);
    bytes.reserve_exact(header::body_len(&sections));
    let mut residual = None;
    match format {
        WireFormat::F32 => plain(delta, norm_max, &mut bytes),
        WireFormat::Bf16 => bf16::encode(delta, norm_max, &mut bytes),
        WireFormat::Int8 => int8::encode(&model.tensors(), delta, norm_max, seed, &mut bytes),
        WireFormat::TopK { permille } if !(1..=TOP_K_PERMILLE_MAX).contains(&permille) => {
            return Err(EncodeError::Permille { got: permille });
        }
        WireFormat::TopK { permille } => {
            let count = top_k::selected_count(delta.len(), permille);
            residual = Some(top_k::encode(delta, count, norm_max, &mut bytes));
        }
    }
    Ok(Encoded { bytes, residual })
}

/// Checks the bytes of an update, and calls `take` with pieces of numbers and the index of their
/// first number. Indices ascend, and numbers outside all pieces are zero. No allocation is as large
/// as the model. If it returns an error, pieces already taken must be discarded.
pub fn walk(
    model: &ModelSpec,
    format: WireFormat,
    bytes: &[u8],
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), DecodeError> {
    let sections = sections(model, format);
    let body = header::open(&sections, bytes)?;
    match format {
        WireFormat::F32 => tensors::walk_body(&sections, body, f32::from_le_bytes, take),
        WireFormat::Bf16 => bf16::walk(&sections, body, take),
        WireFormat::Int8 => int8::walk(&model.tensors(), body, take),
        WireFormat::TopK { .. } => top_k::walk(model.parameters(), body, take),
    }
}

/// Whether the first of `total` bytes of an upload contain the whole header of an update in this
/// format, and it is correct; `false` while the header is incomplete. Returns the errors that
/// [`walk`] returns before the numbers.
pub fn check_header(
    model: &ModelSpec,
    format: WireFormat,
    first: &[u8],
    total: u64,
) -> Result<bool, DecodeError> {
    header::check(&sections(model, format), first, total)
}

/// The tensors of a file in this format, in order.
fn sections(model: &ModelSpec, format: WireFormat) -> Vec<Section> {
    let all = |dtype| {
        let section = move |TensorSpec { name, shape }| Section { name, dtype, shape };
        model.tensors().into_iter().map(section)
    };
    match format {
        WireFormat::F32 => all(Dtype::F32).collect(),
        WireFormat::Bf16 => all(Dtype::Bf16).collect(),
        WireFormat::Int8 => int8::scales(model).chain(all(Dtype::I8)).collect(),
        WireFormat::TopK { permille } => {
            let shape = vec![top_k::selected_count(model.parameters(), permille)];
            let section =
                |name: &str, dtype| Section { name: name.to_owned(), dtype, shape: shape.clone() };
            vec![section("indices", Dtype::U32), section("values", Dtype::F32)]
        }
    }
}

fn plain(delta: &[f32], norm_max: f64, bytes: &mut Vec<u8>) {
    let factor = norm_max / norm(delta);
    tensors::append_floats(bytes, delta.iter().map(|value| scaled_down(*value, factor)));
}

/// Scales a number of a vector whose norm exceeds the limit by `1 / factor`; unchanged otherwise.
fn scaled_down(value: f32, factor: f64) -> f32 {
    if factor < 1.0 { (f64::from(value) * factor) as f32 } else { value }
}

/// Little-endian words of four bytes.
fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]])
}

/// The norm of the decoded delta.
pub fn decoded_norm(
    model: &ModelSpec,
    format: WireFormat,
    bytes: &[u8],
) -> Result<f64, DecodeError> {
    let mut squares = NormAccumulator::default();
    walk(model, format, bytes, &mut |from, piece| squares.add(from, piece))?;
    Ok(squares.norm())
}

#[cfg(test)]
mod tests;
