//! The rows of a training by ranks: all ranks have them, or rank 0 alone.

use serde::{Deserialize, Serialize};

#[cfg(feature = "distributed")]
use super::{RankError, RankErrorCode};
use crate::data::Dataset;
#[cfg(feature = "distributed")]
use crate::data::{CLASSES_MAX, ROWS_MAX, WIDTH_MAX};

/// Features of which the fingerprint of data consists, at most: 256 MiB.
const FINGERPRINT_NUMBERS_MAX: usize = 1 << 26;

/// The rows that a rank joins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankRows {
    /// All ranks have the rows with this fingerprint, about which they must agree.
    Shared {
        /// See [`data_fingerprint`].
        fingerprint: String,
    },
    /// Rank 0 alone has them. The other ranks learn their shape, and not the fingerprint, by which a guess
    /// of the rows could be confirmed.
    Own {
        /// See [`data_fingerprint`]; it stays in this process.
        fingerprint: String,
        /// The shape, which the other ranks receive.
        shape: RowsShape,
    },
    /// This rank has none.
    Absent,
}

impl RankRows {
    /// Rows that all ranks have.
    #[must_use]
    pub fn shared(data: &Dataset) -> Self {
        Self::Shared { fingerprint: data_fingerprint(data) }
    }

    /// Rows that rank 0 alone has.
    #[must_use]
    pub fn own(data: &Dataset) -> Self {
        Self::Own { fingerprint: data_fingerprint(data), shape: RowsShape::from(data) }
    }

    /// The fingerprint of the rows that are here.
    #[cfg(feature = "distributed")]
    pub(crate) fn fingerprint(&self) -> Option<&str> {
        match self {
            Self::Shared { fingerprint } | Self::Own { fingerprint, .. } => Some(fingerprint),
            Self::Absent => None,
        }
    }
}

/// The shape of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsShape {
    /// Number of rows.
    pub rows: usize,
    /// Numbers of a row.
    pub width: usize,
    /// Classes of the labels.
    pub classes: usize,
}

impl RowsShape {
    /// Checks a shape that rank 0 has stated.
    ///
    /// # Errors
    /// [`RankErrorCode::Failed`] beyond the limits of data.
    #[cfg(feature = "distributed")]
    pub(crate) fn check(self) -> Result<Self, RankError> {
        let Self { rows, width, classes } = self;
        let is_valid = (1..=ROWS_MAX).contains(&rows)
            && (1..=WIDTH_MAX).contains(&width)
            && (1..=CLASSES_MAX).contains(&classes);
        if is_valid {
            return Ok(self);
        }
        let why = format!("rank 0 states {rows} rows of {width} numbers and {classes} classes");
        Err(RankError::new(RankErrorCode::Failed, why))
    }
}

impl From<&Dataset> for RowsShape {
    fn from(data: &Dataset) -> Self {
        Self { rows: data.rows(), width: data.width(), classes: data.classes() }
    }
}

/// A digest of rows, as text: of their labels, and of the features of all rows or, of very many, of
/// evenly spaced ones.
#[must_use]
pub fn data_fingerprint(data: &Dataset) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 fingerprint of rows");
    let (rows, width) = (data.rows(), data.width());
    hasher.update(&(rows as u64).to_le_bytes()).update(&(width as u64).to_le_bytes());
    for label in data.labels() {
        hasher.update(&label.to_le_bytes());
    }
    let most = (FINGERPRINT_NUMBERS_MAX / width.max(1)).max(1);
    for row in (0..rows).step_by(rows.div_ceil(most).max(1)) {
        hasher.update(bytemuck::cast_slice(&data.features()[row * width..(row + 1) * width]));
    }
    hasher.finalize().to_hex().to_string()
}
