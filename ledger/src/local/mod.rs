//! The embedded chain: hash-linked blocks, signed by their operator, in one file.
//!
//! A block is durable before the writer acknowledges its transactions, and readers never see a
//! balance that a power failure could revert. The state is held in memory and is stored with the
//! blocks, in the same commit. When the file is opened, the blocks are replayed from genesis; the
//! result must equal the stored state.

mod block;
mod copy;
mod device;
mod error;
mod load;
mod overlay;
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

use florin_protocol::{Address, Canonical, Digest, MarketId, NodeSigner, Timestamp};
use redb::StorageBackend;
use redb::backends::{FileBackend, InMemoryBackend};

use crate::api::{LedgerError, Refusal, TxId};
use crate::limits::{BLOCK_BYTES_MAX, BLOCK_TRANSACTIONS_MAX};
use crate::state::State;
use crate::transaction::{Checked, Fate, Outcome, SignedTransaction, check_all};

pub use block::{Block, Genesis, Head, Header};
pub use copy::{ChainCopy, Copied};
pub use error::ChainError;

use device::{Device, Witness};
use load::{Trust, load};
use overlay::Overlay;
use store::Store;
use writer::{Answers, Live, Queue, Writer, gone};

/// The clock of a chain. It may jump: a block's time is never before its parent's.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The result of [`LocalChain::verify`] for a valid chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// The market of the chain.
    pub market: MarketId,
    /// The chain's operator.
    pub operator: Address,
    /// The number of blocks.
    pub blocks: u64,
    /// The number of their transactions; every account signature was verified.
    pub transactions: u64,
    /// Digest of the state after the last block, which equals the stored state.
    pub state: Digest,
}

/// A ledger in one file, run by one operator. Reads are served from memory. A writer thread
/// collects writes into blocks, so that concurrent callers share one durable commit (group commit).
pub struct LocalChain {
    genesis: Genesis,
    market: MarketId,
    live: Arc<RwLock<Live>>,
    store: Arc<Store>,
    clock: Clock,
    queue: Queue,
}

impl fmt::Debug for LocalChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalChain").field("market", &self.market).finish_non_exhaustive()
    }
}

impl LocalChain {
    /// Creates a new chain's file atomically: it appears at `path` complete or not at all.
    ///
    /// # Errors
    /// [`ChainError::Exists`], [`ChainError::BadGenesis`], [`ChainError::Full`] or
    /// [`ChainError::Io`].
    pub fn create(path: &Path, genesis: &Genesis) -> Result<MarketId, ChainError> {
        if let Some(fault) = genesis.fault() {
            return Err(ChainError::BadGenesis(fault));
        }
        whole_file(path, |file| Self::create_on(file_device(file)?, genesis).map(drop))?;
        Ok(genesis.market())
    }

    /// A new chain in memory, for tests: it is lost with the value.
    ///
    /// # Errors
    /// [`ChainError::BadGenesis`].
    pub fn in_memory(
        genesis: &Genesis,
        operator: NodeSigner,
        clock: Clock,
    ) -> Result<Self, ChainError> {
        if let Some(fault) = genesis.fault() {
            return Err(ChainError::BadGenesis(fault));
        }
        let device = Device(Arc::new(InMemoryBackend::new()));
        drop(Self::create_on(device.clone(), genesis)?);
        Self::open_on(device, operator, clock)
    }

    fn create_on(device: Device, genesis: &Genesis) -> Result<Store, ChainError> {
        let state = State::begin(&genesis.allocations);
        let rows = state.rows()?;
        let store = Store::create(device, &genesis.to_bytes(), &rows)?;
        store.remember(Witness { number: 0, digest: genesis.digest() })?;
        Ok(store)
    }

