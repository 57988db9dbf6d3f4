//! CSV: a header and columns, one of which is the label.

use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, Position, ReaderBuilder, StringRecord};

use super::file::{open, read};
use super::parts::{TableParts, rows_of_part};
use super::table::{Cells, Positions, TableColumn, TableFeatures};
use super::{CLASSES_MAX, Dataset, LoadError, Table, WIDTH_MAX};

/// Most bytes of a record: 64 MiB.
const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the first line from which the delimiter follows, at most.
const DELIMITER_BYTES: u64 = 1 << 20;

/// Every column except `label` is a feature, in the order of the file. Cells are numbers and are
/// used as they are.
pub(super) fn load(path: &Path, label: &str) -> Result<Dataset, LoadError> {
    let bytes = read(path)?;
    check_encoding(path, &bytes)?;
    let mut rows = CsvParts::new(path, label, bytes.as_slice(), delimiter(&bytes))?;
    let mut features = Vec::new();
    let mut labels = Vec::new();
    while let Some(record) = rows.next_record()? {
        let line = record.position().map_or(0, csv::Position::line);
        for (at, text) in record.iter().enumerate() {
            let text = text.trim();
            let cell = Cell { path, line, column: &rows.header[at], text };
            if at == rows.label_at {
                labels.push(cell.label()?);
            } else {
                features.push(cell.feature()?);
            }
        }
    }
    let classes = labels.iter().map(|&label| label as usize + 1).max().unwrap_or(1);
    Dataset::new(features, labels, rows.header.len() - 1, classes)
        .map_err(|source| LoadError::InvalidDataset { path: path.to_owned(), source })
}

/// The whole file as a table: every column except `label` is a feature column.
pub(super) fn table(path: &Path, label: &str) -> Result<Table, LoadError> {
    let bytes = read(path)?;
    check_encoding(path, &bytes)?;
    let delimiter = delimiter(&bytes);
    let mut rows = CsvParts::new(path, label, bytes.as_slice(), delimiter)?;
    let (mut records, columns) = (Vec::new(), rows.header.len());
    while let Some(record) = rows.next_record()? {
        records.push(record);
        if !Table::fits(records.len(), columns) {
            let (rows, path) = (records.len(), path.to_owned());
            return Err(LoadError::TableSize { path, rows, columns });
        }
    }
    Ok(rows.table(&records))
}

/// The file, a part of the rows at a time: it may exceed the memory.
pub(super) fn parts(path: &Path, label: &str) -> Result<impl TableParts + use<>, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    let mut reader = open(path)?.reader;
    let mut start = Vec::new();
    reader.by_ref().take(DELIMITER_BYTES).read_to_end(&mut start).map_err(unreadable)?;
    check_encoding(path, &start)?;
    let delimiter = delimiter(&start);
    CsvParts::new(path, label, Cursor::new(start).chain(reader), delimiter)
}

/// A file whose records are read one after another.
struct CsvParts<R> {
    reader: csv::Reader<RecordLimit<R>>,
    path: PathBuf,
    header: StringRecord,
    /// Index of the label column.
    label_at: usize,
}

impl<R: Read> CsvParts<R> {
    fn new(path: &Path, label: &str, from: R, delimiter: u8) -> Result<Self, LoadError> {
        let from = RecordLimit { from, left: RECORD_BYTES_MAX, read: Vec::new(), end: 0 };
        // The number of cells is checked here, with the right line.
        let mut reader = ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(from);
        let mut header = reader.headers().map_err(|error| malformed(path, error))?.clone();
        header.trim();
        let label_at = check_header(path, &header, label)?;
        Ok(Self { reader, path: path.to_owned(), header, label_at })
    }

    /// The next record, with the line at which it begins.
    fn next_record(&mut self) -> Result<Option<StringRecord>, LoadError> {
        self.reader.get_mut().left = RECORD_BYTES_MAX;
        let mut record = ByteRecord::new();
        let read = self.reader.read_byte_record(&mut record);
        if !read.map_err(|error| malformed(&self.path, error))? {
            return Ok(None);
        }
        let (path, line) = (|| self.path.clone(), self.line_of(&record));
        let (cells, names) = (record.len(), self.header.len());
        if cells != names {
            let why = format!("{cells} cells; the header has {names} names");
            return Err(LoadError::CsvLine { path: path(), line, why });
        }
        let text = StringRecord::from_byte_record(record);
        let mut text = text.map_err(|_| LoadError::CsvNotUtf8 { path: path(), line })?;
        let mut position = Position::new();
        position.set_line(line);
        text.set_position(Some(position));
        Ok(Some(text))
    }

    /// The line at which the record that was just read begins. The record's own position is before the line feed of a
    /// CRLF, and before blank lines.
    fn line_of(&self, record: &ByteRecord) -> u64 {
        let end = self.reader.position();
        let is_past_feed = self.reader.get_ref().byte_before(end.byte()) == Some(b'\n');
        let within = record.iter().flatten().filter(|byte| **byte == b'\n').count();
        end.line().saturating_sub(within as u64 + u64::from(is_past_feed))
    }

    fn table(&self, records: &[StringRecord]) -> Table {
        table_of(&self.header, self.label_at, records)
    }
}

