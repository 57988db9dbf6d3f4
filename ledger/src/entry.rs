//! Double entry: the accounts, and the movements between them. Every movement debits one account
//! and credits another.

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
    /// Pays participants for the value of their updates.
    Data,
    /// Pays providers for verified work.
    Infrastructure,
}

/// An account that can hold money.
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
    /// Available to its owner.
    Wallet(Address),
    /// Locked for a task.
    Escrow(TaskId, Pool),
    /// At risk for a participant's updates in a task.
    Bond(TaskId, Address),
    /// At risk for a provider's work.
    Stake(Address),
    /// Finalised by a task's settlements and not claimed yet.
    Owed(TaskId),
    /// Receives all debits and slashed amounts.
    Treasury,
}

impl Account {
    /// The task in whose conservation equation this account appears.
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
            Self::Owed(task) => write!(f, "amount owed by task {task}"),
            Self::Treasury => f.write_str("treasury"),
        }
    }
}

/// The reason for a movement.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The owner transferred the amount.
    Transferred,
    /// A buyer funded a task.
    Deposited,
    /// A participant deposited a bond.
    Bonded,
    /// A bond was returned to its owner.
    BondReturned,
    /// A provider deposited a stake.
    Staked,
    /// A stake was returned to its owner.
    StakeReturned,
    /// A settlement became final.
    Settled,
    /// A final debit was proven and taken from a bond.
    Debited,
    /// An amount owed was claimed by proof.
    Claimed,
    /// The task was closed and the rest was refunded.
    Refunded,
    /// An arbiter slashed the account.
    Slashed,
}

/// One bookkeeping entry: the same amount is debited from one account and credited to another.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
pub struct Movement {
    /// The debited account.
    pub from: Account,
    /// The credited account.
    pub to: Account,
    /// The amount; never zero.
    pub amount: Amount,
    /// The reason.
    pub cause: Cause,
}
