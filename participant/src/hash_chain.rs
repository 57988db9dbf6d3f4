//! A hash-chained append-only log: each record authenticates all records before it.
//!
//! Each record is `length (u32 LE) ‖ length checksum (8 bytes) ‖ payload ‖ link (32 bytes)`. A link
//! is BLAKE3 in key-derivation mode over the previous link and the payload. A length checksum is a
//! prefix of the same hash over the previous link and the length, so a corrupted length is detected
//! as damage and not mistaken for the end of the file. The file starts with an initial link over
//! its context string.
//!
//! A write that a crash interrupted was never acknowledged: opening the file truncates such a torn
//! tail. Any other inconsistency is damage, and the file is refused. The log cannot detect that
//! whole records are missing at its end, for example after restoring an old backup.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::atomic_file::{self, FileError};
use crate::locked_file::{LockError, LockedFile};

/// Longest record, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest file, in bytes: a million rounds.
pub(crate) const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
const LENGTH_BYTES: usize = 4;
const LENGTH_CHECKSUM_BYTES: usize = 8;
const HEADER_BYTES: usize = LENGTH_BYTES + LENGTH_CHECKSUM_BYTES;
const LINK_BYTES: usize = 32;

type Link = [u8; LINK_BYTES];

/// Errors of the log.
#[derive(Debug, thiserror::Error)]
pub enum HashChainError {
    /// Another process has the file open, or it cannot be opened.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The records are inconsistent.
    #[error(
        "{path} is damaged at byte {at}: {what}. It records what was signed, so nothing is \
         signed without it: restore it from a backup, or use a new wallet",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset in bytes.
        at: u64,
        /// The reason.
        what: String,
    },
    /// An earlier write failed, so the content on disk is unknown.
    #[error("an earlier write to {path} failed: open it again", path = path.display())]
    Failed {
        /// The file.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl HashChainError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Lock(error) => error.code(),
            Self::Damaged { .. } => "GUARD_CORRUPT",
            Self::Failed { .. } => "FILE_ERROR",
            Self::File(error) => error.code(),
        }
    }
}

/// The log, open and locked against other processes.
#[derive(Debug)]
pub(crate) struct HashChainLog {
    path: PathBuf,
    file: LockedFile,
    context: &'static str,
    link: Link,
    write_failed: bool,
}

impl HashChainLog {
    /// Opens or creates the file, and returns its records in order. `context` names the content; a
    /// file with another context is refused.
    pub(crate) fn open(
        path: &Path,
        context: &'static str,
    ) -> Result<(Self, Vec<Vec<u8>>), HashChainError> {
        let failed = |what| move |source| FileError::new(what, path, source);
        let mut file = LockedFile::open(path)?;
        let damaged = |(at, what): (usize, String)| HashChainError::Damaged {
            path: path.to_owned(),
            at: at as u64,
            what,
        };
        let length = file.metadata().map_err(failed("read"))?.len();
        if length > FILE_BYTES_MAX {
            return Err(damaged((
                0,
                format!("it has {length} bytes: the limit is {FILE_BYTES_MAX}"),
            )));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed("read"))?;
        let read = parse_records(&bytes, context).map_err(damaged)?;
        if read.end < bytes.len() {
            tracing::warn!(path = %path.display(), at = read.end, "truncated a torn record");
            file.set_len(read.end as u64).map_err(failed("write"))?;
        }
        file.seek(SeekFrom::End(0)).map_err(failed("read"))?;
        if read.end == 0 {
            file.write_all(&read.link).map_err(failed("write"))?;
        }
        file.sync_all().map_err(failed("write"))?;
        atomic_file::sync_parent(path).map_err(failed("write"))?;
        let path = path.to_owned();
        Ok((Self { path, file, context, link: read.link, write_failed: false }, read.records))
    }

    /// Reads the records of a file that another process may have open; none if it does not exist.
    pub(crate) fn read(path: &Path, context: &'static str) -> Result<Vec<Vec<u8>>, HashChainError> {
        let bytes = atomic_file::read_limited(path, FILE_BYTES_MAX)?.unwrap_or_default();
        match parse_records(&bytes, context) {
            Ok(read) => Ok(read.records),
            Err((at, what)) => {
                Err(HashChainError::Damaged { path: path.to_owned(), at: at as u64, what })
            }
        }
    }

    /// Appends a record. It is on disk when this returns.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), HashChainError> {
        // After a failed write or sync the content on disk is unknown until the file is read again.
        if self.write_failed {
            return Err(HashChainError::Failed { path: self.path.clone() });
        }
        let link = next_link(self.context, &self.link, payload);
        let bytes = encode_record(self.context, &self.link, payload, &link);
        self.write_failed = true;
        self.file
            .write_all(&bytes)
            .and_then(|()| self.file.sync_data())
            .map_err(|source| FileError::new("write", &self.path, source))?;
        self.write_failed = false;
        self.link = link;
        Ok(())
    }
}

struct Records {
    records: Vec<Vec<u8>>,
    link: Link,
    /// Offset of the next record.
    end: usize,
}

