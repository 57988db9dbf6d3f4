//! The ledger's state as nine ordered tables, and the changes from one state to the next.

use std::collections::BTreeMap;
use std::io;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, Digest, RoundNumber, SettlementId, TaskId, Timestamp};

use crate::api::{MemberShare, PendingSettlement, Terms};
use crate::entry::Account;

/// One row as it is hashed and stored: the canonical key, and the canonical value, or `None` for a
/// deleted row.
pub(crate) type TableRow = (Vec<u8>, Option<Vec<u8>>);

/// The changed rows of one table, ascending by key.
pub(crate) type TableRows = (&'static str, Vec<TableRow>);

/// The terms and the progress of a task, without the balances of its accounts, which are in the
/// table `books`.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TaskRecord {
    /// The terms with which the task was opened.
    pub terms: Terms,
    /// Finalised for data so far.
    pub data_paid: Amount,
    /// Finalised for infrastructure so far.
    pub infrastructure_paid: Amount,
    /// Refunded to the buyer.
    pub refunded: Amount,
    /// Claimed so far, by all accounts.
    pub claimed: Amount,
    /// Root of the last final settlement.
    pub root: Digest,
    /// Round of the last final settlement.
    pub round: Option<RoundNumber>,
    /// Number of final settlements.
    pub finalised: u32,
    /// Settlements that are not final yet, oldest first.
    pub pending: Vec<SettlementId>,
    /// The moment of the latest post of a settlement, cancelled or not.
    pub last_post: Option<Timestamp>,
    /// Whether the arbiter has cancelled a settlement.
    pub cancelled: bool,
    /// The moment of the latest announced close; see [`TaskRecord::announced_close`].
    pub closes_at: Option<Timestamp>,
    /// Closed permanently.
    pub closed: bool,
}

impl TaskRecord {
    /// The moment from which an announced close is possible. A post withdraws an announcement: a task
    /// that goes on is not about to be closed. Nothing was pending at the announcement, so that a
    /// later post has a later window.
    #[must_use]
    pub fn announced_close(&self) -> Option<Timestamp> {
        let window = |post: Timestamp| post.saturating_add_ms(self.terms.challenge_ms);
        let stands = |at: &Timestamp| self.last_post.is_none_or(|post| window(post) < *at);
        self.closes_at.filter(|at| !self.closed && stands(at))
    }
}

/// A settlement that was posted and not cancelled.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum SettlementStage {
    /// Within its window, or not finalised yet.
    Pending(PendingSettlement),
    /// Final.
    Final {
        /// Digest of the settlement, which identifies a repeated post.
        settlement: Digest,
        /// The end of its challenge window.
        final_at: Timestamp,
    },
}

/// A provider's stake, without its amount, which is in the table `books`.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct StakeRecord {
    /// The moment from which it can be withdrawn, if its owner has requested its return.
    pub release: Option<Timestamp>,
    /// The tasks to which it is pledged, and the amount that each has slashed from its pledge.
    pub slashed: BTreeMap<TaskId, Amount>,
}

