//! Errors that end a participation early.

use florin_learning::Precision;
use florin_learning::data::DatasetError;
use florin_learning::engine::TrainError;
use florin_learning::memory::MemoryError;
use florin_ledger::LedgerError;
use florin_protocol::{
    Address, Amount, Digest, ErrorCode, NodeKey, Role, RoundNumber, SignError, TaskId,
};

use super::joining::RegisterError;
use super::training_time::RoundTrainingTime;
use crate::atomic_file::FileError;
use crate::audit::AuditError;
use crate::client::ClientError;
use crate::guard::GuardError;
use crate::privacy::NoiseError;
use crate::producer::ProducerError;

/// Errors that end a participation before its task ends. After any of them the same command may be
/// run again; it continues where this one ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The task is not valid.
    #[error("task {task}: {why}")]
    InvalidTask {
        /// The task.
        task: TaskId,
        /// The reason.
        why: String,
    },
    /// The ledger holds no escrow for the task, or one with other terms.
    #[error("task {task}: {why}; work for it may never be paid")]
    NotFunded {
        /// The task.
        task: TaskId,
        /// The difference on the ledger.
        why: String,
    },
    /// The task is over, and the account has no part in it.
    #[error(
        "task {} is over: {account} has no bond and no earnings in it, and nothing is left to \
         train. Choose an open task: `florin task list`",
        task.short()
    )]
    TaskClosed {
        /// The task.
        task: TaskId,
        /// The account of the participant.
        account: Address,
    },
    /// The buyer chose the initial parameters, and the participant did not accept them.
    #[error(
        "task {}: its initial model {model} does not follow from its specification. A buyer that \
         chooses the parameters can read training rows out of updates. If you trust this buyer, \
         repeat the command with --accept-model {model}; otherwise choose another task: `florin \
         task list`",
        task.short()
    )]
    ModelNotDerived {
        /// The task.
        task: TaskId,
        /// Digest of the base model.
        model: Digest,
    },
    /// The task's model is a program, and the participant did not accept it.
    #[error(
        "task {}: its model is a program of the buyer's, which would run on this machine, in a sandbox. \
         Read its code: `florin task code {} --out DIR`. Then repeat the command with --accept-model \
         {model}, or choose another task: `florin task list`",
        task.short(), task.short()
    )]
    TrainerNotAccepted {
        /// The task.
        task: TaskId,
        /// Digest of the code with the base model.
        model: Digest,
    },
    /// Only graphs train with products of 16 bits.
    #[error("the model of the task trains in f32 only, not {precision}: leave out --precision")]
    Precision {
        /// The precision asked for.
        precision: Precision,
    },
    /// The task cannot use the participant's rows.
    #[error("the data does not fit the task: {why}")]
    DataDoesNotFit {
        /// The reason, with the expected value.
        why: String,
    },
    /// The participant does not accept the task's arbiter.
    #[error("task {}: {why}; nothing was bonded", task.short())]
    ArbiterNotAccepted {
        /// The task.
        task: TaskId,
        /// The arbiter, and the option that accepts it.
        why: String,
    },
    /// The limit on the bond is below the task's minimum.
    #[error(
        "the bond limit leaves {limit} FLN, but the task requires at least {least} FLN: raise --max-bond"
    )]
    BondLimit {
        /// The configured limit, less what was taken from earlier deposits.
        limit: Amount,
        /// The task's minimum bond.
        least: Amount,
    },
    /// The task pays less than the participant requires.
    #[error(
        "task {}: the floor of a round is {offered} FLN for one of cohort_target updates, but \
         --min-pay requires {least} FLN; nothing was bonded. Lower --min-pay, or choose another \
         task: `florin task list`",
        task.short()
    )]
    PayTooLow {
        /// The task.
        task: TaskId,
        /// The floor of a round for one update.
        offered: Amount,
        /// The least that the participant requires.
        least: Amount,
    },
    /// A training takes longer than a round.
    #[error(
        "task {}: {time}, so that its updates would come too late; nothing was bonded. {}, or go on with \
         --accept-slow-training",
        task.short(), faster(*has_threads)
    )]
    TrainingTooSlow {
        /// The task.
        task: TaskId,
        /// The predicted time and the limit.
        time: RoundTrainingTime,
        /// Whether the training can use more threads of a process.
        has_threads: bool,
    },
    /// The participant did not agree to deposit the bond.
    #[error("task {}: the bond was declined; nothing was bonded", task.short())]
    Declined {
        /// The task.
        task: TaskId,
    },
    /// The wallet is registered with another node key.
    #[error(
        "{account} is registered as {role} with node key {registered}, but this wallet's key is \
         {ours}. A wallet keeps its first node key permanently, so that no account can sign twice \
         with two keys: use the wallet and the program that registered it, or take \
         part with another wallet"
    )]
    OtherNodeKey {
        /// The account.
        account: Address,
        /// The role of the registration.
        role: Role,
        /// The registered node key.
        registered: NodeKey,
        /// The node key of this wallet.
        ours: NodeKey,
    },
    /// An offer that does not continue the task.
    #[error("round {round}: the offer is not trusted: {why}")]
    OfferNotTrusted {
        /// The round.
        round: RoundNumber,
        /// The reason.
        why: String,
    },
    /// The base model is not valid.
    #[error("round {round}: the base model cannot be used: {why}")]
    BadModel {
        /// The round.
        round: RoundNumber,
        /// The reason.
        why: String,
    },
    /// Training failed, and would fail again.
    #[error("round {round}: {source}")]
    Training {
        /// The round.
        round: RoundNumber,
        /// The engine's error.
        source: TrainError,
    },
    /// An experiment's rows do not form a data set.
    #[error(transparent)]
    Data(#[from] DatasetError),
    /// The check of a round's model could not be completed.
    #[error(transparent)]
    Audit(AuditError),
    /// An error of the client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An error of the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The participation would not hold the ε that it states.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// The rows of the producer cannot be read any longer.
    #[error(transparent)]
    Producer(#[from] ProducerError),
    /// An error of the signing guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// An error of the wallet's signature.
    #[error(transparent)]
    Signing(#[from] SignError),
    /// An error of the data folder.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The changes with which a participant trains faster.
fn faster(has_threads: bool) -> &'static str {
    match has_threads {
        true => {
            "Give it more cores (--threads), a GPU (--engine cuda), several processes (torchrun, see \
             docs/devices.md) or fewer rows (--rows)"
        }
        // A virtual worker computes on one thread.
        false => {
            "Give it several processes (torchrun, see docs/devices.md), a GPU (--engine cuda) or fewer rows \
             (--rows)"
        }
    }
}

impl From<AuditError> for AgentError {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Client(error) => error.into(),
            AuditError::Ledger(error) => error.into(),
            error => Self::Audit(error),
        }
    }
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
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidTask { .. } => "INVALID_TASK",
            Self::NotFunded { .. } => "NOT_FUNDED",
            Self::TaskClosed { .. } => ErrorCode::TaskClosed.as_str(),
            Self::ModelNotDerived { .. } => "MODEL_NOT_DERIVED",
            Self::TrainerNotAccepted { .. } => "TRAINER_NOT_ACCEPTED",
            Self::Precision { .. } => "PRECISION_UNSUPPORTED",
            Self::DataDoesNotFit { .. } | Self::Data(_) => "DATA_MISMATCH",
            Self::BondLimit { .. } => "BOND_LIMIT_TOO_LOW",
            Self::ArbiterNotAccepted { .. } => "ARBITER_NOT_ACCEPTED",
            Self::PayTooLow { .. } => "PAY_TOO_LOW",
            Self::TrainingTooSlow { .. } => "TRAINING_TOO_SLOW",
            Self::Declined { .. } => "DECLINED",
            Self::OtherNodeKey { .. } => ErrorCode::ConflictingMessage.as_str(),
            Self::OfferNotTrusted { .. } => "INVALID_OFFER",
            Self::BadModel { .. } => "INVALID_MODEL",
            Self::Training { source: TrainError::Ranks(error), .. } => error.code.as_str(),
            Self::Training { source: TrainError::Memory(_), .. } => MemoryError::CODE,
            Self::Training { .. } => "TRAINING_FAILED",
            Self::Audit(error) => error.code(),
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::Noise(error) => error.code(),
            Self::Producer(error) => error.code(),
            Self::Guard(error) => error.code(),
            Self::Signing(_) => "SIGNING_FAILED",
            Self::File(error) => error.code(),
        }
    }
}
