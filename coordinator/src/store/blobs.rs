//! Blobs by their digest: `blobs/ab/cd/abcd…`. Written under a temporary name while they are hashed, made durable, then
//! renamed; so a name that is there has the right bytes, and every read checks it again.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use florin_protocol::Digest;

use super::{is_full, sync_folder};

/// Bytes read at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// The blobs of one data folder.
#[derive(Debug)]
pub struct Blobs {
    root: PathBuf,
    partial: PathBuf,
    next: AtomicU64,
}

/// Why a blob cannot be had or kept.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// It is not here.
    #[error("blob {0} is not here")]
    Missing(Digest),
    /// The bytes are not those of the name.
    #[error("the bytes hash to {found}, not to {wanted}")]
    WrongDigest {
        /// What they should hash to.
        wanted: Digest,
        /// What they do.
        found: Digest,
    },
    /// The disk is full.
    #[error("the disk is full: make room, then try again")]
    Full,
    /// The system said no.
    #[error("blob store: {0}")]
    Failed(#[from] io::Error),
}

impl BlobError {
    fn of(error: io::Error) -> Self {
        if is_full(&error) { Self::Full } else { Self::Failed(error) }
    }
}

impl Blobs {
    /// Opens or makes the store and removes what interrupted writes left.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(root: &Path) -> io::Result<Self> {
        let partial = root.join("partial");
        fs::create_dir_all(&partial)?;
        for entry in fs::read_dir(&partial)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(Self { root: root.to_owned(), partial, next: AtomicU64::new(0) })
    }

    fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        let (first, second) = (name.get(..2).unwrap_or(""), name.get(2..4).unwrap_or(""));
        self.root.join(first).join(second).join(&name)
    }

    /// Whether a blob is here.
    #[must_use]
    pub fn contains(&self, digest: Digest) -> bool {
        self.path(digest).is_file()
    }

    /// Begins a blob.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`].
    pub fn writer(&self) -> Result<BlobWriter, BlobError> {
        let path = self.partial.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(BlobError::of)?;
        Ok(BlobWriter { file, path, hasher: blake3::Hasher::new(), bytes: 0 })
    }

    /// Keeps bytes; durable when it returns.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`].
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, BlobError> {
        let mut writer = self.writer()?;
        writer.write(bytes)?;
        let digest = writer.digest();
        self.keep(&writer)?;
        Ok(digest)
    }

    /// Makes a written blob durable under its digest; the writer has nothing left to write then.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`].
    pub fn keep(&self, writer: &BlobWriter) -> Result<Digest, BlobError> {
        let digest = writer.digest();
        let path = self.path(digest);
        if path.is_file() && self.open_checked(digest).is_ok() {
            return Ok(digest);
        }
        self.place(writer, &path).map_err(BlobError::of)?;
        Ok(digest)
    }

    fn place(&self, writer: &BlobWriter, path: &Path) -> io::Result<()> {
        writer.file.sync_all()?;
        let Some(folder) = path.parent() else {
            return Err(io::Error::other("a blob's path has no folder"));
        };
        let new_folder = !folder.is_dir();
        fs::create_dir_all(folder)?;
        fs::rename(&writer.path, path)?;
        sync_folder(folder)?;
        if new_folder {
            folder.parent().map_or(Ok(()), sync_folder)?;
            sync_folder(&self.root)?;
        }
        Ok(())
    }

    /// A blob's bytes, checked against its digest.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn read(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        let bytes = fs::read(self.path(digest)).map_err(|error| missing(digest, error))?;
        let found = florin_protocol::blob_digest(&bytes);
        if found == digest { Ok(bytes) } else { Err(wrong(digest, found)) }
    }

    /// A blob's file, at its beginning, and its length; the bytes have been checked against the digest.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn open_checked(&self, digest: Digest) -> Result<(File, u64), BlobError> {
        let mut file = File::open(self.path(digest)).map_err(|error| missing(digest, error))?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut length = 0u64;
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            hasher.update(buffer.get(..n).unwrap_or_default());
            length = length.saturating_add(n as u64);
        }
        let found = Digest(*hasher.finalize().as_bytes());
        if found != digest {
            return Err(wrong(digest, found));
        }
        file.rewind()?;
        Ok((file, length))
    }
}

fn missing(digest: Digest, error: io::Error) -> BlobError {
    match error.kind() {
        io::ErrorKind::NotFound => BlobError::Missing(digest),
        _ => BlobError::Failed(error),
    }
}

fn wrong(wanted: Digest, found: Digest) -> BlobError {
    tracing::error!(%wanted, %found, "a stored blob was damaged");
    BlobError::WrongDigest { wanted, found }
}

/// A blob on its way in. Dropped without being kept, it leaves nothing.
#[derive(Debug)]
pub struct BlobWriter {
    file: File,
    path: PathBuf,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl BlobWriter {
    /// Takes more bytes.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.file.write_all(bytes).map_err(BlobError::of)?;
        self.hasher.update(bytes);
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// Bytes taken so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The digest of the bytes taken so far.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(*self.hasher.finalize().as_bytes())
    }

    /// The bytes taken so far, to look at them before they are kept.
    ///
    /// # Errors
    /// [`BlobError::Failed`].
    pub fn read_back(&mut self) -> Result<Vec<u8>, BlobError> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or_default());
        self.file.rewind()?;
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        // Gone already if it was kept; a leftover is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(dir.path()).unwrap();
        let mut writer = blobs.writer().unwrap();
        writer.write(b"half").unwrap();
        let digest = writer.digest();
        assert!(!blobs.contains(digest));
        drop(writer);
        assert_eq!(fs::read_dir(dir.path().join("partial")).unwrap().count(), 0);
        assert_eq!(blobs.put(b"half").unwrap(), digest);
        assert_eq!(blobs.put(b"half").unwrap(), digest);
        assert_eq!(blobs.read(digest).unwrap(), b"half");
    }

    #[test]
    fn leftovers_are_removed_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        Blobs::open(dir.path()).unwrap();
        fs::write(dir.path().join("partial/17"), b"torn").unwrap();
        Blobs::open(dir.path()).unwrap();
        assert!(!dir.path().join("partial/17").exists());
    }

    #[test]
    fn a_flipped_byte_is_never_handed_out_and_a_new_upload_repairs_it() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(dir.path()).unwrap();
        let digest = blobs.put(b"parameters").unwrap();
        fs::write(blobs.path(digest), b"Parameters").unwrap();
        assert!(matches!(blobs.read(digest), Err(BlobError::WrongDigest { .. })));
        assert!(matches!(blobs.open_checked(digest), Err(BlobError::WrongDigest { .. })));
        blobs.put(b"parameters").unwrap();
        assert_eq!(blobs.read(digest).unwrap(), b"parameters");
    }

    #[test]
    fn a_full_disk_has_its_own_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = BlobWriter {
            file: File::options().write(true).open("/dev/full").unwrap(),
            path: dir.path().join("nothing"),
            hasher: blake3::Hasher::new(),
            bytes: 0,
        };
        assert!(matches!(writer.write(b"bytes"), Err(BlobError::Full)));
        assert_eq!(writer.bytes(), 0);
    }

    #[test]
    fn what_was_never_uploaded_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(dir.path()).unwrap();
        let nobody = Digest([9; 32]);
        assert!(matches!(blobs.read(nobody), Err(BlobError::Missing(d)) if d == nobody));
    }
}
