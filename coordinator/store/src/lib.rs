//! What is on disk: one folder, one owner.
//!
//! * `lock`: held as long as a process owns the folder.
//! * `journal`, `journal-…`: every event, in order; see [`journal`].
//! * `journal.newest`: which of them is appended to, so that its loss is noticed; see [`newest`].
//! * `snapshot-…`: what they come to, so that a start need not read them all; see [`snapshot`] and [`history`].
//! * `blobs/`: models, holdouts and updates by their digest; see [`blobs`], and [`pack`] for small ones.
//! * `blobs/bucket`: the bucket that has every blob too, if there is one; see [`bucket`].
//! * `blobs/uploads/`: what is there of uploads that are not whole yet; see [`partial`].

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod blobs;
pub mod bucket;
mod fetch;
mod frames;
pub mod gather;
pub mod history;
pub mod journal;
mod mapped;
pub mod newest;
pub mod pack;
pub mod partial;
mod scan;
pub mod snapshot;
pub mod volume;

#[cfg(test)]
mod crash_tests;
pub mod meddled;

pub use blobs::{BlobError, BlobWriter, Blobs, Opened};
pub use bucket::{Bucket, BucketError};
pub use fetch::FETCHES_MAX;
pub use frames::Position;
pub use history::{Fold, ReadBack};
pub use journal::{AppendError, Journal, OpenError, Record, Since};
pub use mapped::Mapped;
pub use partial::Partials;
pub use snapshot::Snapshot;
pub use volume::{Disk, Local, Source, Volume};

/// The file that says whose data a folder has. It is written once the folder has a journal, so that beside it a journal
/// that is gone is missing, and not one that was never begun.
pub const IDENTITY_FILE: &str = "market.json";

/// A data folder that belongs to this process until it is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    blobs: Arc<Blobs>,
    partials: Arc<Partials>,
    /// The lock lives as long as this file is open.
    _lock: File,
}

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error(
        "another process uses the data folder {0}: stop it, or choose another folder \
         [DATA_FOLDER_IN_USE]"
    )]
    InUse(PathBuf),
    /// It cannot be created, read or written.
    #[error("data folder {path}: {source} [DATA_FOLDER_UNUSABLE]")]
    Unusable {
        /// Which path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Folder {
    /// Takes a data folder, making it if it is not there, and removes what an interrupted write left behind.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn take(path: &Path) -> Result<Self, FolderError> {
        Self::take_with(path, None)
    }

    /// The same with a bucket behind it, which has every blob too.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn take_with(path: &Path, bucket: Option<Bucket>) -> Result<Self, FolderError> {
        let unusable = |source| FolderError::Unusable { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(unusable)?;
        let lock = lock(path)?;
        let blobs = Blobs::open_with(&path.join("blobs"), bucket).map_err(unusable)?;
        let partials = Partials::open(&path.join("blobs/uploads")).map_err(unusable)?;
        let (blobs, partials) = (Arc::new(blobs), Arc::new(partials));
        Ok(Self { path: path.to_owned(), blobs, partials, _lock: lock })
    }

    /// The blobs.
    #[must_use]
    pub fn blobs(&self) -> Arc<Blobs> {
        Arc::clone(&self.blobs)
    }

    /// The uploads that are not whole yet.
    #[must_use]
    pub fn partials(&self) -> Arc<Partials> {
        Arc::clone(&self.partials)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where journal and snapshots are.
    #[must_use]
    pub fn volume(&self) -> Arc<dyn Volume> {
        Arc::new(Local(self.path.clone()))
    }
}

/// Takes an existing folder's lock, and nothing else.
///
/// # Errors
/// [`FolderError`].
pub fn lock(path: &Path) -> Result<File, FolderError> {
    let unusable = |source| FolderError::Unusable { path: path.to_owned(), source };
    let file = File::options().create(true).truncate(false).write(true).open(path.join("lock"));
    held(path, file.map_err(unusable)?)
}

fn held(path: &Path, lock: File) -> Result<File, FolderError> {
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(FolderError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => {
            Err(FolderError::Unusable { path: path.to_owned(), source })
        }
    }
}

/// The same without making anything: for who only looks. `None` where nobody ever owned the folder.
///
/// # Errors
/// [`FolderError`].
pub fn lock_to_look(path: &Path) -> Result<Option<File>, FolderError> {
    let unusable = |source| FolderError::Unusable { path: path.to_owned(), source };
    match File::open(path.join("lock")) {
        Ok(lock) => held(path, lock).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_dir() => Ok(None),
        Err(error) => Err(unusable(error)),
    }
}

/// Whether an error means that there is no room left.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Bytes that are free on a folder's disk for a process like this one.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Where nobody can be asked, a full disk shows when it is written to.
#[cfg(not(unix))]
fn free_bytes(_: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

/// Makes a folder's entries durable: a renamed file is there after a power cut only if its folder was synced.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_of_the_same_folder_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::take(dir.path()).unwrap();
        let error = Folder::take(dir.path()).unwrap_err();
        assert!(matches!(error, FolderError::InUse(_)));
        assert!(error.to_string().contains("[DATA_FOLDER_IN_USE]"), "{error}");
        drop(first);
        Folder::take(dir.path()).unwrap();
    }
}
