//! The format of the journal: a chain of segments, each a file of records.
//!
//! ```text
//! "florin journal 2" · owner (32) · records before (8) · chain before (32) · check (32) · 0…
//!                                                                  segment header, 128 bytes
//! length (4) · check (4) · payload (length) · 0… · chain (32)
//!                                                         record, a multiple of 64 bytes
//! ```
//! The payload is the borsh encoding of a list of (time, event): the batch that one fsync makes
//! durable. `chain` is the hash of the previous chain value and the payload. `check` protects the
//! length, so that a flipped bit in it is not mistaken for a torn record. All numbers are little
//! endian. Every 512-byte sector of a record contains the record's header, its chain value, or
//! nothing but payload. A sector that was not written because of a power failure is therefore
//! recognised.
//!
//! Version 1, "florin journal 1", has a single segment, a header with magic and owner only, and
//! records without padding.

use std::io::{self, BufReader, Read};

use borsh::{BorshDeserialize, BorshSerialize};
use florin_engine::Event;
use florin_protocol::{Digest, Timestamp};

use super::error::{OpenError, header_damaged, unusable};
use super::volume::{AppendFile, ReadSeek, Volume};

/// Largest payload of one record, in bytes.
pub const RECORD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The file name of the first segment.
pub(super) const FIRST_SEGMENT: &str = "journal";
const PREFIX: &str = "journal-";

const MAGIC_1: &[u8; 16] = b"florin journal 1";
const MAGIC_2: &[u8; 16] = b"florin journal 2";
pub(super) const HEADER_BYTES: u64 = 128;
const HEADER_1_BYTES: u64 = 48;
pub(super) const RECORD_HEADER_BYTES: usize = 8;
pub(super) const CHAIN_BYTES: usize = 32;
/// Alignment of a record.
pub(super) const ALIGN_BYTES: u64 = 64;
/// Disks write a sector atomically.
pub(super) const SECTOR_BYTES: u64 = 512;

/// A journal entry: one event and its timestamp. A record of the journal contains a batch of
/// entries.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct JournalEntry {
    /// When the event was applied.
    pub now: Timestamp,
    /// The event.
    pub event: Event,
}

/// A position between two records: the number of records before it and their chain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of records before it.
    pub records: u64,
    /// Chain value after these records.
    pub chain: Digest,
}

impl Position {
    /// The position before the first record of an owner's journal.
    #[must_use]
    pub fn first(owner: Digest) -> Self {
        Self { records: 0, chain: next_chain(owner, MAGIC_1) }
    }

    fn next(self, payload: &[u8]) -> Self {
        let records = self.records.saturating_add(1);
        Self { records, chain: next_chain(self.chain, payload) }
    }
}

/// The layout of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) header_bytes: u64,
    align: u64,
}

/// Layout of every new segment.
pub(super) const LAYOUT: Layout = Layout { header_bytes: HEADER_BYTES, align: ALIGN_BYTES };
/// Layout of version 1.
const LAYOUT_1: Layout = Layout { header_bytes: HEADER_1_BYTES, align: 1 };

impl Layout {
    /// Size of a record with this payload length, in bytes.
    pub(super) fn record_bytes(self, length: u32) -> u64 {
        let bare = u64::from(length).saturating_add((RECORD_HEADER_BYTES + CHAIN_BYTES) as u64);
        bare.next_multiple_of(self.align)
    }

    /// Encodes a record. Returns its bytes and the position after it.
    pub(super) fn encode_record(
        self,
        at: Position,
        length: u32,
        payload: &[u8],
    ) -> (Vec<u8>, Position) {
        let whole = usize::try_from(self.record_bytes(length)).unwrap_or(usize::MAX);
        let behind = at.next(payload);
        let mut frame = Vec::with_capacity(whole);
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&length_check(at.chain, length));
        frame.extend_from_slice(payload);
        frame.resize(whole.saturating_sub(CHAIN_BYTES), 0);
        frame.extend_from_slice(&behind.chain.0);
        (frame, behind)
    }
}

