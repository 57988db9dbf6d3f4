//! Labelled rows: their invariants and sources.

mod canonical;
mod canonical_file;
mod chunks;
mod cifar;
mod csv;
mod csv_lines;
mod digits;
mod each_row;
mod error;
mod features;
mod file;
mod fit;
mod idx;
mod images;
mod load;
mod npy;
mod npz;
mod padded;
#[cfg(feature = "parquet")]
mod parquet;
mod parts;
#[cfg(test)]
mod parts_tests;
mod producer_source;
mod profile;
mod reservoir;
mod row_encoder;
mod safetensors;
mod source;
mod table;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
mod text;
mod tokenizer;
mod unit_scale;

use std::ops::Range;

use thiserror::Error;

use crate::params::first_not_finite;
use features::{Features, MappedFeatures};

pub(crate) use canonical::little_endian;
pub use canonical::{CanonicalError, canonical_bytes, from_canonical_bytes};
#[cfg(all(test, feature = "torch"))]
pub(crate) use canonical_file::map;
pub use canonical_file::{CanonicalWriter, MAPPED_BYTES_MIN, RowShape};
pub use chunks::{CanonicalRows, ChunkError, RowChunks};
pub use csv_lines::{CsvLines, CsvRecord};
pub use each_row::EncodedRows;
pub use error::LoadError;
pub use fit::{
    FitError, ScaleKind, ScaleKindError, default_scale, fit, fit_class_names, fit_features,
    fit_images, fit_scale, fit_target,
};
pub use images::{
    IMAGE_DECODED_BYTES_MAX, IMAGE_FILE_BYTES_MAX, IMAGE_PIXELS_MAX, IMAGE_SIDE_MAX, ImageEncoder,
    ImageShape, ImageSummary, image_summaries,
};
pub use load::{load, load_table, load_tokens, save};
pub use parts::{TableParts, table_parts};
pub use producer_source::{ProducerSource, ProducerSourceError};
pub use profile::{
    ColumnProfile, ColumnSummary, IgnoredReason, NumberSummary, TableProfile, Treatment,
};
pub use reservoir::Reservoir;
pub use row_encoder::{
    ColumnEncoder, ColumnRole, EncodeError, FeatureEncoder, NumberScale, RowEncoder,
};
pub use source::{DataSource, SourceError};
pub use table::{Cells, MISSING_TEXTS, MatrixValues, Table, TableColumn, TableFeatures};
pub use text::{TokenizedText, tokenize};
pub use tokenizer::{
    NORMALIZER_GROWTH_MAX, PATTERN_BYTES_MAX, PIECE_BYTES_MAX, TOKENIZER_BYTES_MAX,
    TOKENIZER_PARTS_MAX, TextTokenizer, TokenEncoder, TokenizerError, VOCABULARY_MAX,
};
pub use unit_scale::{
    FEATURE_MEAN_MAX, FEATURE_SD_MAX, FEATURE_SD_MIN, UnscaledFeature, unscaled_feature,
};

/// Largest size of a data file after decompression: 2 GiB.
pub const FILE_BYTES_MAX: u64 = 2 << 30;
/// Largest number of rows of a data set.
pub const ROWS_MAX: usize = 10_000_000;
/// Largest number of features of one row.
pub const WIDTH_MAX: usize = 1 << 20;
/// Largest number of features of all rows in memory: 1 GiB as `f32`.
pub const FEATURES_MAX: usize = 1 << 28;
/// Largest number of features of all rows of a file that is mapped: 256 GiB as `f32`.
pub const MAPPED_FEATURES_MAX: usize = 1 << 36;
/// Largest number of classes; labels are below it.
pub const CLASSES_MAX: usize = 65_536;

/// Rows of finite features, each with a label below `classes`.
///
/// The constructor checks these invariants, and a data set is immutable. The features of a large
/// `florin:` file stay in the file, which is mapped: its slices and clones share it, and the system
/// loads the rows that are in use. Labels are in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    features: Features,
    labels: Vec<u32>,
    width: usize,
    classes: usize,
}

/// The numbers do not form a valid data set.
#[derive(Debug, Error, PartialEq)]
pub enum DatasetError {
    /// A row without features, or wider than the limit.
    #[error("rows have {width} features: must be 1 to {WIDTH_MAX}")]
    Width {
        /// Features per row.
        width: usize,
    },
    /// No classes, or more than the limit.
    #[error("the data set has {classes} classes: must be 1 to {CLASSES_MAX}")]
    Classes {
        /// The declared number.
        classes: usize,
    },
    /// More rows or features than memory may have.
    #[error(
        "{rows} rows of {width} features: at most {ROWS_MAX} rows and {FEATURES_MAX} features in \
         memory"
    )]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Features per row.
        width: usize,
    },
    /// More rows or features than a file may have.
    #[error(
        "{rows} rows of {width} features: a file has at most {ROWS_MAX} rows and \
         {MAPPED_FEATURES_MAX} features"
    )]
    FileTooLarge {
        /// Rows.
        rows: usize,
        /// Features per row.
        width: usize,
    },
    /// The number of features does not match the rows.
    #[error(
        "{features} features for {rows} rows of {width}: must be {expected}",
        expected = rows * width
    )]
    Shape {
        /// Features given.
        features: usize,
        /// Labels given.
        rows: usize,
        /// Features per row.
        width: usize,
    },
    /// A feature is NaN or infinite.
    #[error("row {row}, feature {feature} is {value}: must be a finite number")]
    NotFinite {
        /// Row, counted from 0.
        row: usize,
        /// Feature, counted from 0.
        feature: usize,
        /// The value.
        value: f32,
    },
    /// A label is out of range.
    #[error("row {row} has label {label}: must be below {classes}")]
    Label {
        /// Row, counted from 0.
        row: usize,
        /// The label.
        label: u32,
        /// The number of classes.
        classes: usize,
    },
    /// A selection refers to a row that does not exist.
    #[error("row {row} does not exist: the data set has {rows} rows")]
    RowOutOfRange {
        /// Row, counted from 0.
        row: usize,
        /// The number of rows.
        rows: usize,
    },
}

