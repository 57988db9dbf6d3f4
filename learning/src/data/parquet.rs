//! Parquet: flat columns of numbers, booleans and texts, one of which is the label.

use std::collections::BTreeMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use super::csv::refuse_control_characters;
use super::parts::{TableParts, rows_of_part};
use super::table::{Cells, Positions, TableColumn, TableFeatures, is_missing, parse_number};
use super::{FILE_BYTES_MAX, LoadError, Table, WIDTH_MAX};

/// Every column except `label` is a feature column.
pub(super) fn table(path: &Path, label: &str) -> Result<Table, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(LoadError::FileTooLarge { path: path.to_owned() });
    }
    let mut parts = ParquetParts::open(path, label)?;
    let (rows, columns) = (parts.declared_rows, parts.names.len());
    if !Table::fits(rows, columns) {
        return Err(LoadError::TableSize { path: path.to_owned(), rows, columns });
    }
    parts.read(usize::MAX)
}

/// Calls the decoder. It may panic on a damaged file, which is the sender's fault and not this
/// program's.
fn decode<T>(path: &Path, read: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let source = ParquetError::General("the decoder stopped".to_owned());
        Err(LoadError::ParquetMalformed { path: path.to_owned(), source })
    })
}

/// A file whose rows are read one after another: it may exceed the memory.
pub(super) struct ParquetParts {
    /// Without any after a failure.
    rows: Option<RowIter<'static>>,
    path: PathBuf,
    names: Vec<String>,
    /// Index of the label column.
    label_at: usize,
    declared_rows: usize,
    next: usize,
}

impl ParquetParts {
    pub(super) fn open(path: &Path, label: &str) -> Result<Self, LoadError> {
        decode(path, || Self::new(path, label))
    }

    fn new(path: &Path, label: &str) -> Result<Self, LoadError> {
        let malformed = |source| LoadError::ParquetMalformed { path: path.to_owned(), source };
        let file = File::open(path)
            .map_err(|source| LoadError::Unreadable { path: path.to_owned(), source })?;
        let reader = SerializedFileReader::new(file).map_err(malformed)?;
        let metadata = reader.metadata().file_metadata();
        let declared_rows = usize::try_from(metadata.num_rows()).unwrap_or(usize::MAX);
        let names = column_names(path, metadata.schema())?;
        let label_at = names.iter().position(|name| name == label).ok_or_else(|| {
            let (label, columns) = (label.to_owned(), names.join(", "));
            LoadError::TableNoLabel { path: path.to_owned(), label, columns }
        })?;
        if names.len() < 2 || names.len() > WIDTH_MAX {
            let (rows, columns) = (declared_rows, names.len());
            return Err(LoadError::TableSize { path: path.to_owned(), rows, columns });
        }
        let rows = Some(RowIter::from_file_into(Box::new(reader)));
        Ok(Self { rows, path: path.to_owned(), names, label_at, declared_rows, next: 0 })
    }

    /// The next rows, at most this many.
    fn read(&mut self, most: usize) -> Result<Table, LoadError> {
        let path = self.path.clone();
        let Some(mut rows) = self.rows.take() else { return Ok(self.table(Vec::new(), 0)) };
        let first = self.next;
        let (columns, count) = decode(&path, || {
            let found = self.columns(&mut rows, most)?;
            self.rows = Some(rows);
            Ok(found)
        })?;
        self.next = first + count;
        Ok(self.table(columns, first))
    }

    fn columns(
        &self,
        rows: &mut RowIter<'static>,
        most: usize,
    ) -> Result<(Vec<ColumnCells>, usize), LoadError> {
        let malformed = |source| LoadError::ParquetMalformed { path: self.path.clone(), source };
        let mut columns: Vec<ColumnCells> = Vec::new();
        columns.resize_with(self.names.len(), ColumnCells::default);
        let mut count = 0;
        for row in rows.take(most) {
            let row = row.map_err(malformed)?;
            count += 1;
            for ((name, field), column) in row.get_column_iter().zip(&mut columns) {
                column.push(field).map_err(|value| LoadError::ParquetValue {
                    path: self.path.clone(),
                    row: self.next + count,
                    column: name.clone(),
                    value,
                })?;
            }
        }
        Ok((columns, count))
    }

