//! The canonical encoding of a data set: for commitments to a holdout and its publication, and for
//! handing a shard to a participant's process.
//!
//! ```text
//! offset  bytes  content
//!      0      8  "FLORINDS"
//!      8      4  version, 1
//!     12      4  width, features per row
//!     16      4  classes
//!     20      4  zero
//!     24      8  rows
//!     32      …  features, f32, row after row
//!      …      …  labels, u32
//! ```
//! All numbers are little-endian. No bytes follow the labels.

use std::borrow::Cow;

use thiserror::Error;

use super::{CLASSES_MAX, Dataset, DatasetError, FEATURES_MAX, ROWS_MAX, WIDTH_MAX};

pub(super) const MAGIC: &[u8; 8] = b"FLORINDS";
const VERSION: u32 = 1;

/// The bytes are not a data set in canonical form.
#[derive(Debug, Error, PartialEq)]
pub enum CanonicalError {
    /// The magic bytes are wrong.
    #[error("the bytes do not begin with \"FLORINDS\": this is not a canonical data set")]
    WrongMagic,
    /// The format version is not supported.
    #[error("the data set has format version {version}: this program reads version {VERSION}")]
    WrongVersion {
        /// The version.
        version: u32,
    },
    /// The four reserved bytes are not zero.
    #[error("bytes 20 to 23 are {found:#010x}: must be zero")]
    ReservedNotZero {
        /// The value.
        found: u32,
    },
    /// The header exceeds the limits.
    #[error(
        "the header declares {rows} rows of {width} features in {classes} classes: at most \
         {ROWS_MAX} rows, {WIDTH_MAX} features per row, {FEATURES_MAX} in memory, {CLASSES_MAX} \
         classes"
    )]
    TooLarge {
        /// Declared rows.
        rows: u64,
        /// Declared features per row.
        width: u32,
        /// Declared classes.
        classes: u32,
    },
    /// The length contradicts the header.
    #[error("the data set has {got} bytes: its header declares {expected}")]
    WrongLength {
        /// Bytes declared by the header.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// The numbers do not form a valid data set.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

/// The canonical bytes of a data set: equal data sets have equal bytes.
pub fn canonical_bytes(data: &Dataset) -> Vec<u8> {
    let length = Header::BYTES + 4 * (data.features().len() + data.labels.len());
    let mut bytes = Vec::with_capacity(length);
    let header = Header { rows: data.rows(), width: data.width, classes: data.classes };
    bytes.extend_from_slice(&header.to_bytes());
    bytes.extend_from_slice(&little_endian(data.features(), |feature| feature.to_le_bytes()));
    bytes.extend_from_slice(&little_endian(&data.labels, |label| label.to_le_bytes()));
    bytes
}

/// The header. Rows, width and classes are each within their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) classes: usize,
}

impl Header {
    pub(super) const BYTES: usize = 32;

    /// Parses the header of `bytes`.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, CanonicalError> {
        if !bytes.starts_with(MAGIC) {
            return Err(CanonicalError::WrongMagic);
        }
        if bytes.len() < Self::BYTES {
            let (expected, got) = (Self::BYTES as u64, bytes.len() as u64);
            return Err(CanonicalError::WrongLength { expected, got });
        }
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let (version, width, classes, found) = (number(8), number(12), number(16), number(20));
        let rows = u64::from(number(24)) | u64::from(number(28)) << 32;
        if version != VERSION {
            return Err(CanonicalError::WrongVersion { version });
        }
        if found != 0 {
            return Err(CanonicalError::ReservedNotZero { found });
        }
        let each = width as usize > WIDTH_MAX || classes as usize > CLASSES_MAX;
        if rows > ROWS_MAX as u64 || each {
            return Err(CanonicalError::TooLarge { rows, width, classes });
        }
        Ok(Self { rows: rows as usize, width: width as usize, classes: classes as usize })
    }

    /// The header in canonical form.
    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        // Width and classes are far below 2³² by the data set's own invariants.
        for (at, number) in [(8, VERSION), (12, self.width as u32), (16, self.classes as u32)] {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&(self.rows as u64).to_le_bytes());
        bytes
    }

    /// Length of the whole encoding in bytes.
    pub(super) fn total_bytes(&self) -> u64 {
        let (rows, width) = (self.rows as u64, self.width as u64);
        Self::BYTES as u64 + 4 * rows * (width + 1)
    }
}