impl Dataset {
    /// A data set of `labels.len()` rows of row-major `features`. A data set without rows is valid:
    /// a shard may be empty.
    pub fn new(
        features: Vec<f32>,
        labels: Vec<u32>,
        width: usize,
        classes: usize,
    ) -> Result<Self, DatasetError> {
        let rows = labels.len();
        check_shape(width, classes)?;
        if rows > ROWS_MAX || rows * width > FEATURES_MAX {
            return Err(DatasetError::TooLarge { rows, width });
        }
        if features.len() != rows * width {
            return Err(DatasetError::Shape { features: features.len(), rows, width });
        }
        if let Some(at) = first_not_finite(&features) {
            let (row, feature) = (at / width, at % width);
            return Err(DatasetError::NotFinite { row, feature, value: features[at] });
        }
        check_labels(&labels, classes)?;
        Ok(Self { features: Features::Owned(features), labels, width, classes })
    }

    /// A data set of features in a mapped file, all of which have been checked, and so have the
    /// labels.
    fn from_mapped(
        features: MappedFeatures,
        labels: Vec<u32>,
        width: usize,
        classes: usize,
    ) -> Result<Self, DatasetError> {
        check_shape(width, classes)?;
        let (rows, features) = (labels.len(), Features::Mapped(features));
        if features.as_slice().len() != rows * width {
            return Err(DatasetError::Shape { features: features.as_slice().len(), rows, width });
        }
        Ok(Self { features, labels, width, classes })
    }

    /// All features, row after row.
    pub fn features(&self) -> &[f32] {
        self.features.as_slice()
    }

    /// Whether the features are in a mapped file, so that they may exceed the memory.
    pub fn is_mapped(&self) -> bool {
        matches!(self.features, Features::Mapped(_))
    }

    /// Checks that a copy of all features may be in memory, before an operation that needs one.
    ///
    /// # Errors
    /// [`DatasetError::TooLarge`].
    pub fn check_fits_memory(&self) -> Result<(), DatasetError> {
        match self.features().len() > FEATURES_MAX {
            true => Err(DatasetError::TooLarge { rows: self.rows(), width: self.width }),
            false => Ok(()),
        }
    }

    /// The label of each row.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Features per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of possible classes, including those without rows.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// The features of one row. Panics if the row does not exist.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.features()[row * self.width..(row + 1) * self.width]
    }

    /// The rows with these indices, in that order; an index may occur twice.
    pub fn subset(&self, rows: &[usize]) -> Result<Self, DatasetError> {
        if let Some(&row) = rows.iter().find(|&&row| row >= self.rows()) {
            return Err(DatasetError::RowOutOfRange { row, rows: self.rows() });
        }
        if rows.len() > ROWS_MAX || rows.len() * self.width > FEATURES_MAX {
            return Err(DatasetError::TooLarge { rows: rows.len(), width: self.width });
        }
        let mut features = Vec::with_capacity(rows.len() * self.width);
        for &row in rows {
            features.extend_from_slice(self.row(row));
        }
        let labels = rows.iter().map(|&row| self.labels[row]).collect();
        Ok(Self { features: Features::Owned(features), labels, ..*self })
    }

    /// The same features with other labels, one for each row. Mapped features are shared.
    ///
    /// # Errors
    /// [`DatasetError::Shape`] for another number of labels, and [`DatasetError::Label`].
    pub fn with_labels(&self, labels: Vec<u32>) -> Result<Self, DatasetError> {
        if labels.len() != self.rows() {
            let (features, rows) = (self.features().len(), labels.len());
            return Err(DatasetError::Shape { features, rows, width: self.width });
        }
        check_labels(&labels, self.classes)?;
        Ok(Self { features: self.features.clone(), labels, ..*self })
    }

    /// The rows of a range. Mapped features are shared.
    pub fn slice(&self, rows: Range<usize>) -> Result<Self, DatasetError> {
        if rows.end > self.rows() || rows.start > rows.end {
            let row = rows.end.max(rows.start);
            return Err(DatasetError::RowOutOfRange { row, rows: self.rows() });
        }
        let features = self.features.slice(rows.start * self.width..rows.end * self.width);
        let labels = self.labels[rows].to_vec();
        Ok(Self { features, labels, ..*self })
    }

    /// Starts to load these rows from a mapped file, all at a time, before they are read one after
    /// another.
    pub(crate) fn will_need(&self, rows: &[usize]) {
        if let Features::Mapped(features) = &self.features {
            for row in rows {
                features.will_need(&(row * self.width..(row + 1) * self.width));
            }
        }
    }

    /// Number of rows of each class.
    pub fn class_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes];
        for &label in &self.labels {
            counts[label as usize] += 1;
        }
        counts
    }
}

fn check_shape(width: usize, classes: usize) -> Result<(), DatasetError> {
    if width == 0 || width > WIDTH_MAX {
        return Err(DatasetError::Width { width });
    }
    match classes == 0 || classes > CLASSES_MAX {
        true => Err(DatasetError::Classes { classes }),
        false => Ok(()),
    }
}

fn check_labels(labels: &[u32], classes: usize) -> Result<(), DatasetError> {
    match labels.iter().position(|&label| label as usize >= classes) {
        Some(row) => Err(DatasetError::Label { row, label: labels[row], classes }),
        None => Ok(()),
    }
}
