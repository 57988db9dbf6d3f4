//! The header before the numbers: the canonical header, and the errors of any other.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::DecodeError;

/// Largest header that is parsed, for any model.
pub const HEADER_BYTES_MAX: usize = 1 << 20;
/// Bytes by which another writer's header may exceed the canonical one, per tensor: spaces and line
/// breaks.
const SLACK_BYTES_PER_TENSOR: usize = 64;
const LENGTH_BYTES: usize = 8;
/// Largest number of characters of untrusted text in an error message.
const SHOWN_CHARS_MAX: usize = 60;

/// The number types of the encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    Bf16,
    I8,
    U32,
}

impl Dtype {
    /// Its name in a header.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::I8 => "I8",
            Self::U32 => "U32",
        }
    }

    /// Bytes of one number.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::Bf16 => 2,
            Self::I8 => 1,
        }
    }
}

/// One tensor of a file, as in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

impl Section {
    /// Number of elements.
    pub(crate) fn numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.dtype.bytes() * self.numbers()
    }
}

/// The canonical header of these tensors, with its length in front.
pub(crate) fn write(sections: &[Section]) -> Vec<u8> {
    let text = text(sections);
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn text(sections: &[Section]) -> String {
    let mut text = String::from("{");
    let mut begin = 0;
    for (at, section) in sections.iter().enumerate() {
        let end = begin + section.bytes();
        let shape: Vec<String> = section.shape.iter().map(usize::to_string).collect();
        let comma = if at == 0 { "" } else { "," };
        text += &format!(
            "{comma}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{begin},{end}]}}",
            section.name,
            section.dtype.name(),
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

/// Length of the numbers of these tensors, in bytes.
pub(crate) fn body_len(sections: &[Section]) -> usize {
    sections.iter().map(Section::bytes).sum()
}

/// The numbers after the canonical header. Lengths are checked before the header; another header is
/// parsed only for its error message.
pub(crate) fn open<'a>(sections: &[Section], bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let ours = text(sections);
    let total = bytes.len() as u64;
    check_canonical(&ours, sections, bytes, total)?;
    let begin = LENGTH_BYTES + ours.len();
    let expected = (begin + body_len(sections)) as u64;
    bytes.get(begin..).ok_or(DecodeError::Truncated { expected, got: total })
}

/// Whether the first of `total` bytes contain the whole header, and it is canonical. Errors of
/// lengths and headers are the same as in [`open`], reported as early as possible.
pub(crate) fn check(sections: &[Section], first: &[u8], total: u64) -> Result<bool, DecodeError> {
    check_canonical(&text(sections), sections, first, total)
}

fn check_canonical(
    ours: &str,
    sections: &[Section],
    first: &[u8],
    total: u64,
) -> Result<bool, DecodeError> {
    let Some(header) = complete_header(ours, sections, first, total)? else {
        return Ok(false);
    };
    if header == ours.as_bytes() {
        return Ok(true);
    }
    let listed: Listing = serde_json::from_slice(header)
        .map_err(|error| DecodeError::HeaderMalformed { why: printable(&error.to_string()) })?;
    check_listing(sections, &listed.0)?;
    Err(DecodeError::NotCanonical)
}

/// The header, once it is complete and all lengths are right.
fn complete_header<'a>(
    ours: &str,
    sections: &[Section],
    first: &'a [u8],
    total: u64,
) -> Result<Option<&'a [u8]>, DecodeError> {
    let (got, body) = (total, body_len(sections));
    let Some((declared, rest)) = first.split_first_chunk::<LENGTH_BYTES>() else {
        let expected = (LENGTH_BYTES + ours.len() + body) as u64;
        let too_short = got < LENGTH_BYTES as u64;
        return if too_short { Err(DecodeError::Truncated { expected, got }) } else { Ok(None) };
    };
    let declared = u64::from_le_bytes(*declared);
    let slack = SLACK_BYTES_PER_TENSOR * (1 + sections.len());
    let max = (ours.len() + slack).min(HEADER_BYTES_MAX);
    if declared > max as u64 {
        return Err(DecodeError::HeaderTooLarge { bytes: declared, max });
    }
    // Within `max`, so it fits.
    let header_len = declared as usize;
    let expected = (LENGTH_BYTES + header_len + body) as u64;
    if got < expected {
        return Err(DecodeError::Truncated { expected, got });
    }
    if got > expected {
        return Err(DecodeError::TrailingBytes { expected, got });
    }
    Ok(rest.get(..header_len))
}

/// Checks the tensors of a header against the expected ones.
fn check_listing(
    sections: &[Section],
    listed: &[(String, TensorEntry)],
) -> Result<(), DecodeError> {
    let mut begins: Vec<Option<u64>> = vec![None; sections.len()];
    for (name, entry) in listed {
        let at = sections
            .iter()
            .position(|section| section.name == *name)
            .ok_or_else(|| DecodeError::WrongName { name: printable(name) })?;
        if begins[at].is_some() {
            return Err(DecodeError::DuplicateTensor { name: name.clone() });
        }
        begins[at] = Some(check_entry(&sections[at], entry)?);
    }
    let mut found = Vec::with_capacity(sections.len());
    for (section, begin) in sections.iter().zip(begins) {
        let name = || section.name.clone();
        found.push(begin.ok_or_else(|| DecodeError::MissingTensor { name: name() })?);
    }
    check_tiling(sections, &found)
}

fn check_entry(section: &Section, entry: &TensorEntry) -> Result<u64, DecodeError> {
    let name = || section.name.clone();
    let expected = section.dtype.name();
    if entry.dtype != expected {
        return Err(DecodeError::WrongDtype {
            name: name(),
            expected,
            got: printable(&entry.dtype),
        });
    }
    let same_side = |(own, got): (&usize, &u64)| *own as u64 == *got;
    let same = section.shape.len() == entry.shape.len()
        && section.shape.iter().zip(&entry.shape).all(same_side);
    if !same {
        let got = entry.shape.iter().copied().take(8).collect();
        return Err(DecodeError::WrongShape { name: name(), expected: section.shape.clone(), got });
    }
    let [begin, end] = entry.data_offsets;
    if end.checked_sub(begin) != Some(section.bytes() as u64) {
        return Err(DecodeError::WrongOffsets { name: name(), begin, end });
    }
    Ok(begin)
}

/// Checks that the tensors, each with the length of its shape, are contiguous from 0 on. Their
/// total length equals the body, so no bytes are left over.
fn check_tiling(sections: &[Section], begins: &[u64]) -> Result<(), DecodeError> {
    let mut order: Vec<usize> = (0..sections.len()).collect();
    order.sort_by_key(|&at| begins[at]);
    let mut reached = 0;
    for at in order {
        let end = begins[at].saturating_add(sections[at].bytes() as u64);
        if begins[at] != reached {
            let (name, begin) = (sections[at].name.clone(), begins[at]);
            return Err(DecodeError::WrongOffsets { name, begin, end });
        }
        reached = end;
    }
    Ok(())
}

/// Untrusted text, safe to print: short, and without control characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect()
}

/// One tensor of a header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A header as a list, so that duplicate names are preserved.
struct Listing(Vec<(String, TensorEntry)>);

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