/// Decodes canonical bytes. Sizes are checked before any allocation.
pub fn from_canonical_bytes(bytes: &[u8]) -> Result<Dataset, CanonicalError> {
    let header = Header::read(bytes)?;
    let Header { rows, width, classes } = header;
    // Each is within its limit, so the product is far below 2⁶⁴.
    if rows * width > FEATURES_MAX {
        let (rows, width, classes) = (rows as u64, width as u32, classes as u32);
        return Err(CanonicalError::TooLarge { rows, width, classes });
    }
    let (expected, got) = (header.total_bytes(), bytes.len() as u64);
    if got != expected {
        return Err(CanonicalError::WrongLength { expected, got });
    }
    let (values, labels) = bytes[Header::BYTES..].split_at(4 * rows * width);
    Ok(Dataset::new(floats(values), words(labels), width, classes)?)
}

/// The bytes of numbers, without a copy where the machine has this order: they may exceed the memory.
pub(crate) fn little_endian<T: bytemuck::NoUninit>(
    numbers: &[T],
    bytes: impl Fn(&T) -> [u8; 4],
) -> Cow<'_, [u8]> {
    match cfg!(target_endian = "little") {
        true => Cow::Borrowed(bytemuck::cast_slice(numbers)),
        false => numbers.iter().flat_map(bytes).collect::<Vec<u8>>().into(),
    }
}

/// Decodes little-endian numbers of four bytes.
pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

/// Decodes little-endian `f32`.
pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    words(bytes).into_iter().map(f32::from_bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Dataset {
        Dataset::new(vec![0.5, -1.0, 0.25, 2.0], vec![1, 0], 2, 3).unwrap()
    }

    #[test]
    fn canonical_bytes_match_the_documented_layout() {
        let bytes = canonical_bytes(&small());
        let expected = [
            b"FLORINDS".as_slice(),
            &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0x3f, 0, 0, 0x80, 0xbf, 0, 0, 0x80, 0x3e, 0, 0, 0, 0x40],
            &[1, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(bytes, expected);
        assert_eq!(from_canonical_bytes(&bytes), Ok(small()));
    }

    #[test]
    fn inconsistent_headers_are_refused_before_allocation() {
        let good = canonical_bytes(&small());
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            from_canonical_bytes(&bytes).unwrap_err()
        };
        assert_eq!(changed(0, b'X'), CanonicalError::WrongMagic);
        assert_eq!(changed(8, 2), CanonicalError::WrongVersion { version: 2 });
        assert_eq!(changed(20, 1), CanonicalError::ReservedNotZero { found: 1 });
        let huge = CanonicalError::TooLarge { rows: (255 << 56) + 2, width: 2, classes: 3 };
        assert_eq!(changed(31, 255), huge);
        let mut wide = good.clone();
        wide[12..16].copy_from_slice(&(1_u32 << 20).to_le_bytes());
        wide[24..32].copy_from_slice(&10_000_000_u64.to_le_bytes());
        let wide = from_canonical_bytes(&wide).unwrap_err();
        let huge = CanonicalError::TooLarge { rows: 10_000_000, width: 1 << 20, classes: 3 };
        assert_eq!(wide, huge, "each within its limit, but not their product");
        assert_eq!(changed(24, 3), CanonicalError::WrongLength { expected: 68, got: 56 });
        let label = DatasetError::Label { row: 0, label: 9, classes: 3 };
        assert_eq!(changed(48, 9), CanonicalError::Dataset(label));
        assert!(matches!(
            from_canonical_bytes(&good[..good.len() - 1]),
            Err(CanonicalError::WrongLength { expected: 56, got: 55 })
        ));
        assert!(matches!(
            from_canonical_bytes(&good[..20]),
            Err(CanonicalError::WrongLength { expected: 32, got: 20 })
        ));
    }
}