    /// A table of these columns, from row `first` of the file on.
    fn table(&self, columns: Vec<ColumnCells>, first: usize) -> Table {
        let names = self.names.iter().cloned();
        let mut cells = names.zip(columns.into_iter().map(ColumnCells::finish));
        let named = |(name, cells)| TableColumn { name, cells };
        let mut features: Vec<TableColumn> =
            cells.by_ref().take(self.label_at).map(named).collect();
        let labels = cells.next().map_or(Cells::Numbers(Vec::new()), |(_, cells)| cells);
        features.extend(cells.map(named));
        Table {
            features: TableFeatures::Columns(features),
            labels,
            label: self.names[self.label_at].clone(),
            classes_min: 0,
            positions: Positions::Rows(first),
        }
    }
}

impl TableParts for ParquetParts {
    fn next_part(&mut self, rows: usize) -> Result<Option<Table>, LoadError> {
        let table = self.read(rows_of_part(rows, self.names.len()))?;
        Ok((table.rows() > 0).then_some(table))
    }
}

/// The names of the columns, if each is a plain column and has a name of its own.
fn column_names(path: &Path, schema: &Type) -> Result<Vec<String>, LoadError> {
    let mut names: Vec<String> = Vec::new();
    for field in schema.get_fields() {
        let name = field.name().to_owned();
        if !field.is_primitive() {
            return Err(LoadError::ParquetNested { path: path.to_owned(), column: name });
        }
        if names.contains(&name) {
            return Err(LoadError::CsvColumnTwice { path: path.to_owned(), column: name });
        }
        names.push(name);
    }
    refuse_control_characters(path.to_owned(), names.iter().map(String::as_str))?;
    Ok(names)
}

/// The cells of a column while it is read. A column has one type, so either list remains empty or
/// has only missing values.
#[derive(Default)]
struct ColumnCells {
    numbers: Vec<f64>,
    index: BTreeMap<String, u32>,
    texts: Vec<String>,
    cells: Vec<Option<u32>>,
}

impl ColumnCells {
    /// Adds a value; an unusable one is returned as text.
    fn push(&mut self, field: &Field) -> Result<(), String> {
        let number = match field {
            Field::Null => Some(f64::NAN),
            Field::Bool(value) => Some(f64::from(u8::from(*value))),
            Field::Byte(value) => Some((*value).into()),
            Field::Short(value) => Some((*value).into()),
            Field::Int(value) => Some((*value).into()),
            Field::Long(value) => Some(*value as f64),
            Field::UByte(value) => Some((*value).into()),
            Field::UShort(value) => Some((*value).into()),
            Field::UInt(value) => Some((*value).into()),
            Field::ULong(value) => Some(*value as f64),
            Field::Float16(value) => Some(value.to_f64()),
            Field::Float(value) => Some((*value).into()),
            Field::Double(value) => Some(*value),
            _ => None,
        };
        match (number, field) {
            (Some(number), _) if number.is_infinite() => return Err(number.to_string()),
            (Some(number), _) => self.add(number, None),
            (None, Field::Str(text)) => self.add_text(text),
            (None, Field::Bytes(bytes)) => {
                let text = std::str::from_utf8(bytes.data()).map_err(|_| "bytes".to_owned())?;
                self.add_text(text);
            }
            // Dates, times and decimals, in the form in which Parquet's own tools print them.
            (None, other) => self.add_text(&other.to_string()),
        }
        Ok(())
    }

    fn add(&mut self, number: f64, text: Option<u32>) {
        self.numbers.push(number);
        self.cells.push(text);
    }

    fn add_text(&mut self, text: &str) {
        if is_missing(text) {
            return self.add(f64::NAN, None);
        }
        let text = text.trim_ascii();
        let next = self.texts.len() as u32;
        let at = *self.index.entry(text.to_owned()).or_insert(next);
        if at == next {
            self.texts.push(text.to_owned());
        }
        self.add(f64::NAN, Some(at));
    }

    /// The column: numbers if every text is a number.
    fn finish(mut self) -> Cells {
        let numbers: Option<Vec<f64>> = self.texts.iter().map(|text| parse_number(text)).collect();
        let Some(numbers) = numbers else {
            return Cells::Texts { texts: self.texts, cells: self.cells };
        };
        for (number, text) in self.numbers.iter_mut().zip(&self.cells) {
            if let Some(text) = text {
                *number = numbers[*text as usize];
            }
        }
        Cells::Numbers(self.numbers)
    }
}
