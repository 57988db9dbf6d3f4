//! Archives finished rounds: each moves from memory into a blob, and requests read it from there.
//!
//! As every blob, it is durable before the journal references it, and it is never deleted. So after
//! a crash at any point the round is in the state or in its blob, and replay leads to the same
//! state.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use florin_protocol::{Digest, RoundNumber, TaskId};

use super::Mailbox;
use super::delayed::{Again, Delayed};
use super::valuer::told;
use florin_engine::Event;
use florin_engine::state::Past;
use florin_store::{BlobError, Blobs};

/// Version of an archived round's encoding. Increment it whenever [`Past`] gets other fields: blobs
/// of every earlier version must stay readable.
pub const PAST_VERSION: u32 = 1;

/// One round to archive.
#[derive(Clone, Debug)]
pub struct KeepJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The finished round.
    pub past: Box<Past>,
}

/// The archive thread.
pub(super) fn work(jobs: Receiver<KeepJob>, blobs: &Arc<Blobs>, mailbox: &Mailbox) {
    let mut jobs = Delayed::new(jobs);
    while let Some(job) = jobs.next() {
        let (task, round) = (job.what.task, job.what.round);
        let kept =
            to_bytes(&job.what.past).and_then(|bytes| blobs.put(&bytes)).map_err(Again::from);
        let kept = kept.and_then(|digest| {
            told(mailbox.write(Event::Kept { task, round, digest }).map(|_| ()))
        });
        if let Err(why) = kept {
            // The round stays in memory until a retry succeeds; no other work waits for it.
            tracing::warn!(%task, %round, %why, "the round cannot be archived yet: will retry");
            jobs.again(job, &why);
        }
    }
}

/// Encodes a round as its blob's bytes.
///
/// # Errors
/// [`BlobError::Failed`] if the encoding fails.
pub fn to_bytes(past: &Past) -> Result<Vec<u8>, BlobError> {
    let mut bytes = PAST_VERSION.to_le_bytes().to_vec();
    borsh::to_writer(&mut bytes, past)?;
    Ok(bytes)
}

/// Reads an archived round from its blob.
///
/// # Errors
/// [`BlobError`]; [`BlobError::Failed`] for bytes that do not decode as a round, or that a newer
/// program wrote.
pub fn read(blobs: &Blobs, digest: Digest) -> Result<Past, BlobError> {
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
pub fn from_bytes(bytes: &[u8]) -> Result<Past, String> {
    let (version, past) = bytes.split_first_chunk::<4>().ok_or("it is too short")?;
    let version = u32::from_le_bytes(*version);
    if version != PAST_VERSION {
        return Err(format!("version {version}; this program reads {PAST_VERSION}"));
    }
    borsh::from_slice(past).map_err(|error| error.to_string())
}
