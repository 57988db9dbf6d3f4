//! A copy of a chain as it is at one moment, while it goes on.
//!
//! The database shows a reader the state of one commit for as long as it looks, whatever is committed meanwhile. A copy is
//! what such a reader sees, written into a file of its own.

use std::path::Path;
use std::sync::Arc;

use florin_protocol::Digest;

use super::device::Witness;
use super::store::{Reading, Store};
use super::{Block, ChainError, LocalChain, file_device, open_to_look, whole_file};
use crate::local::block::{Genesis, Head};
use florin_protocol::Canonical;

/// Blocks that are written in one commit.
const BLOCKS_PER_COMMIT: usize = 256;

/// A chain as it was when the copy was begun. It takes no room until it is written.
pub struct ChainCopy {
    reading: Reading,
    /// Keeps the file open, and locked, where nobody else has it open.
    _store: Arc<Store>,
}

impl std::fmt::Debug for ChainCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainCopy").finish_non_exhaustive()
    }
}

/// The newest block of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Its number.
    pub number: u64,
    /// Its digest.
    pub digest: Digest,
}

impl LocalChain {
    /// Begins a copy: what is carried out from now on is not in it. Does not wait for anything.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn begin_copy(&self) -> Result<ChainCopy, ChainError> {
        ChainCopy::of(Arc::clone(&self.store))
    }

    /// Begins a copy of a chain that nobody has open, without changing it; nobody can open it until that is written.
    ///
    /// # Errors
    /// [`ChainError`]; [`ChainError::Locked`] while a coordinator has it open.
    pub fn begin_copy_of(path: &Path) -> Result<ChainCopy, ChainError> {
        ChainCopy::of(Arc::new(Store::open(open_to_look(path)?)?))
    }
}

impl ChainCopy {
    fn of(store: Arc<Store>) -> Result<Self, ChainError> {
        let reading = store.read_now()?;
        Ok(Self { reading, _store: store })
    }

    /// Writes the copy. It appears at `path` whole and durable, or not at all.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn write(self, path: &Path) -> Result<Copied, ChainError> {
        whole_file(path, |file| {
            let genesis = self.reading.genesis()?;
            let store = Store::create(file_device(file)?, &genesis, &self.reading.rows()?)?;
            let first = Genesis::from_bytes(&genesis).map_err(|error| {
                ChainError::corrupt(format!("table meta, row genesis: {error}"))
            })?;
            let mut newest = Copied { number: 0, digest: first.digest() };
            let mut blocks = Vec::new();
            self.reading.each_block(|number, bytes| {
                blocks.push((number, bytes.to_vec()));
                if blocks.len() == BLOCKS_PER_COMMIT {
                    newest = append(&store, &mut blocks)?.unwrap_or(newest);
                }
                Ok(())
            })?;
            newest = append(&store, &mut blocks)?.unwrap_or(newest);
            store.remember(Witness { number: newest.number, digest: newest.digest })?;
            Ok(newest)
        })
    }
}

/// Writes blocks, and returns the newest of them.
fn append(store: &Store, blocks: &mut Vec<(u64, Vec<u8>)>) -> Result<Option<Copied>, ChainError> {
    let blocks = std::mem::take(blocks);
    store.append_blocks(&blocks)?;
    let Some((number, bytes)) = blocks.last() else { return Ok(None) };
    let block = Block::from_bytes(bytes).map_err(|error| ChainError::in_block(*number, error))?;
    Ok(Some(Copied { number: *number, digest: Head::of(&block.header).digest }))
}
