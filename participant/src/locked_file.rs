//! A file that one process has at a time.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use crate::atomic_file::{self, FileError};

/// A file cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{path} is in use by another process: stop that process first", path = path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The system's error.
    #[error(transparent)]
    File(#[from] FileError),
}

impl LockError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "DATA_FOLDER_IN_USE",
            Self::File(error) => error.code(),
        }
    }
}

/// A file that this process alone has open, until this value is dropped.
#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl LockedFile {
    /// Opens a file, and creates it.
    ///
    /// # Errors
    /// [`LockError`].
    pub(crate) fn open(path: &Path) -> Result<Self, LockError> {
        let file = atomic_file::private_open_options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|source| FileError::new("open", path, source))?;
        file.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => LockError::InUse { path: path.to_owned() },
            std::fs::TryLockError::Error(source) => FileError::new("lock", path, source).into(),
        })?;
        Ok(Self(file))
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl DerefMut for LockedFile {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for LockedFile {
    /// Closing the file would not end the lock while a child process, between its fork and its
    /// exec, has a copy of the descriptor.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a lock ends only with the processes that have its file");
        }
    }
}
