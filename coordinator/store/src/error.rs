//! Errors of the journal and of the blob store.

use std::io;
use std::path::PathBuf;

use florin_protocol::Digest;

use super::bucket::BucketError;
use super::is_full;
use super::volume::Volume;

/// Why a journal cannot be opened. The journal is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read or created.
    #[error("journal {path}: {source} [JOURNAL_UNUSABLE]")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A coordinator of another market wrote it.
    #[error(
        "journal {path}: {what}; use another data folder, or the market and the wallet of this one \
         [JOURNAL_OWNER_MISMATCH]"
    )]
    OwnerMismatch {
        /// The file.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// The header of a segment, or its copy in `journal.newest`, has been damaged.
    #[error(
        "journal {path}: its first 128 bytes are damaged. The journal is unchanged; restore the \
         file from a copy [JOURNAL_HEADER_DAMAGED]"
    )]
    HeaderDamaged {
        /// The file.
        path: PathBuf,
    },
    /// A complete record has been damaged.
    #[error(
        "journal {path}: record {record} at byte {offset}: {what}. The journal is unchanged; \
         restore the file from a copy [JOURNAL_CORRUPT]"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The record's number; the first is 1.
        record: u64,
        /// The record's offset in the file.
        offset: u64,
        /// The inconsistency.
        what: String,
    },
    /// Records that existed are missing.
    #[error(
        "journal in {path}: the records after number {records} are missing or differ: {what}. The \
         folder is unchanged; restore the folder from a backup [JOURNAL_MISSING]"
    )]
    Missing {
        /// The folder.
        path: PathBuf,
        /// Number of records before the missing ones.
        records: u64,
        /// The evidence.
        what: String,
    },
    /// The first records were removed, and no snapshot is usable in their place.
    #[error(
        "journal in {path}: its first records were removed, and no snapshot is usable in their \
         place: {why}. The folder is unchanged; restore the folder from a backup, or start the \
         version that wrote it [SNAPSHOT_UNUSABLE]"
    )]
    NoSnapshot {
        /// The folder.
        path: PathBuf,
        /// Why the snapshots are not usable.
        why: String,
    },
}

/// Why a batch was not appended. None of its entries is in the journal.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The disk is full. The journal is unchanged.
    #[error("the disk is full: make room, then try again")]
    Full(#[source] io::Error),
    /// The write failed. The journal is unchanged.
    #[error("the journal cannot be written: {0}")]
    Failed(#[source] io::Error),
    /// A write could not be undone or made durable. The content of the disk is unknown until a
    /// restart.
    #[error("the journal failed and accepts no more records until a restart: {0}")]
    Broken(String),
}

/// Why a blob cannot be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The blob is not stored.
    #[error("blob {0} is not stored here")]
    Missing(Digest),
    /// The bytes do not match the digest.
    #[error("the digest of the bytes is {found}, not {wanted}")]
    WrongDigest {
        /// The expected digest.
        wanted: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// The disk is full.
    #[error("the disk is full: make room, then try again")]
    Full,
    /// The bucket failed.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// A system call failed.
    #[error("blob store: {0}")]
    Failed(#[source] io::Error),
}

impl BlobError {
    /// Whether the cause is the state of the disk or the bucket, so that a retry may succeed.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Full | Self::Failed(_) | Self::Bucket(_))
    }
}

impl From<io::Error> for BlobError {
    fn from(error: io::Error) -> Self {
        if is_full(&error) { Self::Full } else { Self::Failed(error) }
    }
}

pub(super) fn unusable(volume: &dyn Volume, name: &str, source: io::Error) -> OpenError {
    OpenError::Unusable { path: volume.path_of(name), source }
}

pub(super) fn header_damaged(volume: &dyn Volume, name: &str) -> OpenError {
    OpenError::HeaderDamaged { path: volume.path_of(name) }
}

pub(super) fn missing(volume: &dyn Volume, records: u64, what: &str) -> OpenError {
    OpenError::Missing { path: volume.path_of(""), records, what: what.to_owned() }
}
