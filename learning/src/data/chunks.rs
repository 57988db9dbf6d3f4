//! Data sets that are read in chunks, so that they may exceed memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::canonical::{CanonicalError, Header, floats, words};
use super::{Dataset, DatasetError, FEATURES_MAX};

/// Rows in chunks; every pass returns the same rows in the same order. Consumers must not depend on
/// the division into chunks.
pub trait RowChunks {
    /// Number of rows of all chunks.
    fn rows(&self) -> usize;

    /// Features per row.
    fn width(&self) -> usize;

    /// Number of possible classes.
    fn classes(&self) -> usize;

    /// One pass: calls `look` with each chunk until the end, or until it breaks.
    ///
    /// # Errors
    /// [`ChunkError`] if the rows cannot be read.
    fn each_chunk(
        &mut self,
        look: &mut dyn FnMut(&Dataset) -> ControlFlow<()>,
    ) -> Result<(), ChunkError>;
}

/// Reading rows failed.
#[derive(Debug, Error)]
pub enum ChunkError {
    /// The file cannot be read.
    #[error("{path}: {why}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// The file is not a data set in canonical form.
    #[error("{path}: {why}")]
    Canonical {
        /// The file.
        path: PathBuf,
        /// The error.
        why: CanonicalError,
    },
    /// The size of chunks is out of bounds.
    #[error("chunks of {rows} rows of {width} features: must be 1 row to {FEATURES_MAX} features")]
    Size {
        /// Rows per chunk.
        rows: usize,
        /// Features per row.
        width: usize,
    },
}

impl ChunkError {
    /// A stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "ROWS_IO",
            Self::Canonical { .. } => "ROWS_NOT_CANONICAL",
            Self::Size { .. } => "ROWS_CHUNK_SIZE",
        }
    }
}

impl RowChunks for &Dataset {
    fn rows(&self) -> usize {
        Dataset::rows(self)
    }

    fn width(&self) -> usize {
        Dataset::width(self)
    }

    fn classes(&self) -> usize {
        Dataset::classes(self)
    }

    fn each_chunk(
        &mut self,
        look: &mut dyn FnMut(&Dataset) -> ControlFlow<()>,
    ) -> Result<(), ChunkError> {
        let _ = look(self);
        Ok(())
    }
}

impl<R: RowChunks + ?Sized> RowChunks for &mut R {
    fn rows(&self) -> usize {
        (**self).rows()
    }

    fn width(&self) -> usize {
        (**self).width()
    }

    fn classes(&self) -> usize {
        (**self).classes()
    }

    fn each_chunk(
        &mut self,
        look: &mut dyn FnMut(&Dataset) -> ControlFlow<()>,
    ) -> Result<(), ChunkError> {
        (**self).each_chunk(look)
    }
}

/// A file in canonical form, read one chunk at a time. Unlike a [`Dataset`], its total number of
/// features is unlimited.
#[derive(Debug)]
pub struct CanonicalRows {
    file: File,
    path: PathBuf,
    header: Header,
    chunk_rows: usize,
}

impl CanonicalRows {
    /// Opens a file for reading in chunks of `chunk_rows` rows. Checks the length of the file
    /// against its header; the rows are checked when they are read.
    ///
    /// # Errors
    /// [`ChunkError`].
    pub fn open(path: &Path, chunk_rows: usize) -> Result<Self, ChunkError> {
        let (file, header) = Self::open_file(path)?;
        let width = header.width;
        if !(1..=FEATURES_MAX / width.max(1)).contains(&chunk_rows) {
            return Err(ChunkError::Size { rows: chunk_rows, width });
        }
        Ok(Self { file, path: path.to_owned(), header, chunk_rows })
    }

    /// As [`open`](Self::open), in chunks of about `features` features.
    pub(super) fn open_in_parts(path: &Path, features: usize) -> Result<Self, ChunkError> {
        let (file, header) = Self::open_file(path)?;
        let chunk_rows = (features / header.width.max(1)).max(1);
        Ok(Self { file, path: path.to_owned(), header, chunk_rows })
    }

    /// The file, and its header.
    pub(super) fn file(&self) -> (&File, Header) {
        (&self.file, self.header)
    }

