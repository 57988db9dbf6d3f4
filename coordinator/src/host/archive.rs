//! Archives finished rounds: each moves from memory into a blob, and requests read it from there.
//!
//! As every blob, it is durable before the journal references it, and it is never deleted. So after
//! a crash at any point the round is in the state or in its blob, and replay leads to the same
//! state.

use std::io;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use florin_protocol::{Digest, RoundNumber, TaskId};

use super::EngineSender;
use super::retry_queue::{RetryQueue, RetryReason};
use super::valuer::classify_reply;
use florin_engine::Event;
use florin_engine::state::ReportedRound;
use florin_store::{BlobError, BlobStore};

/// Version of an archived round's encoding. Increment it whenever [`ReportedRound`] gets other fields: blobs
/// of every earlier version must stay readable.
pub const ARCHIVE_VERSION: u32 = 1;

/// One round to archive.
#[derive(Clone, Debug)]
pub struct ArchiveJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The finished round.
    pub reported_round: Box<ReportedRound>,
}

/// The archive thread.
pub(super) fn run(jobs: Receiver<ArchiveJob>, blobs: &Arc<BlobStore>, mailbox: &EngineSender) {
    let mut jobs = RetryQueue::new(jobs);
    while let Some(job) = jobs.next() {
        let (task, round) = (job.job.task, job.job.round);
        let stored = to_bytes(&job.job.reported_round)
            .and_then(|bytes| blobs.put(&bytes))
            .map_err(RetryReason::from);
        let recorded = stored.and_then(|digest| {
            classify_reply(mailbox.write(Event::RoundArchived { task, round, digest }).map(|_| ()))
        });
        if let Err(why) = recorded {
            // The round stays in memory until a retry succeeds; no other work waits for it.
            tracing::warn!(%task, %round, reason = %why, "the round cannot be archived yet: will retry");
            jobs.retry(job, &why);
        }
    }
}

/// Encodes a round as its blob's bytes.
///
/// # Errors
/// [`BlobError::Failed`] if the encoding fails.
pub fn to_bytes(past: &ReportedRound) -> Result<Vec<u8>, BlobError> {
    let mut bytes = ARCHIVE_VERSION.to_le_bytes().to_vec();
    borsh::to_writer(&mut bytes, past)?;
    Ok(bytes)
}

/// Reads an archived round from its blob.
///
/// # Errors
/// [`BlobError`]; [`BlobError::Failed`] for bytes that do not decode as a round, or that a newer
/// program wrote.
pub fn read(blobs: &BlobStore, digest: Digest) -> Result<ReportedRound, BlobError> {
    let bytes = blobs.read(digest)?;
    from_bytes(&bytes).map_err(|why| {
        BlobError::Failed(io::Error::other(format!(
            "blob {digest} is not an archived round: {why}"
        )))
    })
}

/// Decodes the round in a blob's bytes.
///
/// # Errors
/// The reason as text.
pub fn from_bytes(bytes: &[u8]) -> Result<ReportedRound, String> {
    let (version, past) = bytes.split_first_chunk::<4>().ok_or("it is too short")?;
    let version = u32::from_le_bytes(*version);
    if version != ARCHIVE_VERSION {
        return Err(format!("version {version}; this program reads {ARCHIVE_VERSION}"));
    }
    borsh::from_slice(past).map_err(|error| error.to_string())
}
