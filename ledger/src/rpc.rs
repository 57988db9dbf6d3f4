//! The ledger's RPC interface: the requests, the responses, and the function that handles a
//! request.
//!
//! Requests and responses are JSON. Amounts are decimal florins as text, ids are hexadecimal. No
//! response is secret: any client may follow the chain from [`Request::Genesis`] with
//! [`Request::Head`] and [`Request::Block`].

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, MarketId, SettlementId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::{BondState, LedgerError, Refusal, SettlementStatus, StakeState, TaskState, TxId};
use crate::channel::Channel;
use crate::entry::Account;
use crate::local::{Block, Genesis, Head, LocalChain};
use crate::state::State;
use crate::transaction::{Fate, Outcome, SignedTransaction};

/// A query to a ledger, or a transaction for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LedgerRequest))]
pub enum Request {
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
    /// The state of a task. The response has at most [`crate::limits::TASK_ANSWER_BYTES_MAX`]
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
    Fate {
        /// The sender.
        from: Address,
        /// Its nonce.
        nonce: u64,
        /// Its id.
        id: TxId,
    },
    /// Executes a transaction. A repeated submission is refused with [`Refusal::WrongNonce`]: query
    /// [`Request::Fate`] instead.
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
pub enum Response {
    /// To [`Request::MarketId`].
    Market(MarketId),
    /// To [`Request::Now`].
    Now(Timestamp),
    /// To [`Request::Balance`] and [`Request::Treasury`].
    Amount(Amount),
    /// To [`Request::Claimed`].
    Totals(ClaimTotals),
    /// To [`Request::Task`]; `None` for a task that was never opened.
    Task(Option<Box<TaskState>>),
    /// To [`Request::Due`]; `None` for a task that was never opened.
    Due(Option<u64>),
    /// To [`Request::Bond`].
    Bond(BondState),
    /// To [`Request::Stake`].
    Stake(StakeState),
    /// To [`Request::Pledged`].
    Pledged(bool),
    /// To [`Request::Settlement`].
    Settlement(SettlementStatus),
    /// To [`Request::Nonce`].
    Nonce(u64),
    /// To [`Request::Fate`].
    Fate(Fate),
    /// To [`Request::Submit`]: the transaction is durable, or there was nothing to change.
    Outcome(Outcome),
    /// To [`Request::Genesis`].
    Genesis(Box<Genesis>),
    /// To [`Request::Head`].
    Head(Head),
    /// To [`Request::Block`]; `None` for a number beyond the newest.
    Block(Option<Box<Block>>),
    /// The ledger refused the request, and nothing changed.
    Refused(Refusal),
    /// The ledger is not available now.
    Unavailable(String),
    /// The ledger's records are inconsistent.
    Corrupt(String),
}

impl Response {
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

impl From<LedgerError> for Response {
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
pub fn look(state: &State, now: Timestamp, request: &Request) -> Option<Response> {
    Some(match *request {
        Request::Now => Response::Now(now),
        Request::Balance { account } => Response::Amount(state.balance(account)),
        Request::Treasury => Response::Amount(state.held(Account::Treasury)),
        Request::Task { task } => Response::Task(state.task(task).map(Box::new)),
        Request::Due { task } => Response::Due(state.due(task, now)),
        Request::Bond { task, account } => Response::Bond(state.bond(task, account)),
        Request::Stake { account } => Response::Stake(state.stake(account)),
        Request::Pledged { task, provider } => Response::Pledged(state.pledged(task, provider)),
        Request::Claimed { task, account } => Response::Totals(state.claimed(task, account)),
        Request::Settlement { task, payout } => {
            Response::Settlement(state.settlement(task, payout))
        }
        Request::Nonce { account } => Response::Nonce(state.nonce(account)),
        _ => return None,
    })
}

/// Handles one request. [`Request::Submit`] blocks until the transaction is durable, so that a
/// server must call it from a thread that may block.
#[must_use]
pub fn answer(chain: &LocalChain, request: Request) -> Response {
    chain.ask(request).unwrap_or_else(Response::from)
}

impl Channel for LocalChain {
    fn market(&self) -> MarketId {
        self.chain_market()
    }

    fn ask(&self, request: Request) -> Result<Response, LedgerError> {
        let now = self.time();
        if let Some(answer) = self.read(|live| look(&live.state, now, &request)) {
            return Ok(answer);
        }
        Ok(match request {
            Request::Market => Response::Market(self.chain_market()),
            Request::Fate { from, nonce, id } => Response::Fate(self.fate(from, nonce, id)),
            Request::Submit(transaction) => {
                Response::Outcome(LocalChain::submit(self, *transaction)?)
            }
            Request::Genesis => Response::Genesis(Box::new(self.genesis().clone())),
            Request::Head => Response::Head(self.head()),
            Request::Block(number) => Response::Block(self.block(number)?.map(Box::new)),
            // [`look`] handled these above.
            other => Response::Unavailable(format!("no handler for request {other:?}")),
        })
    }

    fn submit(&self, transaction: SignedTransaction) -> Result<Outcome, LedgerError> {
        Self::submit(self, transaction)
    }
}
