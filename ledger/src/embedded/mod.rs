//! The embedded chain: hash-linked blocks, signed by their operator, in one file.
//!
//! A block is durable before the writer acknowledges its transactions, and readers never see a
//! balance that a power failure could revert. The state is held in memory and is stored with the
//! blocks, in the same commit. When the file is opened, the blocks are replayed from genesis; the
//! result must equal the stored state.

mod block;
mod copy_on_write;
mod error;
mod follow;
mod ledger_file;
mod replay;
mod snapshot;
mod store;
mod writer;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use florin_protocol::{Address, Canonical, Digest, MarketId, NodeKey, NodeSigner, Timestamp};
use redb::StorageBackend;
use redb::backends::{FileBackend, InMemoryBackend};

use crate::api::{LedgerError, Refusal, TxId};
use crate::limits::{BLOCK_BYTES_MAX, BLOCK_TRANSACTIONS_MAX};
use crate::state::LedgerState;
use crate::transaction::{
    SignedTransaction, TransactionOutcome, TransactionStatus, VerifiedTransaction, verify_all,
};

pub use block::{Block, BlockHeader, ChainHead, Genesis};
pub use error::ChainError;
pub use follow::{BlockSource, FollowError, SignedHead, follow_head, verify_served_chain};
pub use snapshot::{ChainSnapshot, SnapshotHead};

use copy_on_write::CopyOnWriteFile;
use ledger_file::{AcknowledgedBlock, LedgerFile};
use replay::{SignatureChecks, load_and_replay};
use store::Store;
use writer::{PublishedState, SubmissionResults, Writer, WriterQueue, writer_stopped};

/// The clock of a chain. It may jump: a block's time is never before its parent's.
pub type LedgerClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The result of [`EmbeddedChain::verify`] or [`verify_served_chain`] for a valid chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// The market of the chain.
    pub market: MarketId,
    /// The chain's operator.
    pub operator: Address,
    /// The key that signed every block.
    pub operator_key: NodeKey,
    /// The number of blocks.
    pub blocks: u64,
    /// Digest of the last block; of the genesis for a chain without blocks.
    pub head: Digest,
    /// The number of their transactions; every account signature was verified.
    pub transactions: u64,
    /// Digest of the state after the last block; a file's stored state equals it.
    pub state: Digest,
}

/// A ledger in one file, run by one operator. Reads are served from memory. A writer thread
/// collects writes into blocks, so that concurrent callers share one durable commit (group commit).
pub struct EmbeddedChain {
    genesis: Genesis,
    market: MarketId,
    published: Arc<RwLock<PublishedState>>,
    store: Arc<Store>,
    clock: LedgerClock,
    queue: WriterQueue,
}

impl fmt::Debug for EmbeddedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalChain").field("market", &self.market).finish_non_exhaustive()
    }
}

impl EmbeddedChain {
    /// Creates a new chain's file atomically: it appears at `path` complete or not at all.
    ///
    /// # Errors
    /// [`ChainError::Exists`], [`ChainError::BadGenesis`], [`ChainError::Full`] or
    /// [`ChainError::Io`].
    pub fn create(path: &Path, genesis: &Genesis) -> Result<MarketId, ChainError> {
        if let Some(fault) = genesis.validation_error() {
            return Err(ChainError::BadGenesis(fault));
        }
        create_atomically(path, |file| {
            Self::create_on_device(file_device(file)?, genesis).map(drop)
        })?;
        Ok(genesis.market())
    }

    /// A new chain in memory, for tests: it is lost with the value.
    ///
    /// # Errors
    /// [`ChainError::BadGenesis`].
    pub fn in_memory(
        genesis: &Genesis,
        operator: NodeSigner,
        clock: LedgerClock,
    ) -> Result<Self, ChainError> {
        if let Some(fault) = genesis.validation_error() {
            return Err(ChainError::BadGenesis(fault));
        }
        let device = LedgerFile(Arc::new(InMemoryBackend::new()));
        drop(Self::create_on_device(device.clone(), genesis)?);
        Self::open_on_device(device, operator, clock)
    }

