//! NumPy's `.npy` files: a header in Python's syntax, followed by the numbers of one array.
//!
//! The header is one line of at most [`HEADER_BYTES_MAX`] bytes with three keys. The crates that read
//! it depend on a parser of Python literals and its ten dependencies; this parser reads the only form
//! that NumPy writes, and refuses any other.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::file::{OpenFile, open, read};
use super::parts::{TableParts, rows_of_part};
use super::table::{MatrixValues, Positions};
use super::{LoadError, ROWS_MAX, Table, WIDTH_MAX};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Largest header; NumPy writes 118 bytes for most arrays.
const HEADER_BYTES_MAX: usize = 4_096;
/// Bytes of a file that have its header, at most.
const START_BYTES_MAX: u64 = HEADER_BYTES_MAX as u64 + 12;
/// Most dimensions of an array.
const DIMENSIONS_MAX: usize = 8;

/// Rows of numbers and their labels, from two arrays. All dimensions of the features behind the
/// first one are the features of a row.
pub(super) fn table(features: &Path, labels: &Path) -> Result<Table, LoadError> {
    table_of((features, &read(features)?), (labels, &read(labels)?))
}

/// As [`table`], with the bytes of each file; the paths are for messages.
pub(super) fn table_of(
    (features, feature_bytes): (&Path, &[u8]),
    (labels, label_bytes): (&Path, &[u8]),
) -> Result<Table, LoadError> {
    let x = Array::decode(features, feature_bytes)?;
    let y = Array::decode(labels, label_bytes)?;
    table_of_arrays(features, x, labels, &y)
}

/// As [`table`], of arrays; the paths are for messages.
pub(super) fn table_of_arrays(
    features: &Path,
    x: Array,
    labels: &Path,
    y: &Array,
) -> Result<Table, LoadError> {
    let rows = x.shape[0];
    // Without rows, the other dimensions may have any product.
    let width = x.shape[1..].iter().try_fold(1_usize, |width, size| width.checked_mul(*size));
    let width = width.unwrap_or(usize::MAX);
    let numbers = labels_of(features, rows, labels, y)?;
    if width == 0 || !Table::fits(rows, width) {
        return Err(malformed(features, format!("{rows} rows of {width} features exceed a limit")));
    }
    Ok(Table::from_matrix(width, x.values, numbers))
}

/// Arrays whose rows are read one after another: the features may exceed the memory.
pub(super) struct NpyParts {
    features: BufReader<File>,
    path: PathBuf,
    /// That of the features; its first dimension is all rows.
    header: Header,
    width: usize,
    labels: Vec<f64>,
    next: usize,
}

impl NpyParts {
    /// Opens the arrays; `None` if their rows are not one after another in the file.
    pub(super) fn open(features: &Path, labels: &Path) -> Result<Option<Self>, LoadError> {
        let OpenFile { reader, is_gzip } = open(features)?;
        let unreadable = |source| LoadError::Unreadable { path: features.to_owned(), source };
        let mut start = Vec::new();
        reader.take(START_BYTES_MAX).read_to_end(&mut start).map_err(unreadable)?;
        let wrong = |why| malformed(features, why);
        let (header, body) = split(&start).map_err(wrong)?;
        let header = parse_header(header).map_err(wrong)?;
        if is_gzip || header.is_fortran || header.shape.is_empty() {
            return Ok(None);
        }
        let at = (start.len() - body.len()) as u64;
        let mut file = File::open(features).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len().saturating_sub(at);
        header.check_length(features, bytes)?;
        file.seek(SeekFrom::Start(at)).map_err(unreadable)?;
        let width =
            header.shape[1..].iter().try_fold(1_usize, |width, size| width.checked_mul(*size));
        let (rows, width) = (header.shape[0], width.unwrap_or(usize::MAX));
        if !(1..=WIDTH_MAX).contains(&width) || rows > ROWS_MAX {
            return Err(wrong(format!("{rows} rows of {width} features exceed a limit")));
        }
        let y = Array::decode(labels, &read(labels)?)?;
        let labels = labels_of(features, rows, labels, &y)?;
        let (features, path) = (BufReader::new(file), features.to_owned());
        Ok(Some(Self { features, path, header, width, labels, next: 0 }))
    }
}

impl TableParts for NpyParts {
    fn next_part(&mut self, rows: usize) -> Result<Option<Table>, LoadError> {
        let first = self.next;
        let rows = rows_of_part(rows, self.width).min(self.labels.len() - first);
        if rows == 0 {
            return Ok(None);
        }
        let mut body = vec![0; rows * self.width * self.header.size];
        let unreadable = |source| LoadError::Unreadable { path: self.path.clone(), source };
        self.features.read_exact(&mut body).map_err(unreadable)?;
        let values = self.header.finite_numbers(&self.path, &body, first * self.width)?;
        self.next = first + rows;
        let labels = self.labels[first..self.next].to_vec();
        let table = Table::from_matrix(self.width, values, labels);
        Ok(Some(Table { positions: Positions::Rows(first), ..table }))
    }
}

