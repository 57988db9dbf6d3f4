//! The write-ahead journal: append-only segment files with chained records.
//!
//! A crash can leave a torn last record. It was never acknowledged, and recovery truncates it when
//! the [history](super::history) is opened. Any other inconsistency is damage: a damaged journal is
//! neither read nor changed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Digest, Timestamp};

use super::recovery::{self, Fold, ReplayEnd};
use super::segment::{LAYOUT, Layout, Position};
use super::volume::{AppendFile, Volume};
use super::{is_full, newest_segment};
use florin_engine::Event;

/// Largest payload of one record, in bytes.
pub const RECORD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Free space that is required before a full journal accepts records again, in bytes.
const ROOM_BYTES: usize = 64 * 1024;

/// A journal entry: one event and its timestamp. A record of the journal contains a batch of
/// entries.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct JournalEntry {
    /// When the event was applied.
    pub now: Timestamp,
    /// The event.
    pub event: Event,
}

/// Why a journal cannot be opened. The journal is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read or created.
    #[error("journal {path}: {source} [JOURNAL_UNUSABLE]")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A coordinator of another market wrote it.
    #[error(
        "journal {path}: {what}; use another data folder, or the market and the wallet of this one \
         [JOURNAL_OWNER_MISMATCH]"
    )]
    OwnerMismatch {
        /// The file.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// A complete record has been damaged.
    #[error(
        "journal {path}: record {record} at byte {offset}: {what}. The journal is unchanged; \
         restore the file from a copy [JOURNAL_CORRUPT]"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The record's number; the first is 1.
        record: u64,
        /// The record's offset in the file.
        offset: u64,
        /// The inconsistency.
        what: String,
    },
    /// Records that existed are missing.
    #[error(
        "journal in {path}: the records after number {records} are missing or differ: {what}. The \
         folder is unchanged; restore the folder from a backup [JOURNAL_MISSING]"
    )]
    Missing {
        /// The folder.
        path: PathBuf,
        /// Number of records before the missing ones.
        records: u64,
        /// The evidence.
        what: String,
    },
    /// The first records were removed, and no snapshot is usable in their place.
    #[error(
        "journal in {path}: its first records were removed, and no snapshot is usable in their \
         place: {why}. The folder is unchanged; restore the folder from a backup, or start the \
         version that wrote it [SNAPSHOT_UNUSABLE]"
    )]
    NoSnapshot {
        /// The folder.
        path: PathBuf,
        /// Why the snapshots are not usable.
        why: String,
    },
}

