//! The place at which a running program writes rows.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// A running program, the producer, that writes rows while others train on them. `FromStr` parses
/// the output of `Display`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProducerSource {
    /// A folder to which it adds Parquet files.
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The name of the label column.
        label: String,
    },
    /// A Unix socket to which it writes lines of CSV.
    Unix {
        /// The socket's file.
        path: PathBuf,
        /// The name of the label column.
        label: String,
    },
    /// A TCP port of this machine to which it writes lines of CSV.
    Tcp {
        /// An address of the loopback interface; port 0 is any free one.
        address: SocketAddr,
        /// The name of the label column.
        label: String,
    },
}

/// The text is no place of a producer.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "`{given}` is no place at which a program writes rows: {why}; use `growing:FOLDER#LABEL`, \
     `unix:PATH#LABEL` or `tcp:127.0.0.1:PORT#LABEL`"
)]
pub struct ProducerSourceError {
    given: String,
    why: &'static str,
}

impl ProducerSource {
    /// Whether a text has one of the kinds, so that it is no file.
    pub fn has_kind_of(text: &str) -> bool {
        ["growing:", "unix:", "tcp:"].iter().any(|kind| text.starts_with(kind))
    }

    /// The name of the label column.
    pub fn label(&self) -> &str {
        match self {
            Self::Folder { label, .. } | Self::Unix { label, .. } | Self::Tcp { label, .. } => {
                label
            }
        }
    }
}

impl FromStr for ProducerSource {
    type Err = ProducerSourceError;

    fn from_str(text: &str) -> Result<Self, ProducerSourceError> {
        let fail = |why| ProducerSourceError { given: text.to_owned(), why };
        let (kind, rest) = text.split_once(':').ok_or_else(|| fail("it has no `kind:`"))?;
        let (place, label) =
            rest.rsplit_once('#').ok_or_else(|| fail("the label column is missing"))?;
        if place.is_empty() || label.is_empty() {
            return Err(fail("the place or the label column is empty"));
        }
        let label = label.to_owned();
        match kind {
            "growing" => Ok(Self::Folder { folder: place.into(), label }),
            "unix" => Ok(Self::Unix { path: place.into(), label }),
            "tcp" => {
                let address: SocketAddr =
                    place.parse().map_err(|_| fail("it has no IP address and port"))?;
                match address.ip().is_loopback() {
                    true => Ok(Self::Tcp { address, label }),
                    // Rows are neither encrypted nor signed.
                    false => Err(fail("the address is not one of this machine alone")),
                }
            }
            _ => Err(fail("the kind is unknown")),
        }
    }
}

impl fmt::Display for ProducerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder { folder, label } => write!(f, "growing:{}#{label}", folder.display()),
            Self::Unix { path, label } => write!(f, "unix:{}#{label}", path.display()),
            Self::Tcp { address, label } => write!(f, "tcp:{address}#{label}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_parsed_from_its_text() {
        for text in
            ["growing:out/rows#hot", "unix:/run/a#b#hot", "tcp:127.0.0.1:0#hot", "tcp:[::1]:9#y"]
        {
            let source: ProducerSource = text.parse().unwrap();
            assert_eq!(source.to_string(), text);
            assert!(ProducerSource::has_kind_of(text));
        }
        let refused = [
            "rows.csv#hot",
            "growing:out",
            "growing:#hot",
            "unix:a#",
            "tcp:localhost:1#y",
            "tcp:127.0.0.1#y",
            "ftp:a#b",
        ];
        for text in refused {
            assert!(text.parse::<ProducerSource>().is_err(), "{text}");
        }
        for text in ["tcp:0.0.0.0:80#y", "tcp:192.0.2.1:80#y", "tcp:[::]:80#y"] {
            let error = text.parse::<ProducerSource>().unwrap_err().to_string();
            assert!(error.contains("this machine alone"), "{error}");
        }
        assert!(!ProducerSource::has_kind_of("csv:a.csv#hot"));
    }
}
