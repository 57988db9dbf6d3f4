//! Atomic, durable file writes: a crash leaves the old file or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A failed file operation: the operation, the path, and the operating system's error.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {path}: {source}", path = path.display())]
pub struct FileError {
    /// The operation: `read`, `write`, `lock`.
    pub operation: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// The operating system's error.
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self { operation, path: path.to_owned(), source }
    }

    /// The stable code: `STORAGE_FULL`, or `FILE_ERROR` for everything else.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "STORAGE_FULL",
            _ => "FILE_ERROR",
        }
    }
}

/// Makes the names of concurrent temporary files unique.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Open options for a file that only its owner can read and write (mode 0600).
pub(crate) fn private_open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates a folder and its parents, accessible to the owner only (mode 0700).
pub(crate) fn create_folder(path: &Path) -> Result<(), FileError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|source| FileError::new("create the folder", path, source))
}

/// Removes a folder with all its files; a missing one is ignored.
pub(crate) fn remove_folder(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::new("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Replaces a file atomically: a crash leaves the old file or the new one. Mode 0600.
///
/// # Errors
/// [`FileError`].
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let beside = write_temporary(path, bytes)?;
    let renamed = fs::rename(&beside, path).and_then(|()| sync_parent(path));
    renamed.map_err(|source| {
        let _ = fs::remove_file(&beside);
        FileError::new("write", path, source)
    })
}

/// Creates a file atomically. If a file of this name exists, it is not changed, and the error's
/// kind is [`io::ErrorKind::AlreadyExists`]. Mode 0600.
pub(crate) fn create_new(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let beside = write_temporary(path, bytes)?;
    // A hard link, unlike a rename, fails if the target exists.
    let linked = fs::hard_link(&beside, path);
    let _ = fs::remove_file(&beside);
    linked.and_then(|()| sync_parent(path)).map_err(|source| FileError::new("write", path, source))
}

/// Reads a file of at most `limit` bytes; `None` if it does not exist.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let failed = |source| FileError::new("read", path, source);
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if length > limit {
        let what = format!("it has {length} bytes: the limit is {limit}");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, what)));
    }
    fs::read(path).map(Some).map_err(failed)
}

fn write_temporary(path: &Path, bytes: &[u8]) -> Result<PathBuf, FileError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{number}.new", std::process::id()));
    let beside = path.with_file_name(name);
    let write = || -> io::Result<()> {
        // Left behind by a crashed process that had the same process id.
        let _ = fs::remove_file(&beside);
        let mut file = private_open_options().write(true).create_new(true).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    match write() {
        Ok(()) => Ok(beside),
        Err(source) => {
            let _ = fs::remove_file(&beside);
            Err(FileError::new("write", path, source))
        }
    }
}

/// Makes the name of a new or renamed file durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_makes_a_private_file_and_never_overwrites() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wallet.json");
        create_new(&path, b"first").unwrap();
        let error = create_new(&path, b"second").unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        write_atomically(&path, b"third").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_file_above_the_limit_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("big");
        write_atomically(&path, &[0; 11]).unwrap();
        assert_eq!(read_limited(&path, 11).unwrap().unwrap().len(), 11);
        assert!(read_limited(&path, 10).unwrap_err().to_string().contains("the limit is 10"));
        assert!(read_limited(&folder.path().join("none"), 10).unwrap().is_none());
    }
}
