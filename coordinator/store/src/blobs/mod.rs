//! The content-addressed blob store. Small blobs share [packs](crate::pack). A larger one has its
//! own file `blobs/ab/cd/abcd…`: it is hashed while it is written to a temporary file, then fsync,
//! then rename. A file under its final name therefore has the right bytes, and every read verifies
//! the digest again. A [bucket](crate::bucket) can mirror all blobs.

mod checks;
mod mirror;

use std::borrow::Cow;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use florin_protocol::Digest;

use crate::MappedBytes;
use crate::bucket::Bucket;
use crate::error::BlobError;
use crate::pack::{PACKED_BYTES_MAX, PackStore, StoreCallback};
use crate::sync_folder;
use crate::volume::LocalVolume;
use checks::LateChecks;
use mirror::{FetchLimiter, Mirrored};

pub use mirror::FETCHES_MAX;

/// Buffer size for reads, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// The blob store of one data folder.
#[derive(Debug)]
pub struct BlobStore {
    root: PathBuf,
    temp_folder: PathBuf,
    /// Random prefix of this instance's temporary file names.
    instance_id: u64,
    next: AtomicU64,
    packs: PackStore,
    bucket: Option<Bucket>,
    fetches: FetchLimiter,
    checks: LateChecks,
}

/// The file of a complete upload.
pub(super) struct UploadedFile<'a> {
    pub(super) path: &'a Path,
    pub(super) file: File,
    pub(super) mirrored: Mirrored,
    /// The hasher of its bytes.
    pub(super) hasher: Box<blake3::Hasher>,
    /// Its length in bytes.
    pub(super) bytes: u64,
}

/// A verified blob, ready to be sent.
#[derive(Debug)]
pub enum OpenedBlob {
    /// A large blob: its file, at offset 0, and its length.
    File(File, u64),
    /// A small blob.
    Bytes(Vec<u8>),
}