    fn create_on_device(device: LedgerFile, genesis: &Genesis) -> Result<Store, ChainError> {
        let state = LedgerState::from_genesis(&genesis.allocations);
        let rows = state.rows()?;
        let store = Store::create(device, &genesis.to_bytes(), &rows)?;
        store.record_acknowledged(AcknowledgedBlock { number: 0, digest: genesis.digest() })?;
        Ok(store)
    }

    /// Opens a chain: replays it from genesis, checks that blocks, operator signature and stored
    /// state agree, and starts its writer.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn open(path: &Path, operator: NodeSigner, clock: LedgerClock) -> Result<Self, ChainError> {
        Self::open_on_device(open_file(path)?, operator, clock)
    }

    pub(crate) fn open_on_device(
        device: LedgerFile,
        operator: NodeSigner,
        clock: LedgerClock,
    ) -> Result<Self, ChainError> {
        let (writer, genesis) = Self::load_from_device(device, operator, clock)?;
        let market = genesis.market();
        let (live, store) = (Arc::clone(&writer.published), Arc::clone(&writer.store));
        let clock = Arc::clone(&writer.clock);
        Ok(Self {
            genesis,
            market,
            published: live,
            store,
            clock,
            queue: WriterQueue::start(writer)?,
        })
    }

    fn load_from_device(
        device: LedgerFile,
        operator: NodeSigner,
        clock: LedgerClock,
    ) -> Result<(Writer, Genesis), ChainError> {
        let store = Store::open(device)?;
        let loaded = load_and_replay(&store, SignatureChecks::HeadOnly)?;
        let (expected, got) = (loaded.genesis.operator_key, operator.key());
        if expected != got {
            return Err(ChainError::WrongOperator { expected, got });
        }
        tracing::info!(
            blocks = loaded.head.number,
            transactions = loaded.transactions,
            "the stored state matches the replayed blocks"
        );
        // After a power failure the first page may be older than the chain: it is rewritten here.
        store.record_acknowledged(AcknowledgedBlock {
            number: loaded.head.number,
            digest: loaded.head.digest,
        })?;
        let live = PublishedState {
            state: loaded.state,
            head: loaded.head,
            recent: loaded.recent,
            poisoned: None,
        };
        let live = Arc::new(RwLock::new(live));
        Ok((Writer { store: Arc::new(store), published: live, operator, clock }, loaded.genesis))
    }

    /// Replays a chain from genesis, verifies every account signature and every operator signature,
    /// and compares the result with the stored state. Changes nothing and needs no write
    /// permission.
    ///
    /// # Errors
    /// [`ChainError`]; [`ChainError::Locked`] while a coordinator has it open.
    pub fn verify(path: &Path) -> Result<Verification, ChainError> {
        let store = Store::open(open_read_only(path)?)?;
        load_and_replay(&store, SignatureChecks::All)?.verification()
    }

    /// The chain's genesis.
    #[must_use]
    pub const fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    /// The chain's market: chain id and genesis.
    #[must_use]
    pub const fn chain_market(&self) -> MarketId {
        self.market
    }

    /// The newest block.
    #[must_use]
    pub fn head(&self) -> ChainHead {
        self.read_published(|live| live.head)
    }

    /// A block; `None` for a number beyond the newest.
    ///
    /// # Errors
    /// [`LedgerError::Corrupt`] or [`LedgerError::Unavailable`].
    pub fn block(&self, number: u64) -> Result<Option<Block>, LedgerError> {
        let Some(bytes) = self.store.block(number)? else { return Ok(None) };
        let block = Block::from_bytes(&bytes);
        block.map(Some).map_err(|error| ChainError::in_block(number, error).into())
    }

    /// The status of a transaction.
    #[must_use]
    pub fn transaction_status(&self, from: Address, nonce: u64, id: TxId) -> TransactionStatus {
        self.read_published(|live| match live.recent.outcome(id) {
            Some(outcome) => TransactionStatus::Executed(outcome),
            None if live.state.nonce(from) <= nonce => TransactionStatus::NotExecuted,
            None => TransactionStatus::Unknown,
        })
    }

    /// A copy of the current state.
    #[must_use]
    pub fn state(&self) -> LedgerState {
        self.read_published(|live| live.state.clone())
    }

    /// Reads the published state under its lock.
    pub(crate) fn read_published<T>(&self, look: impl FnOnce(&PublishedState) -> T) -> T {
        look(&self.published.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The time at which the next block would be executed.
    pub(crate) fn next_block_time(&self) -> Timestamp {
        (self.clock)().max(self.head().time)
    }

    /// Executes one transaction. Returns when it is durable.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn submit(
        &self,
        transaction: SignedTransaction,
    ) -> Result<TransactionOutcome, LedgerError> {
        let checked = transaction.verify(self.market)?;
        let answer = self.queue.submit(vec![checked])?.pop().ok_or_else(writer_stopped)?;
        Ok(answer?)
    }

    /// Executes transactions in blocks of up to [`BLOCK_TRANSACTIONS_MAX`]; signatures are verified
    /// on all cores. The results are in the order of the transactions; refused transactions are not
    /// part of any block.
    ///
    /// # Errors
    /// [`LedgerError`] if a block could not be made durable; [`EmbeddedChain::transaction_status`] returns the
    /// status of the earlier ones.
    pub fn submit_many(
        &self,
        transactions: Vec<SignedTransaction>,
    ) -> Result<SubmissionResults, LedgerError> {
        self.submit_verified(verify_all(self.market, transactions))
    }

    pub(crate) fn submit_verified(
        &self,
        transactions: Vec<Result<VerifiedTransaction, Refusal>>,
    ) -> Result<SubmissionResults, LedgerError> {
        let mut answers: Vec<Option<Result<TransactionOutcome, Refusal>>> = Vec::new();
        let mut waiting = Vec::new();
        let mut chunk = Vec::new();
        let mut bytes = 0usize;
        for transaction in transactions {
            match transaction {
                Err(refusal) => answers.push(Some(Err(refusal))),
                Ok(checked) => {
                    bytes = bytes.saturating_add(checked.bytes());
                    if chunk.len() >= BLOCK_TRANSACTIONS_MAX || bytes > BLOCK_BYTES_MAX {
                        bytes = checked.bytes();
                        waiting.push(self.queue.send(std::mem::take(&mut chunk))?);
                    }
                    chunk.push(checked);
                    answers.push(None);
                }
            }
        }
        if !chunk.is_empty() {
            waiting.push(self.queue.send(chunk)?);
        }
        let mut carried_out = Vec::with_capacity(answers.len());
        for reply in waiting {
            carried_out.extend(reply.recv().map_err(|_| writer_stopped())??);
        }
        let mut carried_out = carried_out.into_iter();
        answers
            .into_iter()
            .map(|answer| answer.or_else(|| carried_out.next()).ok_or_else(writer_stopped))
            .collect()
    }
}