    /// Opens a chain: replays it from genesis, checks that blocks, operator signature and stored
    /// state agree, and starts its writer.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn open(path: &Path, operator: NodeSigner, clock: Clock) -> Result<Self, ChainError> {
        Self::open_on(open_file(path)?, operator, clock)
    }

    pub(crate) fn open_on(
        device: Device,
        operator: NodeSigner,
        clock: Clock,
    ) -> Result<Self, ChainError> {
        let (writer, genesis) = Self::load_on(device, operator, clock)?;
        let market = genesis.market();
        let (live, store) = (Arc::clone(&writer.live), Arc::clone(&writer.store));
        let clock = Arc::clone(&writer.clock);
        Ok(Self { genesis, market, live, store, clock, queue: Queue::start(writer)? })
    }

    fn load_on(
        device: Device,
        operator: NodeSigner,
        clock: Clock,
    ) -> Result<(Writer, Genesis), ChainError> {
        let store = Store::open(device)?;
        let loaded = load(&store, Trust::Operator)?;
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
        store.remember(Witness { number: loaded.head.number, digest: loaded.head.digest })?;
        let live =
            Live { state: loaded.state, head: loaded.head, recent: loaded.recent, halted: None };
        let live = Arc::new(RwLock::new(live));
        Ok((Writer { store: Arc::new(store), live, operator, clock }, loaded.genesis))
    }

    /// Replays a chain from genesis, verifies every account signature and every operator signature,
    /// and compares the result with the stored state. Changes nothing and needs no write
    /// permission.
    ///
    /// # Errors
    /// [`ChainError`]; [`ChainError::Locked`] while a coordinator has it open.
    pub fn verify(path: &Path) -> Result<Verification, ChainError> {
        let store = Store::open(open_to_look(path)?)?;
        let loaded = load(&store, Trust::Nobody)?;
        Ok(Verification {
            market: loaded.genesis.market(),
            operator: loaded.genesis.operator,
            blocks: loaded.head.number,
            transactions: loaded.transactions,
            state: loaded.state.digest()?,
        })
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
    pub fn head(&self) -> Head {
        self.read(|live| live.head)
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
    pub fn fate(&self, from: Address, nonce: u64, id: TxId) -> Fate {
        self.read(|live| match live.recent.outcome(id) {
            Some(outcome) => Fate::CarriedOut(outcome),
            None if live.state.nonce(from) <= nonce => Fate::NotYet,
            None => Fate::Unknown,
        })
    }

    /// A copy of the current state.
    #[must_use]
    pub fn state(&self) -> State {
        self.read(|live| live.state.clone())
    }

    /// Reads the published state under its lock.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Live) -> T) -> T {
        look(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The time at which the next block would be executed.
    pub(crate) fn time(&self) -> Timestamp {
        (self.clock)().max(self.head().time)
    }

    /// Executes one transaction. Returns when it is durable.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn submit(&self, transaction: SignedTransaction) -> Result<Outcome, LedgerError> {
        let checked = transaction.check(self.market)?;
        let answer = self.queue.submit(vec![checked])?.pop().ok_or_else(gone)?;
        Ok(answer?)
    }

    /// Executes transactions in blocks of up to [`BLOCK_TRANSACTIONS_MAX`]; signatures are verified
    /// on all cores. The results are in the order of the transactions; refused transactions are not
    /// part of any block.
    ///
    /// # Errors
    /// [`LedgerError`] if a block could not be made durable; [`LocalChain::fate`] returns the
    /// status of the earlier ones.
    pub fn submit_many(
        &self,
        transactions: Vec<SignedTransaction>,
    ) -> Result<Answers, LedgerError> {
        self.submit_checked(check_all(self.market, transactions))
    }

    pub(crate) fn submit_checked(
        &self,
        transactions: Vec<Result<Checked, Refusal>>,
    ) -> Result<Answers, LedgerError> {
        let mut answers: Vec<Option<Result<Outcome, Refusal>>> = Vec::new();
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
            carried_out.extend(reply.recv().map_err(|_| gone())??);
        }
        let mut carried_out = carried_out.into_iter();
        answers
            .into_iter()
            .map(|answer| answer.or_else(|| carried_out.next()).ok_or_else(gone))
            .collect()
    }
}

fn file_device(file: File) -> Result<Device, ChainError> {
    let backend: Arc<dyn StorageBackend> = Arc::new(FileBackend::new(file)?);
    Ok(Device(backend))
}

/// Creates a file atomically: it appears at `path` complete and durable, or not at all.
fn whole_file<T>(
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

fn open_file(path: &Path) -> Result<Device, ChainError> {
    file_device(open_with(path, OpenOptions::new().read(true).write(true))?)
}

/// Opens a file for reading only; repairs by the database stay in memory.
fn open_to_look(path: &Path) -> Result<Device, ChainError> {
    Ok(Device(Arc::new(Overlay::new(open_with(path, OpenOptions::new().read(true))?)?)))
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
