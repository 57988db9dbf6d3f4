//! Resumable uploads. When a connection breaks or the coordinator restarts, the received bytes
//! remain in `blobs/uploads/`, in a file whose name identifies the owner. The sender resumes where
//! they end.
//!
//! Space is reserved before the first byte is written, so that concurrent uploads cannot exceed the
//! limits. A power failure can damage the received bytes; this is detected at the end, when their
//! digest is verified.

mod key;
mod lease;
mod table;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use florin_protocol::Digest;

pub use key::{UploadKey, UploadOwner};
pub use lease::UploadLease;
pub use table::{EVICTION_GRACE, Limits, Quota, UPLOADS_MAX};

use super::blobs::{BlobStore, BlobWriter, UploadedFile};
use super::error::BlobError;
use super::free_bytes;
use table::{UploadEntry, UploadTable};

/// Why an upload cannot start or resume.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The upload does not resume where the stored bytes end.
    #[error(
        "{stored} bytes of this upload are stored: resume at byte {stored}, not at byte {requested}"
    )]
    WrongOffset {
        /// Number of stored bytes.
        stored: u64,
        /// The requested offset.
        requested: u64,
    },
    /// A quota of the settings is exceeded.
    #[error(
        "{bytes} more bytes exceed a quota: unfinished uploads of {quota} use {used} of {limit} \
         bytes: finish those, or wait until they expire"
    )]
    QuotaExceeded {
        /// The quota.
        quota: Quota,
        /// The limit, in bytes.
        limit: u64,
        /// The bytes in use.
        used: u64,
        /// The requested bytes.
        bytes: u64,
    },
    /// The disk has too little free space.
    #[error(
        "the coordinator's disk has no space for {bytes} more bytes: {free} bytes are free, active \
         uploads need {pending} of them, and {reserved} must stay free: try again later"
    )]
    InsufficientSpace {
        /// The requested bytes.
        bytes: u64,
        /// The free bytes.
        free: u64,
        /// The bytes that active uploads will still write.
        pending: u64,
        /// The bytes that must stay free.
        reserved: u64,
    },
    /// Too many unfinished uploads.
    #[error("{UPLOADS_MAX} uploads are unfinished: try again later")]
    TooMany,
    /// The disk or the blob store failed.
    #[error(transparent)]
    Blob(#[from] BlobError),
}

impl From<io::Error> for UploadError {
    fn from(error: io::Error) -> Self {
        Self::Blob(BlobError::from(error))
    }
}

/// A request to start or resume an upload.
#[derive(Clone, Copy, Debug)]
pub struct UploadRequest {
    /// Identifies the upload.
    pub key: UploadKey,
    /// The total number of bytes.
    pub bytes: u64,
    /// The offset at which to resume. At 0 the upload starts again, and stored bytes are discarded.
    pub offset: u64,
    /// Whether the received bytes are retained when the connection breaks.
    pub resumable: bool,
}

/// The result of a request to start or resume.
#[derive(Debug)]
pub enum BeginResult {
    /// The upload may start.
    Ready(Box<Upload>),
    /// Another connection is sending it.
    Busy(Arc<UploadLease>),
}

/// All resumable uploads of one data folder.
#[derive(Debug)]
pub struct ResumableUploads {
    folder: PathBuf,
    table: Mutex<UploadTable>,
}

/// The resources of all unfinished uploads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadUsage {
    /// Their number.
    pub uploads: usize,
    /// The bytes that they reserve or use.
    pub bytes: u64,
}

