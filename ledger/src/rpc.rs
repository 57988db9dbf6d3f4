//! The ledger's RPC interface: the requests, the responses, and the function that handles a
//! request.
//!
//! Requests and responses are JSON. Amounts are decimal florins as text, ids are hexadecimal. No
//! response is secret: any client may follow the chain from [`LedgerRequest::Genesis`] with
//! [`LedgerRequest::ChainHead`] and [`LedgerRequest::Block`].

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, MarketId, SettlementId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::{
    BondState, LedgerError, MemberShare, Refusal, SettlementStatus, StakeState, TaskState, TxId,
};
use crate::embedded::{Block, ChainHead, EmbeddedChain, Genesis};
use crate::entry::Account;
use crate::state::LedgerState;
use crate::transaction::{SignedTransaction, TransactionOutcome, TransactionStatus};
use crate::transport::LedgerTransport;

/// A query to a ledger, or a transaction for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LedgerRequest))]
pub enum LedgerRequest {
    /// The ledger's market.
    Market,
    /// The ledger's time.
    Now,
    /// The balance of a wallet.
    Balance {
        /// The wallet's owner.
        account: Address,
    },
    /// The balance of the treasury.
    Treasury,
    /// The state of a task. The response has at most [`crate::limits::TASK_RESPONSE_BYTES_MAX`]
    /// bytes.
    Task {
        /// The task.
        task: TaskId,
    },
    /// The number of a task's settlements that can be finalised now.
    Due {
        /// The task.
        task: TaskId,
    },
    /// The bond of an account in a task.
    Bond {
        /// The task.
        task: TaskId,
        /// The bond's owner.
        account: Address,
    },
    /// The stake of an account.
    Stake {
        /// The stake's owner.
        account: Address,
    },
    /// Whether a provider has pledged its stake to a task.
    Pledged {
        /// The task.
        task: TaskId,
        /// The provider.
        provider: Address,
    },
    /// The totals of an account's claims in a task.
    Claimed {
        /// The task.
        task: TaskId,
        /// The account.
        account: Address,
    },
    /// The split of an account's pay in a task.
    Split {
        /// The task.
        task: TaskId,
        /// The account.
        account: Address,
    },
    /// The status of a settlement.
    Settlement {
        /// The task.
        task: TaskId,
        /// The settlement's payout id.
        payout: SettlementId,
    },
    /// The nonce of an account's next transaction.
    Nonce {
        /// The account.
        account: Address,
    },
    /// The status of a transaction.
    TransactionStatus {
        /// The sender.
        from: Address,
        /// Its nonce.
        nonce: u64,
        /// Its id.
        id: TxId,
    },
    /// Executes a transaction. A repeated submission is refused with [`Refusal::WrongNonce`]: query
    /// [`LedgerRequest::TransactionStatus`] instead.
    Submit(Box<SignedTransaction>),
    /// The chain's genesis.
    Genesis,
    /// The newest block's number and hash.
    Head,
    /// The block with this number.
    Block(u64),
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LedgerResponse))]
pub enum LedgerResponse {
    /// To [`LedgerRequest::MarketId`].
    Market(MarketId),
    /// To [`LedgerRequest::Now`].
    Now(Timestamp),
    /// To [`LedgerRequest::Balance`] and [`LedgerRequest::Treasury`].
    Amount(Amount),
    /// To [`LedgerRequest::Claimed`].
    Totals(ClaimTotals),
    /// To [`LedgerRequest::Task`]; `None` for a task that was never opened.
    Task(Option<Box<TaskState>>),
    /// To [`LedgerRequest::Due`]; `None` for a task that was never opened.
    Due(Option<u64>),
    /// To [`LedgerRequest::Bond`].
    Bond(BondState),
    /// To [`LedgerRequest::Stake`].
    Stake(StakeState),
    /// To [`LedgerRequest::Pledged`].
    Pledged(bool),
    /// To [`LedgerRequest::Split`]; empty for an account without a split.
    Split(Vec<MemberShare>),
    /// To [`LedgerRequest::Settlement`].
    Settlement(SettlementStatus),
    /// To [`LedgerRequest::Nonce`].
    Nonce(u64),
    /// To [`LedgerRequest::TransactionStatus`].
    TransactionStatus(TransactionStatus),
    /// To [`LedgerRequest::Submit`]: the transaction is durable, or there was nothing to change.
    Outcome(TransactionOutcome),
    /// To [`LedgerRequest::Genesis`].
    Genesis(Box<Genesis>),
    /// To [`LedgerRequest::ChainHead`].
    Head(ChainHead),
    /// To [`LedgerRequest::Block`]; `None` for a number beyond the newest.
    Block(Option<Box<Block>>),
    /// The ledger refused the request, and nothing changed.
    Refused(Refusal),
    /// The ledger is not available now.
    Unavailable(String),
    /// The ledger's records are inconsistent.
    Corrupt(String),
}

