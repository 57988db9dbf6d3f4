//! The journal: append-only files, its segments, in which every record is chained to the one before.
//!
//! What a crash can leave is a last record that was never finished: it was never answered for either, and is cut off
//! when the [history](super::history) is opened. Anything else that does not add up is damage, and nothing is done with a
//! damaged journal.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Digest, Tick};

use super::frames::{LAYOUT, Layout, Position};
use super::history::{self, End, Fold};
use super::volume::{Disk, Volume};
use super::{is_full, newest};
use florin_engine::Event;

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
    /// Records are not there that must have been.
    #[error(
        "journal in {path}: the records behind number {records} are not there, or are others: {what}. Nothing was \
         changed; restore the folder from a backup [JOURNAL_MISSING]"
    )]
    Missing {
        /// Which folder.
        path: PathBuf,
        /// What there is before them.
        records: u64,
        /// How it is known.
        what: String,
    },
    /// The first records are not kept, and no snapshot can be used in their place.
    #[error(
        "journal in {path}: its first records are not kept, and no snapshot stands in their place: {why}. Nothing was \
         changed; restore the folder from a backup, or start the version that wrote it [SNAPSHOT_UNUSABLE]"
    )]
    NoSnapshot {
        /// Which folder.
        path: PathBuf,
        /// What is wrong with the snapshots.
        why: String,
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

/// What was written, or read, since the newest snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// Records.
    pub records: u64,
    /// The events in them.
    pub events: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Since {
    pub(super) fn add(&mut self, events: usize, bytes: u64) {
        self.records = self.records.saturating_add(1);
        self.events = self.events.saturating_add(u64::try_from(events).unwrap_or(u64::MAX));
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The journal, open for writing.
pub struct Journal {
    volume: Arc<dyn Volume>,
    /// The segment that is appended to, by the number of records before it.
    segment: u64,
    layout: Layout,
    disk: Box<dyn Disk>,
    /// Durable bytes of the segment: a whole number of records.
    length: u64,
    at: Position,
    since: Since,
    owner: Digest,
    broken: Option<String>,
    /// The last write found no room.
    full: bool,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = self.volume.place(&history::segment(self.segment));
        write!(f, "Journal({}, {} records, {:?})", place.display(), self.at.records, self.since)
    }
}

impl Journal {
    /// A journal that was read to its end.
    pub(super) fn at(
        volume: Arc<dyn Volume>,
        owner: Digest,
        disk: Box<dyn Disk>,
        end: &End,
    ) -> Self {
        Self {
            volume,
            segment: end.segment,
            layout: end.layout,
            disk,
            length: end.length,
            at: end.at,
            since: end.read,
            owner,
            broken: None,
            full: false,
        }
    }

    /// Reads back what is durable, for an engine that must forget what was not.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn read_back<S>(&self, fold: &Fold<'_, S>) -> Result<S, OpenError> {
        let until = Some((self.segment, self.length));
        let read = history::read_back(self.volume.as_ref(), self.owner, fold, until)?;
        Ok(read.state)
    }

    /// Begins a new segment here, if the newest has records. The segments before it do not change any more.
    ///
    /// # Errors
    /// [`AppendError`]; after [`AppendError::Full`] and [`AppendError::Failed`] the journal goes on as before.
    pub fn cut(&mut self) -> Result<Position, AppendError> {
        self.check_room()?;
        if self.at.records == self.segment {
            return Ok(self.at);
        }
        match history::begin_segment(self.volume.as_ref(), self.owner, self.at) {
            Ok(disk) => {
                (self.disk, self.segment) = (disk, self.at.records);
                (self.layout, self.length) = (LAYOUT, LAYOUT.head_bytes);
                if let Err(error) = newest::write(self.volume.as_ref(), self.owner, self.at) {
                    // The segment is there. Were it lost, that would go unnoticed until the next cut.
                    tracing::warn!(%error, "which segment is the newest could not be written down");
                }
                Ok(self.at)
            }
            Err(error) => {
                // Nothing may be appended to the old segment while the new one could come back.
                let name = history::segment(self.at.records);
                let gone = self.volume.remove(&name).and_then(|()| self.volume.sync());
                gone.map_err(|error| self.break_down(&error))?;
                Err(self.failed(error))
            }
        }
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
        let (frame, behind) = self.layout.frame(self.at, length, &payload);
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
        self.at = behind;
        self.since.add(batch.len(), frame.len() as u64);
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
        self.at.records
    }

    /// Counts anew: a snapshot is made here.
    pub const fn count_anew(&mut self) {
        self.since = Since { records: 0, events: 0, bytes: 0 };
    }

    /// What was appended since the newest snapshot, or the last try to make one.
    #[must_use]
    pub const fn since(&self) -> Since {
        self.since
    }

    /// What it belongs to.
    #[must_use]
    pub const fn owner(&self) -> Digest {
        self.owner
    }

    fn failed(&self, error: io::Error) -> AppendError {
        if is_full(&error) { AppendError::Full(error) } else { AppendError::Failed(error) }
    }

    /// Removes what a failed write left, for good: were it back after a power cut, it would stand beside or among what is
    /// written next, and no reader could tell such a mixture from damage.
    fn take_back(&mut self) -> Result<(), AppendError> {
        let gone = self.disk.truncate(self.length).and_then(|()| self.disk.sync());
        gone.map_err(|error| self.break_down(&error))
    }

    fn break_down(&mut self, error: &io::Error) -> AppendError {
        self.broken = Some(error.to_string());
        AppendError::Broken(error.to_string())
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
pub(super) mod tests;
