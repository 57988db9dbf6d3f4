//! CSV: a header and numeric columns, one of which is the label.

use std::path::Path;

use csv::{ReaderBuilder, StringRecord};

use super::file::read;
use super::{CLASSES_MAX, Dataset, LoadError, WIDTH_MAX};

/// Every column except `label` is a feature, in the order of the file.
pub(super) fn load(path: &Path, label: &str) -> Result<Dataset, LoadError> {
    let bytes = read(path)?;
    let malformed = |source| LoadError::CsvMalformed { path: path.to_owned(), source };
    let mut reader = ReaderBuilder::new().from_reader(bytes.as_slice());
    let header = reader.headers().map_err(malformed)?.clone();
    let label_at = check_header(path, &header, label)?;
    let mut features = Vec::new();
    let mut labels = Vec::new();
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(malformed)? {
        let line = record.position().map_or(0, csv::Position::line);
        for (at, text) in record.iter().enumerate() {
            let text = text.trim();
            let cell = Cell { path, line, column: &header[at], text };
            if at == label_at {
                labels.push(cell.label()?);
            } else {
                features.push(cell.feature()?);
            }
        }
    }
    let classes = labels.iter().map(|&label| label as usize + 1).max().unwrap_or(1);
    Dataset::new(features, labels, header.len() - 1, classes)
        .map_err(|source| LoadError::InvalidDataset { path: path.to_owned(), source })
}

/// Index of the label column, if the first line is a header that contains it.
fn check_header(path: &Path, header: &StringRecord, label: &str) -> Result<usize, LoadError> {
    let path = || path.to_owned();
    if !header.is_empty() && header.iter().all(|name| name.trim().parse::<f64>().is_ok()) {
        return Err(LoadError::CsvNoHeader { path: path() });
    }
    for (at, name) in header.iter().enumerate() {
        if header.iter().take(at).any(|earlier| earlier == name) {
            return Err(LoadError::CsvColumnTwice { path: path(), column: name.to_owned() });
        }
    }
    let label_at = header.iter().position(|name| name == label).ok_or_else(|| {
        let columns = header.iter().take(COLUMNS_SHOWN_MAX).collect::<Vec<_>>().join(", ");
        LoadError::CsvNoLabel { path: path(), label: label.to_owned(), columns }
    })?;
    if header.len() < 2 || header.len() - 1 > WIDTH_MAX {
        return Err(LoadError::CsvWidth { path: path(), columns: header.len() });
    }
    Ok(label_at)
}

/// Largest number of column names in an error message.
const COLUMNS_SHOWN_MAX: usize = 20;

struct Cell<'a> {
    path: &'a Path,
    line: u64,
    column: &'a str,
    text: &'a str,
}

impl Cell<'_> {
    fn feature(&self) -> Result<f32, LoadError> {
        match self.text.parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(self.refuse("a finite number")),
        }
    }

    fn label(&self) -> Result<u32, LoadError> {
        match self.text.parse::<u32>() {
            Ok(label) if (label as usize) < CLASSES_MAX => Ok(label),
            _ => Err(self.refuse("a whole number from 0 to 65535")),
        }
    }

    fn refuse(&self, expected: &'static str) -> LoadError {
        let (path, line, column) = (self.path.to_owned(), self.line, self.column.to_owned());
        if self.text.is_empty() {
            return LoadError::CsvHole { path, line, column, expected };
        }
        LoadError::CsvValue { path, line, column, value: self.text.to_owned(), expected }
    }
}