/// The name of the segment that begins after this number of records.
#[must_use]
pub fn segment_name(records: u64) -> String {
    if records == 0 { FIRST_SEGMENT.to_owned() } else { format!("{PREFIX}{records:020}") }
}

/// The number of records in a segment's name. `None` unless the name has exactly the form of a
/// segment's name.
#[must_use]
pub fn segment_number(name: &str) -> Option<u64> {
    if name == FIRST_SEGMENT {
        return Some(0);
    }
    let records = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name == segment_name(records)).then_some(records)
}

/// The segments of a folder, oldest first, identified by the number of records before them.
pub(super) fn segments(volume: &dyn Volume) -> Result<Vec<u64>, OpenError> {
    let names = volume.names().map_err(|source| unusable(volume, "", source))?;
    let mut found: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    found.sort_unstable();
    Ok(found)
}

/// The header of a segment that begins at a position.
pub(super) fn encode_header(owner: Digest, at: Position) -> Vec<u8> {
    let mut head = MAGIC_2.to_vec();
    head.extend_from_slice(&owner.0);
    head.extend_from_slice(&at.records.to_le_bytes());
    head.extend_from_slice(&at.chain.0);
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 journal segment");
    hasher.update(&head);
    head.extend_from_slice(hasher.finalize().as_bytes());
    head.resize(HEADER_BYTES as usize, 0);
    head
}

fn next_chain(before: Digest, payload: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 journal");
    hasher.update(&before.0);
    hasher.update(payload);
    Digest(*hasher.finalize().as_bytes())
}

fn length_check(chain: Digest, length: u32) -> [u8; 4] {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 journal length");
    hasher.update(&chain.0);
    hasher.update(&length.to_le_bytes());
    let mut check = [0; 4];
    hasher.finalize_xof().fill(&mut check);
    check
}

/// Creates the segment at a position, durably.
pub fn begin_segment(
    volume: &dyn Volume,
    owner: Digest,
    at: Position,
) -> io::Result<Box<dyn AppendFile>> {
    let mut disk = volume.append_to(&segment_name(at.records))?;
    disk.truncate(0)?;
    disk.append(&encode_header(owner, at))?;
    disk.sync()?;
    volume.sync()?;
    Ok(disk)
}

/// Whether a file is too short, or too empty, to contain a complete segment header.
pub(super) fn has_no_header(volume: &dyn Volume, name: &str) -> io::Result<bool> {
    let (file, size) = volume.open(name)?;
    let mut found = Vec::new();
    file.take(HEADER_BYTES).read_to_end(&mut found)?;
    let begun = found.starts_with(MAGIC_1) && size >= HEADER_1_BYTES;
    // A longer file has records after the header: then a zeroed header is damage.
    let empty = size <= HEADER_BYTES && found.iter().all(|byte| *byte == 0);
    let (magic, _) = MAGIC_2.split_at(found.len().min(MAGIC_2.len()));
    let short = size < HEADER_BYTES && found.starts_with(magic);
    Ok(!begun && (empty || short))
}

/// Reads the records of one segment, up to `size` bytes of the file.
pub(super) struct Reader<'a> {
    volume: &'a dyn Volume,
    name: &'a str,
    file: BufReader<Box<dyn ReadSeek>>,
    pub(super) size: u64,
    pub(super) layout: Layout,
    /// Offset of the next record.
    pub(super) offset: u64,
    /// Journal position of the next record.
    pub(super) at: Position,
}

/// A decoded record whose checksums are correct.
pub(super) struct DecodedRecord {
    pub(super) entries: Vec<JournalEntry>,
    end: u64,
    position_after: Position,
}

