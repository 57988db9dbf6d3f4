//! Reads a pack back: which blobs in it are whole, and which stretches are none.
//!
//! A frame that is damaged does not say where the next one begins, so that is looked for byte by byte: whatever has its
//! digest is a blob, wherever it lies. Only what lies behind the last whole blob can be a torn end.

use std::io;

use florin_protocol::{Digest, blob_digest};

use super::pack::PACKED_BYTES_MAX;
use super::volume::{Source, Volume};

/// Length and digest.
pub(super) const HEAD_BYTES: usize = 36;
/// A frame of the largest blob.
const FRAME_BYTES_MAX: usize = HEAD_BYTES + PACKED_BYTES_MAX;
/// Bytes read at once.
const READ_BYTES: usize = 1024 * 1024;
/// Bytes hashed at most to find what follows damage (4 GiB): somebody may have sent blobs that look like many frames.
const SEARCH_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// A blob in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) digest: Digest,
    /// Of its first byte.
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// Bytes that are no whole blob, with a whole one behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) begins: u64,
    pub(super) ends: u64,
    /// The blob that the head there speaks of, if it can be a head.
    pub(super) digest: Option<Digest>,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bytes {} to {} are no whole blob", self.begins, self.ends)?;
        self.digest.map_or(Ok(()), |digest| write!(f, "; the first was {digest}"))
    }
}

/// What a pack holds.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// In the order in which they lie there.
    pub(super) whole: Vec<Found>,
    pub(super) damaged: Vec<Damage>,
    /// Where the last whole blob ends.
    pub(super) end: u64,
    pub(super) size: u64,
    /// Whether it was searched to its end; otherwise there may be more behind [`Scan::end`].
    pub(super) finished: bool,
}

impl Scan {
    /// Where the last `count` whole blobs begin, with their heads.
    pub(super) fn last(&self, count: usize) -> u64 {
        let first = self.whole.get(self.whole.len().saturating_sub(count)..).and_then(<[_]>::first);
        first.map_or(self.end, |found| found.offset.saturating_sub(HEAD_BYTES as u64))
    }
}

/// What the heads say that is there, without a look at the blobs; `None` where they do not lead to the file's end.
pub(super) fn heads(volume: &dyn Volume, name: &str) -> io::Result<Option<Vec<Found>>> {
    let (file, size) = volume.open(name)?;
    let mut file = io::BufReader::new(file);
    let (mut found, mut at) = (Vec::new(), 0u64);
    while at < size {
        let mut bytes = [0; HEAD_BYTES];
        if size.saturating_sub(at) < HEAD_BYTES as u64 {
            return Ok(None);
        }
        io::Read::read_exact(&mut file, &mut bytes)?;
        let Some((length, digest)) = head(&bytes) else { return Ok(None) };
        let offset = at.saturating_add(HEAD_BYTES as u64);
        at = offset.saturating_add(u64::from(length));
        file.seek_relative(i64::from(length))?;
        found.push(Found { digest, offset, length });
    }
    Ok((at == size).then_some(found))
}

/// Hashes everything, and looks for what follows damage.
pub(super) fn scan(volume: &dyn Volume, name: &str) -> io::Result<Scan> {
    scan_within(volume, name, SEARCH_BYTES_MAX)
}

fn scan_within(volume: &dyn Volume, name: &str, mut budget: u64) -> io::Result<Scan> {
    let (file, size) = volume.open(name)?;
    let mut window = Window { file, size, begin: 0, bytes: Vec::new() };
    let mut scan = Scan { size, finished: true, ..Scan::default() };
    let mut bad: Option<Damage> = None;
    let mut at = 0u64;
    while at < size {
        let bytes = window.at(at)?;
        let said = head(bytes);
        let frame = said.and_then(|(length, digest)| {
            let blob = bytes.get(HEAD_BYTES..)?.get(..length as usize)?;
            Some((length, digest, blob))
        });
        if let (Some(bad), Some((length, ..))) = (&bad, &frame) {
            let Some(left) = budget.checked_sub(u64::from(*length)) else {
                scan.damaged.push(Damage { ends: size, ..*bad });
                scan.finished = false;
                return Ok(scan);
            };
            budget = left;
        }
        match frame.filter(|(_, digest, blob)| blob_digest(blob) == *digest) {
            Some((length, digest, _)) => {
                scan.damaged.extend(bad.take().map(|bad| Damage { ends: at, ..bad }));
                let offset = at.saturating_add(HEAD_BYTES as u64);
                scan.whole.push(Found { digest, offset, length });
                at = offset.saturating_add(u64::from(length));
                scan.end = at;
            }
            None => {
                let digest = said.map(|(_, digest)| digest);
                bad.get_or_insert(Damage { begins: at, ends: size, digest });
                at = at.saturating_add(1);
            }
        }
    }
    Ok(scan)
}

