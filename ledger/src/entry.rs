//! Double entry: the accounts, and what moves between them. Nothing moves without both sides.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Amount, TaskId};
use serde::{Deserialize, Serialize};

/// The two parts of a task's escrow.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Pays participants for what their updates were worth.
    Data,
    /// Pays providers for verified work.
    Infrastructure,
}

/// Where money can be.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Account {
    /// Free to be spent by its owner.
    Wallet(Address),
    /// Locked for a task.
    Escrow(TaskId, Pool),
    /// At risk for a participant's updates in a task.
    Bond(TaskId, Address),
    /// At risk for a provider's work.
    Stake(Address),
    /// Made final by a task's settlements and not claimed yet.
    Owed(TaskId),
    /// What debits and slashes have come to.
    Treasury,
}

impl Account {
    /// The task whose equation this account is part of.
    #[must_use]
    pub const fn task(&self) -> Option<TaskId> {
        match self {
            Self::Escrow(task, _) | Self::Bond(task, _) | Self::Owed(task) => Some(*task),
            Self::Wallet(_) | Self::Stake(_) | Self::Treasury => None,
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wallet(owner) => write!(f, "wallet {owner}"),
            Self::Escrow(task, Pool::Data) => write!(f, "data escrow of task {task}"),
            Self::Escrow(task, Pool::Infrastructure) => {
                write!(f, "infrastructure escrow of task {task}")
            }
            Self::Bond(task, owner) => write!(f, "bond of {owner} in task {task}"),
            Self::Stake(owner) => write!(f, "stake of {owner}"),
            Self::Owed(task) => write!(f, "what task {task} owes"),
            Self::Treasury => f.write_str("treasury"),
        }
    }
}

/// Why money moved.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its owner gave it away.
    Transferred,
    /// A buyer funded its task.
    Deposited,
    /// A participant put it at risk.
    Bonded,
    /// A bond went back to its owner.
    BondReturned,
    /// A provider put it at risk.
    Staked,
    /// A stake went back to its owner.
    StakeReturned,
    /// A settlement became final.
    Settled,
    /// Taken from a bond, by proof of a final debit.
    Debited,
    /// It was claimed by proof.
    Claimed,
    /// The task was closed.
    Refunded,
    /// An arbiter took it.
    Slashed,
}

/// One entry of the books: the same amount leaves one account and reaches another.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
pub struct Movement {
    /// Whose amount shrinks.
    pub from: Account,
    /// Whose amount grows.
    pub to: Account,
    /// By how much; never zero.
    pub amount: Amount,
    /// Why.
    pub cause: Cause,
}
