//! Which segment of the journal is appended to: a file beside them says it, so that a journal whose newest segment is
//! gone is not taken for a shorter one.
//!
//! It holds the head of that segment, byte by byte, and is replaced after the segment is durable. So it may be one
//! segment behind, never ahead. A folder from before there was such a file has none, and gets one at its next cut.

use std::io::{self, Read};

use florin_protocol::Digest;

use super::frames::{HEAD_BYTES, Position, beginning, head};
use super::history::unusable;
use super::journal::OpenError;
use super::volume::{Volume, write_whole};

/// Its name.
pub const FILE: &str = "journal.newest";
const UNFINISHED: &str = "journal.newest.unfinished";

/// Says that the segment which begins here is there, and is the newest.
pub fn write(volume: &dyn Volume, owner: Digest, at: Position) -> io::Result<()> {
    write_whole(volume, UNFINISHED, FILE, &[&head(owner, at)])
}

/// The number of records before the newest segment that was ever begun, as far as it is known.
pub fn read(volume: &dyn Volume, owner: Digest) -> Result<Option<u64>, OpenError> {
    let failed = |source| unusable(volume, FILE, source);
    let file = match volume.open(FILE) {
        Ok((file, _)) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    file.take(HEAD_BYTES + 1).read_to_end(&mut found).map_err(failed)?;
    let at = beginning(owner, &found).ok_or_else(|| OpenError::Foreign {
        path: volume.place(FILE),
        what: "its 128 bytes are damaged, or of another market or coordinator".to_owned(),
    })?;
    Ok(Some(at.records))
}

/// Removes what an interrupted write left.
pub fn remove_unfinished(volume: &dyn Volume) -> io::Result<()> {
    volume.remove(UNFINISHED)
}
