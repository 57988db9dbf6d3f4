//! Data sources, as one argument on a command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

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
    /// A file of [`canonical_bytes`](super::canonical_bytes).
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