fn file_device(file: File) -> Result<LedgerFile, ChainError> {
    let backend: Arc<dyn StorageBackend> = Arc::new(FileBackend::new(file)?);
    Ok(LedgerFile(backend))
}

/// Creates a file atomically: it appears at `path` complete and durable, or not at all.
fn create_atomically<T>(
    path: &Path,
    fill: impl FnOnce(File) -> Result<T, ChainError>,
) -> Result<T, ChainError> {
    if path.exists() {
        return Err(ChainError::Exists(path.display().to_string()));
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = Path::new(&unfinished);
    // An unfinished file of an earlier attempt is worthless.
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(unfinished)?;
    let made = fill(file.try_clone()?)?;
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    sync_folder(path)?;
    Ok(made)
}

fn open_file(path: &Path) -> Result<LedgerFile, ChainError> {
    file_device(open_with(path, OpenOptions::new().read(true).write(true))?)
}

/// Opens a file for reading only; repairs by the database stay in memory.
fn open_read_only(path: &Path) -> Result<LedgerFile, ChainError> {
    Ok(LedgerFile(Arc::new(CopyOnWriteFile::new(open_with(path, OpenOptions::new().read(true))?)?)))
}

fn open_with(path: &Path, options: &OpenOptions) -> Result<File, ChainError> {
    options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ChainError::Missing(path.display().to_string()),
        _ => error.into(),
    })
}

/// Makes a new directory entry durable, on systems that let directories be opened.
fn sync_folder(path: &Path) -> Result<(), ChainError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match File::open(folder.unwrap_or_else(|| Path::new("."))) {
        Ok(folder) => Ok(folder.sync_all()?),
        Err(_) => Ok(()),
    }
}