impl BlobStore {
    /// Opens or creates the store, and removes the temporary files of interrupted writes.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(root: &Path) -> io::Result<Self> {
        Self::open_with(root, None)
    }

    /// Opens the store with a bucket that mirrors every blob.
    ///
    /// # Errors
    /// The system's error.
    pub fn open_with(root: &Path, bucket: Option<Bucket>) -> io::Result<Self> {
        let partial = root.join("partial");
        fs::create_dir_all(&partial)?;
        for entry in fs::read_dir(&partial)? {
            fs::remove_file(entry?.path())?;
        }
        let packs = root.join("packs");
        fs::create_dir_all(&packs)?;
        let packs = PackStore::open(Arc::new(LocalVolume(packs)))?;
        sync_folder(root)?;
        let (root, next, fetching) = (root.to_owned(), AtomicU64::new(0), FetchLimiter::default());
        // The standard library's only source of random numbers.
        let life = RandomState::new().build_hasher().finish();
        Ok(Self {
            root,
            temp_folder: partial,
            instance_id: life,
            next,
            packs,
            bucket,
            fetches: fetching,
            checks: LateChecks::default(),
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        let (first, second) = (name.get(..2).unwrap_or(""), name.get(2..4).unwrap_or(""));
        self.root.join(first).join(second).join(&name)
    }

    /// Whether the folder has a blob.
    #[must_use]
    pub fn contains(&self, digest: Digest) -> bool {
        self.packs.contains(digest) || self.path(digest).is_file()
    }

    /// The free bytes of the disk.
    ///
    /// # Errors
    /// The system's error.
    pub fn free_bytes(&self) -> io::Result<u64> {
        crate::free_bytes(&self.root)
    }

    /// Starts a blob of at most `bytes_max` bytes. A small one is buffered in memory until it is
    /// stored.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`].
    pub fn writer(&self, bytes_max: u64) -> Result<BlobWriter, BlobError> {
        let held = match usize::try_from(bytes_max) {
            Ok(most) if most <= PACKED_BYTES_MAX => {
                WriterBuffer::Memory(self.packs.buffer(most), most)
            }
            _ => WriterBuffer::File(
                self.create_temp_file().map_err(BlobError::from)?,
                Box::default(),
            ),
        };
        Ok(BlobWriter { buffer: held, bytes: 0, digest: OnceLock::new(), mirrored: None })
    }

    /// A temporary file name that was never used before, by this instance or an earlier one. A
    /// removed name can reappear after a power failure, and a rename to it would then replace
    /// another file.
    fn new_temp_path(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.temp_folder.join(format!("{:016x}-{number}", self.instance_id))
    }

    fn create_temp_file(&self) -> io::Result<TempFile> {
        let path = self.new_temp_path();
        let file = File::options().create_new(true).read(true).write(true).open(&path)?;
        Ok(TempFile { file, path })
    }

    /// Takes over the file of a complete upload.
    pub(super) fn adopt(&self, upload: UploadedFile<'_>) -> Result<BlobWriter, BlobError> {
        let UploadedFile { path: from, file, mirrored, hasher, bytes } = upload;
        let path = self.new_temp_path();
        fs::rename(from, &path)?;
        let held = WriterBuffer::File(TempFile { file, path }, hasher);
        Ok(BlobWriter { buffer: held, bytes, digest: OnceLock::new(), mirrored: Some(mirrored) })
    }

    /// Stores a byte string.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Bucket`], [`BlobError::Failed`].
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, BlobError> {
        let mut writer = self.writer(bytes.len() as u64)?;
        writer.write(bytes)?;
        self.store(writer)
    }

    /// Stores a writer's blob. The blob is durable when this returns.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Bucket`], [`BlobError::Failed`].
    pub fn store(&self, writer: BlobWriter) -> Result<Digest, BlobError> {
        let (sender, answer) = std::sync::mpsc::sync_channel(1);
        self.store_then(
            writer,
            Box::new(move |result| {
                // The receiver is waiting below.
                let _ = sender.send(result);
            }),
        );
        answer
            .recv()
            .map_err(|_| BlobError::Failed(io::Error::other("the blob store is closed")))?
    }

    /// Stores a writer's blob and calls `done` when it is durable. Does not block on the disk for a
    /// small blob.
    pub fn store_then(&self, writer: BlobWriter, done: StoreCallback) {
        match &self.bucket {
            Some(bucket) => self.store_mirrored(bucket, writer, done),
            None => self.store_locally(writer, done),
        }
    }

    /// Stores a writer's blob in the folder only.
    pub(super) fn store_locally(&self, writer: BlobWriter, done: StoreCallback) {
        let digest = writer.digest();
        // A stored blob is not written again, unless it has been damaged.
        let known = match writer.buffer {
            // Older folders have files for small blobs, so a small blob may exist in both places.
            WriterBuffer::Memory(..) => self.packs.contains(digest),
            WriterBuffer::File(..) => self.contains(digest),
        };
        if known && self.open_local(digest).is_ok() {
            let synced = if self.packs.contains(digest) { Ok(()) } else { self.sync_path(digest) };
            return done(synced.map(|()| digest).map_err(BlobError::from));
        }
        match writer.buffer {
            WriterBuffer::Memory(bytes, _) => self.packs.append(bytes, digest, done),
            WriterBuffer::File(partial, _) => {
                let placed = self.rename_into_place(&partial, digest);
                done(placed.map(|()| digest).map_err(BlobError::from));
            }
        }
    }

    fn rename_into_place(&self, writer: &TempFile, digest: Digest) -> io::Result<()> {
        writer.file.sync_all()?;
        let path = self.path(digest);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::rename(&writer.path, &path)?;
        self.sync_path(digest)
    }

    /// Makes a blob's name durable, and the names of all folders on its path. This happens every
    /// time, because another thread or a killed process may have created them without a sync.
    fn sync_path(&self, digest: Digest) -> io::Result<()> {
        let path = self.path(digest);
        for folder in path.ancestors().skip(1).take_while(|folder| folder.starts_with(&self.root)) {
            sync_folder(folder)?;
        }
        Ok(())
    }

    /// Reads a blob and verifies its digest.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn read(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        self.read_or_fetch(digest, || self.read_local(digest))
    }

    fn read_local(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        let bytes = match self.packs.read(digest) {
            Some(bytes) => bytes?,
            None => fs::read(self.path(digest)).map_err(|error| missing(digest, error))?,
        };
        let found = florin_protocol::blob_digest(&bytes);
        if found == digest { Ok(bytes) } else { Err(wrong_digest(digest, found)) }
    }

    /// Maps a blob after it has verified its digest. A large blob is paged in on access.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn map(&self, digest: Digest) -> Result<MappedBytes, BlobError> {
        // The verification reads all bytes: an unreadable page is an error here, but would kill the
        // process if it were accessed through the mapping.
        match self.open_checked(digest)? {
            OpenedBlob::Bytes(bytes) => Ok(MappedBytes::from(bytes)),
            OpenedBlob::File(file, _) => Ok(MappedBytes::file(&file)?),
        }
    }

    /// Opens a blob after it has verified its digest.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn open_checked(&self, digest: Digest) -> Result<OpenedBlob, BlobError> {
        self.read_or_fetch(digest, || self.open_local(digest))
    }

    /// Opens a blob of the folder after it has verified its digest.
    pub(super) fn open_local(&self, digest: Digest) -> Result<OpenedBlob, BlobError> {
        if self.packs.contains(digest) {
            return self.read_local(digest).map(OpenedBlob::Bytes);
        }
        let mut file = File::open(self.path(digest)).map_err(|error| missing(digest, error))?;
        let (found, length) = hash(&mut file)?;
        if found != digest {
            return Err(wrong_digest(digest, found));
        }
        file.rewind()?;
        Ok(OpenedBlob::File(file, length))
    }
}

