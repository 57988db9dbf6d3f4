//! The newest head of an embedded ledger that this user's programs have seen: a file beside the
//! record of the market's coordinator. A ledger that no longer has that block was rewritten.

use std::path::{Path, PathBuf};

use florin_ledger::{BlockSource, FollowError, SignedHead, follow_head};
use serde::{Deserialize, Serialize};

use crate::atomic_file::{self, FileError};

/// Longest file of a signed head, in bytes.
const HEAD_BYTES_MAX: u64 = 64 * 1024;

/// The form of a signed head in a file, as `florin ledger head --json` prints it among other
/// members.
#[derive(Serialize, Deserialize)]
struct HeadFile {
    signed: SignedHead,
}

/// The errors of reading, checking and recording heads.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The ledger contradicts the recorded head.
    #[error(
        "{source}. The signed head in {} proves it. If the operator announced a restored backup, \
         delete that file and run the command again",
        file.display()
    )]
    Contradiction {
        /// The recorded head.
        file: PathBuf,
        /// The contradiction.
        source: FollowError,
    },
    /// A file without a signed head.
    #[error(
        "{} has no signed head of a ledger ({why}): use a file that `florin ledger head --json` \
         printed",
        file.display()
    )]
    InvalidFile {
        /// The file.
        file: PathBuf,
        /// The violation.
        why: String,
    },
    /// The chain.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl HeadError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Contradiction { source, .. } => follow_code(source),
            Self::InvalidFile { .. } => "INVALID_HEAD",
            Self::Follow(error) => follow_code(error),
            Self::File(error) => error.code(),
        }
    }
}

fn follow_code(error: &FollowError) -> &'static str {
    match error {
        FollowError::Fork { .. } => "LEDGER_FORK",
        FollowError::InvalidHead { .. } => "INVALID_HEAD",
        FollowError::Chain(_) => "LEDGER_CORRUPT",
        FollowError::Ledger(error) => crate::ledger_code(error),
    }
}

fn invalid(file: &Path, why: &dyn std::fmt::Display) -> HeadError {
    HeadError::InvalidFile { file: file.to_owned(), why: why.to_string() }
}

/// Reads a signed head from a file that `florin ledger head --json` printed.
///
/// # Errors
/// [`HeadError::InvalidFile`], also for a file that does not exist; [`HeadError::File`].
pub fn read_signed_head(file: &Path) -> Result<SignedHead, HeadError> {
    read(file)?.ok_or_else(|| invalid(file, &"there is no such file"))
}

fn read(file: &Path) -> Result<Option<SignedHead>, HeadError> {
    let Some(bytes) = atomic_file::read_limited(file, HEAD_BYTES_MAX)? else { return Ok(None) };
    let head: HeadFile = serde_json::from_slice(&bytes).map_err(|error| invalid(file, &error))?;
    Ok(Some(head.signed))
}

/// Checks that a ledger still has the head that `file` records, and records its newest one.
///
/// # Errors
/// [`HeadError`].
pub fn follow_recorded_head(source: &dyn BlockSource, file: &Path) -> Result<(), HeadError> {
    let seen = read(file)?;
    let newest = follow_head(source, seen.as_ref()).map_err(|source| match source {
        FollowError::Ledger(_) => HeadError::Follow(source),
        _ => HeadError::Contradiction { file: file.to_owned(), source },
    })?;
    match newest {
        Some(signed) if seen.as_ref() != Some(&signed) => {
            let bytes = serde_json::to_vec_pretty(&HeadFile { signed })
                .map_err(|error| invalid(file, &error))?;
            Ok(atomic_file::write_atomically(file, &bytes)?)
        }
        _ => Ok(()),
    }
}