/// The labels of rows.
fn labels_of(
    features: &Path,
    rows: usize,
    labels: &Path,
    y: &Array,
) -> Result<Vec<f64>, LoadError> {
    if y.shape[0] != rows || y.values.len() != rows {
        return Err(LoadError::NpyCountsDiffer {
            features: features.to_owned(),
            rows,
            labels: labels.to_owned(),
            count: y.values.len(),
        });
    }
    Ok((0..rows).map(|row| y.values.value(row)).collect())
}

/// One array.
pub(super) struct Array {
    shape: Vec<usize>,
    values: MatrixValues,
}

/// The header of an array.
#[derive(Debug, PartialEq)]
struct Header {
    kind: NumberKind,
    /// Bytes of one number.
    size: usize,
    big_endian: bool,
    /// Whether the first index varies fastest, as in a matrix that pandas returns.
    is_fortran: bool,
    shape: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum NumberKind {
    Bool,
    Signed,
    Unsigned,
    Float,
}

fn malformed(path: &Path, why: impl Into<String>) -> LoadError {
    LoadError::NpyMalformed { path: path.to_owned(), why: why.into() }
}

impl Array {
    fn decode(path: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let (header, body) = split(bytes).map_err(|why| malformed(path, why))?;
        let header = parse_header(header).map_err(|why| malformed(path, why))?;
        Self::of_header(path, header, body)
    }

    /// An array of little-endian numbers, row after row, each of `size` bytes.
    pub(super) fn new(
        path: &Path,
        kind: NumberKind,
        size: usize,
        shape: &[usize],
        body: &[u8],
    ) -> Result<Self, LoadError> {
        let shape = shape.to_vec();
        let header = Header { kind, size, big_endian: false, is_fortran: false, shape };
        Self::of_header(path, header, body)
    }

    fn of_header(path: &Path, header: Header, body: &[u8]) -> Result<Self, LoadError> {
        header.check_length(path, body.len() as u64)?;
        if header.shape.is_empty() {
            return Err(malformed(path, "it has a single number: an array of rows is needed"));
        }
        let values = match header.is_fortran {
            true => header.finite_numbers(path, &header.in_rows(body), 0)?,
            false => header.finite_numbers(path, body, 0)?,
        };
        Ok(Self { shape: header.shape, values })
    }
}

/// Splits a file into its header and its numbers.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin with \"\\x93NUMPY\"")?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err("its header is cut off, or its version is not 1 to 3".to_owned()),
    };
    if length > HEADER_BYTES_MAX {
        return Err(format!("its header has {length} bytes; at most {HEADER_BYTES_MAX}"));
    }
    if rest.len() < length {
        return Err("its header is cut off".to_owned());
    }
    let (header, body) = rest.split_at(length);
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    Ok((header, body))
}

/// Parses `{'descr': '<f8', 'fortran_order': False, 'shape': (150, 4), }`.
fn parse_header(text: &str) -> Result<Header, String> {
    let odd = || format!("its header is not that of an array of numbers: {}", text.trim_end());
    let inner = text.trim_ascii().strip_prefix('{').and_then(|t| t.strip_suffix('}'));
    let inner = inner.ok_or_else(odd)?;
    let value = |key: &str| {
        let (_, rest) = inner.split_once(&format!("'{key}':"))?;
        Some(rest.trim_ascii_start())
    };
    let descr = value("descr").and_then(|rest| rest.strip_prefix('\''));
    let (descr, _) = descr.and_then(|rest| rest.split_once('\'')).ok_or_else(odd)?;
    let order = value("fortran_order").ok_or_else(odd)?;
    let is_fortran = order.starts_with("True");
    if !is_fortran && !order.starts_with("False") {
        return Err(odd());
    }
    let shape = value("shape").and_then(|rest| rest.strip_prefix('('));
    let (shape, _) = shape.and_then(|rest| rest.split_once(')')).ok_or_else(odd)?;
    let sizes = shape.split(',').map(str::trim_ascii).filter(|size| !size.is_empty());
    let shape: Vec<usize> = sizes.map(str::parse).collect::<Result<_, _>>().map_err(|_| odd())?;
    if shape.len() > DIMENSIONS_MAX {
        return Err(format!("it has {} dimensions; at most {DIMENSIONS_MAX}", shape.len()));
    }
    if is_fortran && shape.len() > 2 {
        return Err("its numbers are in Fortran order: save numpy.ascontiguousarray(…)".to_owned());
    }
    let (kind, size, big_endian) = number_type(descr)?;
    Ok(Header { kind, size, big_endian, is_fortran, shape })
}

