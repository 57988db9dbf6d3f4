//! An update as bytes, in the format that its task chose.
//!
//! Every format is a safetensors file with one canonical header, so that its length follows from
//! model and format alone and nothing is allocated for bytes that cannot be an update:
//!
//! | format | the tensors of the file | bytes for n numbers in t tensors |
//! |---|---|---|
//! | f32 | the model's, `F32` | 4n |
//! | bf16 | the model's, `BF16`, rounded to nearest, ties to even | 2n |
//! | int8 | `NAME.scale`, `F32`, for each tensor; then the model's, `I8` | n + 4t |
//! | top_k | `indices`, `U32`, ascending; `values`, `F32` | 8 ⌈n · permille / 1000⌉ |
//!
//! What counts is the decoded delta: its numbers are finite, and an encoder keeps its norm within
//! the limit. Decoding is a function of the bytes alone, the same bits on every machine.

mod bf16;
mod int8;
mod top_k;

use std::fmt;

use thiserror::Error;

use crate::TensorSpec;
use crate::model::ModelSpec;
use crate::params::{ParamsError, Squares, first_not_finite, norm};
use crate::tensors::header::{self, Dtype, Section};
use crate::tensors::{self, DecodeError};

/// Most permille of a model's numbers that [`Format::TopK`] keeps: with more, plain `f32` is shorter.
pub const TOP_K_PERMILLE_MAX: u16 = 500;

/// How the numbers of an update are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// As they are.
    F32,
    /// With the first 16 of their 32 bits.
    Bf16,
    /// As whole multiples, −127 to 127, of a scale that each tensor has.
    Int8,
    /// The largest ones only, and where they stand.
    TopK {
        /// How many of a thousand are kept, 1 to [`TOP_K_PERMILLE_MAX`]; at least one number is.
        permille: u16,
    },
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.pad("f32"),
            Self::Bf16 => f.pad("bf16"),
            Self::Int8 => f.pad("int8"),
            Self::TopK { permille } => f.pad(&format!("top_k {permille} permille")),
        }
    }
}

/// Why a delta could not be written.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum EncodeError {
    /// Too few or too many numbers.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// NaN or infinity.
    #[error("number {index} of the delta is not finite: every number must be")]
    NotFinite {
        /// Which number, from 0.
        index: usize,
    },
    /// A share that cannot be.
    #[error("permille is {got}: must be 1 to {TOP_K_PERMILLE_MAX}")]
    Permille {
        /// What was asked for.
        got: u16,
    },
}

/// What a delta came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// The canonical bytes.
    pub bytes: Vec<u8>,
    /// What [`Format::TopK`] did not keep, for the next delta to carry; `None` for other formats,
    /// which lose nothing on average (int8) or next to nothing.
    pub residual: Option<Vec<f32>>,
}

/// Length of every update of this model in this format, in bytes: no other length is read.
pub fn encoded_len(model: &ModelSpec, format: Format) -> usize {
    let sections = sections(model, format);
    header::write(&sections).len() + header::body_len(&sections)
}

/// Writes a delta whose norm, once decoded, is at most `norm_max` (positive and finite), shortening
/// it where it is longer. The same delta and seed make the same bytes; only int8 uses the seed.
pub fn encode(
    model: &ModelSpec,
    format: Format,
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
        Format::F32 => plain(delta, norm_max, &mut bytes),
        Format::Bf16 => bf16::encode(delta, norm_max, &mut bytes),
        Format::Int8 => int8::encode(&model.tensors(), delta, norm_max, seed, &mut bytes),
        Format::TopK { permille } if !(1..=TOP_K_PERMILLE_MAX).contains(&permille) => {
            return Err(EncodeError::Permille { got: permille });
        }
        Format::TopK { permille } => {
            let kept = top_k::kept(delta.len(), permille);
            residual = Some(top_k::encode(delta, kept, norm_max, &mut bytes));
        }
    }
    Ok(Encoded { bytes, residual })
}

/// Checks the bytes of an update, and gives its numbers to `take` in pieces, each with the place of
/// its first number; places ascend, and numbers that no piece brings are zero. Nothing as large as
/// the model is allocated. Pieces that came before an error are not to be used.
pub fn walk(
    model: &ModelSpec,
    format: Format,
    bytes: &[u8],
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), DecodeError> {
    let sections = sections(model, format);
    let body = header::open(&sections, bytes)?;
    match format {
        Format::F32 => tensors::walk_body(&sections, body, f32::from_le_bytes, take),
        Format::Bf16 => bf16::walk(&sections, body, take),
        Format::Int8 => int8::walk(&model.tensors(), body, take),
        Format::TopK { .. } => top_k::walk(model.parameters(), body, take),
    }
}

/// Whether the first of `total` bytes that are still arriving hold the whole header of an update in this format, and it is
/// right; `false` as long as more of it must come. What [`walk`] would refuse before a number is refused here.
pub fn check_header(
    model: &ModelSpec,
    format: Format,
    first: &[u8],
    total: u64,
) -> Result<bool, DecodeError> {
    header::check(&sections(model, format), first, total)
}

/// The tensors of a file in this format, in its order.
fn sections(model: &ModelSpec, format: Format) -> Vec<Section> {
    let all = |dtype| {
        let section = move |TensorSpec { name, shape }| Section { name, dtype, shape };
        model.tensors().into_iter().map(section)
    };
    match format {
        Format::F32 => all(Dtype::F32).collect(),
        Format::Bf16 => all(Dtype::Bf16).collect(),
        Format::Int8 => int8::scales(model).chain(all(Dtype::I8)).collect(),
        Format::TopK { permille } => {
            let shape = vec![top_k::kept(model.parameters(), permille)];
            let section =
                |name: &str, dtype| Section { name: name.to_owned(), dtype, shape: shape.clone() };
            vec![section("indices", Dtype::U32), section("values", Dtype::F32)]
        }
    }
}

fn plain(delta: &[f32], norm_max: f64, bytes: &mut Vec<u8>) {
    let factor = norm_max / norm(delta);
    tensors::put_words(bytes, delta.iter().map(|value| shortened(*value, factor)));
}

/// A number of a vector that is `1 / factor` times too long; as it is where the vector is not.
fn shortened(value: f32, factor: f64) -> f32 {
    if factor < 1.0 { (f64::from(value) * factor) as f32 } else { value }
}

/// Little-endian words of four bytes.
fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]])
}

/// The norm of what [`walk`] gives.
pub fn decoded_norm(model: &ModelSpec, format: Format, bytes: &[u8]) -> Result<f64, DecodeError> {
    let mut squares = Squares::default();
    walk(model, format, bytes, &mut |from, piece| squares.add(from, piece))?;
    Ok(squares.norm())
}

#[cfg(test)]
mod tests;