/// Parses all whole records. Bytes after [`Records::end`] are a torn tail.
fn parse_records(bytes: &[u8], context: &'static str) -> Result<Records, (usize, String)> {
    let first = first_link(context);
    let mut read = Records { records: Vec::new(), link: first, end: 0 };
    if bytes.len() < LINK_BYTES && (first.starts_with(bytes) || is_all_zeros(bytes)) {
        return Ok(read);
    }
    if !bytes.starts_with(&first) {
        return Err((0, format!("it is not a file of \"{context}\"")));
    }
    read.end = LINK_BYTES;
    loop {
        let rest = &bytes[read.end..];
        if rest.len() < HEADER_BYTES || is_all_zeros(rest) {
            return Ok(read);
        }
        let (head, body) = rest.split_at(HEADER_BYTES);
        let (length, check) = head.split_at(LENGTH_BYTES);
        if check != length_checksum(context, &read.link, length) {
            return Err((read.end, "the length of a record was changed".to_owned()));
        }
        let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if length > RECORD_BYTES_MAX {
            return Err((read.end, format!("a record of {length} bytes")));
        }
        if body.len() < length + LINK_BYTES {
            return Ok(read);
        }
        let (payload, link) = body[..length + LINK_BYTES].split_at(length);
        let expected = next_link(context, &read.link, payload);
        if link != expected {
            return Err((read.end, "a record was changed".to_owned()));
        }
        read.records.push(payload.to_vec());
        read.link = expected;
        read.end += HEADER_BYTES + length + LINK_BYTES;
    }
}

/// Zeros: the state after a power failure if a file grew before its data was written.
fn is_all_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn first_link(context: &'static str) -> Link {
    *blake3::Hasher::new_derive_key(context).finalize().as_bytes()
}

fn next_link(context: &'static str, before: &Link, payload: &[u8]) -> Link {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    hasher.update(b"record").update(before).update(payload);
    *hasher.finalize().as_bytes()
}

fn length_checksum(
    context: &'static str,
    before: &Link,
    length: &[u8],
) -> [u8; LENGTH_CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    hasher.update(b"length").update(before).update(length);
    let mut check = [0; LENGTH_CHECKSUM_BYTES];
    hasher.finalize_xof().fill(&mut check);
    check
}

fn encode_record(context: &'static str, before: &Link, payload: &[u8], link: &Link) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= RECORD_BYTES_MAX)
        .expect("records are protocol messages, which are shorter")
        .to_le_bytes();
    [&length[..], &length_checksum(context, before, &length), payload, link].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: &str = "florin test records";

    fn written() -> (tempfile::TempDir, PathBuf, Vec<Vec<u8>>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let records = vec![b"one".to_vec(), Vec::new(), vec![0; 40], b"four".to_vec()];
        let (mut file, before) = HashChainLog::open(&path, CONTEXT).unwrap();
        assert!(before.is_empty());
        for record in &records {
            file.append(record).unwrap();
        }
        (folder, path, records)
    }

    #[test]
    fn a_truncated_file_keeps_all_whole_records_and_accepts_more() {
        let (_folder, path, records) = written();
        let whole = std::fs::read(&path).unwrap();
        let mut seen = 0;
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let (mut file, records_read) = HashChainLog::open(&path, CONTEXT).unwrap();
            assert_eq!(records_read, records[..records_read.len()], "cut at {length}");
            assert!(records_read.len() >= seen, "cut at {length}");
            seen = records_read.len();
            file.append(b"next").unwrap();
            drop(file);
            let (_, again) = HashChainLog::open(&path, CONTEXT).unwrap();
            assert_eq!(again.len(), records_read.len() + 1, "cut at {length}");
        }
        assert_eq!(seen, records.len());
    }

    #[test]
    fn a_tail_of_zeros_is_torn_not_damaged() {
        let (_folder, path, records) = written();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend([0; 500]);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(HashChainLog::open(&path, CONTEXT).unwrap().1, records);
        std::fs::write(&path, [0; 20]).unwrap();
        assert!(HashChainLog::open(&path, CONTEXT).unwrap().1.is_empty());
    }

    #[test]
    fn a_file_with_any_flipped_byte_is_refused() {
        let (_folder, path, _) = written();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(&path, &bytes).unwrap();
            let error = HashChainLog::open(&path, CONTEXT).unwrap_err();
            assert_eq!(error.code(), "GUARD_CORRUPT", "flipped at {at}: {error}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "a damaged file is not changed");
        }
    }

    #[test]
    fn a_removed_record_is_detected() {
        let (_folder, path, records) = written();
        let bytes = std::fs::read(&path).unwrap();
        let second = LINK_BYTES + HEADER_BYTES + records[0].len() + LINK_BYTES;
        let third = second + HEADER_BYTES + records[1].len() + LINK_BYTES;
        std::fs::write(&path, [&bytes[..second], &bytes[third..]].concat()).unwrap();
        assert_eq!(HashChainLog::open(&path, CONTEXT).unwrap_err().code(), "GUARD_CORRUPT");
    }

    #[test]
    fn a_copy_of_the_descriptor_in_a_child_process_does_not_hold_the_lock() {
        let (_folder, path, records) = written();
        let (log, _) = HashChainLog::open(&path, CONTEXT).unwrap();
        let _of_a_child = log.file.try_clone().unwrap();
        drop(log);
        assert_eq!(HashChainLog::open(&path, CONTEXT).unwrap().1, records);
        std::fs::write(&path, b"damaged").unwrap();
        for _ in 0..2 {
            let error = HashChainLog::open(&path, CONTEXT).unwrap_err();
            assert_eq!(error.code(), "GUARD_CORRUPT");
        }
    }

    #[test]
    fn a_second_process_and_another_context_are_refused() {
        let (_folder, path, _) = written();
        let first = HashChainLog::open(&path, CONTEXT).unwrap();
        let error = HashChainLog::open(&path, CONTEXT).unwrap_err();
        assert_eq!(error.code(), "DATA_FOLDER_IN_USE");
        drop(first);
        let error = HashChainLog::open(&path, "florin test other records").unwrap_err();
        assert_eq!(error.code(), "GUARD_CORRUPT");
    }
}
