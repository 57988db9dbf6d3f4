//! Snapshots: the state after a prefix of the journal, so that recovery need not replay all
//! records.
//!
//! ```text
//! "florin snapshot1" · owner (32) · records (8) · chain (32) · length (8) · state (length) · digest (32)
//! ```
//! A snapshot belongs to the beginning of a journal segment, and is named after the number of
//! records before it. It is written atomically: to a temporary file, then fsync, then rename. The
//! digest covers all bytes before it; a snapshot with a wrong digest is not used.

use std::io::{self, Read};

use florin_protocol::Digest;

use super::segment::Position;
use super::volume::{Volume, write_atomically};

const MAGIC: &[u8; 16] = b"florin snapshot1";
const PREFIX: &str = "snapshot-";
const UNFINISHED: &str = "snapshot.unfinished";
/// Magic, owner, records, chain and length.
const HEADER_BYTES: usize = 16 + 32 + 8 + 32 + 8;
const DIGEST_BYTES: usize = 32;
/// Largest state in a snapshot, in bytes (4 GiB). Recovery reads it into memory.
pub const STATE_BYTES_MAX: usize = 4 * 1024 * 1024 * 1024;
/// Number of snapshots that are retained. If the newest is damaged, recovery uses the previous one
/// and the journal since then.
pub const SNAPSHOTS_RETAINED: usize = 2;

/// A state and its journal position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The journal position of the state.
    pub at: Position,
    /// The encoded state.
    pub state: Vec<u8>,
}

/// The name of the snapshot after this number of records.
#[must_use]
pub fn name(records: u64) -> String {
    format!("{PREFIX}{records:020}")
}

/// The number of records in a snapshot's name. `None` unless the name has exactly the form of a
/// snapshot's name.
pub fn number(file: &str) -> Option<u64> {
    let records = file.strip_prefix(PREFIX)?.parse().ok()?;
    (file == name(records)).then_some(records)
}

/// The snapshots of a folder, newest first, identified by the number of records before them.
pub(super) fn list(volume: &dyn Volume) -> io::Result<Vec<u64>> {
    let names = volume.names()?;
    let mut found: Vec<u64> = names.iter().filter_map(|name| number(name)).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Writes a snapshot atomically and durably.
pub(super) fn write(volume: &dyn Volume, owner: Digest, snapshot: &Snapshot) -> io::Result<()> {
    let state = &snapshot.state;
    if state.len() > STATE_BYTES_MAX {
        let what = format!("a state of {} bytes: the limit is {STATE_BYTES_MAX}", state.len());
        return Err(io::Error::other(what));
    }
    let mut head = Vec::with_capacity(HEADER_BYTES);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&owner.0);
    head.extend_from_slice(&snapshot.at.records.to_le_bytes());
    head.extend_from_slice(&snapshot.at.chain.0);
    head.extend_from_slice(&(state.len() as u64).to_le_bytes());
    let digest = digest(&head, state).0;
    write_atomically(volume, UNFINISHED, &name(snapshot.at.records), &[&head, state, &digest])
}

/// Removes the temporary file of an interrupted write.
pub(super) fn remove_unfinished(volume: &dyn Volume) -> io::Result<()> {
    volume.remove(UNFINISHED)
}

/// Reads the snapshot after this number of records and verifies its owner and digest.
///
/// # Errors
/// The reason why it is unusable.
pub(super) fn read(volume: &dyn Volume, owner: Digest, records: u64) -> Result<Snapshot, String> {
    let name = name(records);
    let (file, size) = volume.open(&name).map_err(|error| format!("{name}: {error}"))?;
    let most = (HEADER_BYTES + STATE_BYTES_MAX + DIGEST_BYTES) as u64;
    if size > most {
        return Err(format!("{name}: it has {size} bytes; a snapshot has at most {most}"));
    }
    let read = read_from(file, size, owner, records).map_err(|error| format!("{name}: {error}"))?;
    read.ok_or_else(|| format!("{name}: its bytes are damaged"))
}

/// Reads the state directly into its final buffer, because it may be almost as large as the memory.
fn read_from(
    mut file: impl Read,
    size: u64,
    owner: Digest,
    records: u64,
) -> io::Result<Option<Snapshot>> {
    let Some(length) = size.checked_sub((HEADER_BYTES + DIGEST_BYTES) as u64) else {
        return Ok(None);
    };
    let mut head = [0; HEADER_BYTES];
    file.read_exact(&mut head)?;
    let Some(chain) = decode_header(&head, owner, records, length) else { return Ok(None) };
    let mut state = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact(&mut state)?;
    let mut stored_digest = [0; DIGEST_BYTES];
    file.read_exact(&mut stored_digest)?;
    let whole = stored_digest == digest(&head, &state).0;
    Ok(whole.then_some(Snapshot { at: Position { records, chain }, state }))
}

/// The chain value in a header, if owner, number of records and state length match.
fn decode_header(head: &[u8], owner: Digest, records: u64, length: u64) -> Option<Digest> {
    let (magic, fields) = head.split_first_chunk::<16>()?;
    let (found_owner, fields) = fields.split_first_chunk::<32>()?;
    let (found_records, fields) = fields.split_first_chunk::<8>()?;
    let (chain, found_length) = fields.split_first_chunk::<32>()?;
    let ours = magic == MAGIC
        && *found_owner == owner.0
        && u64::from_le_bytes(*found_records) == records
        && found_length == length.to_le_bytes();
    ours.then_some(Digest(*chain))
}

fn digest(head: &[u8], state: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 snapshot");
    hasher.update(head);
    hasher.update(state);
    Digest(*hasher.finalize().as_bytes())
}

/// Removes older snapshots, durably, and retains the given number of them. Returns the number of
/// records before the oldest remaining one, once there are that many.
pub(super) fn prune(volume: &dyn Volume, retained: usize) -> io::Result<Option<u64>> {
    let found = list(volume)?;
    for old in found.iter().skip(retained) {
        volume.remove(&name(*old))?;
    }
    if found.len() > retained {
        // This precedes the removal of segments: a snapshot that reappeared after a power failure
        // would have no records after it.
        volume.sync()?;
    }
    Ok(retained.checked_sub(1).and_then(|last| found.get(last)).copied())
}