fn number_type(descr: &str) -> Result<(NumberKind, usize, bool), String> {
    let order = descr.chars().next().filter(|c| "<>|=".contains(*c));
    let name = descr.get(order.map_or(0, char::len_utf8)..).unwrap_or_default();
    let (kind, size) = match name {
        "b1" => (NumberKind::Bool, 1),
        "i1" => (NumberKind::Signed, 1),
        "i2" => (NumberKind::Signed, 2),
        "i4" => (NumberKind::Signed, 4),
        "i8" => (NumberKind::Signed, 8),
        "u1" => (NumberKind::Unsigned, 1),
        "u2" => (NumberKind::Unsigned, 2),
        "u4" => (NumberKind::Unsigned, 4),
        "u8" => (NumberKind::Unsigned, 8),
        "f4" => (NumberKind::Float, 4),
        "f8" => (NumberKind::Float, 8),
        _ => {
            let remedy = match name.chars().next() {
                Some('U' | 'S' | 'O') => {
                    "write texts as whole numbers (numpy.unique(y, return_inverse=True)[1]), or use \
                     a CSV or Parquet file"
                }
                _ => "save x.astype(\"float32\")",
            };
            return Err(format!(
                "its type is {descr:?}; must be bool, an integer, float32 or float64: {remedy}"
            ));
        }
    };
    Ok((kind, size, order == Some('>')))
}

impl Header {
    /// Checks the number of bytes behind the header.
    fn check_length(&self, path: &Path, bytes: u64) -> Result<(), LoadError> {
        let count = self.shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
        let expected = count.and_then(|count| count.checked_mul(self.size));
        if expected.map(|expected| expected as u64) == Some(bytes) {
            return Ok(());
        }
        let why = format!(
            "it has {bytes} bytes of numbers, and its header declares {}",
            expected.map_or("more".to_owned(), |bytes| bytes.to_string())
        );
        Err(malformed(path, why))
    }

    /// The numbers of a part of the array, which begins with number `first`; none is infinite.
    fn finite_numbers(
        &self,
        path: &Path,
        body: &[u8],
        first: usize,
    ) -> Result<MatrixValues, LoadError> {
        let values = self.numbers(body);
        match (0..values.len()).find(|at| values.value(*at).is_infinite()) {
            None => Ok(values),
            Some(at) => {
                let at = first + at;
                Err(malformed(path, format!("number {at} is infinite; must be finite or NaN")))
            }
        }
    }

    /// The bytes of a matrix in Fortran order, row after row.
    fn in_rows(&self, body: &[u8]) -> Vec<u8> {
        let (rows, size) = (self.shape[0], self.size);
        let width = body.len() / size / rows.max(1);
        let number = |row: usize, column: usize| {
            let at = (column * rows + row) * size;
            &body[at..at + size]
        };
        let row = |row: usize| (0..width).flat_map(move |column| number(row, column));
        (0..rows).flat_map(row).copied().collect()
    }

    fn numbers(&self, body: &[u8]) -> MatrixValues {
        match (self.kind, self.size) {
            (NumberKind::Unsigned | NumberKind::Bool, 1) => MatrixValues::Bytes(body.to_vec()),
            (NumberKind::Float, 4) => {
                let single = |raw: u64| f32::from_bits(raw as u32);
                MatrixValues::Singles(self.raw(body).map(single).collect())
            }
            (kind, size) => {
                let double = |raw: u64| match kind {
                    NumberKind::Float => f64::from_bits(raw),
                    NumberKind::Signed => {
                        let unused = 64 - 8 * size as u32;
                        ((raw << unused) as i64 >> unused) as f64
                    }
                    NumberKind::Bool | NumberKind::Unsigned => raw as f64,
                };
                MatrixValues::Doubles(self.raw(body).map(double).collect())
            }
        }
    }

    /// The bits of each number, on the right.
    fn raw<'a>(&self, body: &'a [u8]) -> impl Iterator<Item = u64> + use<'a> {
        let (size, big_endian) = (self.size, self.big_endian);
        body.chunks_exact(size).map(move |chunk| {
            let byte = |raw: u64, byte: &u8| raw << 8 | u64::from(*byte);
            match big_endian {
                true => chunk.iter().fold(0, byte),
                false => chunk.iter().rev().fold(0, byte),
            }
        })
    }
}
