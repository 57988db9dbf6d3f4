//! Scans a pack file: finds the complete blobs and the damaged ranges.
//!
//! A damaged frame does not reveal where the next frame begins. The scan therefore tries every
//! offset: a frame counts if its bytes match its digest. Only bytes after the last complete blob
//! can be a torn tail.

use std::io;

use florin_protocol::{Digest, blob_digest};

use super::volume::{ReadSeek, Volume};

/// Largest blob in a pack, in bytes. A larger blob has its own file.
pub const PACKED_BYTES_MAX: usize = 128 * 1024;
/// Size of a frame header: length and digest.
pub(super) const HEADER_BYTES: usize = 36;
/// Largest frame, in bytes.
const FRAME_BYTES_MAX: usize = HEADER_BYTES + PACKED_BYTES_MAX;
/// Buffer size for reads, in bytes.
const READ_BYTES: usize = 1024 * 1024;
/// Most bytes that are hashed to find the frames after damage (4 GiB). A sender could have uploaded
/// blobs whose bytes look like many frames.
const SEARCH_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// A blob in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedBlob {
    pub(super) digest: Digest,
    /// Offset of the blob's first byte.
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// A range without a complete blob, followed by a complete one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DamagedRange {
    pub(super) begins: u64,
    pub(super) ends: u64,
    /// The digest in the header at the range's start, if it can be a header.
    pub(super) digest: Option<Digest>,
}

impl std::fmt::Display for DamagedRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bytes {} to {} are not a complete blob", self.begins, self.ends)?;
        self.digest.map_or(Ok(()), |digest| write!(f, "; the first one was {digest}"))
    }
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// In file order.
    pub(super) whole: Vec<PackedBlob>,
    pub(super) damaged: Vec<DamagedRange>,
    /// Where the last complete blob ends.
    pub(super) end: u64,
    pub(super) size: u64,
    /// Whether the scan reached the end of the file; otherwise more blobs may follow [`Scan::end`].
    pub(super) finished: bool,
}

impl Scan {
    /// The offset of the last `count` complete frames.
    pub(super) fn last(&self, count: usize) -> u64 {
        let first = self.whole.get(self.whole.len().saturating_sub(count)..).and_then(<[_]>::first);
        first.map_or(self.end, |found| found.offset.saturating_sub(HEADER_BYTES as u64))
    }
}

/// Reads the frame headers without verifying the blobs. `None` if they do not lead exactly to the
/// end of the file.
pub(super) fn read_headers(volume: &dyn Volume, name: &str) -> io::Result<Option<Vec<PackedBlob>>> {
    let (file, size) = volume.open(name)?;
    let mut file = io::BufReader::new(file);
    let (mut found, mut at) = (Vec::new(), 0u64);
    while at < size {
        let mut bytes = [0; HEADER_BYTES];
        if size.saturating_sub(at) < HEADER_BYTES as u64 {
            return Ok(None);
        }
        io::Read::read_exact(&mut file, &mut bytes)?;
        let Some((length, digest)) = parse_header(&bytes) else { return Ok(None) };
        let offset = at.saturating_add(HEADER_BYTES as u64);
        at = offset.saturating_add(u64::from(length));
        file.seek_relative(i64::from(length))?;
        found.push(PackedBlob { digest, offset, length });
    }
    Ok((at == size).then_some(found))
}

/// Verifies every blob, and searches for the frames after damage.
pub(super) fn scan(volume: &dyn Volume, name: &str) -> io::Result<Scan> {
    scan_within(volume, name, SEARCH_BYTES_MAX)
}

fn scan_within(volume: &dyn Volume, name: &str, mut budget: u64) -> io::Result<Scan> {
    let (file, size) = volume.open(name)?;
    let mut window = ScanWindow { file, size, begin: 0, bytes: Vec::new() };
    let mut scan = Scan { size, finished: true, ..Scan::default() };
    let mut bad: Option<DamagedRange> = None;
    let mut at = 0u64;
    while at < size {
        let bytes = window.at(at)?;
        let header = parse_header(bytes);
        let frame = header.and_then(|(length, digest)| {
            let blob = bytes.get(HEADER_BYTES..)?.get(..length as usize)?;
            Some((length, digest, blob))
        });
        if let (Some(bad), Some((length, ..))) = (&bad, &frame) {
            let Some(left) = budget.checked_sub(u64::from(*length)) else {
                scan.damaged.push(DamagedRange { ends: size, ..*bad });
                scan.finished = false;
                return Ok(scan);
            };
            budget = left;
        }
        match frame.filter(|(_, digest, blob)| blob_digest(blob) == *digest) {
            Some((length, digest, _)) => {
                scan.damaged.extend(bad.take().map(|bad| DamagedRange { ends: at, ..bad }));
                let offset = at.saturating_add(HEADER_BYTES as u64);
                scan.whole.push(PackedBlob { digest, offset, length });
                at = offset.saturating_add(u64::from(length));
                scan.end = at;
            }
            None => {
                let digest = header.map(|(_, digest)| digest);
                bad.get_or_insert(DamagedRange { begins: at, ends: size, digest });
                at = at.saturating_add(1);
            }
        }
    }
    Ok(scan)
}

/// Length and digest, if the bytes can be a frame header.
fn parse_header(bytes: &[u8]) -> Option<(u32, Digest)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (digest, _) = rest.split_first_chunk::<32>()?;
    let length = u32::from_le_bytes(*length);
    (length as usize <= PACKED_BYTES_MAX).then_some((length, Digest(*digest)))
}

/// A buffered part of a file that only moves forwards.
struct ScanWindow {
    file: Box<dyn ReadSeek>,
    size: u64,
    /// The file offset of `bytes`.
    begin: u64,
    bytes: Vec<u8>,
}

impl ScanWindow {
    /// The bytes from offset `at` on: at least the largest frame, or all that remain. `at` must not
    /// decrease.
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
    use crate::LocalVolume;

    fn frame(blob: &[u8]) -> Vec<u8> {
        let mut frame = (blob.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&blob_digest(blob).0);
        frame.extend_from_slice(blob);
        frame
    }

    fn scanned(bytes: &[u8], budget: u64) -> Scan {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.pack"), bytes).unwrap();
        scan_within(&LocalVolume(dir.path().to_owned()), "a.pack", budget).unwrap()
    }

    #[test]
    fn scan_finds_the_blobs_after_any_damage() {
        let blobs: Vec<Vec<u8>> = (1..=3u8).map(|n| vec![n; 200 + usize::from(n)]).collect();
        let frames: Vec<Vec<u8>> = blobs.iter().map(|blob| frame(blob)).collect();
        let whole = frames.concat();
        let (second, third) = (frames[0].len(), frames[0].len() + frames[1].len());
        // Every byte of the second frame: length, digest and blob.
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
    fn scan_finds_frames_across_read_boundaries_exactly_once() {
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
    fn scan_is_bounded_when_all_bytes_look_like_frames() {
        // Every four bytes are a header with a length of 1,000.
        let mut bytes = 1_000u32.to_le_bytes().repeat(20_000);
        bytes.extend(frame(b"behind it"));
        let found = scanned(&bytes, 100_000);
        assert!(!found.finished && found.whole.is_empty() && found.end == 0);
        let found = scanned(&bytes, u64::MAX);
        assert!(found.finished && found.whole.len() == 1);
    }
}