fn hash(file: &mut File) -> io::Result<(Digest, u64)> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut length = 0u64;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok((Digest(*hasher.finalize().as_bytes()), length));
        }
        hasher.update(buffer.get(..n).unwrap_or_default());
        length = length.saturating_add(n as u64);
    }
}

/// Digest and length of a file.
pub fn hash_file(path: &Path) -> io::Result<(Digest, u64)> {
    hash(&mut File::open(path)?)
}

/// Every blob with its own file, by the file's name.
pub fn files(root: &Path) -> io::Result<Vec<(Digest, PathBuf)>> {
    let mut found = Vec::new();
    for first in folders(root)? {
        for second in folders(&first)? {
            for entry in fs::read_dir(second)? {
                let entry = entry?;
                let name = entry.file_name().to_str().and_then(|name| name.parse().ok());
                found.extend(name.map(|digest| (digest, entry.path())));
            }
        }
    }
    Ok(found)
}

/// The subfolders with blobs: their names are two digits of a digest. A link to a folder counts as
/// one.
fn folders(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let is_part = entry.file_name().len() == 2 && fs::metadata(entry.path())?.is_dir();
            found.extend(is_part.then(|| entry.path()));
        }
    }
    Ok(found)
}

fn missing(digest: Digest, error: io::Error) -> BlobError {
    match error.kind() {
        io::ErrorKind::NotFound => BlobError::Missing(digest),
        _ => BlobError::Failed(error),
    }
}

fn wrong_digest(wanted: Digest, found: Digest) -> BlobError {
    tracing::error!(%wanted, %found, "a stored blob is damaged");
    BlobError::WrongDigest { wanted, found }
}

