//! The layout of a chain's file: a first page of our own, and the database behind it.
//!
//! One bit of the database's header selects which of its last two commits is valid. If that bit, or
//! the whole file, were reset to an earlier version, the database would open without an error one
//! block earlier, and an acknowledged transaction would be lost. Therefore the first page records
//! the newest acknowledged block. It is written after the block is durable, without a sync: after a
//! power failure it may be older than the chain, or torn and then ignored, but never newer.

use std::io;
use std::ops::Bound;
use std::sync::Arc;

use florin_protocol::Digest;
use redb::{BackendError, StorageBackend};

/// Length of the page in front of the database.
const FIRST_PAGE_BYTES: u64 = 4_096;
/// The magic bytes at the beginning of the file.
const MAGIC: &[u8; 16] = b"FLORIN LEDGER 1\n";
/// Offset of the acknowledgement record, in a sector of its own.
const ACKNOWLEDGED_OFFSET: u64 = 512;
/// Number, digest, checksum.
const ACKNOWLEDGED_BYTES: usize = 72;

/// The storage backend of a file, or of a test, without its first page.
#[derive(Clone, Debug)]
pub(crate) struct LedgerFile(pub(crate) Arc<dyn StorageBackend>);

/// The offset in the file of an offset in the database.
fn file_offset(offset: u64) -> io::Result<u64> {
    offset
        .checked_add(FIRST_PAGE_BYTES)
        .ok_or_else(|| io::Error::other("an offset beyond the largest file size"))
}

impl StorageBackend for LedgerFile {
    fn len(&self) -> io::Result<u64> {
        // An empty file is an empty database; opening rejects a file that is shorter than the first
        // page.
        Ok(self.0.len()?.saturating_sub(FIRST_PAGE_BYTES))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(file_offset(offset)?, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(file_offset(len)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(file_offset(offset)?, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    // The ranges are lock positions, not offsets of bytes: they are not shifted.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}

/// The newest acknowledged block, as the first page records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcknowledgedBlock {
    pub(crate) number: u64,
    pub(crate) digest: Digest,
}

impl AcknowledgedBlock {
    fn to_bytes(self) -> [u8; ACKNOWLEDGED_BYTES] {
        let mut bytes = [0; ACKNOWLEDGED_BYTES];
        let check = self.check();
        let parts = self.number.to_le_bytes().into_iter().chain(self.digest.0).chain(check.0);
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        bytes
    }

    fn check(&self) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 witness");
        hasher.update(&self.number.to_le_bytes());
        hasher.update(&self.digest.0);
        Digest(*hasher.finalize().as_bytes())
    }

    fn from_bytes(bytes: &[u8; ACKNOWLEDGED_BYTES]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk::<8>()?;
        let (digest, rest) = rest.split_first_chunk::<32>()?;
        let witness = Self { number: u64::from_le_bytes(*number), digest: Digest(*digest) };
        (witness.check().0.as_slice() == rest).then_some(witness)
    }
}

impl LedgerFile {
    /// Writes the first page of a new file.
    pub(crate) fn format(&self) -> io::Result<()> {
        self.0.set_len(FIRST_PAGE_BYTES)?;
        self.0.write(0, MAGIC)
    }

    /// Whether the file begins with the magic bytes and continues behind its first page.
    pub(crate) fn is_ledger(&self) -> io::Result<bool> {
        if self.0.len()? <= FIRST_PAGE_BYTES {
            return Ok(false);
        }
        let mut magic = [0; MAGIC.len()];
        self.0.read(0, &mut magic)?;
        Ok(magic == *MAGIC)
    }

    /// Records an acknowledged block, without a sync.
    pub(crate) fn record_acknowledged(&self, witness: AcknowledgedBlock) -> io::Result<()> {
        self.0.write(ACKNOWLEDGED_OFFSET, &witness.to_bytes())
    }

    /// The newest acknowledged block; `None` if there is none, or if the write was torn by a power
    /// failure.
    pub(crate) fn last_acknowledged(&self) -> io::Result<Option<AcknowledgedBlock>> {
        let mut bytes = [0; ACKNOWLEDGED_BYTES];
        self.0.read(ACKNOWLEDGED_OFFSET, &mut bytes)?;
        Ok(AcknowledgedBlock::from_bytes(&bytes))
    }
}