impl<'a> Reader<'a> {
    /// Opens a segment and reads its header. `size` limits how much of the file is read.
    pub(super) fn new(
        volume: &'a dyn Volume,
        name: &'a str,
        owner: Digest,
        size: Option<u64>,
    ) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Unusable { path: volume.path_of(name), source };
        let foreign = |what: &str| OpenError::OwnerMismatch {
            path: volume.path_of(name),
            what: what.to_owned(),
        };
        let other_owner = || foreign("it belongs to another market or coordinator");
        let (source, length) = volume.open(name).map_err(unusable)?;
        let mut file = BufReader::new(source);
        let mut found = Vec::new();
        file.by_ref().take(HEADER_1_BYTES).read_to_end(&mut found).map_err(unusable)?;
        let (layout, at) = if let Some(owner_bytes) = found.strip_prefix(MAGIC_1) {
            if owner_bytes != owner.0 {
                return Err(other_owner());
            }
            (LAYOUT_1, Position::first(owner))
        } else {
            let rest = HEADER_BYTES.saturating_sub(HEADER_1_BYTES);
            file.by_ref().take(rest).read_to_end(&mut found).map_err(unusable)?;
            match decode_header(&found) {
                Some(header) if header.owner == owner => (LAYOUT, header.at),
                Some(_) => return Err(other_owner()),
                None if was_header(&found) => return Err(header_damaged(volume, name)),
                None => return Err(foreign("it does not begin with a journal header")),
            }
        };
        let (size, offset) = (size.unwrap_or(length), layout.header_bytes);
        Ok(Self { volume, name, file, size, layout, offset, at })
    }

    /// Reads the next record. `None` at the end, or before a torn last record.
    pub(super) fn next_record(&mut self) -> Result<Option<DecodedRecord>, OpenError> {
        let left = self.size.saturating_sub(self.offset);
        let mut frame_head = [0; RECORD_HEADER_BYTES];
        if left < RECORD_HEADER_BYTES as u64 {
            return Ok(None);
        }
        self.read(&mut frame_head)?;
        let [a, b, c, d, check @ ..] = frame_head;
        let length = u32::from_le_bytes([a, b, c, d]);
        if check != length_check(self.at.chain, length) {
            if frame_head == [0; RECORD_HEADER_BYTES] && self.is_torn_record()? {
                return Ok(None);
            }
            return Err(self.corrupt("its length is damaged"));
        }
        let whole = self.layout.record_bytes(length);
        let end = self.offset.saturating_add(whole);
        if end > self.size {
            return Ok(None);
        }
        let mut body = vec![0; usize::try_from(whole).unwrap_or(usize::MAX) - RECORD_HEADER_BYTES];
        self.read(&mut body)?;
        let (payload, rest) = body.split_at(length as usize);
        let (zeros, chain) = rest.split_at(rest.len().saturating_sub(CHAIN_BYTES));
        let behind = self.at.next(payload);
        if chain != behind.chain.0 || zeros.iter().any(|byte| *byte != 0) {
            let frame = [frame_head.as_slice(), &body].concat();
            if end == self.size && has_unwritten_sector(&frame, self.offset) {
                return Ok(None);
            }
            return Err(self.corrupt("its checksum is wrong"));
        }
        let batch = Vec::<JournalEntry>::try_from_slice(payload).map_err(|error| {
            self.corrupt(&format!(
                "its payload cannot be decoded, another version may have written it ({error})"
            ))
        })?;
        Ok(Some(DecodedRecord { entries: batch, end, position_after: behind }))
    }

    /// Moves past a record.
    pub(super) fn advance_past(&mut self, frame: &DecodedRecord) {
        self.offset = frame.end;
        self.at = frame.position_after;
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), OpenError> {
        let path = || self.volume.path_of(self.name);
        self.file.read_exact(buffer).map_err(|source| OpenError::Unusable { path: path(), source })
    }

    /// Whether the zeros at this offset are a torn last record whose first sector was never
    /// written. Then no complete record follows, and the rest of the file is no longer than one
    /// record.
    fn is_torn_record(&mut self) -> Result<bool, OpenError> {
        let unusable =
            |source| OpenError::Unusable { path: self.volume.path_of(self.name), source };
        let behind = self.size.saturating_sub(self.offset);
        if behind > self.layout.record_bytes(u32::try_from(RECORD_BYTES_MAX).unwrap_or(u32::MAX)) {
            return Ok(false);
        }
        let mut rest = vec![0; RECORD_HEADER_BYTES];
        let left = behind.saturating_sub(rest.len() as u64);
        self.file.by_ref().take(left).read_to_end(&mut rest).map_err(unusable)?;
        let to_boundary = SECTOR_BYTES - self.offset % SECTOR_BYTES;
        let first = rest.iter().take(usize::try_from(to_boundary).unwrap_or(usize::MAX));
        if rest.iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        let lost = self.layout == LAYOUT && first.clone().all(|byte| *byte == 0);
        Ok(lost && !contains_record(&rest))
    }

    pub(super) fn corrupt(&self, what: &str) -> OpenError {
        OpenError::Corrupt {
            path: self.volume.path_of(self.name),
            record: self.at.records.saturating_add(1),
            offset: self.offset,
            what: what.to_owned(),
        }
    }
}

