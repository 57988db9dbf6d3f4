//! The journal: an append-only file in which every record is chained to the one before.
//!
//! What a crash can leave is a last record that was never finished: it was never answered for either, and is cut off
//! when the journal is opened. Anything else that does not add up is damage, and nothing is done with a damaged journal.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Digest, Tick};

use super::frames::{
    CHAIN_BYTES, FRAME_HEAD_BYTES, HEAD_BYTES, Reader, head, length_check, next_chain,
};
use super::{is_full, sync_folder};
use crate::engine::Event;

/// Largest payload of one record.
pub const RECORD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Room that must be free before a journal that was full takes records again.
const ROOM_BYTES: usize = 64 * 1024;

/// One event and the moment it was told at.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Record {
    /// When.
    pub now: Tick,
    /// What.
    pub event: Event,
}

/// Where records are written: a file, or a test's broken disk.
pub trait Disk: Send {
    /// Writes all bytes at the end.
    ///
    /// # Errors
    /// What the system said; part of the bytes may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
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
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// Why a journal cannot be opened. Nothing has been changed then.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read or made.
    #[error("journal {path}: {source} [JOURNAL_UNUSABLE]")]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was not written by a coordinator of this market.
    #[error(
        "journal {path}: {what}; name another data folder, or the market and the wallet that this one was made with \
         [JOURNAL_FOREIGN]"
    )]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What is different.
        what: String,
    },
    /// A record that was finished does not read as it was written.
    #[error(
        "journal {path}: record {record} at byte {offset}: {what}. Nothing was changed; restore the \
         file from a copy [JOURNAL_CORRUPT]"
    )]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// The record's number; the first is 1.
        record: u64,
        /// Where it begins.
        offset: u64,
        /// What does not add up.
        what: String,
    },
}

/// Why records were not taken. None of them counts then.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// There is no room. The journal is as it was before.
    #[error("the disk is full: make room, then try again")]
    Full(#[source] io::Error),
    /// They could not be written. The journal is as it was before.
    #[error("the journal cannot be written: {0}")]
    Failed(#[source] io::Error),
    /// A write could not be taken back or made durable: what is on the disk is not known until a restart.
    #[error("the journal failed and takes nothing more until a restart: {0}")]
    Broken(String),
}

/// The journal, open for writing.
pub struct Journal {
    path: PathBuf,
    disk: Box<dyn Disk>,
    /// Durable bytes: a whole number of records.
    length: u64,
    records: u64,
    chain: Digest,
    owner: Digest,
    broken: Option<String>,
    /// The last write found no room.
    full: bool,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Journal({}, {} records, {} bytes)",
            self.path.display(),
            self.records,
            self.length
        )
    }
}

/// What [`Journal::open`] does with a record that was read: tells the engine, which may find that it cannot be.
pub type Replay<'a> = dyn FnMut(Record) -> Result<(), String> + 'a;

