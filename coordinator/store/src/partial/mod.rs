//! Resumable uploads. When a connection breaks or the coordinator restarts, the received bytes
//! remain in `blobs/uploads/`, in a file whose name identifies the owner. The sender resumes where
//! they end.
//!
//! Space is reserved before the first byte is written, so that concurrent uploads cannot exceed the
//! limits. A power failure can damage the received bytes; this is detected at the end, when their
//! digest is verified.

mod key;
mod table;
mod turn;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use florin_protocol::Digest;

pub use key::{Key, Whose};
pub use table::{Limits, PARTIALS_MAX, Quota, SPARED};
pub use turn::Turn;

use super::blobs::{BlobError, BlobWriter, Blobs};
use super::free_bytes;
use table::{Entry, Table};

/// Why an upload cannot start or resume.
#[derive(Debug, thiserror::Error)]
pub enum PartialError {
    /// The upload does not resume where the stored bytes end.
    #[error("{here} bytes of this upload are stored: resume at byte {here}, not at byte {said}")]
    WrongOffset {
        /// Number of stored bytes.
        here: u64,
        /// The requested offset.
        said: u64,
    },
    /// A quota of the settings is exceeded.
    #[error(
        "{bytes} more bytes exceed a quota: unfinished uploads of {quota} use {held} of {limit} \
         bytes: finish those, or wait until they expire"
    )]
    QuotaExceeded {
        /// The quota.
        quota: Quota,
        /// The limit, in bytes.
        limit: u64,
        /// The bytes in use.
        held: u64,
        /// The requested bytes.
        bytes: u64,
    },
    /// The disk has too little free space.
    #[error(
        "the coordinator's disk has no space for {bytes} more bytes: {free} bytes are free, active \
         uploads need {coming} of them, and {kept} must stay free: try again later"
    )]
    NoRoom {
        /// The requested bytes.
        bytes: u64,
        /// The free bytes.
        free: u64,
        /// The bytes that active uploads will still write.
        coming: u64,
        /// The bytes that must stay free.
        kept: u64,
    },
    /// Too many unfinished uploads.
    #[error("{PARTIALS_MAX} uploads are unfinished: try again later")]
    TooMany,
    /// The disk or the blob store failed.
    #[error(transparent)]
    Blob(#[from] BlobError),
}

impl From<io::Error> for PartialError {
    fn from(error: io::Error) -> Self {
        Self::Blob(BlobError::from(error))
    }
}

/// A request to start or resume an upload.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Identifies the upload.
    pub key: Key,
    /// The total number of bytes.
    pub bytes: u64,
    /// The offset at which to resume. At 0 the upload starts again, and stored bytes are discarded.
    pub offset: u64,
    /// Whether the received bytes are retained when the connection breaks.
    pub kept: bool,
}

/// The result of a request to start or resume.
#[derive(Debug)]
pub enum Begun {
    /// The upload may start.
    Ready(Box<Upload>),
    /// Another connection is sending it.
    Busy(Arc<Turn>),
}

/// All resumable uploads of one data folder.
#[derive(Debug)]
pub struct Partials {
    folder: PathBuf,
    table: Mutex<Table>,
}

