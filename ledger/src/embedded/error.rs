//! The errors of creating, opening and writing a chain's file.

use std::io;

use florin_protocol::NodeKey;

use crate::api::LedgerError;

/// The error of creating, opening, verifying or writing a chain's file.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The file exists.
    #[error("{0} exists: open it, or choose another path [LEDGER_EXISTS]")]
    Exists(String),
    /// The file does not exist.
    #[error("there is no ledger at {0}: create one first [LEDGER_MISSING]")]
    Missing(String),
    /// Another process, or this one, has the file open.
    #[error(
        "the ledger is in use by another process, such as a running coordinator: stop it, or use \
         another data folder. While the coordinator runs, restore a backup and verify that \
         [LEDGER_LOCKED]"
    )]
    Locked,
    /// The file does not begin with the magic bytes of a ledger.
    #[error(
        "the file is not a ledger, or its first page is damaged: restore it from a backup \
         [LEDGER_CORRUPT]"
    )]
    NotALedger,
    /// The records are inconsistent.
    #[error(
        "the ledger is corrupt: {0}. Preserve the file, restore the last backup, and run \
         `florin ledger verify` on it [LEDGER_CORRUPT]"
    )]
    Corrupt(String),
    /// Another key signed the blocks than the configured one.
    #[error(
        "node key {expected} signed the chain's blocks, but this coordinator has {got}: use the \
         key file with which the chain was created [WRONG_OPERATOR]"
    )]
    WrongOperator {
        /// The key in the genesis.
        expected: NodeKey,
        /// The configured key.
        got: NodeKey,
    },
    /// An invalid genesis.
    #[error("invalid genesis: {0} [INVALID_GENESIS]")]
    BadGenesis(String),
    /// The disk is full.
    #[error(
        "the disk is full ({0}): free space and restart; no acknowledged transaction is lost \
         [STORAGE_FULL]"
    )]
    Full(io::Error),
    /// A read or a write failed.
    #[error("cannot read or write the ledger's file: {0} [STORAGE_FAILED]")]
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
