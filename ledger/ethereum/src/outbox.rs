//! The outbox of an account: every signed transaction is durable here before it is broadcast.
//!
//! One file for each account on a chain, for all its markets there. The process that has the file
//! open is the only one that writes for that account, so that two transactions never use the same
//! nonce.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alloy_primitives::B256;
use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, TaskId};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::node::TransactionReceipt;
use crate::limits::OUTBOX_MAX;
use florin_ledger::Action;
use florin_ledger::LedgerError;

const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
/// Pause before another attempt to open a file that another process has locked.
const HELD_PAUSE: Duration = Duration::from_millis(20);

/// The purpose of a transaction, from which it can be created again.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) enum Intent {
    /// A write of the trait.
    Act(Action),
    /// Sets the market's allowance for the sender's wallet.
    Approve(u128),
    /// An arbiter checkpoints the head of a task's settlement list, in order to cancel some of
    /// them.
    CheckpointHead(TaskId),
    /// Sends wei to another account, for its gas.
    Ether(Address, u128),
    /// Deploys a contract: its name, and the hash of its creation code.
    Deploy(String, [u8; 32]),
    /// Writes data into a transaction of the account to itself.
    Anchor(Vec<u8>),
}

impl Intent {
    /// A description for logs and errors.
    pub(super) fn summary(&self) -> String {
        match self {
            Self::Act(action) => action.summary(),
            Self::Approve(units) => {
                let amount = florin_protocol::Amount::from_units(*units);
                format!("approve {amount} FLN for the market")
            }
            Self::CheckpointHead(task) => {
                format!("checkpoint the settlements of task {}…", task.short())
            }
            Self::Ether(to, wei) => format!("send {wei} wei to {to}"),
            Self::Deploy(name, _) => format!("deploy {name}"),
            Self::Anchor(data) => format!("anchor {} bytes", data.len()),
        }
    }

    /// Whether the contracts make a repetition harmless (idempotent). An intent whose repetition
    /// they cannot distinguish from the first is never sent again after an apparent failure.
    pub(super) const fn is_idempotent(&self) -> bool {
        match self {
            Self::Act(action) => !matches!(
                action,
                Action::Transfer { .. }
                    | Action::Bond { .. }
                    | Action::Stake { .. }
                    | Action::Slash(_)
            ),
            Self::Approve(_) | Self::CheckpointHead(_) | Self::Anchor(_) => true,
            Self::Ether(..) | Self::Deploy(..) => false,
        }
    }

    /// Whether its success is reported to a caller that repeats the request, however late: the
    /// chain does not show whether a payment has been made already.
    pub(super) const fn reports_late(&self) -> bool {
        match self {
            Self::Act(action) => matches!(action, Action::Transfer { .. } | Action::Slash(_)),
            Self::Ether(..) | Self::Deploy(..) => true,
            Self::Approve(_) | Self::CheckpointHead(_) | Self::Anchor(_) => false,
        }
    }
}

/// One version of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct TransactionVersion {
    /// The signed bytes.
    pub(super) raw: Vec<u8>,
    /// The transaction hash.
    pub(super) hash: [u8; 32],
    /// Maximum fee per unit of gas, in wei.
    pub(super) max_fee: u128,
    /// Maximum priority fee per unit of gas, in wei.
    pub(super) priority_fee: u128,
}

impl TransactionVersion {
    pub(super) fn hash(&self) -> B256 {
        B256::from(self.hash)
    }
}

/// One nonce of an account, with the transaction that uses it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct OutboxEntry {
    pub(super) nonce: u64,
    /// The name of its market; only that market can execute the intent again.
    pub(super) market: String,
    pub(super) intent: Intent,
    pub(super) to: Option<Address>,
    pub(super) data: Vec<u8>,
    pub(super) wei: u128,
    pub(super) gas: u64,
    /// Versions with the same nonce and content and rising fees.
    pub(super) versions: Vec<TransactionVersion>,
    /// The confirmed block with the transaction.
    pub(super) mined: Option<MinedTransaction>,
    /// Whether its success was reported to the caller.
    pub(super) reported: bool,
    /// The nonce of a transaction that a reorganisation reverted and that this one repeats.
    pub(super) reexecutes: Option<u64>,
}

