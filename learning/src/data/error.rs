//! Why data cannot be loaded or saved.

use std::path::PathBuf;

use thiserror::Error;

use super::source::DataSource;
use super::{CanonicalError, DatasetError, EncodeError, FILE_BYTES_MAX, TokenizerError};

/// Loading or saving failed. Every message contains the file and the position in it.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A line of a file of documents is not valid.
    #[error("{}, line {line}: {why}; each line is {{\"text\": \"…\"}}", path.display())]
    InvalidDocument {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error.
        why: String,
    },
    /// The file cannot be opened or read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("{path} cannot be written: {source}")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file, after decompression, exceeds the limit.
    #[error("{path} has more than the limit of {FILE_BYTES_MAX} bytes after decompression")]
    FileTooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The gzip stream is damaged or truncated.
    #[error("{path} is a broken gzip file ({source}): download it again")]
    BrokenGzip {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        source: std::io::Error,
    },
    /// The embedded data is damaged.
    #[error("{path}, line {line}: not 64 pixels and a label; this program is damaged")]
    DamagedProgram {
        /// The file's name in the source tree.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
    },
    /// The magic number of an IDX file is wrong.
    #[error(
        "{path} begins with {got:#010x}: an IDX file of this kind begins with {expected:#010x}"
    )]
    IdxMagic {
        /// The file.
        path: PathBuf,
        /// The magic number expected.
        expected: u32,
        /// The magic number found.
        got: u32,
    },
    /// The length of an IDX file contradicts its header.
    #[error("{path} has {got} bytes: its header declares {expected}")]
    IdxLength {
        /// The file.
        path: PathBuf,
        /// Bytes declared by the header.
        expected: u64,
        /// Bytes of the file.
        got: u64,
    },
    /// The numbers of images and labels differ.
    #[error(
        "{images} has {images_count} images, but {labels} has {labels_count} labels: must be equal"
    )]
    IdxCountsDiffer {
        /// The file of images.
        images: PathBuf,
        /// Number of images.
        images_count: u64,
        /// The file of labels.
        labels: PathBuf,
        /// Number of labels.
        labels_count: u64,
    },
    /// The length of a CIFAR-10 file is not a multiple of the record length.
    #[error(
        "{path} has {bytes} bytes: must be a positive multiple of {record}, the bytes of one record"
    )]
    CifarLength {
        /// The file.
        path: PathBuf,
        /// Bytes of the file.
        bytes: u64,
        /// Bytes per record.
        record: u64,
    },
    /// A CIFAR-10 label is out of range.
    #[error("{path}, byte {offset}: label {label}, must be 0 to 9")]
    CifarLabel {
        /// The file.
        path: PathBuf,
        /// Offset of the label.
        offset: u64,
        /// The label.
        label: u8,
    },
    /// Malformed CSV, or a line with another number of columns than the header.
    #[error("{path} is not a valid CSV file: {source}")]
    CsvMalformed {
        /// The file.
        path: PathBuf,
        /// The parser's error, with the line.
        source: ::csv::Error,
    },
    /// A line that is no record of its header.
    #[error("{}, line {line}: {why}", path.display())]
    CsvLine {
        /// The source.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// The reason.
        why: String,
    },
    /// A text that is not UTF-8.
    #[error("{path}, line {line}: not UTF-8; save the file as UTF-8 (iconv -f latin1 -t utf-8)")]
    CsvNotUtf8 {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
    },
    /// A text in UTF-16.
    #[error("{path} is UTF-16; save the file as UTF-8 (iconv -f utf-16 -t utf-8)")]
    CsvUtf16 {
        /// The file.
        path: PathBuf,
    },
    /// No line at all.
    #[error("{path} is empty; the first line must name the columns, each other one is a row")]
    CsvEmpty {
        /// The file.
        path: PathBuf,
    },
    /// The first line contains numbers instead of column names.
    #[error("{path}, line 1: only numbers; the first line must name the columns")]
    CsvNoHeader {
        /// The file.
        path: PathBuf,
    },
    /// Two columns have the same name.
    #[error("{path}, line 1: column `{column}` occurs twice; names must differ")]
    CsvColumnTwice {
        /// The file.
        path: PathBuf,
        /// The name.
        column: String,
    },
    /// A column's name has a control character, which could change a terminal.
    #[error(
        "{path}, line 1: the name of column {number}, {column:?}, has a control character: rename it"
    )]
    CsvColumnName {
        /// The file.
        path: PathBuf,
        /// The column, from 1.
        number: usize,
        /// The name.
        column: String,
    },
    /// The label column does not exist.
    #[error("{path}, line 1: no column `{label}` for the label; the columns are {columns}")]
    CsvNoLabel {
        /// The file.
        path: PathBuf,
        /// The requested name.
        label: String,
        /// The existing names.
        columns: String,
    },
    /// No feature column, or too many.
    #[error(
        "{path} has {columns} columns: must be the label and 1 to {} features",
        super::WIDTH_MAX
    )]
    CsvWidth {
        /// The file.
        path: PathBuf,
        /// Number of columns, including the label.
        columns: usize,
    },
    /// A value is missing.
    #[error("{path}, line {line}, column `{column}`: missing value; must be {expected}")]
    CsvHole {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// The column's name.
        column: String,
        /// The valid values.
        expected: &'static str,
    },
    /// A value is not a number, or not a label.
    #[error("{path}, line {line}, column `{column}`: `{value}`; must be {expected}")]
    CsvValue {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// The column's name.
        column: String,
        /// The value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// The label column of a Parquet file does not exist.
    #[error("{path}: no column `{label}` for the label; the columns are {columns}")]
    TableNoLabel {
        /// The file.
        path: PathBuf,
        /// The requested name.
        label: String,
        /// The existing names.
        columns: String,
    },
    /// A table without a feature column, or with too many cells.
    #[error(
        "{path} has {rows} rows of {columns} columns: must be the label, 1 to {} features, and at \
         most {} cells",
        super::WIDTH_MAX,
        super::FEATURES_MAX
    )]
    TableSize {
        /// The file.
        path: PathBuf,
        /// Rows.
        rows: usize,
        /// Columns, including the label.
        columns: usize,
    },
    /// The file is not a Parquet file, or is damaged.
    #[cfg(feature = "parquet")]
    #[error("{path} is not a valid Parquet file: {source}")]
    ParquetMalformed {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        source: ::parquet::errors::ParquetError,
    },
    /// A column of lists or groups.
    #[error("{path}: column `{column}` has lists or groups; must have one number or text per row")]
    ParquetNested {
        /// The file.
        path: PathBuf,
        /// The name.
        column: String,
    },
    /// A value that is neither a finite number nor a text.
    #[error("{path}, row {row}, column `{column}`: {value}; must be a finite number or a text")]
    ParquetValue {
        /// The file.
        path: PathBuf,
        /// Row, counted from 1.
        row: usize,
        /// The column's name.
        column: String,
        /// The value.
        value: String,
    },
    /// This program was built without Parquet.
    #[error("{path}: this program was built without the feature `parquet`; use a CSV file")]
    NoParquet {
        /// The file.
        path: PathBuf,
    },
    /// The file is not an array of numbers, or is damaged.
    #[error("{path} is not a usable .npy file: {why}")]
    NpyMalformed {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file is not a NumPy archive, or does not have the arrays.
    #[error("{path} is not a usable .npz file: {why}")]
    NpzMalformed {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file is no safetensors file, or does not have the tensors.
    #[error("{} is not a usable safetensors file: {why}", path.display())]
    SafetensorsMalformed {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The numbers of rows and labels differ.
    #[error("{features} has {rows} rows, but {labels} has {count} labels: must be equal")]
    NpyCountsDiffer {
        /// The file of features.
        features: PathBuf,
        /// Its rows.
        rows: usize,
        /// The file of labels.
        labels: PathBuf,
        /// Number of labels.
        count: usize,
    },
    /// A text without the length of its rows.
    #[error(
        "{}: text becomes tokens by a tokenizer, which a task of tokens has, or --tokenizer \
         tokenizer.json; text:FILE#LENGTH reads rows of bytes",
        path.display()
    )]
    NeedsTokenizer {
        /// The file.
        path: PathBuf,
    },
    /// A tokenizer refuses a text.
    #[error("{}: {source}", path.display())]
    Tokens {
        /// The file of the text.
        path: PathBuf,
        /// The error.
        source: TokenizerError,
    },
    /// A folder of images has another form.
    #[error("{}: {why}", path.display())]
    ImageFolder {
        /// The folder, or the path in it that is wrong.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A table of which not every cell can be used as it is.
    #[error("{data_source}: {source}")]
    NotPlain {
        /// The source.
        data_source: DataSource,
        /// The first such cell.
        source: Box<EncodeError>,
    },
    /// A file is not in canonical form.
    #[error("{path}: {source}")]
    NotCanonical {
        /// The file.
        path: PathBuf,
        /// The error.
        source: CanonicalError,
    },
    /// The file changed between its check and its use.
    #[error("{} changed while it was read: load it again when it is complete", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The numbers in the file do not form a valid data set.
    #[error("{path}: {source}")]
    InvalidDataset {
        /// The file.
        path: PathBuf,
        /// The error.
        source: DatasetError,
    },
    /// A file has no rows.
    #[error("{data_source} has no rows; at least one is required")]
    NoRows {
        /// The source.
        data_source: DataSource,
    },
}
