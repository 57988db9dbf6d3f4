//! Rounds that are over leave the memory: each becomes a blob, and is read from there when somebody asks for it.
//!
//! The blob is durable before the journal says where it is, as with every blob, and it is not deleted. So a crash at any
//! moment finds the round in the state or in its blob, and a replayed journal comes to the same state.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use florin_protocol::{Digest, Round, TaskId};

use super::Mailbox;
use super::delayed::{Again, Delayed};
use super::valuer::told;
use florin_engine::Event;
use florin_engine::state::Past;
use florin_store::{BlobError, Blobs};

/// The form of a round's bytes. Grows whenever [`Past`] gets other fields: blobs of every version there was stay readable.
pub const PAST_VERSION: u32 = 1;

/// One round to be kept.
#[derive(Clone, Debug)]
pub struct KeepJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: Round,
    /// What there is of it.
    pub past: Box<Past>,
}

/// The thread that keeps rounds.
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
            // Until then it stays in memory; nothing else waits for it.
            tracing::warn!(%task, %round, %why, "a round that is over cannot be kept as a blob yet");
            jobs.again(job, &why);
        }
    }
}

/// A round as its blob holds it.
///
/// # Errors
/// [`BlobError::Failed`] if it has no bytes.
pub fn to_bytes(past: &Past) -> Result<Vec<u8>, BlobError> {
    let mut bytes = PAST_VERSION.to_le_bytes().to_vec();
    borsh::to_writer(&mut bytes, past)?;
    Ok(bytes)
}

/// Reads a round back.
///
/// # Errors
/// [`BlobError`]; [`BlobError::Failed`] for bytes that are no round, or those of a newer program.
pub fn read(blobs: &Blobs, digest: Digest) -> Result<Past, BlobError> {
    let bytes = blobs.read(digest)?;
    from_bytes(&bytes).map_err(|why| {
        BlobError::Failed(io::Error::other(format!("blob {digest} is no round: {why}")))
    })
}

/// The round that a blob's bytes hold.
///
/// # Errors
/// In words, why they hold none.
pub fn from_bytes(bytes: &[u8]) -> Result<Past, String> {
    let (version, past) = bytes.split_first_chunk::<4>().ok_or("it is too short")?;
    let version = u32::from_le_bytes(*version);
    if version != PAST_VERSION {
        return Err(format!("version {version}, this program reads {PAST_VERSION}"));
    }
    borsh::from_slice(past).map_err(|error| error.to_string())
}
