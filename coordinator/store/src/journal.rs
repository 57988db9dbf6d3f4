//! The write-ahead journal: append-only segment files with chained records.
//!
//! A crash can leave a torn last record. It was never acknowledged, and recovery truncates it when
//! the [history](super::history) is opened. Any other inconsistency is damage: a damaged journal is
//! neither read nor changed.

use std::io;
use std::sync::Arc;

use florin_protocol::Digest;

use super::error::{AppendError, OpenError, missing, unusable};
use super::recovery::{self, Fold, JournalGrowth, ReplayEnd, SegmentOffset};
use super::segment::{
    self, FIRST_SEGMENT, JournalEntry, LAYOUT, Layout, Position, RECORD_BYTES_MAX, encode_header,
    has_no_header, segment_name, segments,
};
use super::volume::{AppendFile, Volume, rewrite_range};
use super::{IDENTITY_FILE, is_full, newest_segment, snapshot};

/// Free space that is required before a full journal accepts records again, in bytes.
const ROOM_BYTES: usize = 64 * 1024;

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
        let place = self.volume.path_of(&segment_name(self.segment));
        write!(f, "Journal({}, {} records, {:?})", place.display(), self.at.records, self.growth)
    }
}

impl Journal {
    /// A journal that was replayed to its end.
    fn from_replay(
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
        let until = Some(SegmentOffset { segment: self.segment, length: self.length });
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
        match segment::begin_segment(self.volume.as_ref(), self.owner, self.at) {
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
                let name = segment_name(self.at.records);
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

/// Opens the journal and recovers the state. Creates the journal in a new folder, and truncates a
/// torn last record.
///
/// # Errors
/// [`OpenError`].
pub fn open<S>(
    volume: &Arc<dyn Volume>,
    owner: Digest,
    fold: &Fold<'_, S>,
) -> Result<(S, Journal), OpenError> {
    let volume_ref = volume.as_ref();
    prepare_segments(volume_ref, owner)?;
    let (state, end, from) = recovery::read(volume_ref, owner, fold, None)?;
    for why in &from.unused {
        tracing::error!(why, "a snapshot is unusable; recovery uses an older one and more records");
    }
    let name = segment_name(end.segment);
    let failed = |source| unusable(volume_ref, &name, source);
    let mut disk = volume.append_to(&name).map_err(failed)?;
    if end.length < end.size {
        tracing::warn!(
            journal = %volume.path_of(&name).display(), record = end.at.records.saturating_add(1),
            offset = end.length, "truncated a torn last record: {} bytes",
            end.size.saturating_sub(end.length)
        );
        disk.truncate(end.length).map_err(failed)?;
    }
    // A killed process may have written the last record without a successful fsync. The record is
    // part of the history from now on. If its fsync failed, the system considers its pages clean
    // although they are not on disk, so it is rewritten.
    rewrite_range(volume_ref, &name, end.last_record_offset, end.length).map_err(failed)?;
    disk.sync().and_then(|()| volume.sync()).map_err(failed)?;
    Ok((state, Journal::from_replay(Arc::clone(volume), owner, disk, &end)))
}

/// Creates the first segment, and removes files of interrupted writes.
fn prepare_segments(volume: &dyn Volume, owner: Digest) -> Result<(), OpenError> {
    let failed = |source| unusable(volume, "", source);
    snapshot::remove_unfinished(volume).map_err(failed)?;
    newest_segment::remove_unfinished(volume).map_err(failed)?;
    let found = segments(volume)?;
    let whole = recovery::complete_segments(volume)?;
    if let Some(headless) = found.last().filter(|last| whole.last() != Some(last)) {
        if newest_segment::read(volume, owner)?.is_some_and(|newest| newest >= *headless) {
            let what = format!(
                "the header of {} was complete once, and is damaged now",
                segment_name(*headless)
            );
            return Err(missing(volume, *headless, &what));
        }
        volume.remove(&segment_name(*headless)).and_then(|()| volume.sync()).map_err(failed)?;
    }
    let make = match whole.as_slice() {
        [] => snapshot::list(volume).map_err(failed)?.is_empty(),
        [0] => has_no_header(volume, FIRST_SEGMENT).map_err(failed)?,
        _ => false,
    };
    if make {
        let names = volume.names().map_err(failed)?;
        if let Some(used) =
            names.iter().find(|name| [IDENTITY_FILE, newest_segment::FILE].contains(&name.as_str()))
        {
            let what =
                format!("{used} exists, so the folder was used before, but its journal is missing");
            return Err(missing(volume, 0, &what));
        }
        let mut disk = volume.append_to(FIRST_SEGMENT).map_err(failed)?;
        let head = encode_header(owner, Position::first(owner));
        let made = disk.truncate(0).and_then(|()| disk.append(&head)).and_then(|()| disk.sync());
        made.and_then(|()| volume.sync()).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "journal_tests.rs"]
pub(super) mod tests;