/// Why a batch was not appended. None of its entries is in the journal.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The disk is full. The journal is unchanged.
    #[error("the disk is full: make room, then try again")]
    Full(#[source] io::Error),
    /// The write failed. The journal is unchanged.
    #[error("the journal cannot be written: {0}")]
    Failed(#[source] io::Error),
    /// A write could not be undone or made durable. The content of the disk is unknown until a
    /// restart.
    #[error("the journal failed and accepts no more records until a restart: {0}")]
    Broken(String),
}

/// The amount of journal written, or read, since the newest snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalGrowth {
    /// Number of records.
    pub records: u64,
    /// Number of events in them.
    pub events: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

impl JournalGrowth {
    pub(super) fn add(&mut self, events: usize, bytes: u64) {
        self.records = self.records.saturating_add(1);
        self.events = self.events.saturating_add(u64::try_from(events).unwrap_or(u64::MAX));
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The journal, open for appending.
pub struct Journal {
    volume: Arc<dyn Volume>,
    /// The segment that is appended to, identified by the number of records before it.
    segment: u64,
    layout: Layout,
    disk: Box<dyn AppendFile>,
    /// Durable bytes of the segment: a whole number of records.
    length: u64,
    at: Position,
    growth: JournalGrowth,
    owner: Digest,
    broken: Option<String>,
    /// The last write found the disk full.
    full: bool,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = self.volume.path_of(&recovery::segment_name(self.segment));
        write!(f, "Journal({}, {} records, {:?})", place.display(), self.at.records, self.growth)
    }
}

impl Journal {
    /// A journal that was replayed to its end.
    pub(super) fn from_replay(
        volume: Arc<dyn Volume>,
        owner: Digest,
        disk: Box<dyn AppendFile>,
        end: &ReplayEnd,
    ) -> Self {
        Self {
            volume,
            segment: end.segment,
            layout: end.layout,
            disk,
            length: end.length,
            at: end.at,
            growth: end.read,
            owner,
            broken: None,
            full: false,
        }
    }

    /// Replays the durable records, for an engine that must discard events that are not durable.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn replay_durable<S>(&self, fold: &Fold<'_, S>) -> Result<S, OpenError> {
        let until = Some((self.segment, self.length));
        let read = recovery::recover(self.volume.as_ref(), self.owner, fold, until)?;
        Ok(read.state)
    }

    /// Starts a new segment here, unless the newest segment is still empty. Earlier segments do not
    /// change any more.
    ///
    /// # Errors
    /// [`AppendError`]; after [`AppendError::Full`] and [`AppendError::Failed`] the journal is
    /// usable as before.
    pub fn rotate_segment(&mut self) -> Result<Position, AppendError> {
        self.check_room()?;
        if self.at.records == self.segment {
            return Ok(self.at);
        }
        match recovery::begin_segment(self.volume.as_ref(), self.owner, self.at) {
            Ok(disk) => {
                (self.disk, self.segment) = (disk, self.at.records);
                (self.layout, self.length) = (LAYOUT, LAYOUT.header_bytes);
                if let Err(error) = newest_segment::write(self.volume.as_ref(), self.owner, self.at)
                {
                    // The segment exists. If it were lost, the loss would be undetected until the
                    // next segment.
                    tracing::warn!(%error, "journal.newest could not be written");
                }
                Ok(self.at)
            }
            Err(error) => {
                // Nothing may be appended to the old segment while the new one could reappear after
                // a crash.
                let name = recovery::segment_name(self.at.records);
                let gone = self.volume.remove(&name).and_then(|()| self.volume.sync());
                gone.map_err(|error| self.mark_broken(&error))?;
                Err(self.failed(error))
            }
        }
    }

    /// Appends a batch as one record and makes it durable. The append is atomic.
    ///
    /// # Errors
    /// [`AppendError`].
    pub fn append(&mut self, batch: &[JournalEntry]) -> Result<(), AppendError> {
        self.check_room()?;
        let payload = borsh::to_vec(batch).map_err(AppendError::Failed)?;
        let too_long = || io::Error::other("a record of more than 256 MiB");
        if payload.len() > RECORD_BYTES_MAX {
            return Err(AppendError::Failed(too_long()));
        }
        let length = u32::try_from(payload.len()).map_err(|_| AppendError::Failed(too_long()))?;
        let (frame, behind) = self.layout.encode_record(self.at, length, &payload);
        if let Err(error) = self.disk.append(&frame) {
            self.discard_failed_write()?;
            self.full = is_full(&error);
            return Err(self.failed(error));
        }
        if let Err(error) = self.disk.sync() {
            // The system may have dropped the dirty pages: a second fsync would report success
            // without writing them.
            return Err(self.mark_broken(&error));
        }
        self.length = self.length.saturating_add(frame.len() as u64);
        self.at = behind;
        self.growth.add(batch.len(), frame.len() as u64);
        Ok(())
    }

    /// Checks that records can be appended. A journal that was full first tries to append zeros,
    /// which recovery never mistakes for a record.
    ///
    /// # Errors
    /// [`AppendError`].
    pub fn check_room(&mut self) -> Result<(), AppendError> {
        if let Some(why) = &self.broken {
            return Err(AppendError::Broken(why.clone()));
        }
        if self.full {
            let tried = self.disk.append(&[0; ROOM_BYTES]);
            self.discard_failed_write()?;
            if let Err(error) = tried {
                return Err(self.failed(error));
            }
            self.full = false;
        }
        Ok(())
    }

    /// Number of durable records.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.at.records
    }

    /// Resets the counters, because a snapshot is written here.
    pub const fn reset_growth(&mut self) {
        self.growth = JournalGrowth { records: 0, events: 0, bytes: 0 };
    }

    /// The amount of journal appended since the newest snapshot, or since the last attempt to write
    /// one.
    #[must_use]
    pub const fn growth(&self) -> JournalGrowth {
        self.growth
    }

    /// The owner: a hash of market and coordinator.
    #[must_use]
    pub const fn owner(&self) -> Digest {
        self.owner
    }

    fn failed(&self, error: io::Error) -> AppendError {
        if is_full(&error) { AppendError::Full(error) } else { AppendError::Failed(error) }
    }

    /// Removes the bytes of a failed write, durably. If they reappeared after a power failure, they
    /// would be next to or mixed with the next record, and recovery could not distinguish that from
    /// damage.
    fn discard_failed_write(&mut self) -> Result<(), AppendError> {
        let gone = self.disk.truncate(self.length).and_then(|()| self.disk.sync());
        gone.map_err(|error| self.mark_broken(&error))
    }

    fn mark_broken(&mut self, error: &io::Error) -> AppendError {
        self.broken = Some(error.to_string());
        AppendError::Broken(error.to_string())
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
pub(super) mod tests;