impl ResumableUploads {
    /// Opens or creates the folder. Files whose name is not that of an upload are removed.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut table = UploadTable::default();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let key = entry.file_name().to_str().and_then(UploadKey::from_file_name);
            let about = entry.metadata()?;
            match key {
                Some(key) if about.len() > 0 && table.0.len() < UPLOADS_MAX => {
                    let since = about.modified()?;
                    table.0.insert(
                        key,
                        UploadEntry::Interrupted { bytes: about.len(), hasher: None, since },
                    );
                }
                _ => fs::remove_file(entry.path())?,
            }
        }
        Ok(Self { folder: folder.to_owned(), table: Mutex::new(table) })
    }

    fn table(&self) -> MutexGuard<'_, UploadTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &UploadKey) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// The number of stored bytes of an upload.
    #[must_use]
    pub fn bytes_of(&self, key: &UploadKey) -> u64 {
        match self.table().0.get(key) {
            Some(UploadEntry::Active { lease: turn, .. }) => turn.written(),
            Some(UploadEntry::Interrupted { bytes, .. }) => *bytes,
            None => 0,
        }
    }

    /// The resources of all uploads.
    #[must_use]
    pub fn usage(&self) -> UploadUsage {
        let table = self.table();
        let bytes =
            table.0.values().fold(0u64, |sum, entry| sum.saturating_add(entry.used_bytes()));
        UploadUsage { uploads: table.0.len(), bytes }
    }

    /// Starts or resumes an upload. Hashes the stored bytes again if that has not happened since
    /// the start of the process.
    ///
    /// # Errors
    /// [`UploadError`]. The state is unchanged then, except that evicted uploads and an unreadable
    /// one are removed.
    pub fn begin(
        self: &Arc<Self>,
        wanted: &UploadRequest,
        limits: &Limits,
        now: SystemTime,
    ) -> Result<BeginResult, UploadError> {
        let (turn, hasher) = {
            let mut table = self.table();
            let here = match table.0.get(&wanted.key) {
                Some(UploadEntry::Active { lease: turn, .. }) => {
                    return Ok(BeginResult::Busy(Arc::clone(turn)));
                }
                Some(UploadEntry::Interrupted { bytes, .. }) => *bytes,
                None => 0,
            };
            let offset = wanted.offset;
            if offset != 0 && offset != here {
                return Err(UploadError::WrongOffset { stored: here, requested: offset });
            }
            self.reserve(&mut table, wanted, limits, now)?;
            let turn = Arc::new(UploadLease::new(offset));
            let entry = UploadEntry::Active { lease: Arc::clone(&turn), reserved: wanted.bytes };
            let hasher = match table.0.insert(wanted.key, entry) {
                Some(UploadEntry::Interrupted { hasher, .. }) => hasher,
                _ => None,
            };
            (turn, hasher)
        };
        let mut upload = Upload {
            partials: Arc::clone(self),
            key: wanted.key,
            lease: turn,
            resumable: wanted.resumable,
            received: None,
        };
        upload.received = Some(self.open_file(wanted, hasher)?);
        Ok(BeginResult::Ready(Box::new(upload)))
    }

    /// Reserves space for an upload, and evicts interrupted uploads if necessary.
    fn reserve(
        &self,
        table: &mut UploadTable,
        wanted: &UploadRequest,
        limits: &Limits,
        now: SystemTime,
    ) -> Result<(), UploadError> {
        let UploadRequest { key, bytes, .. } = wanted;
        if table.0.len() >= UPLOADS_MAX && !table.0.contains_key(key) {
            return Err(UploadError::TooMany);
        }
        // The stored bytes of this upload need no additional space.
        let own = table.0.get(key).map_or(0, UploadEntry::used_bytes);
        let free = free_bytes(&self.folder)?.saturating_add(own);
        for key in table.make_room(key, *bytes, limits, free, now)? {
            self.remove(table, &key);
        }
        Ok(())
    }

    /// Removes an upload and its file.
    fn remove(&self, table: &mut UploadTable, key: &UploadKey) {
        table.0.remove(key);
        if let Err(error) = fs::remove_file(self.path(key))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(%error, name = key.file_name(), "an upload was not removed");
        }
    }

    fn open_file(
        &self,
        wanted: &UploadRequest,
        hasher: Option<Box<blake3::Hasher>>,
    ) -> Result<ReceivedData, UploadError> {
        let (path, bytes) = (self.path(&wanted.key), wanted.offset);
        let fresh = bytes == 0;
        let mut file =
            File::options().read(true).write(true).create(fresh).truncate(fresh).open(path)?;
        if fresh {
            return Ok(ReceivedData { file, hasher: Box::default(), bytes });
        }
        let hasher = match hasher {
            Some(hasher) => hasher,
            None => {
                let mut hasher = Box::<blake3::Hasher>::default();
                hasher.update_reader((&mut file).take(bytes))?;
                hasher
            }
        };
        if file.metadata()?.len() != bytes || hasher.count() != bytes {
            let why =
                format!("the file of an unfinished upload of {bytes} bytes has another length");
            return Err(BlobError::Failed(io::Error::other(why)).into());
        }
        file.seek(SeekFrom::Start(bytes))?;
        Ok(ReceivedData { file, hasher, bytes })
    }

    /// Removes interrupted uploads that are older than `age_max` or that `wanted` rejects. Returns
    /// their number.
    pub fn sweep(
        &self,
        now: SystemTime,
        age_max: Duration,
        wanted: impl Fn(&UploadKey) -> bool,
    ) -> usize {
        let mut table = self.table();
        let outdated = table.outdated(now, age_max, wanted);
        for key in &outdated {
            self.remove(&mut table, key);
        }
        outdated.len()
    }

    /// The keys of all uploads.
    #[must_use]
    pub fn keys(&self) -> Vec<UploadKey> {
        self.table().0.keys().copied().collect()
    }
}