/// The table of these records, each with as many cells as the header has names.
pub(super) fn table_of(header: &StringRecord, label_at: usize, records: &[StringRecord]) -> Table {
    let cells = |at: usize| Cells::from_texts(records.iter().map(move |record| &record[at]));
    let features = (0..header.len())
        .filter(|at| *at != label_at)
        .map(|at| TableColumn { name: column_name(&header[at], at), cells: cells(at) });
    let line = |record: &StringRecord| record.position().map_or(0, csv::Position::line);
    Table {
        features: TableFeatures::Columns(features.collect()),
        labels: cells(label_at),
        label: header[label_at].to_owned(),
        classes_min: 0,
        positions: Positions::Lines(records.iter().map(line).collect()),
    }
}

impl<R: Read> TableParts for CsvParts<R> {
    fn next_part(&mut self, rows: usize) -> Result<Option<Table>, LoadError> {
        let rows = rows_of_part(rows, self.header.len());
        let mut records = Vec::with_capacity(rows);
        while records.len() < rows
            && let Some(record) = self.next_record()?
        {
            records.push(record);
        }
        Ok((!records.is_empty()).then(|| self.table(&records)))
    }
}

/// A reader that fails beyond a number of bytes: without an end, a quotation would be read into memory
/// with the rest of the file.
struct RecordLimit<R> {
    from: R,
    left: u64,
    /// The bytes that were read last, and the offset behind them.
    read: Vec<u8>,
    end: u64,
}

impl<R> RecordLimit<R> {
    /// The byte in front of an offset, if it is among those that were read last.
    fn byte_before(&self, offset: u64) -> Option<u8> {
        let behind = usize::try_from(self.end.checked_sub(offset)?).ok()?;
        let at = self.read.len().checked_sub(behind.checked_add(1)?)?;
        self.read.get(at).copied()
    }
}

impl<R: Read> Read for RecordLimit<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let why = format!(
                "a record of more than {RECORD_BYTES_MAX} bytes: a quotation mark may be missing"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let most = to.len().min(self.left.try_into().unwrap_or(usize::MAX));
        let read = self.from.read(&mut to[..most])?;
        self.left -= read as u64;
        if read > 0 {
            self.read.clear();
            self.read.extend_from_slice(&to[..read]);
            self.end += read as u64;
        }
        Ok(read)
    }
}

pub(super) fn malformed(path: &Path, source: csv::Error) -> LoadError {
    let path = path.to_owned();
    match source.kind() {
        csv::ErrorKind::Utf8 { pos, .. } => {
            LoadError::CsvNotUtf8 { path, line: pos.as_ref().map_or(1, csv::Position::line) }
        }
        _ => LoadError::CsvMalformed { path, source },
    }
}

/// The name of a column; a column without one, such as the row numbers that pandas and R write, has
/// its position as a name.
fn column_name(name: &str, at: usize) -> String {
    if name.is_empty() { format!("unnamed {}", at + 1) } else { name.to_owned() }
}

/// Refuses a file without a line, and one that starts as UTF-16 does.
fn check_encoding(path: &Path, start: &[u8]) -> Result<(), LoadError> {
    match start {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Err(LoadError::CsvUtf16 { path: path.to_owned() }),
        text if text.trim_ascii().is_empty() => Err(LoadError::CsvEmpty { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// The delimiter: a comma; a semicolon, a tab or a bar if the first line has one and no comma.
pub(super) fn delimiter(bytes: &[u8]) -> u8 {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has = |delimiter: &u8| line.contains(delimiter);
    [b',', b';', b'\t', b'|'].into_iter().find(has).unwrap_or(b',')
}

/// Index of the label column, if the first line is a header that contains it.
pub(super) fn check_header(
    path: &Path,
    header: &StringRecord,
    label: &str,
) -> Result<usize, LoadError> {
    let path = || path.to_owned();
    if !header.is_empty() && header.iter().all(|name| name.trim().parse::<f64>().is_ok()) {
        return Err(LoadError::CsvNoHeader { path: path() });
    }
    refuse_control_characters(path(), header.iter())?;
    let mut names: Vec<&str> = header.iter().collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(LoadError::CsvColumnTwice { path: path(), column: pair[0].to_owned() });
    }
    let label_at = header.iter().position(|name| name == label).ok_or_else(|| {
        let mut columns = header.iter().take(COLUMNS_SHOWN_MAX).collect::<Vec<_>>().join(", ");
        if let Some(last) = header.iter().skip(COLUMNS_SHOWN_MAX).last() {
            columns.push_str(&format!(", … {last} ({} in all)", header.len()));
        }
        LoadError::CsvNoLabel { path: path(), label: label.to_owned(), columns }
    })?;
    if header.len() < 2 || header.len() - 1 > WIDTH_MAX {
        return Err(LoadError::CsvWidth { path: path(), columns: header.len() });
    }
    Ok(label_at)
}

/// Refuses names that could change a terminal which shows them.
pub(super) fn refuse_control_characters<'a>(
    path: PathBuf,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), LoadError> {
    let mut numbered = names.zip(1..);
    match numbered.find(|(name, _)| name.chars().any(char::is_control)) {
        None => Ok(()),
        Some((name, number)) => {
            Err(LoadError::CsvColumnName { path, number, column: name.to_owned() })
        }
    }
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
