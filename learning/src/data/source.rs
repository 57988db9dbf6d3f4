//! Data sources, as one argument on a command line.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use super::file::{FILE_BYTES_MAX, read};
use super::{
    CanonicalError, Dataset, DatasetError, canonical_bytes, cifar, csv, digits,
    from_canonical_bytes, idx,
};

/// The location of a data set. `FromStr` parses the output of `Display`: `digits`,
/// `idx:IMAGES,LABELS`, `cifar10:FILE[,FILE…]`, `csv:FILE#LABEL` or `florin:FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// The embedded UCI digits.
    Digits,
    /// A pair of IDX files (MNIST, Fashion-MNIST), plain or gzipped.
    Idx {
        /// The file of images.
        images: PathBuf,
        /// The file of labels.
        labels: PathBuf,
    },
    /// CIFAR-10 binary batches, one after another.
    Cifar10 {
        /// The batches; at least one.
        files: Vec<PathBuf>,
    },
    /// A CSV file with a header.
    Csv {
        /// The file.
        file: PathBuf,
        /// The name of the label column.
        label: String,
    },
    /// A file of [`canonical_bytes`].
    Florin {
        /// The file.
        file: PathBuf,
    },
}

/// The text is not a data source.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "`{given}` is not a data source: {why}; use `digits`, `idx:IMAGES,LABELS`, \
     `cifar10:FILE[,FILE…]`, `csv:FILE#LABEL` or `florin:FILE`"
)]
pub struct SourceError {
    given: String,
    why: &'static str,
}

impl FromStr for DataSource {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let fail = |why| SourceError { given: text.to_owned(), why };
        if text == "digits" {
            return Ok(Self::Digits);
        }
        let (kind, rest) = text.split_once(':').ok_or_else(|| fail("it has no `kind:`"))?;
        let file = |part: &str| match part {
            "" => Err(fail("a file name is empty")),
            part => Ok(PathBuf::from(part)),
        };
        match kind {
            "idx" => {
                let (images, labels) =
                    rest.split_once(',').ok_or_else(|| fail("idx needs two files"))?;
                if labels.contains(',') {
                    return Err(fail("idx needs two files"));
                }
                Ok(Self::Idx { images: file(images)?, labels: file(labels)? })
            }
            "cifar10" => {
                Ok(Self::Cifar10 { files: rest.split(',').map(file).collect::<Result<_, _>>()? })
            }
            "csv" => {
                let (path, label) =
                    rest.rsplit_once('#').ok_or_else(|| fail("csv needs FILE#LABEL"))?;
                if label.is_empty() {
                    return Err(fail("the label column is empty"));
                }
                Ok(Self::Csv { file: file(path)?, label: label.to_owned() })
            }
            "florin" => Ok(Self::Florin { file: file(rest)? }),
            _ => Err(fail("the kind is unknown")),
        }
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digits => f.write_str("digits"),
            Self::Idx { images, labels } => {
                write!(f, "idx:{},{}", images.display(), labels.display())
            }
            Self::Cifar10 { files } => {
                let files: Vec<String> =
                    files.iter().map(|file| file.display().to_string()).collect();
                write!(f, "cifar10:{}", files.join(","))
            }
            Self::Csv { file, label } => write!(f, "csv:{}#{label}", file.display()),
            Self::Florin { file } => write!(f, "florin:{}", file.display()),
        }
    }
}

/// Loading or saving failed. Every message contains the file and the position in it.
#[derive(Debug, Error)]
pub enum LoadError {
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
    /// A file is not in canonical form.
    #[error("{path}: {source}")]
    NotCanonical {
        /// The file.
        path: PathBuf,
        /// The error.
        source: CanonicalError,
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

/// Loads a data set of at least one row; only `florin:` files, which contain shards, may be empty.
pub fn load(source: &DataSource) -> Result<Dataset, LoadError> {
    let data = match source {
        DataSource::Digits => digits::load()?,
        DataSource::Idx { images, labels } => idx::load(images, labels)?,
        DataSource::Cifar10 { files } => cifar::load(files)?,
        DataSource::Csv { file, label } => csv::load(file, label)?,
        DataSource::Florin { file } => {
            return from_canonical_bytes(&read(file)?)
                .map_err(|source| LoadError::NotCanonical { path: file.clone(), source });
        }
    };
    if data.rows() == 0 {
        return Err(LoadError::NoRows { data_source: source.clone() });
    }
    Ok(data)
}

/// Writes the canonical bytes of a data set to a file, which `florin:FILE` loads. The file is
/// synced to disk before the function returns; it is not replaced atomically.
pub fn save(data: &Dataset, path: &Path) -> Result<(), LoadError> {
    let write = || {
        let mut file = std::fs::File::create(path)?;
        file.write_all(&canonical_bytes(data))?;
        file.sync_all()
    };
    write().map_err(|source| LoadError::Unwritable { path: path.to_owned(), source })
}