/// A segment header of version 2.
pub(super) struct SegmentHeader {
    pub(super) owner: Digest,
    /// The position at which the segment begins.
    pub(super) at: Position,
}

/// Decodes a segment header; `None` if its checksum does not match.
pub(super) fn decode_header(found: &[u8]) -> Option<SegmentHeader> {
    let (owner, rest) = found.get(MAGIC_2.len()..)?.split_first_chunk::<32>()?;
    let (records, rest) = rest.split_first_chunk::<8>()?;
    let (chain, _) = rest.split_first_chunk::<32>()?;
    let owner = Digest(*owner);
    let at = Position { records: u64::from_le_bytes(*records), chain: Digest(*chain) };
    (found == encode_header(owner, at)).then_some(SegmentHeader { owner, at })
}

/// Whether bytes that are not an intact header were one: the magic bytes or all others are intact,
/// or the sector was lost and reads as zeros.
fn was_header(found: &[u8]) -> bool {
    let with_magic = [MAGIC_2, found.get(MAGIC_2.len()..).unwrap_or_default()].concat();
    found.starts_with(MAGIC_2)
        || decode_header(&with_magic).is_some()
        || found.iter().all(|byte| *byte == 0)
}

/// Whether `bytes`, which begin at a record boundary, contain a complete record.
fn contains_record(bytes: &[u8]) -> bool {
    let step = ALIGN_BYTES as usize;
    (step..bytes.len()).step_by(step).any(|begins| {
        let (before, rest) = bytes.split_at(begins);
        let chain = before.last_chunk::<CHAIN_BYTES>().map(|chain| Digest(*chain));
        let head = rest.first_chunk::<RECORD_HEADER_BYTES>();
        let (Some(chain), Some([a, b, c, d, check @ ..])) = (chain, head) else { return false };
        let length = u32::from_le_bytes([*a, *b, *c, *d]);
        *check == length_check(chain, length)
            && rest
                .get(RECORD_HEADER_BYTES..)
                .and_then(|rest| rest.get(..length as usize))
                .zip(
                    usize::try_from(LAYOUT.record_bytes(length))
                        .ok()
                        .and_then(|end| rest.get(..end)),
                )
                .is_some_and(|(payload, frame)| frame.ends_with(&next_chain(chain, payload).0))
    })
}

/// Whether a sector of the record was never written. It reads as zeros, which hashed or signed
/// content never does.
fn has_unwritten_sector(frame: &[u8], offset: u64) -> bool {
    let to_boundary = SECTOR_BYTES - offset % SECTOR_BYTES;
    let (first, rest) = frame.split_at(frame.len().min(to_boundary as usize));
    let mut sectors = std::iter::once(first).chain(rest.chunks(SECTOR_BYTES as usize));
    sectors.any(|sector| sector.len() >= CHAIN_BYTES && sector.iter().all(|byte| *byte == 0))
}
