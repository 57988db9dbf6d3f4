//! A flat folder of files as journal, snapshots and packs see it. Everything that a power cut could tear goes through
//! here, so that the tests can put a folder in its place that remembers what was asked of it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Bytes that are written again at once.
const AGAIN_BYTES: u64 = 1024 * 1024;

/// Where bytes are appended: a file, or a test's broken disk.
pub trait Disk: Send {
    /// Writes all bytes at the end.
    ///
    /// # Errors
    /// What the system said; part of the bytes may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// The same for bytes that lie in several places, one behind the other.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    fn append_all(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.append(&bytes)
    }
    /// Makes everything written durable.
    ///
    /// # Errors
    /// What the system said; nothing is known about what is durable then.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts to `length` bytes; the next append goes there.
    ///
    /// # Errors
    /// What the system said.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl Disk for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
    fn append_all(&mut self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        // Empty ones in front would look like a disk that takes nothing.
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

/// A file that is read.
pub trait Source: Read + Seek + Send {}

impl<T: Read + Seek + Send> Source for T {}

/// A flat folder.
pub trait Volume: Send + Sync {
    /// Where a file of that name is, for messages.
    fn place(&self, name: &str) -> PathBuf;
    /// The names of all files, in no order.
    ///
    /// # Errors
    /// What the system said.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Opens a file for reading, and tells its length.
    ///
    /// # Errors
    /// What the system said; `NotFound` where there is none.
    fn open(&self, name: &str) -> io::Result<(Box<dyn Source>, u64)>;
    /// Opens a file for appending, making it if it is not there. A new name is durable after [`Volume::sync`].
    ///
    /// # Errors
    /// What the system said.
    fn append_to(&self, name: &str) -> io::Result<Box<dyn Disk>>;
    /// Writes bytes that are in a file already at their place once more, so that the next sync makes them durable: after
    /// a sync that failed the system takes them for written, whatever is on the disk.
    ///
    /// # Errors
    /// What the system said.
    fn write_again(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Gives a file another name, in one step.
    ///
    /// # Errors
    /// What the system said.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; it is no error if there is none.
    ///
    /// # Errors
    /// What the system said.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes names durable: new ones, changed ones and those that are gone.
    ///
    /// # Errors
    /// What the system said.
    fn sync(&self) -> io::Result<()>;
}

/// Writes a file that has its name once it is whole and durable. Where that fails, nothing is left of it: on a full disk
/// others need the room.
pub(super) fn write_whole(
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
            let path = volume.place(unfinished);
            tracing::warn!(path = %path.display(), %left, "a file that was not finished stays");
        }
        return Err(error);
    }
    volume.sync()
}

/// Writes a stretch of a file at its place once more, so that the next sync makes it durable whatever became of those
/// before: see [`Volume::write_again`].
pub(super) fn write_stretch_again(
    volume: &dyn Volume,
    name: &str,
    from: u64,
    to: u64,
) -> io::Result<()> {
    let (mut file, _) = volume.open(name)?;
    file.seek(SeekFrom::Start(from))?;
    let mut at = from;
    let mut piece = Vec::new();
    while at < to {
        piece.clear();
        let bytes = to.saturating_sub(at).min(AGAIN_BYTES);
        file.by_ref().take(bytes).read_to_end(&mut piece)?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        volume.write_again(name, at, &piece)?;
        at = at.saturating_add(piece.len() as u64);
    }
    Ok(())
}

/// A folder on this machine, which exists.
#[derive(Clone, Debug)]
pub struct Local(pub PathBuf);

impl Volume for Local {
    fn place(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            // A folder is no file, whatever it is called, and what is not UTF-8 is none of ours.
            if !entry.file_type()?.is_dir() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn Source>, u64)> {
        let file = File::open(self.0.join(name))?;
        let length = file.metadata()?.len();
        Ok((Box::new(file), length))
    }

    fn append_to(&self, name: &str) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(File::options().create(true).append(true).open(self.0.join(name))?))
    }

    fn write_again(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // Not for appending: the system would put them at the end, whatever the offset.
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