impl OutboxEntry {
    /// Whether it must succeed, because its intent had succeeded before.
    pub(super) fn must_succeed(&self) -> bool {
        self.reexecutes.is_some() || self.mined_successfully().is_some()
    }

    /// Its block, if it succeeded.
    pub(super) fn mined_successfully(&self) -> Option<MinedTransaction> {
        self.mined.filter(|mined| mined.succeeded)
    }
}

/// The block in which a transaction was mined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct MinedTransaction {
    pub(super) block: u64,
    /// The block's hash: after a reorganisation another block has the number.
    pub(super) hash: [u8; 32],
    /// The transaction's hash.
    pub(super) transaction: [u8; 32],
    /// Whether it succeeded; otherwise it reverted.
    pub(super) succeeded: bool,
}

impl MinedTransaction {
    /// Whether another transaction was mined in the same block.
    pub(super) fn is_in_same_block(&self, other: &Self) -> bool {
        (self.block, self.hash) == (other.block, other.hash)
    }

    pub(super) fn from_receipt(receipt: &TransactionReceipt) -> Self {
        Self {
            block: receipt.block(),
            hash: receipt.block_hash.0,
            transaction: receipt.transaction_hash.0,
            succeeded: receipt.succeeded(),
        }
    }
}

/// Creates an account's file atomically, unless it exists. Otherwise a process that is killed
/// during the creation would leave an invalid file that blocks every later process.
fn create_atomically(path: &Path) -> Result<(), String> {
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    if path.exists() {
        return Ok(());
    }
    let number = BEGUN.fetch_add(1, Ordering::Relaxed);
    let begun = path.with_extension(format!("{}-{number}.begun", std::process::id()));
    let to_text = |error: std::io::Error| error.to_string();
    match std::fs::remove_file(&begun) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.to_string()),
        _ => {}
    }
    drop(Database::create(&begun).map_err(|error| error.to_string())?);
    // A hard link never replaces a file that another process has created meanwhile, and may have
    // open.
    match std::fs::hard_link(&begun, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.to_string()),
        _ => {}
    }
    std::fs::remove_file(&begun).map_err(to_text)?;
    match path.parent() {
        Some(folder) => File::open(folder).and_then(|folder| folder.sync_all()).map_err(to_text),
        None => Ok(()),
    }
}

/// The outbox of an account.
pub(super) struct Outbox {
    database: Database,
    path: PathBuf,
}

