//! The journal's bytes.
//!
//! ```text
//! "florin journal 1" · owner (32)                                        the file's head
//! length (4) · check (4) · payload (length) · chain (32)                 a record
//! ```
//! The payload is the borsh form of a list of (moment, event): everything that was made durable with one fsync. `chain`
//! hashes the chain before and the payload; `check` protects the length, so that a flipped bit in it cannot pass for a
//! record that was cut off. All numbers are little endian.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use borsh::BorshDeserialize;
use florin_protocol::Digest;

use super::journal::{OpenError, Record, Replay};

const MAGIC: &[u8; 16] = b"florin journal 1";
pub(super) const HEAD_BYTES: u64 = 48;
pub(super) const FRAME_HEAD_BYTES: usize = 8;
pub(super) const CHAIN_BYTES: usize = 32;
/// Disks write this much at once or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;

pub(super) fn head(owner: Digest) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&owner.0);
    head
}

fn first_chain(owner: Digest) -> Digest {
    next_chain(owner, MAGIC)
}

pub(super) fn next_chain(before: Digest, payload: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 journal");
    hasher.update(&before.0);
    hasher.update(payload);
    Digest(*hasher.finalize().as_bytes())
}

pub(super) fn length_check(chain: Digest, length: u32) -> [u8; 4] {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 journal length");
    hasher.update(&chain.0);
    hasher.update(&length.to_le_bytes());
    let mut check = [0; 4];
    hasher.finalize_xof().fill(&mut check);
    check
}

/// Reads records up to `size` bytes of the file.
pub(super) struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    size: u64,
    /// Where the next record begins.
    pub(super) offset: u64,
    /// Records read so far.
    pub(super) records: u64,
    /// The chain after them.
    pub(super) chain: Digest,
}

/// A record that was read and adds up.
pub(super) struct Frame {
    batch: Vec<Record>,
    end: u64,
    chain: Digest,
}

impl Reader {
    pub(super) fn new(path: &Path, owner: Digest, size: u64) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Unusable { path: path.to_owned(), source };
        let mut file = BufReader::new(File::open(path).map_err(unusable)?);
        let mut found = [0; HEAD_BYTES as usize];
        file.read_exact(&mut found).map_err(unusable)?;
        if found.as_slice() != head(owner) {
            let what = if found.starts_with(MAGIC) {
                "it belongs to another market or coordinator"
            } else {
                "it does not begin as a journal does"
            };
            return Err(OpenError::Foreign { path: path.to_owned(), what: what.to_owned() });
        }
        let chain = first_chain(owner);
        Ok(Self { path: path.to_owned(), file, size, offset: HEAD_BYTES, records: 0, chain })
    }

    /// The next record; `None` at the end or before a last record that was never finished.
    pub(super) fn next_record(&mut self) -> Result<Option<Frame>, OpenError> {
        let left = self.size.saturating_sub(self.offset);
        let mut frame_head = [0; FRAME_HEAD_BYTES];
        if left < FRAME_HEAD_BYTES as u64 {
            return Ok(None);
        }
        self.read(&mut frame_head)?;
        let [a, b, c, d, check @ ..] = frame_head;
        let length = u32::from_le_bytes([a, b, c, d]);
        if check != length_check(self.chain, length) {
            if frame_head == [0; FRAME_HEAD_BYTES] && self.rest_is_zero()? {
                return Ok(None); // Room the file was given, and no bytes yet.
            }
            return Err(self.corrupt("its length is damaged"));
        }
        let whole = u64::from(length) + (FRAME_HEAD_BYTES + CHAIN_BYTES) as u64;
        let end = self.offset.saturating_add(whole);
        if end > self.size {
            return Ok(None);
        }
        let mut payload = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        let mut chain = Digest::default();
        self.read(&mut payload)?;
        self.read(&mut chain.0)?;
        if chain != next_chain(self.chain, &payload) {
            let mut frame = frame_head.to_vec();
            frame.extend_from_slice(&payload);
            frame.extend_from_slice(&chain.0);
            if end == self.size && has_hole(&frame, self.offset) {
                return Ok(None);
            }
            return Err(self.corrupt("its checksum is wrong"));
        }
        let batch = Vec::<Record>::try_from_slice(&payload)
            .map_err(|error| self.corrupt(&format!("another version wrote it ({error})")))?;
        Ok(Some(Frame { batch, end, chain }))
    }

    pub(super) fn hand_over(
        &mut self,
        frame: Frame,
        replay: &mut Replay<'_>,
    ) -> Result<(), OpenError> {
        for record in frame.batch {
            replay(record).map_err(|why| self.corrupt(&format!("the rules refuse it: {why}")))?;
        }
        self.offset = frame.end;
        self.chain = frame.chain;
        self.records = self.records.saturating_add(1);
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), OpenError> {
        let unusable = |source| OpenError::Unusable { path: self.path.clone(), source };
        self.file.read_exact(buffer).map_err(unusable)
    }

    fn rest_is_zero(&mut self) -> Result<bool, OpenError> {
        let unusable = |source| OpenError::Unusable { path: self.path.clone(), source };
        let mut block = [0; 8_192];
        loop {
            match self.file.read(&mut block).map_err(unusable)? {
                0 => return Ok(true),
                n if block.iter().take(n).any(|byte| *byte != 0) => return Ok(false),
                _ => {}
            }
        }
    }

    fn corrupt(&self, what: &str) -> OpenError {
        OpenError::Corrupt {
            path: self.path.clone(),
            record: self.records.saturating_add(1),
            offset: self.offset,
            what: what.to_owned(),
        }
    }
}

/// Whether a sector of the record was never written: it reads as zeros, which no hashed or signed content does.
fn has_hole(frame: &[u8], offset: u64) -> bool {
    let to_boundary = SECTOR_BYTES - offset % SECTOR_BYTES;
    let (first, rest) = frame.split_at(frame.len().min(to_boundary as usize));
    let mut sectors = std::iter::once(first).chain(rest.chunks(SECTOR_BYTES as usize));
    sectors.any(|sector| sector.len() >= CHAIN_BYTES && sector.iter().all(|byte| *byte == 0))
}
