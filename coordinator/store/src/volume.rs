//! The file-system abstraction of the journal, the snapshots and the packs: a flat folder of files.
//! Every write that a power failure could tear uses it, so that tests can substitute a folder that
//! records or fails operations.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Size of the pieces in which a range is rewritten, in bytes.
const REWRITE_CHUNK_BYTES: u64 = 1024 * 1024;

/// An append-only file, or a test's substitute.
pub trait AppendFile: Send {
    /// Appends all bytes.
    ///
    /// # Errors
    /// The system's error; part of the bytes may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Appends the bytes of several buffers, in their order (vectored write).
    ///
    /// # Errors
    /// As [`append`](Self::append).
    fn append_all(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.append(&bytes)
    }
    /// Makes all written bytes durable (fsync).
    ///
    /// # Errors
    /// The system's error; it is unknown then which bytes are durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Truncates the file to `length` bytes; the next append continues there.
    ///
    /// # Errors
    /// The system's error.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl AppendFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
    fn append_all(&mut self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        // Leading empty buffers would make a write of zero bytes look like an error.
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.write_vectored(parts) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// A file that is open for reading.
pub trait ReadSeek: Read + Seek + Send {}

impl<T: Read + Seek + Send> ReadSeek for T {}

/// A flat folder.
pub trait Volume: Send + Sync {
    /// The path of a file, for messages.
    fn path_of(&self, name: &str) -> PathBuf;
    /// The names of all files, in arbitrary order.
    ///
    /// # Errors
    /// The system's error.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Opens a file for reading, and returns its length.
    ///
    /// # Errors
    /// The system's error; `NotFound` if the file does not exist.
    fn open(&self, name: &str) -> io::Result<(Box<dyn ReadSeek>, u64)>;
    /// Opens a file for appending, and creates it if necessary. A new name is durable after
    /// [`Volume::sync`].
    ///
    /// # Errors
    /// The system's error.
    fn append_to(&self, name: &str) -> io::Result<Box<dyn AppendFile>>;
    /// Writes the bytes that a file already has at `offset` again, so that the next fsync makes
    /// them durable. After a failed fsync the system considers the pages clean, whether or not they
    /// are on disk.
    ///
    /// # Errors
    /// The system's error.
    fn rewrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Renames a file atomically.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. A missing file is not an error.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes created, renamed and removed names durable (fsync of the folder).
    ///
    /// # Errors
    /// The system's error.
    fn sync(&self) -> io::Result<()>;
}

/// Writes a file atomically: to a temporary file, then fsync, then rename. On failure the temporary
/// file is removed, because a full disk needs the space.
pub(super) fn write_atomically(
    volume: &dyn Volume,
    unfinished: &str,
    name: &str,
    parts: &[&[u8]],
) -> io::Result<()> {
    let write = || -> io::Result<()> {
        let mut disk = volume.append_to(unfinished)?;
        disk.truncate(0)?;
        parts.iter().try_for_each(|part| disk.append(part))?;
        disk.sync()
    };
    if let Err(error) = write().and_then(|()| volume.rename(unfinished, name)) {
        if let Err(left) = volume.remove(unfinished) {
            let path = volume.path_of(unfinished);
            tracing::warn!(path = %path.display(), %left, "a temporary file could not be removed");
        }
        return Err(error);
    }
    volume.sync()
}

/// Rewrites a range of a file in place, so that the next fsync makes it durable even after an
/// earlier fsync failed: see [`Volume::rewrite`].
pub(super) fn rewrite_range(volume: &dyn Volume, name: &str, from: u64, to: u64) -> io::Result<()> {
    let (mut file, _) = volume.open(name)?;
    file.seek(SeekFrom::Start(from))?;
    let mut at = from;
    let mut piece = Vec::new();
    while at < to {
        piece.clear();
        let bytes = to.saturating_sub(at).min(REWRITE_CHUNK_BYTES);
        file.by_ref().take(bytes).read_to_end(&mut piece)?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        volume.rewrite(name, at, &piece)?;
        at = at.saturating_add(piece.len() as u64);
    }
    Ok(())
}

/// An existing folder of the local file system.
#[derive(Clone, Debug)]
pub struct LocalVolume(pub PathBuf);

impl Volume for LocalVolume {
    fn path_of(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            // Folders do not count, and the store uses only UTF-8 names.
            if !entry.file_type()?.is_dir() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn ReadSeek>, u64)> {
        let file = File::open(self.0.join(name))?;
        let length = file.metadata()?.len();
        Ok((Box::new(file), length))
    }

    fn append_to(&self, name: &str) -> io::Result<Box<dyn AppendFile>> {
        Ok(Box::new(File::options().create(true).append(true).open(self.0.join(name))?))
    }

    fn rewrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // Not opened for appending: the system would ignore the offset and append.
        let mut file = File::options().write(true).open(self.0.join(name))?;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn sync(&self) -> io::Result<()> {
        super::sync_folder(&self.0)
    }
}
