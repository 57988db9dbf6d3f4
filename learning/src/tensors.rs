//! Parameters as safetensors bytes, and back from bytes that a stranger sent.
//!
//! ```text
//! 8 bytes     length of the header, little-endian
//! header      {"layer0.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},…}, then
//!             spaces up to a multiple of 8
//! the rest    the numbers, f32 little-endian, in the order of the model's tensors
//! ```
//! What we write is canonical: one model and one vector make one string of bytes. What we read may
//! list the tensors in any order and place, as other writers do, as long as the model's tensors are
//! all there, once, without gaps, and nothing else is.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::model::{ModelSpec, TensorSpec};
use crate::params::{ParamsError, first_not_finite};

/// Longest header that is looked at, whatever the model.
pub const HEADER_BYTES_MAX: usize = 1 << 20;
/// What another writer's header may be longer than ours, per tensor: spaces and line breaks.
const SLACK_BYTES_PER_TENSOR: usize = 64;
const LENGTH_BYTES: usize = 8;
const DTYPE: &str = "F32";
/// Error messages repeat this much of a stranger's text.
const SHOWN_CHARS_MAX: usize = 60;

/// Why bytes are not the parameters of a model.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum DecodeError {
    /// Refused before the header is read.
    #[error("the header declares {bytes} bytes: must be at most {max} for this model")]
    HeaderTooLarge {
        /// Declared length.
        bytes: u64,
        /// The limit for this model.
        max: usize,
    },
    /// The bytes end too early.
    #[error("{got} bytes: must be {expected}")]
    Truncated {
        /// Bytes there should be, as far as can be told.
        expected: u64,
        /// Bytes there are.
        got: u64,
    },
    /// Something follows the numbers.
    #[error("{got} bytes: must end after {expected}")]
    TrailingBytes {
        /// Bytes there should be.
        expected: u64,
        /// Bytes there are.
        got: u64,
    },
    /// The header is no JSON object of tensors.
    #[error("the header is malformed: {why}")]
    HeaderMalformed {
        /// What the parser said.
        why: String,
    },
    /// A tensor that the model does not have.
    #[error("tensor `{name}`: the model has no such tensor")]
    WrongName {
        /// Its name, shortened.
        name: String,
    },
    /// A tensor of the model is not there.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A name occurs twice.
    #[error("tensor `{name}` occurs twice: must occur once")]
    DuplicateTensor {
        /// Its name, shortened.
        name: String,
    },
    /// A tensor of another shape.
    #[error("tensor `{name}` has shape {got:?}: must be {expected:?}")]
    WrongShape {
        /// Its name.
        name: String,
        /// The model's shape.
        expected: Vec<usize>,
        /// What was declared, its first sides.
        got: Vec<u64>,
    },
    /// A tensor of another number type.
    #[error("tensor `{name}` has dtype `{got}`: must be F32")]
    WrongDtype {
        /// Its name.
        name: String,
        /// What was declared, shortened.
        got: String,
    },
    /// Tensors overlap, leave gaps, or are not as long as their shape.
    #[error(
        "tensor `{name}` lies at {begin}..{end}: the tensors must follow each other without gap or overlap"
    )]
    WrongOffsets {
        /// Its name.
        name: String,
        /// Declared begin.
        begin: u64,
        /// Declared end.
        end: u64,
    },
    /// NaN or infinity.
    #[error("tensor `{tensor}`, number {index}, is not finite: every number must be")]
    NotFinite {
        /// The tensor's name.
        tensor: String,
        /// Which of its numbers, from 0.
        index: usize,
    },
}

impl DecodeError {
    /// A name for this refusal that never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::HeaderTooLarge { .. } => "UPDATE_HEADER_TOO_LARGE",
            Self::Truncated { .. } => "UPDATE_TRUNCATED",
            Self::TrailingBytes { .. } => "UPDATE_TRAILING_BYTES",
            Self::HeaderMalformed { .. } => "UPDATE_HEADER_MALFORMED",
            Self::WrongName { .. } => "UPDATE_WRONG_NAME",
            Self::MissingTensor { .. } => "UPDATE_MISSING_TENSOR",
            Self::DuplicateTensor { .. } => "UPDATE_DUPLICATE_TENSOR",
            Self::WrongShape { .. } => "UPDATE_WRONG_SHAPE",
            Self::WrongDtype { .. } => "UPDATE_WRONG_DTYPE",
            Self::WrongOffsets { .. } => "UPDATE_WRONG_OFFSETS",
            Self::NotFinite { .. } => "UPDATE_NOT_FINITE",
        }
    }
}

/// The one header that we write for a model.
fn header(model: &ModelSpec) -> String {
    let mut text = String::from("{");
    let mut begin = 0;
    for (at, tensor) in model.tensors().iter().enumerate() {
        let end = begin + 4 * tensor.numbers();
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let comma = if at == 0 { "" } else { "," };
        text += &format!(
            "{comma}\"{}\":{{\"dtype\":\"{DTYPE}\",\"shape\":[{}],\"data_offsets\":[{begin},{end}]}}",
            tensor.name,
            shape.join(",")
        );
        begin = end;
    }
    text.push('}');
    while text.len() % 8 != 0 {
        text.push(' ');
    }
    text
}

/// Length of what [`encode`] writes for a model, in bytes.
pub fn encoded_len(model: &ModelSpec) -> usize {
    LENGTH_BYTES + header(model).len() + 4 * model.parameters()
}

/// Length of the longest bytes that [`decode`] accepts for a model: what a receiver must be ready to
/// take, and no more.
pub fn encoded_len_max(model: &ModelSpec) -> usize {
    LENGTH_BYTES + header_len_max(model) + 4 * model.parameters()
}

