//! The tables of a source that may exceed the memory, a part of the rows at a time.

use std::ops::Range;
use std::path::Path;

use super::source::DataSource;
use super::tokenizer::{TextTokenizer, TokenEncoder};
use super::{LoadError, Table, TableFeatures, csv, images, load_table, load_tokens, npy, text};

/// Most cells of a part.
const PART_CELLS_MAX: usize = 1 << 22;

/// A source whose rows are read in parts, each of which is encoded to the bits that the whole source
/// would have.
pub trait TableParts {
    /// The next rows: at most `rows`, and at least one; `None` at the end.
    ///
    /// # Errors
    /// [`LoadError`].
    fn next_part(&mut self, rows: usize) -> Result<Option<Table>, LoadError>;
}

/// The parts of a source, whose texts without a length become tokens by `tokens`. Rows of a CSV or
/// Parquet file, of NumPy arrays, of a folder of images and of documents are read when they are
/// needed; other sources are loaded as a whole, within the limit on a file.
///
/// # Errors
/// [`LoadError`] if the source cannot be opened.
pub fn table_parts(
    source: &DataSource,
    tokens: Option<(TextTokenizer, TokenEncoder)>,
) -> Result<Box<dyn TableParts>, LoadError> {
    Ok(match (source, tokens) {
        (DataSource::Csv { file, label }, _) => Box::new(csv::parts(file, label)?),
        #[cfg(feature = "parquet")]
        (DataSource::Parquet { file, label }, _) => {
            Box::new(super::parquet::ParquetParts::open(file, label)?)
        }
        (DataSource::Npy { features, labels }, _) => npy_parts(features, labels)?,
        (DataSource::Images { folder }, _) => Box::new(Slices::new(images::table(folder)?)),
        (DataSource::Text { file, length: None }, Some((tokenizer, encoder))) => {
            match text::has_documents(file) {
                true => Box::new(text::DocumentParts::open(file, tokenizer, encoder)?),
                false => Box::new(Slices::new(load_tokens(source, &tokenizer, encoder)?)),
            }
        }
        (source, _) => Box::new(Slices::new(load_table(source)?)),
    })
}

fn npy_parts(features: &Path, labels: &Path) -> Result<Box<dyn TableParts>, LoadError> {
    Ok(match npy::NpyParts::open(features, labels)? {
        Some(parts) => Box::new(parts),
        None => Box::new(Slices::new(npy::table(features, labels)?)),
    })
}

/// Rows of a part of a table with this number of columns.
pub(super) fn rows_of_part(rows: usize, columns: usize) -> usize {
    rows.min(PART_CELLS_MAX / columns.max(1)).max(1)
}

/// A table as a whole.
struct Slices {
    table: Table,
    next: usize,
}

impl Slices {
    fn new(table: Table) -> Self {
        Self { table, next: 0 }
    }

    fn take(&mut self, rows: usize) -> Range<usize> {
        let from = self.next;
        self.next = self.table.rows().min(from + rows);
        from..self.next
    }
}

impl TableParts for Slices {
    fn next_part(&mut self, rows: usize) -> Result<Option<Table>, LoadError> {
        let rows = match self.table.features() {
            // Their pixels are read when they are encoded.
            TableFeatures::Images(_) => rows.max(1),
            _ => rows_of_part(rows, self.table.columns()),
        };
        let part = self.take(rows);
        Ok(if part.is_empty() { None } else { self.table.slice(part) })
    }
}
