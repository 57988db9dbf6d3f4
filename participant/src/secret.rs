//! Secrets in memory: zeroised on drop and never printed.

use std::fmt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Longest passphrase, phrase or key that is read from a file or an environment variable, in bytes.
pub const SECRET_BYTES_MAX: u64 = 4_096;

/// A passphrase, a recovery phrase or a private key as text. Its `Debug` output hides the text, it
/// has no `Display`, and its memory is zeroised on drop.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

/// Errors of reading a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("the secret file {path} cannot be read: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is longer than any secret.
    #[error(
        "the secret file {path} has {bytes} bytes: a secret has at most {SECRET_BYTES_MAX}",
        path = path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        bytes: u64,
    },
    /// The variable is not set, or is not text.
    #[error(
        "environment variable {0} is not set, or is not text: set it to the secret, or use a file"
    )]
    NotInEnvironment(String),
}

impl SecretError {
    /// The stable error code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "SECRET_UNREADABLE",
            Self::TooLong { .. } => "SECRET_TOO_LONG",
            Self::NotInEnvironment(_) => "SECRET_NOT_SET",
        }
    }
}

impl Secret {
    /// Wraps a secret typed at a prompt. Secrets are never command-line flags, which every process
    /// on the machine can read.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Reads a file, without trailing line breaks.
    ///
    /// # Errors
    /// [`SecretError::Unreadable`] and [`SecretError::TooLong`].
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let unreadable = |source| SecretError::Unreadable { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        if bytes > SECRET_BYTES_MAX {
            return Err(SecretError::TooLong { path: path.to_owned(), bytes });
        }
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(unreadable)?);
        Ok(Self::new(text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    /// Reads an environment variable.
    ///
    /// # Errors
    /// [`SecretError::NotInEnvironment`].
    pub fn from_env(name: &str) -> Result<Self, SecretError> {
        std::env::var(name)
            .map(Self::new)
            .map_err(|_| SecretError::NotInEnvironment(name.to_owned()))
    }

    /// The text, for a key derivation or for the one display of a new wallet's recovery phrase.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_the_secret() {
        let secret = Secret::new("correct horse".to_owned());
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "Secret Some(Secret)");
    }

    #[test]
    fn only_the_trailing_line_break_of_a_secret_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passphrase");
        std::fs::write(&path, " two words \r\n").unwrap();
        assert_eq!(Secret::from_file(&path).unwrap().reveal(), " two words ");
        std::fs::write(&path, vec![b'x'; 5_000]).unwrap();
        let error = Secret::from_file(&path).unwrap_err();
        assert_eq!(error.code(), "SECRET_TOO_LONG");
        let error = Secret::from_file(&folder.path().join("none")).unwrap_err();
        assert_eq!(error.code(), "SECRET_UNREADABLE");
        let error = Secret::from_env("FLORIN_TEST_NO_SUCH_VARIABLE").unwrap_err();
        assert_eq!(error.code(), "SECRET_NOT_SET");
    }
}
