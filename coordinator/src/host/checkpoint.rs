//! The checkpoint of a running coordinator, which a backup is made from.

use florin_ledger::{ChainError, ChainSnapshot};
use florin_store::{AppendError, Position};

use crate::identity::Identity;
use crate::leases::{LeaseCopy, LeaseStoreError};

/// The point in time that a backup represents.
pub struct BackupPoint {
    /// The owner of the data.
    pub identity: Identity,
    /// The journal position up to which records are copied.
    pub at: Position,
    /// Whether the coordinator is running. Then segments that begin at or after the position are
    /// left out.
    pub running: bool,
    /// A read transaction on the embedded ledger, if the market has one.
    pub chain: Option<ChainSnapshot>,
    /// The records of leases of a running coordinator, if there are any.
    pub leases: Option<LeaseCopy>,
}

/// Why a running coordinator cannot make a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The engine has stopped.
    #[error("{0}")]
    Stopping(String),
    /// The journal's newest segment cannot be closed.
    #[error(transparent)]
    Journal(#[from] AppendError),
    /// The embedded chain cannot be copied.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The records of leases cannot be copied.
    #[error(transparent)]
    Leases(#[from] LeaseStoreError),
}