/// A temporary file. It is removed when the value is dropped.
#[derive(Debug)]
struct TempFile {
    file: File,
    path: PathBuf,
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // Renamed if the blob was stored; a remaining file is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

/// Buffer of an unfinished blob.
#[derive(Debug)]
enum WriterBuffer {
    /// In memory, with its limit. It is hashed once it is complete, which is faster than in pieces.
    Memory(Vec<u8>, usize),
    /// In a file. It is hashed during the write, so that it is not read again.
    File(TempFile, Box<blake3::Hasher>),
}

/// A blob that is being written. Nothing remains if it is dropped before it is stored.
#[derive(Debug)]
pub struct BlobWriter {
    buffer: WriterBuffer,
    bytes: u64,
    /// The digest of the bytes so far, once computed.
    digest: OnceLock<Digest>,
    /// Proof that the bucket already has the blob.
    mirrored: Option<Mirrored>,
}

impl BlobWriter {
    /// Appends bytes.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        match &mut self.buffer {
            WriterBuffer::Memory(held, most) if bytes.len() <= most.saturating_sub(held.len()) => {
                held.extend_from_slice(bytes);
            }
            WriterBuffer::Memory(_, most) => {
                let what = format!("the blob has more than the announced {most} bytes");
                return Err(BlobError::Failed(io::Error::other(what)));
            }
            WriterBuffer::File(partial, hasher) => {
                partial.file.write_all(bytes).map_err(BlobError::from)?;
                hasher.update(bytes);
            }
        }
        self.digest.take();
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// Number of bytes so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is buffered in memory, so that a write does not block on the disk.
    #[must_use]
    pub const fn is_small(&self) -> bool {
        matches!(self.buffer, WriterBuffer::Memory(..))
    }

    /// The bytes so far, if they are in memory.
    pub(super) fn small(&self) -> Option<&[u8]> {
        match &self.buffer {
            WriterBuffer::Memory(bytes, _) => Some(bytes),
            WriterBuffer::File(..) => None,
        }
    }

    /// The file with the bytes, if they are not in memory.
    pub(super) const fn file(&self) -> Option<&File> {
        match &self.buffer {
            WriterBuffer::Memory(..) => None,
            WriterBuffer::File(partial, _) => Some(&partial.file),
        }
    }

    pub(super) const fn is_mirrored(&self) -> bool {
        self.mirrored.is_some()
    }

