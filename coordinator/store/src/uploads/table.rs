//! The table of resumable uploads and their space. It does only arithmetic; the caller handles the
//! files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::UploadError;
use super::key::UploadKey;
use super::lease::UploadLease;

/// Most uploads in the table, interrupted ones included.
pub const UPLOADS_MAX: usize = 4_096;
/// Grace period in which an interrupted upload is not evicted: its sender may be about to resume
/// it.
pub const EVICTION_GRACE: Duration = Duration::from_secs(60);

/// Space limits of resumable uploads, in bytes. An active upload uses its full size from the start,
/// an interrupted one the bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For all uploads.
    pub all: u64,
    /// For the uploads of one task.
    pub task: u64,
    /// For the uploads of one sender.
    pub sender: u64,
    /// Space that stays free on the disk.
    pub free: u64,
}

/// A quota that an upload can exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// The quota of one sender.
    Sender,
    /// The quota of one task.
    Task,
    /// The quota of all senders together.
    All,
}

impl std::fmt::Display for Quota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sender => "one sender",
            Self::Task => "one task",
            Self::All => "all senders together",
        })
    }
}

/// An upload in the table.
#[derive(Debug)]
pub(super) enum UploadEntry {
    /// An active upload.
    Active { lease: Arc<UploadLease>, reserved: u64 },
    /// An interrupted upload.
    Interrupted { bytes: u64, hasher: Option<Box<blake3::Hasher>>, since: SystemTime },
}

impl UploadEntry {
    pub(super) fn used_bytes(&self) -> u64 {
        match self {
            Self::Active { reserved, .. } => *reserved,
            Self::Interrupted { bytes, .. } => *bytes,
        }
    }

    /// Bytes that are reserved but not written yet.
    fn pending_bytes(&self) -> u64 {
        match self {
            Self::Active { lease: turn, reserved } => reserved.saturating_sub(turn.written()),
            Self::Interrupted { .. } => 0,
        }
    }
}

/// All resumable uploads.
#[derive(Debug, Default)]
pub(super) struct UploadTable(pub(super) BTreeMap<UploadKey, UploadEntry>);

impl UploadTable {
    /// The uploads to evict, so that an upload of `bytes` bytes fits in place of the one with this
    /// key.
    pub(super) fn make_room(
        &self,
        key: &UploadKey,
        bytes: u64,
        limits: &Limits,
        free: u64,
        now: SystemTime,
    ) -> Result<Vec<UploadKey>, UploadError> {
        let mut gone = Vec::new();
        let quotas =
            [(Quota::Sender, limits.sender), (Quota::Task, limits.task), (Quota::All, limits.all)];
        for (quota, limit) in quotas {
            let counts = |other: &UploadKey| match quota {
                Quota::Sender => other.sender().is_some() && other.sender() == key.sender(),
                Quota::Task => other.task == key.task,
                Quota::All => true,
            };
            let others = self.0.iter().filter(|(other, _)| *other != key && counts(other));
            let held = others.filter(|(other, _)| !gone.contains(*other));
            let held: u64 = held.fold(0, |sum, (_, entry)| sum.saturating_add(entry.used_bytes()));
            let over = held.saturating_add(bytes).saturating_sub(limit);
            let applies = quota != Quota::Sender || key.sender().is_some();
            if applies && !self.give_up(over, &mut gone, now, |other| other != key && counts(other))
            {
                return Err(UploadError::QuotaExceeded { quota, limit, used: held, bytes });
            }
        }
        let coming: u64 = self.0.iter().fold(0, |sum, (other, entry)| {
            if other == key { sum } else { sum.saturating_add(entry.pending_bytes()) }
        });
        let needed = coming.saturating_add(bytes).saturating_add(limits.free);
        let freed = gone.iter().filter_map(|key| self.0.get(key));
        let freed: u64 = freed.fold(0, |sum, entry| sum.saturating_add(entry.used_bytes()));
        let over = needed.saturating_sub(free.saturating_add(freed));
        if !self.give_up(over, &mut gone, now, |other| other != key) {
            return Err(UploadError::InsufficientSpace {
                bytes,
                free,
                pending: coming,
                reserved: limits.free,
            });
        }
        Ok(gone)
    }

    /// Adds to `gone` the uploads that have been interrupted longest, until they use at least
    /// `over` bytes. Returns whether they do.
    fn give_up(
        &self,
        over: u64,
        gone: &mut Vec<UploadKey>,
        now: SystemTime,
        may_go: impl Fn(&UploadKey) -> bool,
    ) -> bool {
        let mut waiting: Vec<(SystemTime, &UploadKey, u64)> = self
            .0
            .iter()
            .filter(|(key, _)| may_go(key) && !gone.contains(*key))
            .filter_map(|(key, entry)| match entry {
                UploadEntry::Interrupted { bytes, since, .. }
                    if is_older(*since, EVICTION_GRACE, now) =>
                {
                    Some((*since, key, *bytes))
                }
                _ => None,
            })
            .collect();
        waiting.sort_unstable();
        let mut left = over;
        for (_, key, bytes) in waiting {
            if left == 0 {
                break;
            }
            gone.push(*key);
            left = left.saturating_sub(bytes);
        }
        left == 0
    }

    /// The interrupted uploads that are too old or that `wanted` rejects.
    pub(super) fn outdated(
        &self,
        now: SystemTime,
        age_max: Duration,
        wanted: impl Fn(&UploadKey) -> bool,
    ) -> Vec<UploadKey> {
        let left = self.0.iter().filter_map(|(key, entry)| match entry {
            UploadEntry::Interrupted { since, .. } => Some((key, *since)),
            UploadEntry::Active { .. } => None,
        });
        left.filter(|(key, since)| is_older(*since, age_max, now) || !wanted(key))
            .map(|(key, _)| *key)
            .collect()
    }
}

/// Whether more than `age` has passed. A clock that was set back makes nothing older.
fn is_older(since: SystemTime, age: Duration, now: SystemTime) -> bool {
    now.duration_since(since).is_ok_and(|been| been > age)
}
