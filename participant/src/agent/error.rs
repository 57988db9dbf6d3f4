//! Why a participation ends early.

use florin_learning::data::DatasetError;
use florin_learning::engine::TrainError;
use florin_ledger::LedgerError;
use florin_protocol::{Address, Amount, Code, NodeKey, Role, Round, SignError, TaskId};

use super::waiting::RegisterError;
use crate::client::ClientError;
use crate::durable::FileError;
use crate::guard::GuardError;

/// Why a participation ended before its task did. After each of these the same command may be given
/// again, and goes on where it was.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The task is not what it should be.
    #[error("task {task}: {why}")]
    BadTask {
        /// The task.
        task: TaskId,
        /// What is wrong.
        why: String,
    },
    /// The ledger does not have the task's money, or has other terms.
    #[error("task {task}: {why}; nobody should work for it")]
    NotFunded {
        /// The task.
        task: TaskId,
        /// What the ledger says.
        why: String,
    },
    /// Own rows that the task cannot use.
    #[error("the data does not fit the task: {why}")]
    DataDoesNotFit {
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The limit on the bond is below the task's minimum.
    #[error("the bond is limited to {limit} FLN, but the task takes at least {least} FLN")]
    BondLimit {
        /// The limit that was set.
        limit: Amount,
        /// The task's smallest bond.
        least: Amount,
    },
    /// The wallet is known with another node key.
    #[error(
        "{account} is registered as {role} with node key {registered}, but this wallet's key is \
         {ours}. A wallet keeps its first node key for ever, so that nobody can sign twice with \
         two: use a wallet made from the same phrase by the program that registered it, or take \
         part with another wallet"
    )]
    OtherNodeKey {
        /// The account.
        account: Address,
        /// As what.
        role: Role,
        /// The key it is known with.
        registered: NodeKey,
        /// The key that this wallet has.
        ours: NodeKey,
    },
    /// An offer that does not continue the task.
    #[error("round {round}: the offer is not trusted: {why}")]
    OfferNotTrusted {
        /// The round.
        round: Round,
        /// What is wrong.
        why: String,
    },
    /// A model that is none.
    #[error("round {round}: the base model cannot be used: {why}")]
    BadModel {
        /// The round.
        round: Round,
        /// What is wrong.
        why: String,
    },
    /// Training failed, and would again.
    #[error("round {round}: {source}")]
    Training {
        /// The round.
        round: Round,
        /// What the engine says.
        source: TrainError,
    },
    /// An experiment's rows make no data set.
    #[error(transparent)]
    Data(#[from] DatasetError),
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The signing guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The wallet.
    #[error(transparent)]
    Signing(#[from] SignError),
    /// The data folder.
    #[error(transparent)]
    File(#[from] FileError),
}

impl From<RegisterError> for AgentError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Client(error) => error.into(),
            RegisterError::Signing(error) => error.into(),
            RegisterError::OtherNodeKey { account, role, registered, ours } => {
                Self::OtherNodeKey { account, role, registered, ours }
            }
        }
    }
}

impl AgentError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadTask { .. } => "BAD_TASK",
            Self::NotFunded { .. } => "NOT_FUNDED",
            Self::DataDoesNotFit { .. } | Self::Data(_) => "DATA_DOES_NOT_FIT",
            Self::BondLimit { .. } => "BOND_LIMIT_TOO_LOW",
            Self::OtherNodeKey { .. } => Code::Conflicting.as_str(),
            Self::OfferNotTrusted { .. } => "OFFER_NOT_TRUSTED",
            Self::BadModel { .. } => "BAD_MODEL",
            Self::Training { .. } => "TRAINING_FAILED",
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::Guard(error) => error.code(),
            Self::Signing(_) => "SIGNING_FAILED",
            Self::File(error) => error.code(),
        }
    }
}