impl Journal {
    /// Opens or makes a journal and replays it. `owner` is what the journal belongs to: a digest of market and
    /// coordinator.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path, owner: Digest, replay: &mut Replay<'_>) -> Result<Self, OpenError> {
        Self::open_on(path, owner, replay, |file| Box::new(file))
    }

    /// The same, with a disk of one's own for whatever is written.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_on(
        path: &Path,
        owner: Digest,
        replay: &mut Replay<'_>,
        disk: impl FnOnce(File) -> Box<dyn Disk>,
    ) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Unusable { path: path.to_owned(), source };
        let mut file =
            File::options().create(true).read(true).append(true).open(path).map_err(unusable)?;
        let mut size = file.metadata().map_err(unusable)?.len();
        if size < HEAD_BYTES {
            make_head(&mut file, path, owner)?;
            size = HEAD_BYTES;
        }
        let mut reader = Reader::new(path, owner, size)?;
        while let Some(batch) = reader.next_record()? {
            reader.hand_over(batch, replay)?;
        }
        let Reader { offset: length, records, chain, .. } = reader;
        if length < size {
            tracing::warn!(
                journal = %path.display(), record = records.saturating_add(1), offset = length,
                "cut off a last record that was never finished: {} bytes", size.saturating_sub(length)
            );
            file.set_len(length).and_then(|()| file.sync_all()).map_err(unusable)?;
        }
        let path = path.to_owned();
        Ok(Self {
            path,
            disk: disk(file),
            length,
            records,
            chain,
            owner,
            broken: None,
            full: false,
        })
    }

    /// Replays what is durable once more, for an engine that must forget what was not.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn replay(&self, replay: &mut Replay<'_>) -> Result<(), OpenError> {
        let mut reader = Reader::new(&self.path, self.owner, self.length)?;
        while let Some(batch) = reader.next_record()? {
            reader.hand_over(batch, replay)?;
        }
        Ok(())
    }

    /// Appends a batch as one record and makes it durable. It counts whole or not at all.
    ///
    /// # Errors
    /// [`AppendError`].
    pub fn append(&mut self, batch: &[Record]) -> Result<(), AppendError> {
        self.check_room()?;
        let payload = borsh::to_vec(batch).map_err(AppendError::Failed)?;
        let too_long = || io::Error::other("a record of more than 256 MiB");
        if payload.len() > RECORD_BYTES_MAX {
            return Err(AppendError::Failed(too_long()));
        }
        let length = u32::try_from(payload.len()).map_err(|_| AppendError::Failed(too_long()))?;
        let chain = next_chain(self.chain, &payload);
        let mut frame = Vec::with_capacity(payload.len() + FRAME_HEAD_BYTES + CHAIN_BYTES);
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&length_check(self.chain, length));
        frame.extend_from_slice(&payload);
        frame.extend_from_slice(&chain.0);
        if let Err(error) = self.disk.append(&frame) {
            self.take_back()?;
            self.full = is_full(&error);
            return Err(self.failed(error));
        }
        if let Err(error) = self.disk.sync() {
            // The system may have dropped the pages: a second fsync would lie.
            return Err(self.break_down(&error));
        }
        self.length = self.length.saturating_add(frame.len() as u64);
        self.records = self.records.saturating_add(1);
        self.chain = chain;
        Ok(())
    }

    /// Whether anything can be appended. A journal that was full tries it with zeros first, which nobody could take
    /// for a record.
    ///
    /// # Errors
    /// [`AppendError`].
    pub fn check_room(&mut self) -> Result<(), AppendError> {
        if let Some(why) = &self.broken {
            return Err(AppendError::Broken(why.clone()));
        }
        if self.full {
            let tried = self.disk.append(&[0; ROOM_BYTES]);
            self.take_back()?;
            if let Err(error) = tried {
                return Err(self.failed(error));
            }
            self.full = false;
        }
        Ok(())
    }

    /// Durable records.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    fn failed(&self, error: io::Error) -> AppendError {
        if is_full(&error) { AppendError::Full(error) } else { AppendError::Failed(error) }
    }

    /// Removes what a failed write left.
    fn take_back(&mut self) -> Result<(), AppendError> {
        self.disk.truncate(self.length).map_err(|error| self.break_down(&error))
    }

    fn break_down(&mut self, error: &io::Error) -> AppendError {
        self.broken = Some(error.to_string());
        AppendError::Broken(error.to_string())
    }
}

fn make_head(file: &mut File, path: &Path, owner: Digest) -> Result<(), OpenError> {
    let unusable = |source| OpenError::Unusable { path: path.to_owned(), source };
    let mut found = Vec::new();
    file.read_to_end(&mut found).map_err(unusable)?;
    let head = head(owner);
    if !head.starts_with(&found) && found.iter().any(|byte| *byte != 0) {
        let what = "it is no journal, and it is not empty".to_owned();
        return Err(OpenError::Foreign { path: path.to_owned(), what });
    }
    file.set_len(0).map_err(unusable)?;
    file.write_all(&head).and_then(|()| file.sync_all()).map_err(unusable)?;
    path.parent().map_or(Ok(()), sync_folder).map_err(unusable)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
