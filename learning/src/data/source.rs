//! Data sources, as one argument on a command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The location of a data set. `FromStr` parses the output of `Display`: `digits`,
/// `idx:IMAGES,LABELS`, `cifar10:FILE[,FILE…]`, `csv:FILE#LABEL`, `parquet:FILE#LABEL`,
/// `npy:FEATURES,LABELS`, `npz:FILE#LABELS`, `npz:FILE#FEATURES,LABELS`,
/// `safetensors:FILE#LABELS`, `safetensors:FILE#FEATURES,LABELS`, `text:FILE#LENGTH`, `text:FILE`,
/// `images:FOLDER` or `florin:FILE`. It also accepts `FILE#LABEL` for a file that ends in `.csv`,
/// `.csv.gz`, `.tsv`, `.parquet`, `.npz` or `.safetensors`.
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
    /// A Parquet file of flat columns.
    Parquet {
        /// The file.
        file: PathBuf,
        /// The name of the label column.
        label: String,
    },
    /// A pair of NumPy arrays.
    Npy {
        /// The file of features, a row for each index of the first dimension.
        features: PathBuf,
        /// The file of labels.
        labels: PathBuf,
    },
    /// Two arrays of a NumPy archive.
    Npz {
        /// The file.
        file: PathBuf,
        /// The name of the array of features; `None` if the archive has one array besides the
        /// labels.
        features: Option<String>,
        /// The name of the array of labels.
        labels: String,
    },
    /// Two tensors of a safetensors file.
    Safetensors {
        /// The file.
        file: PathBuf,
        /// The name of the tensor of features; `None` if the file has one tensor besides the labels.
        features: Option<String>,
        /// The name of the tensor of labels.
        labels: String,
    },
    /// Text, as rows of bytes or of tokens.
    Text {
        /// The file; of one that ends in `.jsonl` the `text` of each line.
        file: PathBuf,
        /// Bytes of a row; `None` for tokens, whose number a task states.
        length: Option<usize>,
    },
    /// A folder with one subfolder of PNG and JPEG files for each class.
    Images {
        /// The folder.
        folder: PathBuf,
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
    "`{given}` is not a data source: {why}; use `digits`, `csv:FILE#LABEL`, `parquet:FILE#LABEL`, \
     `npy:FEATURES,LABELS`, `npz:FILE#LABELS`, `safetensors:FILE#LABELS`, `idx:IMAGES,LABELS`, \
     `cifar10:FILE[,FILE…]`, `images:FOLDER`, `text:FILE`, `text:FILE#LENGTH` or `florin:FILE`"
)]
pub struct SourceError {
    given: String,
    why: &'static str,
}

/// File name endings of tables that need no `kind:`.
const TABLE_ENDINGS: [(&str, &str); 6] = [
    (".csv", "csv"),
    (".csv.gz", "csv"),
    (".tsv", "csv"),
    (".parquet", "parquet"),
    (".npz", "npz"),
    (".safetensors", "safetensors"),
];

impl FromStr for DataSource {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let fail = |why| SourceError { given: text.to_owned(), why };
        if text == "digits" {
            return Ok(Self::Digits);
        }
        let (kind, rest) = kind_of(text).ok_or_else(|| fail("it has no `kind:`"))?;
        let file = |part: &str| match part {
            "" => Err(fail("a file name is empty")),
            part => Ok(PathBuf::from(part)),
        };
        let table = || {
            let (path, label) =
                rest.rsplit_once('#').ok_or_else(|| fail("a table needs FILE#LABEL"))?;
            if label.is_empty() {
                return Err(fail("the label column is empty"));
            }
            Ok((file(path)?, label.to_owned()))
        };
        let two_files = || match rest.split_once(',') {
            Some((first, second)) if !second.contains(',') => Ok((file(first)?, file(second)?)),
            _ => Err(fail("this kind needs two files")),
        };
        match kind {
            "idx" => two_files().map(|(images, labels)| Self::Idx { images, labels }),
            "npy" => two_files().map(|(features, labels)| Self::Npy { features, labels }),
            "cifar10" => {
                Ok(Self::Cifar10 { files: rest.split(',').map(file).collect::<Result<_, _>>()? })
            }
            "csv" => table().map(|(file, label)| Self::Csv { file, label }),
            "parquet" => table().map(|(file, label)| Self::Parquet { file, label }),
            "npz" | "safetensors" => {
                let (file, arrays) = table()?;
                let (features, labels) = match arrays.split_once(',') {
                    Some((features, labels)) => (Some(features.to_owned()), labels.to_owned()),
                    None => (None, arrays),
                };
                if labels.is_empty() || features.as_deref() == Some("") {
                    return Err(fail("the name of an array is empty"));
                }
                Ok(match kind {
                    "npz" => Self::Npz { file, features, labels },
                    _ => Self::Safetensors { file, features, labels },
                })
            }
            "text" => {
                let Some((path, length)) = rest.rsplit_once('#') else {
                    return Ok(Self::Text { file: file(rest)?, length: None });
                };
                let why = "text needs FILE#LENGTH, with 2 to 1048576 bytes of a row, or FILE";
                match length.parse() {
                    Ok(length @ 2..=super::WIDTH_MAX) => {
                        Ok(Self::Text { file: file(path)?, length: Some(length) })
                    }
                    _ => Err(fail(why)),
                }
            }
            "images" => Ok(Self::Images { folder: file(rest)? }),
            "florin" => Ok(Self::Florin { file: file(rest)? }),
            _ => Err(fail("the kind is unknown")),
        }
    }
}

/// The kind of a source and the rest of its text; the kind of a bare `FILE#LABEL` follows from the
/// end of the file's name.
fn kind_of(text: &str) -> Option<(&str, &str)> {
    let file = text.rsplit_once('#').map_or(text, |(file, _)| file).to_ascii_lowercase();
    let named = text.split_once(':');
    if named.is_some_and(|(kind, _)| !kind.contains(['/', '.'])) {
        return named;
    }
    let ending = TABLE_ENDINGS.iter().find(|(ending, _)| file.ends_with(ending));
    ending.map(|(_, kind)| (*kind, text)).or(named)
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
            Self::Parquet { file, label } => write!(f, "parquet:{}#{label}", file.display()),
            Self::Npy { features, labels } => {
                write!(f, "npy:{},{}", features.display(), labels.display())
            }
            Self::Npz { file, features, labels } | Self::Safetensors { file, features, labels } => {
                let kind = if let Self::Npz { .. } = self { "npz" } else { "safetensors" };
                write!(f, "{kind}:{}#", file.display())?;
                if let Some(features) = features {
                    write!(f, "{features},")?;
                }
                f.write_str(labels)
            }
            Self::Text { file, length: Some(length) } => {
                write!(f, "text:{}#{length}", file.display())
            }
            Self::Text { file, length: None } => write!(f, "text:{}", file.display()),
            Self::Images { folder } => write!(f, "images:{}", folder.display()),
            Self::Florin { file } => write!(f, "florin:{}", file.display()),
        }
    }
}