    fn open_file(path: &Path) -> Result<(File, Header), ChunkError> {
        let io = |why| ChunkError::Io { path: path.to_owned(), why };
        let canonical = |why| ChunkError::Canonical { path: path.to_owned(), why };
        let mut file = File::open(path).map_err(io)?;
        let mut bytes = Vec::with_capacity(Header::BYTES);
        file.by_ref().take(Header::BYTES as u64).read_to_end(&mut bytes).map_err(io)?;
        let header = Header::read(&bytes).map_err(canonical)?;
        let (expected, got) = (header.total_bytes(), file.metadata().map_err(io)?.len());
        if got != expected {
            return Err(canonical(CanonicalError::WrongLength { expected, got }));
        }
        Ok((file, header))
    }

    fn bytes(&mut self, from: u64, count: usize) -> Result<Vec<u8>, ChunkError> {
        let mut bytes = vec![0; count];
        let read = self.file.seek(SeekFrom::Start(from));
        read.and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|why| ChunkError::Io { path: self.path.clone(), why })?;
        Ok(bytes)
    }

    fn chunk(&mut self, from: usize) -> Result<Dataset, ChunkError> {
        let Header { rows, width, classes } = self.header;
        let count = self.chunk_rows.min(rows - from);
        let line = 4 * width as u64;
        let features = Header::BYTES as u64 + from as u64 * line;
        let labels = Header::BYTES as u64 + rows as u64 * line + 4 * from as u64;
        let features = floats(&self.bytes(features, 4 * count * width)?);
        let labels = words(&self.bytes(labels, 4 * count)?);
        Dataset::new(features, labels, width, classes).map_err(|why| ChunkError::Canonical {
            path: self.path.clone(),
            why: CanonicalError::Dataset(with_file_row(why, from)),
        })
    }
}

/// Converts the row of an error from the chunk to the file.
pub(super) fn with_file_row(error: DatasetError, from: usize) -> DatasetError {
    match error {
        DatasetError::NotFinite { row, feature, value } => {
            DatasetError::NotFinite { row: row + from, feature, value }
        }
        DatasetError::Label { row, label, classes } => {
            DatasetError::Label { row: row + from, label, classes }
        }
        other => other,
    }
}

impl RowChunks for CanonicalRows {
    fn rows(&self) -> usize {
        self.header.rows
    }

    fn width(&self) -> usize {
        self.header.width
    }

    fn classes(&self) -> usize {
        self.header.classes
    }

    fn each_chunk(
        &mut self,
        look: &mut dyn FnMut(&Dataset) -> ControlFlow<()>,
    ) -> Result<(), ChunkError> {
        for from in (0..self.header.rows).step_by(self.chunk_rows) {
            if look(&self.chunk(from)?).is_break() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataSource, canonical_bytes, load};

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn a_file_returns_the_same_rows_in_every_pass_for_any_chunk_size() {
        let data = load(&DataSource::Digits).unwrap().slice(0..50).unwrap();
        let file = written(&canonical_bytes(&data));
        for chunk_rows in [1, 7, 50, 400] {
            let mut rows = CanonicalRows::open(file.path(), chunk_rows).unwrap();
            assert_eq!((rows.rows(), rows.width(), rows.classes()), (50, 64, 10));
            for _ in 0..2 {
                let (mut features, mut labels) = (Vec::new(), Vec::new());
                rows.each_chunk(&mut |chunk| {
                    assert!(chunk.rows() <= chunk_rows);
                    features.extend_from_slice(chunk.features());
                    labels.extend_from_slice(chunk.labels());
                    ControlFlow::Continue(())
                })
                .unwrap();
                assert_eq!(Dataset::new(features, labels, 64, 10).unwrap(), data);
            }
        }
    }

    #[test]
    fn an_invalid_file_is_refused_with_its_row() {
        let data = Dataset::new(vec![0.5, -1.0, 0.25, 2.0], vec![1, 0], 2, 3).unwrap();
        let good = canonical_bytes(&data);
        let code = |bytes: &[u8], rows| {
            CanonicalRows::open(written(bytes).path(), rows).unwrap_err().code()
        };
        assert_eq!(code(&good[..55], 1), "ROWS_NOT_CANONICAL");
        assert_eq!(code(b"FLORINDS", 1), "ROWS_NOT_CANONICAL");
        assert_eq!(code(&good, 0), "ROWS_CHUNK_SIZE");
        let mut wrong = good;
        wrong[52] = 9;
        let file = written(&wrong);
        let mut rows = CanonicalRows::open(file.path(), 1).unwrap();
        let error = rows.each_chunk(&mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().contains("row 1 has label 9"), "{error}");
        let gone = CanonicalRows::open(Path::new("/no/such/holdout"), 1).unwrap_err();
        assert_eq!(gone.code(), "ROWS_IO");
    }
}