/// The received data of an upload.
#[derive(Debug)]
struct ReceivedData {
    file: File,
    hasher: Box<blake3::Hasher>,
    bytes: u64,
}

/// An active upload, owned by one connection. If it is dropped before it becomes a blob, its bytes
/// remain for the next connection, or are removed.
#[derive(Debug)]
pub struct Upload {
    partials: Arc<ResumableUploads>,
    key: UploadKey,
    lease: Arc<UploadLease>,
    resumable: bool,
    received: Option<ReceivedData>,
}

impl Upload {
    /// Appends bytes.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`]; the upload is not retained then.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let Some(came) = &mut self.received else {
            return Err(already_taken());
        };
        if let Err(error) = came.file.write_all(bytes) {
            // An unknown part of the bytes is on disk, and a full disk needs the space.
            self.resumable = false;
            return Err(BlobError::from(error));
        }
        came.hasher.update(bytes);
        came.bytes = came.bytes.saturating_add(bytes.len() as u64);
        self.lease.set_written(came.bytes);
        Ok(())
    }

    /// Number of received bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.received.as_ref().map_or(0, |came| came.bytes)
    }

    /// The digest of the received bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let hash = self.received.as_ref().map(|came| came.hasher.finalize());
        Digest(*hash.unwrap_or_else(|| blake3::hash(&[])).as_bytes())
    }

    /// The lease of this connection.
    #[must_use]
    pub const fn lease(&self) -> &Arc<UploadLease> {
        &self.lease
    }

    /// The file, for checks before the upload becomes a blob.
    ///
    /// # Errors
    /// [`BlobError::Failed`].
    pub fn file(&self) -> Result<&File, BlobError> {
        self.received.as_ref().map(|came| &came.file).ok_or_else(already_taken)
    }

    /// The first received bytes, at most `most`.
    ///
    /// # Errors
    /// [`BlobError::Failed`].
    pub fn first(&mut self, most: u64) -> Result<Vec<u8>, BlobError> {
        let came = self.received.as_mut().ok_or_else(already_taken)?;
        let mut first = Vec::new();
        came.file.rewind()?;
        (&mut came.file).take(most.min(came.bytes)).read_to_end(&mut first)?;
        came.file.seek(SeekFrom::Start(came.bytes))?;
        Ok(first)
    }

    /// Marks the upload as not to be retained, because its bytes are wrong.
    pub fn discard(&mut self) {
        self.resumable = false;
    }

    /// Turns the upload into a blob that the caller still has to store. The upload keeps its lease
    /// until it is dropped; nothing of it remains then.
    ///
    /// # Errors
    /// [`BlobError::Failed`]. After [`BlobError::Bucket`] the bytes remain for a retry.
    pub fn take_blob(&mut self, blobs: &BlobStore) -> Result<BlobWriter, BlobError> {
        let carried = blobs.mirror_upload(self.digest(), self.file()?, self.bytes())?;
        let ReceivedData { file, hasher, bytes } =
            self.received.take().ok_or_else(already_taken)?;
        let path = self.partials.path(&self.key);
        blobs.adopt(UploadedFile { path: &path, file, mirrored: carried, hasher, bytes })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut table = self.partials.table();
        match self.received.take() {
            Some(ReceivedData { hasher, bytes, .. }) if self.resumable && bytes > 0 => {
                let (hasher, since) = (Some(hasher), SystemTime::now());
                table.0.insert(self.key, UploadEntry::Interrupted { bytes, hasher, since });
            }
            _ => self.partials.remove(&mut table, &self.key),
        }
        drop(table);
        self.lease.release();
    }
}

fn already_taken() -> BlobError {
    BlobError::Failed(io::Error::other("the upload has already become a blob"))
}

#[cfg(test)]
mod tests;