impl LedgerResponse {
    /// Separates errors from responses.
    ///
    /// # Errors
    /// [`LedgerError`] for the last three variants.
    pub fn into_result(self) -> Result<Self, LedgerError> {
        match self {
            Self::Refused(refusal) => Err(LedgerError::Refused(refusal)),
            Self::Unavailable(what) => Err(LedgerError::Unavailable(what)),
            Self::Corrupt(what) => Err(LedgerError::Corrupt(what)),
            answer => Ok(answer),
        }
    }
}

impl From<LedgerError> for LedgerResponse {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Refused(refusal) => Self::Refused(refusal),
            LedgerError::Unavailable(what) => Self::Unavailable(what),
            LedgerError::Corrupt(what) => Self::Corrupt(what),
            LedgerError::Signing(error) => Self::Unavailable(error.to_string()),
            LedgerError::Gas(what) | LedgerError::Outbox(what) => Self::Unavailable(what),
        }
    }
}

/// The response of a state to a query at a given time; `None` for requests that need more than the
/// state.
#[must_use]
pub fn query_state(
    state: &LedgerState,
    now: Timestamp,
    request: &LedgerRequest,
) -> Option<LedgerResponse> {
    Some(match *request {
        LedgerRequest::Now => LedgerResponse::Now(now),
        LedgerRequest::Balance { account } => LedgerResponse::Amount(state.balance(account)),
        LedgerRequest::Treasury => LedgerResponse::Amount(state.account_balance(Account::Treasury)),
        LedgerRequest::Task { task } => LedgerResponse::Task(state.task(task).map(Box::new)),
        LedgerRequest::Due { task } => LedgerResponse::Due(state.finalizable_count(task, now)),
        LedgerRequest::Bond { task, account } => LedgerResponse::Bond(state.bond(task, account)),
        LedgerRequest::Stake { account } => LedgerResponse::Stake(state.stake(account)),
        LedgerRequest::Pledged { task, provider } => {
            LedgerResponse::Pledged(state.is_pledged(task, provider))
        }
        LedgerRequest::Claimed { task, account } => {
            LedgerResponse::Totals(state.claimed_totals(task, account))
        }
        LedgerRequest::Split { task, account } => LedgerResponse::Split(state.split(task, account)),
        LedgerRequest::Settlement { task, payout } => {
            LedgerResponse::Settlement(state.settlement_status(task, payout))
        }
        LedgerRequest::Nonce { account } => LedgerResponse::Nonce(state.nonce(account)),
        _ => return None,
    })
}

/// Handles one request. [`LedgerRequest::Submit`] blocks until the transaction is durable, so that a
/// server must call it from a thread that may block.
#[must_use]
pub fn handle_request(chain: &EmbeddedChain, request: LedgerRequest) -> LedgerResponse {
    chain.request(request).unwrap_or_else(LedgerResponse::from)
}

impl LedgerTransport for EmbeddedChain {
    fn market(&self) -> MarketId {
        self.chain_market()
    }

    fn request(&self, request: LedgerRequest) -> Result<LedgerResponse, LedgerError> {
        let now = self.next_block_time();
        if let Some(answer) = self.read_published(|live| query_state(&live.state, now, &request)) {
            return Ok(answer);
        }
        Ok(match request {
            LedgerRequest::Market => LedgerResponse::Market(self.chain_market()),
            LedgerRequest::TransactionStatus { from, nonce, id } => {
                LedgerResponse::TransactionStatus(self.transaction_status(from, nonce, id))
            }
            LedgerRequest::Submit(transaction) => {
                LedgerResponse::Outcome(EmbeddedChain::submit(self, *transaction)?)
            }
            LedgerRequest::Genesis => LedgerResponse::Genesis(Box::new(self.genesis().clone())),
            LedgerRequest::Head => LedgerResponse::Head(self.head()),
            LedgerRequest::Block(number) => {
                LedgerResponse::Block(self.block(number)?.map(Box::new))
            }
            // [`query_state`] handled these above.
            other => LedgerResponse::Unavailable(format!("no handler for request {other:?}")),
        })
    }

    fn submit(&self, transaction: SignedTransaction) -> Result<TransactionOutcome, LedgerError> {
        Self::submit(self, transaction)
    }
}