impl Partials {
    /// Opens or creates the folder. Files whose name is not that of an upload are removed.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut table = Table::default();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let key = entry.file_name().to_str().and_then(Key::of_file_name);
            let about = entry.metadata()?;
            match key {
                Some(key) if about.len() > 0 && table.0.len() < PARTIALS_MAX => {
                    let since = about.modified()?;
                    table.0.insert(key, Entry::Left { bytes: about.len(), hasher: None, since });
                }
                _ => fs::remove_file(entry.path())?,
            }
        }
        Ok(Self { folder: folder.to_owned(), table: Mutex::new(table) })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// The number of stored bytes of an upload.
    #[must_use]
    pub fn bytes_of(&self, key: &Key) -> u64 {
        match self.table().0.get(key) {
            Some(Entry::Sent { turn, .. }) => turn.written(),
            Some(Entry::Left { bytes, .. }) => *bytes,
            None => 0,
        }
    }

    /// The number of uploads, and the bytes that they reserve or use.
    #[must_use]
    pub fn held(&self) -> (usize, u64) {
        let table = self.table();
        let bytes = table.0.values().fold(0u64, |sum, entry| sum.saturating_add(entry.held()));
        (table.0.len(), bytes)
    }

    /// Starts or resumes an upload. Hashes the stored bytes again if that has not happened since
    /// the start of the process.
    ///
    /// # Errors
    /// [`PartialError`]. The state is unchanged then, except that evicted uploads and an unreadable
    /// one are removed.
    pub fn begin(
        self: &Arc<Self>,
        wanted: &Wanted,
        limits: &Limits,
        now: SystemTime,
    ) -> Result<Begun, PartialError> {
        let (turn, hasher) = {
            let mut table = self.table();
            let here = match table.0.get(&wanted.key) {
                Some(Entry::Sent { turn, .. }) => return Ok(Begun::Busy(Arc::clone(turn))),
                Some(Entry::Left { bytes, .. }) => *bytes,
                None => 0,
            };
            let said = wanted.offset;
            if said != 0 && said != here {
                return Err(PartialError::WrongOffset { here, said });
            }
            self.reserve(&mut table, wanted, limits, now)?;
            let turn = Arc::new(Turn::new(said));
            let entry = Entry::Sent { turn: Arc::clone(&turn), reserved: wanted.bytes };
            let hasher = match table.0.insert(wanted.key, entry) {
                Some(Entry::Left { hasher, .. }) => hasher,
                _ => None,
            };
            (turn, hasher)
        };
        let mut upload = Upload {
            partials: Arc::clone(self),
            key: wanted.key,
            turn,
            kept: wanted.kept,
            came: None,
        };
        upload.came = Some(self.open_file(wanted, hasher)?);
        Ok(Begun::Ready(Box::new(upload)))
    }

    /// Reserves space for an upload, and evicts interrupted uploads if necessary.
    fn reserve(
        &self,
        table: &mut Table,
        wanted: &Wanted,
        limits: &Limits,
        now: SystemTime,
    ) -> Result<(), PartialError> {
        let Wanted { key, bytes, .. } = wanted;
        if table.0.len() >= PARTIALS_MAX && !table.0.contains_key(key) {
            return Err(PartialError::TooMany);
        }
        // The stored bytes of this upload need no additional space.
        let own = table.0.get(key).map_or(0, Entry::held);
        let free = free_bytes(&self.folder)?.saturating_add(own);
        for key in table.make_room(key, *bytes, limits, free, now)? {
            self.remove(table, &key);
        }
        Ok(())
    }

    /// Removes an upload and its file.
    fn remove(&self, table: &mut Table, key: &Key) {
        table.0.remove(key);
        if let Err(error) = fs::remove_file(self.path(key))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(%error, name = key.file_name(), "an upload was not removed");
        }
    }

    fn open_file(
        &self,
        wanted: &Wanted,
        hasher: Option<Box<blake3::Hasher>>,
    ) -> Result<Came, PartialError> {
        let (path, bytes) = (self.path(&wanted.key), wanted.offset);
        let fresh = bytes == 0;
        let mut file =
            File::options().read(true).write(true).create(fresh).truncate(fresh).open(path)?;
        if fresh {
            return Ok(Came { file, hasher: Box::default(), bytes });
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
        Ok(Came { file, hasher, bytes })
    }

    /// Removes interrupted uploads that are older than `age_max` or that `wanted` rejects. Returns
    /// their number.
    pub fn sweep(
        &self,
        now: SystemTime,
        age_max: Duration,
        wanted: impl Fn(&Key) -> bool,
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
    pub fn keys(&self) -> Vec<Key> {
        self.table().0.keys().copied().collect()
    }
}

/// The received data of an upload.
#[derive(Debug)]
struct Came {
    file: File,
    hasher: Box<blake3::Hasher>,
    bytes: u64,
}

/// An active upload, owned by one connection. If it is dropped before it becomes a blob, its bytes
/// remain for the next connection, or are removed.
#[derive(Debug)]
pub struct Upload {
    partials: Arc<Partials>,
    key: Key,
    turn: Arc<Turn>,
    kept: bool,
    came: Option<Came>,
}

impl Upload {
    /// Appends bytes.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`]; the upload is not retained then.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let Some(came) = &mut self.came else {
            return Err(gone());
        };
        if let Err(error) = came.file.write_all(bytes) {
            // An unknown part of the bytes is on disk, and a full disk needs the space.
            self.kept = false;
            return Err(BlobError::from(error));
        }
        came.hasher.update(bytes);
        came.bytes = came.bytes.saturating_add(bytes.len() as u64);
        self.turn.set_written(came.bytes);
        Ok(())
    }

    /// Number of received bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.came.as_ref().map_or(0, |came| came.bytes)
    }

    /// The digest of the received bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let hash = self.came.as_ref().map(|came| came.hasher.finalize());
        Digest(*hash.unwrap_or_else(|| blake3::hash(&[])).as_bytes())
    }

    /// The lease of this connection.
    #[must_use]
    pub const fn turn(&self) -> &Arc<Turn> {
        &self.turn
    }

    /// The file, for checks before the upload becomes a blob.
    ///
    /// # Errors
    /// [`BlobError::Failed`].
    pub fn file(&self) -> Result<&File, BlobError> {
        self.came.as_ref().map(|came| &came.file).ok_or_else(gone)
    }

    /// The first received bytes, at most `most`.
    ///
    /// # Errors
    /// [`BlobError::Failed`].
    pub fn first(&mut self, most: u64) -> Result<Vec<u8>, BlobError> {
        let came = self.came.as_mut().ok_or_else(gone)?;
        let mut first = Vec::new();
        came.file.rewind()?;
        (&mut came.file).take(most.min(came.bytes)).read_to_end(&mut first)?;
        came.file.seek(SeekFrom::Start(came.bytes))?;
        Ok(first)
    }

    /// Marks the upload as not to be retained, because its bytes are wrong.
    pub fn discard(&mut self) {
        self.kept = false;
    }

    /// Turns the upload into a blob that the caller still has to store. The upload keeps its lease
    /// until it is dropped; nothing of it remains then.
    ///
    /// # Errors
    /// [`BlobError::Failed`]. After [`BlobError::Bucket`] the bytes remain for a retry.
    pub fn take_blob(&mut self, blobs: &Blobs) -> Result<BlobWriter, BlobError> {
        let carried = blobs.carry(self.digest(), self.file()?, self.bytes())?;
        let Came { file, hasher, bytes } = self.came.take().ok_or_else(gone)?;
        blobs.adopt(&self.partials.path(&self.key), (file, carried), hasher, bytes)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut table = self.partials.table();
        match self.came.take() {
            Some(Came { hasher, bytes, .. }) if self.kept && bytes > 0 => {
                let (hasher, since) = (Some(hasher), SystemTime::now());
                table.0.insert(self.key, Entry::Left { bytes, hasher, since });
            }
            _ => self.partials.remove(&mut table, &self.key),
        }
        drop(table);
        self.turn.end();
    }
}

fn gone() -> BlobError {
    BlobError::Failed(io::Error::other("the upload has already become a blob"))
}

#[cfg(test)]
mod tests;