    /// The digest of the bytes so far.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let hash = || match &self.buffer {
            WriterBuffer::Memory(bytes, _) => florin_protocol::blob_digest(bytes),
            WriterBuffer::File(_, hasher) => Digest(*hasher.finalize().as_bytes()),
        };
        *self.digest.get_or_init(hash)
    }

    /// The bytes so far, for checks before the blob is stored.
    ///
    /// # Errors
    /// [`BlobError::Failed`].
    pub fn read_back(&mut self) -> Result<Cow<'_, [u8]>, BlobError> {
        match &mut self.buffer {
            WriterBuffer::Memory(held, _) => Ok(Cow::Borrowed(held)),
            WriterBuffer::File(partial, _) => {
                let mut bytes = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or_default());
                partial.file.rewind()?;
                partial.file.read_to_end(&mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = PACKED_BYTES_MAX + 1;

    #[test]
    fn a_blob_write_is_atomic() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = BlobStore::open(dir.path()).unwrap();
        for bytes in [b"half".to_vec(), vec![7; LARGE]] {
            let mut writer = blobs.writer(bytes.len() as u64).unwrap();
            writer.write(&bytes).unwrap();
            let digest = writer.digest();
            assert!(!blobs.contains(digest));
            drop(writer);
            assert_eq!(fs::read_dir(dir.path().join("partial")).unwrap().count(), 0);
            assert_eq!(blobs.put(&bytes).unwrap(), digest);
            assert_eq!(blobs.put(&bytes).unwrap(), digest);
            assert_eq!(blobs.read(digest).unwrap(), bytes);
            assert_eq!(*blobs.map(digest).unwrap(), *bytes);
        }
    }

    #[test]
    fn temporary_file_names_are_never_reused_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let name = |writer: &BlobWriter| match &writer.buffer {
            WriterBuffer::File(partial, _) => partial.path.file_name().unwrap().to_owned(),
            WriterBuffer::Memory(..) => panic!("it is small"),
        };
        let mut names = std::collections::BTreeSet::new();
        for _life in 0..3 {
            let blobs = BlobStore::open(dir.path()).unwrap();
            // Two writers of the same blob, and one that takes over an upload.
            let mut writers = [(); 2].map(|()| blobs.writer(LARGE as u64).unwrap());
            for writer in &mut writers {
                writer.write(&[7; LARGE]).unwrap();
                assert!(names.insert(name(writer)), "{names:?}");
            }
            let upload = dir.path().join("upload");
            let file = File::create_new(&upload).unwrap();
            let carried = blobs.mirror_upload(Digest([7; 32]), &file, 0).unwrap();
            let taken = blobs
                .adopt(UploadedFile {
                    path: &upload,
                    file,
                    mirrored: carried,
                    hasher: Box::default(),
                    bytes: 0,
                })
                .unwrap();
            assert!(names.insert(name(&taken)), "{names:?}");
        }
        assert_eq!(names.len(), 9);
    }

    #[test]
    fn digest_covers_the_bytes_written_so_far_on_every_call() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = BlobStore::open(dir.path()).unwrap();
        for bytes_max in [PACKED_BYTES_MAX, LARGE] {
            let mut writer = blobs.writer(bytes_max as u64).unwrap();
            let mut came = Vec::new();
            for piece in [&b"one"[..], b"", b"two", &[3; 2_000]] {
                writer.write(piece).unwrap();
                came.extend_from_slice(piece);
                for _ in 0..2 {
                    assert_eq!(writer.digest(), florin_protocol::blob_digest(&came));
                }
            }
        }
    }

    #[test]
    fn temporary_files_are_removed_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        BlobStore::open(dir.path()).unwrap();
        fs::write(dir.path().join("partial/17"), b"torn").unwrap();
        BlobStore::open(dir.path()).unwrap();
        assert!(!dir.path().join("partial/17").exists());
    }

    #[test]
    fn a_corrupt_blob_is_never_returned_and_a_new_upload_repairs_it() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = BlobStore::open(dir.path()).unwrap();
        let (small, large) = (b"parameters".to_vec(), vec![7; LARGE]);
        let digests = [&small, &large].map(|bytes| blobs.put(bytes).unwrap());
        fs::write(blobs.path(digests[1]), vec![8; LARGE]).unwrap();
        let pack = dir.path().join("packs/0000000000.pack");
        let mut frames = fs::read(&pack).unwrap();
        *frames.last_mut().unwrap() ^= 1;
        fs::write(&pack, frames).unwrap();
        for (bytes, digest) in [&small, &large].into_iter().zip(digests) {
            assert!(matches!(blobs.read(digest), Err(BlobError::WrongDigest { .. })));
            assert!(matches!(blobs.map(digest), Err(BlobError::WrongDigest { .. })));
            assert!(matches!(blobs.open_checked(digest), Err(BlobError::WrongDigest { .. })));
            blobs.put(bytes).unwrap();
            assert_eq!(blobs.read(digest).unwrap(), *bytes);
        }
    }

    #[test]
    fn a_full_disk_is_a_separate_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::options().write(true).open("/dev/full").unwrap();
        let partial = TempFile { file, path: dir.path().join("nothing") };
        let held = WriterBuffer::File(partial, Box::default());
        let mut writer =
            BlobWriter { buffer: held, bytes: 0, digest: OnceLock::new(), mirrored: None };
        assert!(matches!(writer.write(b"bytes"), Err(BlobError::Full)));
        assert_eq!(writer.bytes(), 0);
    }

    #[test]
    fn an_unknown_blob_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = BlobStore::open(dir.path()).unwrap();
        let unknown = Digest([9; 32]);
        assert!(matches!(blobs.read(unknown), Err(BlobError::Missing(d)) if d == unknown));
    }
}