/// Length and digest, if that can be a frame's head.
fn head(bytes: &[u8]) -> Option<(u32, Digest)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (digest, _) = rest.split_first_chunk::<32>()?;
    let length = u32::from_le_bytes(*length);
    (length as usize <= PACKED_BYTES_MAX).then_some((length, Digest(*digest)))
}

/// A piece of a file that moves towards its end.
struct Window {
    file: Box<dyn Source>,
    size: u64,
    /// Where in the file `bytes` begins.
    begin: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The bytes from `at` on: at least a whole frame of the largest kind, or all that there are. Never goes back.
    fn at(&mut self, at: u64) -> io::Result<&[u8]> {
        let skip =
            |this: &Self| usize::try_from(at.saturating_sub(this.begin)).unwrap_or(usize::MAX);
        let end = self.begin.saturating_add(self.bytes.len() as u64);
        if self.bytes.len().saturating_sub(skip(self)) < FRAME_BYTES_MAX && end < self.size {
            self.bytes.drain(..skip(self).min(self.bytes.len()));
            self.begin = at;
            let more = (FRAME_BYTES_MAX + READ_BYTES).saturating_sub(self.bytes.len()) as u64;
            io::Read::read_to_end(&mut io::Read::take(&mut self.file, more), &mut self.bytes)?;
        }
        Ok(self.bytes.get(skip(self)..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Local;

    fn frame(blob: &[u8]) -> Vec<u8> {
        let mut frame = (blob.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&blob_digest(blob).0);
        frame.extend_from_slice(blob);
        frame
    }

    fn scanned(bytes: &[u8], budget: u64) -> Scan {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.pack"), bytes).unwrap();
        scan_within(&Local(dir.path().to_owned()), "a.pack", budget).unwrap()
    }

    #[test]
    fn whatever_is_damaged_the_blobs_behind_it_are_found() {
        let blobs: Vec<Vec<u8>> = (1..=3u8).map(|n| vec![n; 200 + usize::from(n)]).collect();
        let frames: Vec<Vec<u8>> = blobs.iter().map(|blob| frame(blob)).collect();
        let whole = frames.concat();
        let (second, third) = (frames[0].len(), frames[0].len() + frames[1].len());
        // Each byte of the second frame: its length, its digest, its bytes.
        for at in second..third {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x81;
            let found = scanned(&bytes, u64::MAX);
            let digests: Vec<Digest> = found.whole.iter().map(|found| found.digest).collect();
            assert_eq!(digests, [blob_digest(&blobs[0]), blob_digest(&blobs[2])], "byte {at}");
            let damage = (found.damaged[0].begins, found.damaged[0].ends);
            assert_eq!(damage, (second as u64, third as u64), "byte {at}");
            assert_eq!((found.damaged.len(), found.end, found.finished), (1, found.size, true));
        }
    }

    #[test]
    fn a_frame_across_a_reads_end_is_found_and_nothing_is_read_twice() {
        let blobs: Vec<Vec<u8>> =
            (0..20u8).map(|n| vec![n; PACKED_BYTES_MAX - usize::from(n)]).collect();
        let bytes: Vec<u8> = blobs.iter().flat_map(|blob| frame(blob)).collect();
        assert!(bytes.len() > 2 * READ_BYTES);
        let found = scanned(&bytes, u64::MAX);
        let digests: Vec<Digest> = found.whole.iter().map(|found| found.digest).collect();
        assert_eq!(digests, blobs.iter().map(|blob| blob_digest(blob)).collect::<Vec<_>>());
        assert_eq!((found.end, found.damaged.len()), (bytes.len() as u64, 0));
    }

    #[test]
    fn a_search_has_an_end_also_where_everything_looks_like_a_frame() {
        // Each four bytes say: 1,000 bytes follow.
        let mut bytes = 1_000u32.to_le_bytes().repeat(20_000);
        bytes.extend(frame(b"behind it"));
        let found = scanned(&bytes, 100_000);
        assert!(!found.finished && found.whole.is_empty() && found.end == 0);
        let found = scanned(&bytes, u64::MAX);
        assert!(found.finished && found.whole.len() == 1);
    }
}
