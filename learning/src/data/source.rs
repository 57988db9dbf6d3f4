//! Where data comes from, as one word on a command line.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use super::read::{FILE_BYTES_MAX, read};
use super::{
    CanonicalError, Dataset, DatasetError, canonical_bytes, cifar, digits, from_canonical_bytes,
    idx, table,
};

/// Where a data set is. `FromStr` reads what `Display` writes:
/// `digits`, `idx:IMAGES,LABELS`, `cifar10:FILE[,FILE…]`, `csv:FILE#LABEL` or `florin:FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// The UCI digits inside this program.
    Digits,
    /// A pair of IDX files (MNIST, Fashion-MNIST), plain or gzipped.
    Idx {
        /// The file of images.
        images: PathBuf,
        /// The file of labels.
        labels: PathBuf,
    },
    /// CIFAR-10 binary batches, one after the other.
    Cifar10 {
        /// The batches; at least one.
        files: Vec<PathBuf>,
    },
    /// A CSV file with a header.
    Csv {
        /// The file.
        file: PathBuf,
        /// The name of the column that holds the label.
        label: String,
    },
    /// A file of [`canonical_bytes`].
    Florin {
        /// The file.
        file: PathBuf,
    },
}

/// Why a word names no data source.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "`{given}` names no data: {why}; write `digits`, `idx:IMAGES,LABELS`, `cifar10:FILE[,FILE…]`, \
     `csv:FILE#LABEL` or `florin:FILE`"
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
                    rest.split_once(',').ok_or_else(|| fail("idx takes two files"))?;
                if labels.contains(',') {
                    return Err(fail("idx takes two files"));
                }
                Ok(Self::Idx { images: file(images)?, labels: file(labels)? })
            }
            "cifar10" => {
                Ok(Self::Cifar10 { files: rest.split(',').map(file).collect::<Result<_, _>>()? })
            }
            "csv" => {
                let (path, label) =
                    rest.rsplit_once('#').ok_or_else(|| fail("csv takes FILE#LABEL"))?;
                if label.is_empty() {
                    return Err(fail("the label column is empty"));
                }
                Ok(Self::Csv { file: file(path)?, label: label.to_owned() })
            }
            "florin" => Ok(Self::Florin { file: file(rest)? }),
            _ => Err(fail("there is no such kind")),
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

/// Why data could not be loaded or saved. Every message names the file and, inside it, the place.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file cannot be opened or read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("{path} cannot be written: {source}")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file, unpacked, is over the limit.
    #[error("{path} has more than {FILE_BYTES_MAX} bytes unpacked, which is the limit")]
    FileTooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The gzip stream is damaged or cut short.
    #[error("{path} is a broken gzip file ({source}): fetch it again")]
    BrokenGzip {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        source: std::io::Error,
    },
    /// The data carried inside the program is not what was committed.
    #[error("{path}, line {line}: not 64 pixels and a label; this program is damaged")]
    DamagedProgram {
        /// The file's name in the source tree.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
    },
    /// An IDX file of another kind, or none.
    #[error(
        "{path} begins with {got:#010x}: an IDX file of this kind begins with {expected:#010x}"
    )]
    IdxMagic {
        /// The file.
        path: PathBuf,
        /// The right magic number.
        expected: u32,
        /// What was there.
        got: u32,
    },
    /// An IDX file whose length contradicts its header.
    #[error("{path} has {got} bytes: its header calls for {expected}")]
    IdxLength {
        /// The file.
        path: PathBuf,
        /// Bytes that the header calls for.
        expected: u64,
        /// Bytes there are.
        got: u64,
    },
    /// As many labels as images there must be.
    #[error(
        "{images} has {images_count} images, {labels} has {labels_count} labels: must be as many"
    )]
    IdxCountsDiffer {
        /// The file of images.
        images: PathBuf,
        /// Its count.
        images_count: u64,
        /// The file of labels.
        labels: PathBuf,
        /// Its count.
        labels_count: u64,
    },
    /// A CIFAR-10 file that is not a whole number of records.
    #[error("{path} has {bytes} bytes: must be a positive multiple of {record}, one record each")]
    CifarLength {
        /// The file.
        path: PathBuf,
        /// Bytes there are.
        bytes: u64,
        /// Bytes per record.
        record: u64,
    },
    /// A CIFAR-10 label that names no class.
    #[error("{path}, byte {offset}: label {label}, must be 0 to 9")]
    CifarLabel {
        /// The file.
        path: PathBuf,
        /// Offset of the label.
        offset: u64,
        /// What was there.
        label: u8,
    },
    /// Not CSV, or a line with another number of columns than the header.
    #[error("{path} is no CSV file: {source}")]
    CsvMalformed {
        /// The file.
        path: PathBuf,
        /// What the parser said, with the line.
        source: csv::Error,
    },
    /// The first line holds numbers.
    #[error("{path}, line 1: only numbers; the first line must name the columns")]
    CsvNoHeader {
        /// The file.
        path: PathBuf,
    },
    /// Two columns of one name.
    #[error("{path}, line 1: column `{column}` occurs twice; names must differ")]
    CsvColumnTwice {
        /// The file.
        path: PathBuf,
        /// The name.
        column: String,
    },
    /// No column of the label's name.
    #[error("{path}, line 1: no column `{label}` for the label; the columns are {columns}")]
    CsvNoLabel {
        /// The file.
        path: PathBuf,
        /// The name that was asked for.
        label: String,
        /// The names that are there.
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
        /// Columns, the label among them.
        columns: usize,
    },
    /// A missing value.
    #[error("{path}, line {line}, column `{column}`: missing value; must be {expected}")]
    CsvHole {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// The column's name.
        column: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A value that is no number, or no label.
    #[error("{path}, line {line}, column `{column}`: `{value}`; must be {expected}")]
    CsvValue {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// The column's name.
        column: String,
        /// What was there.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A file that should hold canonical bytes and does not.
    #[error("{path}: {source}")]
    NotCanonical {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: CanonicalError,
    },
    /// The numbers in the file make no data set.
    #[error("{path}: {source}")]
    NotADataset {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        source: DatasetError,
    },
    /// A file without a row.
    #[error("{path} holds no rows: must hold at least one")]
    NoRows {
        /// The source.
        path: DataSource,
    },
}

/// Loads a data set of at least one row, except that `florin:` files, which hold shards, may be
/// empty.
pub fn load(source: &DataSource) -> Result<Dataset, LoadError> {
    let data = match source {
        DataSource::Digits => digits::load()?,
        DataSource::Idx { images, labels } => idx::load(images, labels)?,
        DataSource::Cifar10 { files } => cifar::load(files)?,
        DataSource::Csv { file, label } => table::load(file, label)?,
        DataSource::Florin { file } => {
            return from_canonical_bytes(&read(file)?)
                .map_err(|source| LoadError::NotCanonical { path: file.clone(), source });
        }
    };
    if data.rows() == 0 {
        return Err(LoadError::NoRows { path: source.clone() });
    }
    Ok(data)
}

/// Writes the canonical bytes of a data set to a file, which `florin:FILE` loads. The file is
/// synced to disk before this returns; it is not replaced atomically.
pub fn save(data: &Dataset, path: &Path) -> Result<(), LoadError> {
    let write = || {
        let mut file = std::fs::File::create(path)?;
        file.write_all(&canonical_bytes(data))?;
        file.sync_all()
    };
    write().map_err(|source| LoadError::Unwritable { path: path.to_owned(), source })
}
