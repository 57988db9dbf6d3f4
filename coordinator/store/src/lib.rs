//! Durable storage of a coordinator: a write-ahead journal, snapshots and a content-addressed blob
//! store in one data folder. One process owns the folder at a time.
//!
//! The store guarantees durability and integrity. A write that it has acknowledged survives a
//! process crash and a power failure. A torn write at the end of a file is detected and truncated
//! during recovery. Damage anywhere else is detected and never returned as data. The store does not
//! interpret its content: recovery folds events with functions of the caller, and a blob is a byte
//! string with a digest. The rules of a round belong to the engine.
//!
//! Files of a data folder:
//!
//! * `lock`: locked while a process owns the folder.
//! * `journal`, `journal-…`: the segments of the write-ahead journal with every event, in order;
//!   see [`journal`]; the format is in `segment`.
//! * `journal.newest`: names the segment that is appended to, so that its loss is detected; see
//!   [`newest_segment`].
//! * `snapshot-…`: states after a prefix of the journal, so that recovery replays only the rest;
//!   see [`snapshot`] and [`recovery`].
//! * `blobs/`: models, holdouts and updates by their digest; see [`blobs`], and [`pack`] for small
//!   blobs.
//! * `blobs/bucket`: names the object-storage bucket that mirrors the blobs; see [`bucket`].
//! * `blobs/uploads/`: the data of unfinished, resumable uploads; see [`uploads`].

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod blobs;
pub mod bucket;
mod error;
pub mod group_commit;
pub mod journal;
mod mapped;
pub mod newest_segment;
pub mod pack;
pub mod recovery;
mod scan;
pub mod segment;
pub mod snapshot;
pub mod uploads;
pub mod volume;

#[cfg(test)]
mod crash_tests;
pub mod faulty_volume;

pub use blobs::{BlobStore, BlobWriter, FETCHES_MAX, OpenedBlob};
pub use bucket::{Bucket, BucketError};
pub use error::{AppendError, BlobError, OpenError};
pub use journal::Journal;
pub use mapped::MappedBytes;
pub use recovery::{Fold, JournalGrowth, Recovered};
pub use segment::{JournalEntry, Position};
pub use snapshot::Snapshot;
pub use uploads::ResumableUploads;
pub use volume::{AppendFile, LocalVolume, ReadSeek, Volume};

/// The file with the identity of a data folder. It is written after the journal is created. A
/// folder that has this file but no journal has therefore lost its journal; it is not a new folder.
pub const IDENTITY_FILE: &str = "market.json";

/// A data folder that this process owns until the value is dropped.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    blobs: Arc<BlobStore>,
    uploads: Arc<ResumableUploads>,
    _lock: FolderLock,
}

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataFolderError {
    /// Another process owns it.
    #[error(
        "another process uses the data folder {0}: stop it, or choose another folder \
         [DATA_FOLDER_IN_USE]"
    )]
    InUse(PathBuf),
    /// It cannot be created, read or written.
    #[error("data folder {path}: {source} [DATA_FOLDER_UNUSABLE]")]
    Unusable {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl DataFolder {
    /// Opens and locks a data folder, creates it if necessary, and removes files of interrupted
    /// writes.
    ///
    /// # Errors
    /// [`DataFolderError`].
    pub fn open(path: &Path) -> Result<Self, DataFolderError> {
        Self::open_with_bucket(path, None)
    }

    /// Opens a data folder with a bucket that mirrors every blob.
    ///
    /// # Errors
    /// [`DataFolderError`].
    pub fn open_with_bucket(path: &Path, bucket: Option<Bucket>) -> Result<Self, DataFolderError> {
        let unusable = |source| DataFolderError::Unusable { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(unusable)?;
        let lock = lock(path)?;
        let blobs = BlobStore::open_with(&path.join("blobs"), bucket).map_err(unusable)?;
        let partials = ResumableUploads::open(&path.join("blobs/uploads")).map_err(unusable)?;
        let (blobs, partials) = (Arc::new(blobs), Arc::new(partials));
        Ok(Self { path: path.to_owned(), blobs, uploads: partials, _lock: lock })
    }

    /// The blob store.
    #[must_use]
    pub fn blobs(&self) -> Arc<BlobStore> {
        Arc::clone(&self.blobs)
    }

    /// The unfinished, resumable uploads.
    #[must_use]
    pub fn uploads(&self) -> Arc<ResumableUploads> {
        Arc::clone(&self.uploads)
    }

    /// The folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The volume with the journal and the snapshots.
    #[must_use]
    pub fn volume(&self) -> Arc<dyn Volume> {
        Arc::new(LocalVolume(self.path.clone()))
    }
}

/// The lock of a data folder, until this value is dropped.
#[derive(Debug)]
pub struct FolderLock(File);

impl Drop for FolderLock {
    /// Closing the file would not end the lock while a child process, between its fork and its
    /// exec, has a copy of the descriptor.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a lock ends only with the processes that have its file");
        }
    }
}

/// Locks an existing folder, without any other change.
///
/// # Errors
/// [`DataFolderError`].
pub fn lock(path: &Path) -> Result<FolderLock, DataFolderError> {
    let unusable = |source| DataFolderError::Unusable { path: path.to_owned(), source };
    let file = File::options().create(true).truncate(false).write(true).open(path.join("lock"));
    try_lock(path, file.map_err(unusable)?)
}

fn try_lock(path: &Path, lock: File) -> Result<FolderLock, DataFolderError> {
    match lock.try_lock() {
        Ok(()) => Ok(FolderLock(lock)),
        Err(TryLockError::WouldBlock) => Err(DataFolderError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => {
            Err(DataFolderError::Unusable { path: path.to_owned(), source })
        }
    }
}

/// Locks a folder for reading, without creating a file. `None` if no process ever owned the folder.
///
/// # Errors
/// [`DataFolderError`].
pub fn lock_if_exists(path: &Path) -> Result<Option<FolderLock>, DataFolderError> {
    let unusable = |source| DataFolderError::Unusable { path: path.to_owned(), source };
    match File::open(path.join("lock")) {
        Ok(lock) => try_lock(path, lock).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_dir() => Ok(None),
        Err(error) => Err(unusable(error)),
    }
}

/// Whether an error means that the disk or a quota is full.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Free disk space for an unprivileged process, in bytes.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Where free space cannot be queried, a write detects a full disk.
#[cfg(not(unix))]
fn free_bytes(_: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

/// Makes a folder's entries durable: a rename survives a power failure only after its folder is
/// synced.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_folder_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataFolder::open(dir.path()).unwrap();
        let error = DataFolder::open(dir.path()).unwrap_err();
        assert!(matches!(error, DataFolderError::InUse(_)));
        assert!(error.to_string().contains("[DATA_FOLDER_IN_USE]"), "{error}");
        drop(first);
        let first = lock(dir.path()).unwrap();
        let _of_a_child = first.0.try_clone().unwrap();
        drop(first);
        DataFolder::open(dir.path()).unwrap();
    }
}
