//! The features of a data set: in memory, or in a mapped file.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::mapped::MappedFile;

/// Features, row after row.
#[derive(Clone)]
pub(super) enum Features {
    /// In memory.
    Owned(Vec<f32>),
    /// In a file.
    Mapped(MappedFeatures),
}

/// A part of the features of a file. Clones share the map.
#[derive(Clone)]
pub(super) struct MappedFeatures {
    file: Arc<MappedFile>,
    /// Their bytes in the file.
    bytes: Range<usize>,
}

impl MappedFeatures {
    /// The features in these bytes of a file, which are whole numbers within it.
    pub(super) fn new(file: MappedFile, bytes: Range<usize>) -> Self {
        Self { file: Arc::new(file), bytes }
    }

    /// Starts to load a range of the features.
    pub(super) fn will_need(&self, numbers: &Range<usize>) {
        self.file.will_need(&self.slice(numbers).bytes);
    }

    fn slice(&self, numbers: &Range<usize>) -> Self {
        let at = |number: usize| self.bytes.start + number * size_of::<f32>();
        Self { file: Arc::clone(&self.file), bytes: at(numbers.start)..at(numbers.end) }
    }
}

impl Features {
    pub(super) fn as_slice(&self) -> &[f32] {
        match self {
            Self::Owned(features) => features,
            Self::Mapped(MappedFeatures { file, bytes }) => file.numbers(bytes.clone()),
        }
    }

    /// A range of them: a copy in memory, or a part of the same map.
    ///
    /// # Panics
    /// If the range exceeds them.
    pub(super) fn slice(&self, numbers: Range<usize>) -> Self {
        let part = &self.as_slice()[numbers.clone()];
        match self {
            Self::Owned(_) => Self::Owned(part.to_vec()),
            Self::Mapped(features) => Self::Mapped(features.slice(&numbers)),
        }
    }
}

impl PartialEq for Features {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}
