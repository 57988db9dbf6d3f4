//! Uploads that are not whole yet. A connection may break and a coordinator may be restarted: what came is kept in
//! `blobs/uploads/` under a name that says whose it is, and its sender goes on where it ends.
//!
//! Room is reserved before the first byte is written, so that many senders at once cannot take more than there is. What a
//! power cut does to the bytes is seen at the end, when they are held against their digest.

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

/// Why an upload cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum PartialError {
    /// The bytes that are here do not end where it goes on.
    #[error("{here} bytes of this upload are here: go on with byte {here}, not with byte {said}")]
    WrongOffset {
        /// How many are here.
        here: u64,
        /// Where it wanted to go on.
        said: u64,
    },
    /// The settings do not allow as much at once.
    #[error(
        "{bytes} bytes more: uploads of {quota} may hold {limit} bytes, and hold {held}: finish those, or wait until \
         they are"
    )]
    QuotaExceeded {
        /// Whose room is used up.
        quota: Quota,
        /// How much it is.
        limit: u64,
        /// How much of it is held.
        held: u64,
        /// How much was wanted.
        bytes: u64,
    },
    /// The disk has not as much.
    #[error(
        "{bytes} bytes more do not fit on the coordinator's disk: {free} are free, uploads under way take {coming} of \
         them, and {kept} stay free: try again later"
    )]
    NoRoom {
        /// How much was wanted.
        bytes: u64,
        /// How much is free.
        free: u64,
        /// How much of it others will write.
        coming: u64,
        /// How much stays free.
        kept: u64,
    },
    /// Too many at once.
    #[error("{PARTIALS_MAX} uploads are unfinished: try again later")]
    TooMany,
    /// The disk.
    #[error(transparent)]
    Blob(#[from] BlobError),
}

impl From<io::Error> for PartialError {
    fn from(error: io::Error) -> Self {
        Self::Blob(BlobError::from(error))
    }
}

/// An upload that somebody wants to send.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Whose it is.
    pub key: Key,
    /// All its bytes.
    pub bytes: u64,
    /// Where it goes on; at 0 it begins again, whatever is here.
    pub offset: u64,
    /// Whether what came is kept when the connection breaks.
    pub kept: bool,
}

/// Whether it may begin.
#[derive(Debug)]
pub enum Begun {
    /// It may.
    Ready(Box<Upload>),
    /// Another connection sends it.
    Busy(Arc<Turn>),
}

/// The unfinished uploads of one data folder.
#[derive(Debug)]
pub struct Partials {
    folder: PathBuf,
    table: Mutex<Table>,
}

impl Partials {
    /// Opens or makes the folder. Files with names that are none of ours are removed.
    ///
    /// # Errors
    /// What the system said.
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

    /// How many bytes of an upload are here.
    #[must_use]
    pub fn bytes_of(&self, key: &Key) -> u64 {
        match self.table().0.get(key) {
            Some(Entry::Sent { turn, .. }) => turn.written(),
            Some(Entry::Left { bytes, .. }) => *bytes,
            None => 0,
        }
    }

    /// How many there are, and what room they hold.
    #[must_use]
    pub fn held(&self) -> (usize, u64) {
        let table = self.table();
        let bytes = table.0.values().fold(0u64, |sum, entry| sum.saturating_add(entry.held()));
        (table.0.len(), bytes)
    }

    /// Begins an upload, or goes on with one. Reads back what is here if nobody did since the start.
    ///
    /// # Errors
    /// [`PartialError`]; nothing has changed then, but for partials that gave way and one that cannot be read.
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

    /// Makes room for an upload, or says why there is none.
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
        // What is here of it already does not take more room.
        let own = table.0.get(key).map_or(0, Entry::held);
        let free = free_bytes(&self.folder)?.saturating_add(own);
        for key in table.make_room(key, *bytes, limits, free, now)? {
            self.remove(table, &key);
        }
        Ok(())
    }

    /// Forgets a partial and its file.
    fn remove(&self, table: &mut Table, key: &Key) {
        table.0.remove(key);
        if let Err(error) = fs::remove_file(self.path(key))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(%error, name = key.file_name(), "an unfinished upload was not removed");
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
            let why = format!("an unfinished upload of {bytes} bytes has another length on disk");
            return Err(BlobError::Failed(io::Error::other(why)).into());
        }
        file.seek(SeekFrom::Start(bytes))?;
        Ok(Came { file, hasher, bytes })
    }

    /// Removes what nobody sends and is older than `age_max`, or not wanted any more; how many.
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

    /// Whose bytes there are.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.table().0.keys().copied().collect()
    }
}

/// What came of an upload.
#[derive(Debug)]
struct Came {
    file: File,
    hasher: Box<blake3::Hasher>,
    bytes: u64,
}

/// An upload whose turn it is. Dropped before it is made a blob, it leaves its bytes for the next connection, or nothing.
#[derive(Debug)]
pub struct Upload {
    partials: Arc<Partials>,
    key: Key,
    turn: Arc<Turn>,
    kept: bool,
    came: Option<Came>,
}

impl Upload {
    /// Takes more bytes.
    ///
    /// # Errors
    /// [`BlobError::Full`], [`BlobError::Failed`]; then nothing of it is kept.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let Some(came) = &mut self.came else {
            return Err(gone());
        };
        if let Err(error) = came.file.write_all(bytes) {
            // Some of it may be on disk and some not: a disk that is full needs the room.
            self.kept = false;
            return Err(BlobError::from(error));
        }
        came.hasher.update(bytes);
        came.bytes = came.bytes.saturating_add(bytes.len() as u64);
        self.turn.set_written(came.bytes);
        Ok(())
    }

    /// Bytes that are here.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.came.as_ref().map_or(0, |came| came.bytes)
    }

    /// The digest of the bytes that are here.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let hash = self.came.as_ref().map(|came| came.hasher.finalize());
        Digest(*hash.unwrap_or_else(|| blake3::hash(&[])).as_bytes())
    }

    /// Whose turn it is.
    #[must_use]
    pub const fn turn(&self) -> &Arc<Turn> {
        &self.turn
    }

    /// Its file, to look at the bytes before they are a blob.
    ///
    /// # Errors
    /// [`BlobError::Failed`].
    pub fn file(&self) -> Result<&File, BlobError> {
        self.came.as_ref().map(|came| &came.file).ok_or_else(gone)
    }

    /// The first bytes that are here, at most `most`.
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

    /// Says that nothing of it is to be kept: the bytes are wrong.
    pub fn discard(&mut self) {
        self.kept = false;
    }

    /// Makes a blob of it, still to be kept. The upload holds its turn until it is dropped, and leaves nothing then.
    ///
    /// # Errors
    /// [`BlobError::Failed`]. [`BlobError::Bucket`], and the bytes are there for the next try.
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
    BlobError::Failed(io::Error::other("the upload has been made a blob already"))
}

#[cfg(test)]
mod tests;
