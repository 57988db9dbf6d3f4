//! A snapshot of a chain at one moment, while the chain continues.
//!
//! The database gives a reader the state of one commit for as long as its read transaction lives
//! (MVCC). A snapshot is such a read transaction, written to a file of its own.

use std::path::Path;
use std::sync::Arc;

use florin_protocol::Digest;

use super::ledger_file::AcknowledgedBlock;
use super::store::{Store, StoreSnapshot};
use super::{Block, ChainError, EmbeddedChain, create_atomically, file_device, open_read_only};
use crate::embedded::block::{ChainHead, Genesis};
use florin_protocol::Canonical;

/// Blocks per commit of the new file.
const BLOCKS_PER_COMMIT: usize = 256;

/// A chain at the moment when the snapshot was begun. It takes no space until it is written.
pub struct ChainSnapshot {
    snapshot: StoreSnapshot,
    /// Holds the file open and locked, for a chain that no coordinator has open.
    _store: Arc<Store>,
}

impl std::fmt::Debug for ChainSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainCopy").finish_non_exhaustive()
    }
}

/// The newest block of a written snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Its number.
    pub number: u64,
    /// Its digest.
    pub digest: Digest,
}

impl EmbeddedChain {
    /// Begins a snapshot: transactions executed later are not part of it. Does not block.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn begin_snapshot(&self) -> Result<ChainSnapshot, ChainError> {
        ChainSnapshot::from_store(Arc::clone(&self.store))
    }

    /// Begins a snapshot of a chain that no coordinator has open, without changing its file; the
    /// file stays locked until the snapshot is written or dropped.
    ///
    /// # Errors
    /// [`ChainError`]; [`ChainError::Locked`] while a coordinator has it open.
    pub fn begin_snapshot_of_file(path: &Path) -> Result<ChainSnapshot, ChainError> {
        ChainSnapshot::from_store(Arc::new(Store::open(open_read_only(path)?)?))
    }
}

impl ChainSnapshot {
    fn from_store(store: Arc<Store>) -> Result<Self, ChainError> {
        let reading = store.snapshot()?;
        Ok(Self { snapshot: reading, _store: store })
    }

    /// Writes the snapshot. It appears at `path` complete and durable, or not at all.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn write(self, path: &Path) -> Result<SnapshotHead, ChainError> {
        create_atomically(path, |file| {
            let genesis = self.snapshot.genesis()?;
            let store = Store::create(file_device(file)?, &genesis, &self.snapshot.rows()?)?;
            let first = Genesis::from_bytes(&genesis).map_err(|error| {
                ChainError::corrupt(format!("table meta, row genesis: {error}"))
            })?;
            let mut newest = SnapshotHead { number: 0, digest: first.digest() };
            let mut blocks = Vec::new();
            self.snapshot.each_block(|number, bytes| {
                blocks.push((number, bytes.to_vec()));
                if blocks.len() == BLOCKS_PER_COMMIT {
                    newest = append(&store, &mut blocks)?.unwrap_or(newest);
                }
                Ok(())
            })?;
            newest = append(&store, &mut blocks)?.unwrap_or(newest);
            store.record_acknowledged(AcknowledgedBlock {
                number: newest.number,
                digest: newest.digest,
            })?;
            Ok(newest)
        })
    }
}

/// Writes blocks in one commit, and returns the newest of them.
fn append(
    store: &Store,
    blocks: &mut Vec<(u64, Vec<u8>)>,
) -> Result<Option<SnapshotHead>, ChainError> {
    let blocks = std::mem::take(blocks);
    store.append_blocks(&blocks)?;
    let Some((number, bytes)) = blocks.last() else { return Ok(None) };
    let block = Block::from_bytes(bytes).map_err(|error| ChainError::in_block(*number, error))?;
    Ok(Some(SnapshotHead { number: *number, digest: ChainHead::from_header(&block.header).digest }))
}
