//! Why a chain's file cannot be created, opened or written.

use std::io;

use florin_protocol::NodeKey;

use crate::api::LedgerError;

/// Why a chain's file cannot be created, opened, verified or written.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// There is a file already.
    #[error("{0} exists: open it, or choose another path [LEDGER_EXISTS]")]
    Exists(String),
    /// There is no file.
    #[error("there is no ledger at {0}: create one first [LEDGER_MISSING]")]
    Missing(String),
    /// Another process, or this one, has it open.
    #[error(
        "the ledger is open already: stop the other coordinator, or give this one a data \
         folder of its own [LEDGER_LOCKED]"
    )]
    Locked,
    /// The file does not begin like a ledger.
    #[error(
        "this file is not a ledger, or its first page is damaged: restore it from \
         a backup [LEDGER_CORRUPT]"
    )]
    NotALedger,
    /// The records contradict themselves.
    #[error(
        "the ledger is damaged: {0}. Keep the file, restore the last backup, and run \
         `florin ledger verify` on it [LEDGER_CORRUPT]"
    )]
    Corrupt(String),
    /// The blocks are signed by another key than the one at hand.
    #[error(
        "the chain's blocks are signed by node key {expected}, but this coordinator has \
         {got}: use the key file that the chain was created with [WRONG_OPERATOR]"
    )]
    WrongOperator {
        /// The key in the genesis.
        expected: NodeKey,
        /// The key at hand.
        got: NodeKey,
    },
    /// A genesis that cannot be.
    #[error("the genesis cannot be: {0} [BAD_GENESIS]")]
    BadGenesis(String),
    /// The disk is full.
    #[error(
        "the disk is full ({0}): make room and start again; nothing acknowledged is \
         lost [STORAGE_FULL]"
    )]
    Full(io::Error),
    /// The disk does not do what it should.
    #[error("the ledger's file cannot be read or written: {0} [STORAGE_FAILED]")]
    Io(io::Error),
}

impl ChainError {
    pub(crate) const fn corrupt(what: String) -> Self {
        Self::Corrupt(what)
    }

    pub(crate) fn in_block(number: u64, what: impl std::fmt::Display) -> Self {
        Self::Corrupt(format!("block {number}: {what}"))
    }
}

impl From<io::Error> for ChainError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full(error),
            _ => Self::Io(error),
        }
    }
}

impl From<ChainError> for LedgerError {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::Corrupt(what) => Self::Corrupt(what),
            ChainError::NotALedger => Self::Corrupt("its file is not a ledger".to_owned()),
            other => Self::Unavailable(other.to_string()),
        }
    }
}
