//! CSV of which the lines arrive one after another, such as over a socket.

use std::path::{Path, PathBuf};

use csv::{Position, ReaderBuilder, StringRecord};

use super::csv::{check_header, delimiter, malformed, table_of};
use super::{LoadError, Table};

/// The header of CSV that arrives line by line: a record is one line, so its cells have no line
/// breaks.
#[derive(Debug, Clone)]
pub struct CsvLines {
    /// The source, for messages.
    name: PathBuf,
    header: StringRecord,
    label_at: usize,
    delimiter: u8,
}

/// The cells of a line, as many as the header has names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvRecord(StringRecord);

impl CsvLines {
    /// Parses the first line, which names the columns; `name` names the source in messages. If it
    /// has no comma, semicolons or tabs separate the cells.
    ///
    /// # Errors
    /// [`LoadError`], as for the header of a file.
    pub fn from_header(name: &Path, line: &[u8], label: &str) -> Result<Self, LoadError> {
        let delimiter = delimiter(line);
        let record = record(line, delimiter).map_err(|error| malformed(name, error))?;
        let mut header = record.unwrap_or_default();
        header.trim();
        let label_at = check_header(name, &header, label)?;
        Ok(Self { name: name.to_owned(), header, label_at, delimiter })
    }

    /// Parses line number `number`, from 1; `None` for an empty one.
    ///
    /// # Errors
    /// [`LoadError::CsvLine`] for another number of cells than the header has names, and
    /// [`LoadError::CsvNotUtf8`].
    pub fn record(&self, number: u64, line: &[u8]) -> Result<Option<CsvRecord>, LoadError> {
        let path = || self.name.clone();
        let wrong = |why| LoadError::CsvLine { path: path(), line: number, why };
        let found = record(line, self.delimiter).map_err(|error| match error.kind() {
            csv::ErrorKind::Utf8 { .. } => LoadError::CsvNotUtf8 { path: path(), line: number },
            _ => wrong(error.to_string()),
        })?;
        let Some(mut found) = found else { return Ok(None) };
        let (cells, names) = (found.len(), self.header.len());
        if cells != names {
            return Err(wrong(format!("{cells} cells; the header has {names} names")));
        }
        let mut position = Position::new();
        position.set_line(number);
        found.set_position(Some(position));
        Ok(Some(CsvRecord(found)))
    }

    /// The table of these records, all of which this header has parsed.
    pub fn table(&self, records: Vec<CsvRecord>) -> Table {
        let records: Vec<StringRecord> = records.into_iter().map(|CsvRecord(it)| it).collect();
        table_of(&self.header, self.label_at, &records)
    }
}

/// The first record of a text; `None` if it has none.
fn record(line: &[u8], delimiter: u8) -> Result<Option<StringRecord>, csv::Error> {
    let mut reader = ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(false)
        .buffer_capacity(line.len().max(1))
        .from_reader(line);
    let mut record = StringRecord::new();
    Ok(reader.read_record(&mut record)?.then_some(record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{ColumnEncoder, ColumnRole, FeatureEncoder, NumberScale, RowEncoder};

    fn header(line: &str) -> Result<CsvLines, LoadError> {
        CsvLines::from_header(Path::new("tcp:127.0.0.1:1"), line.as_bytes(), "hot")
    }

    #[test]
    fn lines_have_the_rows_of_the_same_file() {
        let text = "t, x ,hot\n1.5,left,0\n 2 ,\"right\",1\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, text).unwrap();
        let of_file = super::super::csv::table(&path, "hot").unwrap();
        let mut lines = text.split_inclusive('\n');
        let csv = header(lines.next().unwrap()).unwrap();
        let numbered = lines.zip(2..).map(|(line, at)| csv.record(at, line.as_bytes()).unwrap());
        let of_lines = csv.table(numbered.flatten().collect());
        assert_eq!(of_lines, of_file);
        assert_eq!(csv.record(4, b"\r").unwrap(), None, "an empty line has no row");
        let column = |name: &str, role| ColumnEncoder { name: name.to_owned(), role };
        let scale = NumberScale { offset: 1.0, factor: 2.0, fill: None };
        let encoder = RowEncoder {
            classes: 2,
            class_names: Vec::new(),
            features: FeatureEncoder::Columns(vec![
                column("x", ColumnRole::OneHot(vec!["left".to_owned(), "right".to_owned()])),
                column("t", ColumnRole::Numeric { scale, missing_indicator: false }),
            ]),
            target: None,
        };
        let rows = encoder.encode(&of_lines).unwrap();
        assert_eq!((rows.row(0), rows.row(1)), (&[1.0, 0.0, 1.0][..], &[0.0, 1.0, 2.0][..]));
        assert_eq!(rows.labels(), [0, 1]);
    }

    #[test]
    fn a_line_with_other_cells_is_refused_and_named() {
        let csv = header("t,hot").unwrap();
        for line in ["1", "1,2,3", "\"1,2", "1\u{0}"] {
            let error = csv.record(7, line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("line 7"), "{line}: {error}");
        }
        let error = csv.record(8, b"\xff,1").unwrap_err();
        assert!(matches!(error, LoadError::CsvNotUtf8 { line: 8, .. }), "{error}");
    }

    #[test]
    fn a_header_without_the_label_is_refused() {
        assert!(matches!(header("t,x"), Err(LoadError::CsvNoLabel { .. })));
        assert!(matches!(header("1,2"), Err(LoadError::CsvNoHeader { .. })));
        assert!(header("").is_err());
        assert!(matches!(header("hot"), Err(LoadError::CsvWidth { .. })));
    }
}
