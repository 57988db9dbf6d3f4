//! The file that names the journal's newest segment, so that a journal without its newest segment
//! is not mistaken for a shorter journal.
//!
//! The file contains a copy of that segment's header. It is replaced after the segment is durable,
//! so it can be one segment behind, but never ahead. A folder of an older version has no such file,
//! and gets one at its next segment.

use std::io::{self, Read};

use florin_protocol::Digest;

use super::error::{OpenError, header_damaged, unusable};
use super::segment::{HEADER_BYTES, Position, decode_header, encode_header};
use super::volume::{Volume, write_atomically};

/// The file's name.
pub const FILE: &str = "journal.newest";
const UNFINISHED: &str = "journal.newest.unfinished";

/// Records that the segment at this position exists and is the newest.
pub fn write(volume: &dyn Volume, owner: Digest, at: Position) -> io::Result<()> {
    write_atomically(volume, UNFINISHED, FILE, &[&encode_header(owner, at)])
}

/// The number of records before the newest segment that was ever created. `None` if the file does
/// not exist.
pub fn read(volume: &dyn Volume, owner: Digest) -> Result<Option<u64>, OpenError> {
    let failed = |source| unusable(volume, FILE, source);
    let file = match volume.open(FILE) {
        Ok((file, _)) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    file.take(HEADER_BYTES + 1).read_to_end(&mut found).map_err(failed)?;
    let header = decode_header(&found).ok_or_else(|| header_damaged(volume, FILE))?;
    if header.owner != owner {
        return Err(OpenError::OwnerMismatch {
            path: volume.path_of(FILE),
            what: "it belongs to another market or coordinator".to_owned(),
        });
    }
    Ok(Some(header.at.records))
}

/// Removes the temporary file of an interrupted write.
pub fn remove_unfinished(volume: &dyn Volume) -> io::Result<()> {
    volume.remove(UNFINISHED)
}