/// The canonical bytes of a value.
fn canonical_bytes(value: &impl BorshSerialize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(64);
    value.serialize(&mut bytes)?;
    Ok(bytes)
}

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident: $key:ty => $value:ty,)*) => {
        /// The complete state of a ledger at one moment. Equal histories give equal states.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct LedgerState {
            $($(#[$doc])* pub(crate) $name: BTreeMap<$key, $value>,)*
        }

        /// The changes to a state: new rows, and deleted rows.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Changes {
            $(pub(crate) $name: BTreeMap<$key, Option<$value>>,)*
        }

        /// The names of the tables, which are stored and hashed.
        pub(crate) const TABLES: &[&str] = &[$(stringify!($name),)*];

        impl LedgerState {
            /// Applies the changes.
            pub(crate) fn merge(&mut self, changes: Changes) {
                $(for (key, value) in changes.$name {
                    match value {
                        Some(value) => self.$name.insert(key, value),
                        None => self.$name.remove(&key),
                    };
                })*
            }

            /// Inserts a stored row.
            pub(crate) fn restore(
                &mut self,
                table: &str,
                key: &[u8],
                value: &[u8],
            ) -> io::Result<()> {
                $(if table == stringify!($name) {
                    let key = <$key>::try_from_slice(key)?;
                    self.$name.insert(key, <$value>::try_from_slice(value)?);
                    return Ok(());
                })*
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("no table {table:?}")))
            }

            /// The name of the first table in which two states differ.
            pub(crate) fn first_differing_table(&self, other: &Self) -> Option<&'static str> {
                $(if self.$name != other.$name {
                    return Some(stringify!($name));
                })*
                None
            }

            /// A digest of every row of every table.
            ///
            /// # Errors
            /// An [`io::Error`] only if a row is longer than 4 GiB.
            pub fn digest(&self) -> io::Result<Digest> {
                let mut hasher = blake3::Hasher::new_derive_key("florin v1 state");
                $({
                    hasher.update(stringify!($name).as_bytes());
                    hasher.update(&canonical_bytes(&count(self.$name.len()))?);
                    for (key, value) in &self.$name {
                        hasher.update(&canonical_bytes(&canonical_bytes(key)?)?);
                        hasher.update(&canonical_bytes(&canonical_bytes(value)?)?);
                    }
                })*
                Ok(Digest(*hasher.finalize().as_bytes()))
            }
        }

        impl LedgerState {
            /// Every row in canonical bytes, table by table.
            pub(crate) fn rows(&self) -> io::Result<Vec<TableRows>> {
                let mut tables = Vec::new();
                $(if !self.$name.is_empty() {
                    let mut rows = Vec::with_capacity(self.$name.len());
                    for (key, value) in &self.$name {
                        rows.push((canonical_bytes(key)?, Some(canonical_bytes(value)?)));
                    }
                    tables.push((stringify!($name), rows));
                })*
                Ok(tables)
            }
        }

        impl Changes {
            /// The changed rows in canonical bytes, table by table.
            pub(crate) fn rows(&self) -> io::Result<Vec<TableRows>> {
                let mut tables = Vec::new();
                $(if !self.$name.is_empty() {
                    let mut rows = Vec::with_capacity(self.$name.len());
                    for (key, value) in &self.$name {
                        let value = value.as_ref().map(|value| canonical_bytes(value)).transpose()?;
                        rows.push((canonical_bytes(key)?, value));
                    }
                    tables.push((stringify!($name), rows));
                })*
                Ok(tables)
            }
        }
    };
}

tables! {
    /// The balance of every account. An account with balance zero has no row.
    books: Account => Amount,
    /// The number of transactions of each account.
    nonces: Address => u64,
    /// The tasks.
    tasks: TaskId => TaskRecord,
    /// Settlements, pending or final.
    settlements: (TaskId, SettlementId) => SettlementStage,
    /// Bonds whose return was requested, and the moment from which each can be withdrawn.
    bonds: (TaskId, Address) => Timestamp,
    /// Stakes: their release and their pledges.
    stakes: Address => StakeRecord,
    /// The totals of each account's claims in each task.
    claimed: (TaskId, Address) => ClaimTotals,
    /// The amount slashed from each account's bonds in each task, except the coordinator's.
    slashed: (TaskId, Address) => Amount,
    /// The split of each account's pay in each task, of accounts that have one.
    splits: (TaskId, Address) => Vec<MemberShare>,
}

/// A length as it is hashed.
fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

impl LedgerState {
    /// The state after genesis: the only creation of money. Each account must be listed once.
    #[must_use]
    pub fn from_genesis(allocations: &[(Address, Amount)]) -> Self {
        let books = allocations.iter().map(|(owner, amount)| (Account::Wallet(*owner), *amount));
        Self { books: books.collect(), ..Self::default() }
    }

    /// The total supply.
    ///
    /// # Errors
    /// [`florin_protocol::AmountError::Overflow`] if the sum exceeds the range of an amount.
    pub fn supply(&self) -> Result<Amount, florin_protocol::AmountError> {
        Amount::total(self.books.values().copied())
    }
}

/// The digest of a block's changes.
pub(crate) fn changes_digest(tables: &[TableRows]) -> Digest {
    let mut bytes = Vec::new();
    for (name, rows) in tables {
        push_length_prefixed(&mut bytes, name.as_bytes());
        bytes.extend_from_slice(&count(rows.len()).to_le_bytes());
        for (key, value) in rows {
            push_length_prefixed(&mut bytes, key);
            match value {
                Some(value) => {
                    bytes.push(1);
                    push_length_prefixed(&mut bytes, value);
                }
                None => bytes.push(0),
            }
        }
    }
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 changes");
    hasher.update(&bytes);
    Digest(*hasher.finalize().as_bytes())
}

/// Appends bytes with their length in front.
fn push_length_prefixed(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&count(part.len()).to_le_bytes());
    bytes.extend_from_slice(part);
}
