//! The ledger as a conversation: what can be asked over the wire, and the one function that answers.
//!
//! Both sides are JSON. Amounts are decimal florins as text, ids are hexadecimal. Nothing in a response is secret:
//! anybody may follow the chain from [`Request::Genesis`] with [`Request::Head`] and [`Request::Block`].

use florin_protocol::merkle::Totals;
use florin_protocol::{Address, Amount, Market, PayoutId, TaskId, Tick};
use serde::{Deserialize, Serialize};

use crate::api::{BondState, LedgerError, Refusal, SettlementStatus, StakeState, TaskState, TxId};
use crate::channel::Channel;
use crate::entry::Account;
use crate::local::{Block, Genesis, Head, LocalChain};
use crate::state::State;
use crate::transaction::{Fate, Outcome, SignedTransaction};

/// A question to a ledger, or a transaction for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LedgerRequest))]
pub enum Request {
    /// Which market is this?
    Market,
    /// What time is it?
    Now,
    /// What does a wallet hold?
    Balance {
        /// Whose.
        account: Address,
    },
    /// What have debits and slashes come to?
    Treasury,
    /// How does a task stand? The answer has at most [`crate::limits::TASK_ANSWER_BYTES_MAX`] bytes.
    Task {
        /// Which.
        task: TaskId,
    },
    /// How many settlements of a task could be made final now?
    Due {
        /// Which.
        task: TaskId,
    },
    /// What has an account bonded in a task?
    Bond {
        /// In which task.
        task: TaskId,
        /// Whose.
        account: Address,
    },
    /// What has an account staked?
    Stake {
        /// Whose.
        account: Address,
    },
    /// Is a provider's stake pledged to a task?
    Pledged {
        /// To which task.
        task: TaskId,
        /// Whose.
        provider: Address,
    },
    /// What have an account's claims in a task come to?
    Claimed {
        /// In which task.
        task: TaskId,
        /// Whose.
        account: Address,
    },
    /// Where is a settlement?
    Settlement {
        /// Of which task.
        task: TaskId,
        /// Its name.
        payout: PayoutId,
    },
    /// Which nonce does an account's next transaction have?
    Nonce {
        /// Whose.
        account: Address,
    },
    /// What became of a transaction?
    Fate {
        /// Who sent it.
        from: Address,
        /// Its nonce.
        nonce: u64,
        /// Its name.
        id: TxId,
    },
    /// Carry this out. Sent again, it is refused with [`Refusal::WrongNonce`]: ask for its fate instead.
    Submit(Box<SignedTransaction>),
    /// What did the chain begin with?
    Genesis,
    /// Which block is the newest?
    Head,
    /// What is in a block?
    Block(u64),
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LedgerResponse))]
pub enum Response {
    /// To [`Request::Market`].
    Market(Market),
    /// To [`Request::Now`].
    Now(Tick),
    /// To [`Request::Balance`] and [`Request::Treasury`].
    Amount(Amount),
    /// To [`Request::Claimed`].
    Totals(Totals),
    /// To [`Request::Task`]; nothing for a task never opened.
    Task(Option<Box<TaskState>>),
    /// To [`Request::Due`]; nothing for a task never opened.
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
    /// To [`Request::Submit`]: it is durable, or there was nothing to do.
    Outcome(Outcome),
    /// To [`Request::Genesis`].
    Genesis(Box<Genesis>),
    /// To [`Request::Head`].
    Head(Head),
    /// To [`Request::Block`]; nothing beyond the newest.
    Block(Option<Box<Block>>),
    /// The ledger said no, and nothing changed.
    Refused(Refusal),
    /// The ledger cannot be asked now.
    Unavailable(String),
    /// The ledger's records contradict themselves.
    Corrupt(String),
}

impl Response {
    /// A response to the question, or what came instead.
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

/// What a state answers at a moment; `None` to what is no question to it.
#[must_use]
pub fn look(state: &State, now: Tick, request: &Request) -> Option<Response> {
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

/// Answers one request. [`Request::Submit`] waits for the disk, so that a server calls this where it may block.
#[must_use]
pub fn answer(chain: &LocalChain, request: Request) -> Response {
    chain.ask(request).unwrap_or_else(Response::from)
}

impl Channel for LocalChain {
    fn market(&self) -> Market {
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
            // What a state answers.
            other => Response::Unavailable(format!("nobody answers {other:?}")),
        })
    }

    fn submit(&self, transaction: SignedTransaction) -> Result<Outcome, LedgerError> {
        Self::submit(self, transaction)
    }
}