fn header_len_max(model: &ModelSpec) -> usize {
    let slack = SLACK_BYTES_PER_TENSOR * (1 + model.tensors().len());
    (header(model).len() + slack).min(HEADER_BYTES_MAX)
}

/// The canonical bytes of `values`, which must be as many as the model has parameters; whether they
/// are finite is not looked at here.
pub fn encode(model: &ModelSpec, values: &[f32]) -> Result<Vec<u8>, ParamsError> {
    let expected = model.parameters();
    if values.len() != expected {
        return Err(ParamsError::Length { expected, got: values.len() });
    }
    let header = header(model);
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + header.len() + 4 * values.len());
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    for value in values {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    Ok(bytes)
}

/// The numbers of a model's tensors in the model's order. Lengths are checked before the header is
/// parsed, the header before a number is read; every number is finite when this succeeds.
pub fn decode(model: &ModelSpec, bytes: &[u8]) -> Result<Vec<f32>, DecodeError> {
    let header = header_of(model, bytes)?;
    let listed: Listing = serde_json::from_slice(header)
        .map_err(|error| DecodeError::HeaderMalformed { why: shown(&error.to_string()) })?;
    let body = &bytes[LENGTH_BYTES + header.len()..];
    let tensors = model.tensors();
    let begins = check_listing(&tensors, &listed.0)?;
    let mut values = Vec::with_capacity(model.parameters());
    for (tensor, begin) in tensors.iter().zip(begins) {
        let stored = &body[begin..begin + 4 * tensor.numbers()];
        let number = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let from = values.len();
        values.extend(stored.chunks_exact(4).map(number));
        if let Some(index) = first_not_finite(&values[from..]) {
            return Err(DecodeError::NotFinite { tensor: tensor.name.clone(), index });
        }
    }
    Ok(values)
}

/// The header's bytes, once all lengths are right.
fn header_of<'a>(model: &ModelSpec, bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let got = bytes.len() as u64;
    let Some((declared, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(DecodeError::Truncated { expected: encoded_len(model) as u64, got });
    };
    let declared = u64::from_le_bytes(*declared);
    let max = header_len_max(model);
    if declared > max as u64 {
        return Err(DecodeError::HeaderTooLarge { bytes: declared, max });
    }
    // Within `max`, so it fits.
    let header_len = declared as usize;
    let expected = (LENGTH_BYTES + header_len + 4 * model.parameters()) as u64;
    if got < expected {
        return Err(DecodeError::Truncated { expected, got });
    }
    if got > expected {
        return Err(DecodeError::TrailingBytes { expected, got });
    }
    Ok(&rest[..header_len])
}

/// Holds what a header lists against the model; gives where each of the model's tensors begins.
fn check_listing(
    tensors: &[TensorSpec],
    listed: &[(String, Entry)],
) -> Result<Vec<usize>, DecodeError> {
    let mut begins: Vec<Option<u64>> = vec![None; tensors.len()];
    for (name, entry) in listed {
        let at = tensors
            .iter()
            .position(|tensor| tensor.name == *name)
            .ok_or_else(|| DecodeError::WrongName { name: shown(name) })?;
        if begins[at].is_some() {
            return Err(DecodeError::DuplicateTensor { name: name.clone() });
        }
        begins[at] = Some(check_entry(&tensors[at], entry)?);
    }
    let mut found = Vec::with_capacity(tensors.len());
    for (tensor, begin) in tensors.iter().zip(begins) {
        let name = || tensor.name.clone();
        found.push(begin.ok_or_else(|| DecodeError::MissingTensor { name: name() })?);
    }
    check_tiling(tensors, &found)?;
    Ok(found.into_iter().map(|begin| begin as usize).collect())
}

fn check_entry(tensor: &TensorSpec, entry: &Entry) -> Result<u64, DecodeError> {
    let name = || tensor.name.clone();
    if entry.dtype != DTYPE {
        return Err(DecodeError::WrongDtype { name: name(), got: shown(&entry.dtype) });
    }
    let same_side = |(own, got): (&usize, &u64)| *own as u64 == *got;
    let same = tensor.shape.len() == entry.shape.len()
        && tensor.shape.iter().zip(&entry.shape).all(same_side);
    if !same {
        let got = entry.shape.iter().copied().take(8).collect();
        return Err(DecodeError::WrongShape { name: name(), expected: tensor.shape.clone(), got });
    }
    let [begin, end] = entry.data_offsets;
    if end.checked_sub(begin) != Some(4 * tensor.numbers() as u64) {
        return Err(DecodeError::WrongOffsets { name: name(), begin, end });
    }
    Ok(begin)
}

/// Whether the tensors, each as long as its shape, follow each other from 0 on. Together they are
/// as long as the body, so nothing is left over then.
fn check_tiling(tensors: &[TensorSpec], begins: &[u64]) -> Result<(), DecodeError> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&at| begins[at]);
    let mut reached = 0;
    for at in order {
        let end = begins[at] + 4 * tensors[at].numbers() as u64;
        if begins[at] != reached {
            let (name, begin) = (tensors[at].name.clone(), begins[at]);
            return Err(DecodeError::WrongOffsets { name, begin, end });
        }
        reached = end;
    }
    Ok(())
}

/// A stranger's text, safe to print: short, and without control characters.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect()
}

/// One tensor of a header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A header as a list, so that a name that occurs twice is seen twice.
struct Listing(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Listing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Listing;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Listing, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Listing(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests;