impl Outbox {
    /// Opens an account's outbox; waits for at most `timeout_ms` while another process has it
    /// open.
    pub(super) fn open(path: &Path, timeout_ms: u64) -> Result<Self, LedgerError> {
        let shown = path.display();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| {
                LedgerError::Outbox(format!("cannot create the folder of {shown}: {error}"))
            })?;
        }
        create_atomically(path)
            .map_err(|error| LedgerError::Outbox(format!("cannot create {shown}: {error}")))?;
        let mut waited = Duration::ZERO;
        loop {
            match Database::open(path) {
                Ok(database) => return Ok(Self { database, path: path.to_owned() }),
                Err(DatabaseError::DatabaseAlreadyOpen)
                    if waited < Duration::from_millis(timeout_ms) =>
                {
                    std::thread::sleep(HELD_PAUSE);
                    waited = waited.saturating_add(HELD_PAUSE);
                }
                Err(DatabaseError::DatabaseAlreadyOpen) => {
                    return Err(LedgerError::Unavailable(format!(
                        "another process uses this wallet and has {shown} open: wait for it, or \
                         stop it"
                    )));
                }
                Err(error) => {
                    return Err(LedgerError::Outbox(format!("cannot open {shown}: {error}")));
                }
            }
        }
    }

    fn outbox_error(&self, error: impl std::fmt::Display) -> LedgerError {
        LedgerError::Outbox(format!("{}: {error}", self.path.display()))
    }

    /// All entries, lowest nonce first.
    pub(super) fn entries(&self) -> Result<Vec<OutboxEntry>, LedgerError> {
        self.read(|table| {
            let mut entries = Vec::new();
            for row in table.iter().map_err(|error| self.outbox_error(error))? {
                entries.push(self.parse(&row.map_err(|error| self.outbox_error(error))?.1)?);
            }
            Ok(entries)
        })
    }

    /// The entry of a nonce.
    pub(super) fn entry(&self, nonce: u64) -> Result<Option<OutboxEntry>, LedgerError> {
        self.read(|table| {
            let row = table.get(nonce).map_err(|error| self.outbox_error(error))?;
            row.map(|bytes| self.parse(&bytes)).transpose()
        })
    }

    /// The highest nonce.
    pub(super) fn last_nonce(&self) -> Result<Option<u64>, LedgerError> {
        self.read(|table| {
            let row = table.last().map_err(|error| self.outbox_error(error))?;
            Ok(row.map(|(nonce, _)| nonce.value()))
        })
    }

    /// Reads the table; an outbox without entries has none.
    fn read<T: Default>(
        &self,
        look: impl FnOnce(&redb::ReadOnlyTable<u64, &'static [u8]>) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let read = self.database.begin_read().map_err(|error| self.outbox_error(error))?;
        match read.open_table(ENTRIES) {
            Ok(table) => look(&table),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(T::default()),
            Err(error) => Err(self.outbox_error(error)),
        }
    }

    fn parse(
        &self,
        bytes: &redb::AccessGuard<'_, &'static [u8]>,
    ) -> Result<OutboxEntry, LedgerError> {
        OutboxEntry::try_from_slice(bytes.value())
            .map_err(|error| self.outbox_error(format!("an entry cannot be decoded: {error}")))
    }

    /// Writes an entry, replacing an earlier one with its nonce; returns when it is durable.
    pub(super) fn put(&self, entry: &OutboxEntry) -> Result<(), LedgerError> {
        let bytes = borsh::to_vec(entry).map_err(|error| self.outbox_error(error))?;
        self.change(|table| table.insert(entry.nonce, bytes.as_slice()).map(drop))
    }

    /// Deletes an entry.
    pub(super) fn remove(&self, nonce: u64) -> Result<(), LedgerError> {
        self.change(|table| table.remove(nonce).map(drop))
    }

    fn change(
        &self,
        what: impl FnOnce(&mut redb::Table<'_, u64, &'static [u8]>) -> Result<(), redb::StorageError>,
    ) -> Result<(), LedgerError> {
        let mut write = self.database.begin_write().map_err(|error| self.outbox_error(error))?;
        write.set_two_phase_commit(true);
        {
            let mut table = write.open_table(ENTRIES).map_err(|error| self.outbox_error(error))?;
            what(&mut table).map_err(|error| self.outbox_error(error))?;
            let count = redb::ReadableTableMetadata::len(&table);
            if count.map_err(|error| self.outbox_error(error))?
                > OUTBOX_MAX.try_into().unwrap_or(u64::MAX)
            {
                return Err(self.outbox_error(format!(
                    "{OUTBOX_MAX} transactions of this account are pending or recent: wait until \
                     they are deep in the chain"
                )));
            }
        }
        write.commit().map_err(|error| self.outbox_error(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_file_blocks_no_later_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outbox").join("name.redb");
        // The result of a kill during the creation of a database: redb cannot open it.
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path.with_extension("1-0.begun"), [0u8; 4_096]).unwrap();
        let outbox = Outbox::open(&path, 0).unwrap();
        assert!(outbox.entries().unwrap().is_empty());
        assert!(Outbox::open(&path, 0).is_err(), "one opener at a time");
        drop(outbox);
        Outbox::open(&path, 0).unwrap();
        let names = std::fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 2, "the outbox, and another process's unfinished file");
    }

    #[test]
    fn concurrent_openers_share_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("name.redb");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| drop(Outbox::open(&path, 10_000).unwrap()));
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
