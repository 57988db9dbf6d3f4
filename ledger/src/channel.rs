//! The code that the embedded chain and its remote client share: the trait's methods as requests
//! and signed transactions.

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, MarketId, SettlementId, TaskId, Timestamp, WalletSigner};

use crate::action::Action;
use crate::api::{
    BondState, Claim, Claimed, Ledger, LedgerError, Posted, Refusal, Settlement, SettlementStatus,
    Slash, StakeState, TaskState, Terms, TxId,
};
use crate::limits::NONCE_RETRIES_MAX;
use crate::rpc::{Request, Response};
use crate::transaction::{Fate, Outcome, SignedTransaction, Transaction};

/// A connection to a chain. Every implementation is a [`Ledger`].
pub trait Channel: Send + Sync {
    /// The chain's market.
    fn market(&self) -> MarketId;

    /// Sends a query. Refusals and failures are returned as errors, not as responses.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn ask(&self, request: Request) -> Result<Response, LedgerError>;

    /// Submits a transaction; returns when it is durable.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn submit(&self, transaction: SignedTransaction) -> Result<Outcome, LedgerError>;
}

/// Submits a transaction to a remote ledger. If the response is lost, queries the transaction's
/// status.
///
/// # Errors
/// [`LedgerError`]; after [`LedgerError::Unavailable`] the transaction may have been executed, or
/// may still be.
pub fn submit_over(
    ask: &dyn Fn(Request) -> Result<Response, LedgerError>,
    transaction: SignedTransaction,
) -> Result<Outcome, LedgerError> {
    let (from, nonce) = (transaction.transaction.from, transaction.transaction.nonce);
    let id = transaction.transaction.id();
    match ask(Request::Submit(Box::new(transaction))) {
        Ok(Response::Outcome(outcome)) => Ok(outcome),
        Ok(other) => Err(confused(&other)),
        Err(LedgerError::Unavailable(lost)) => {
            // The response is lost, but the transaction may have been executed.
            match ask(Request::Fate { from, nonce, id }) {
                Ok(Response::Fate(Fate::CarriedOut(outcome))) => Ok(outcome),
                Ok(Response::Fate(Fate::NotYet)) => Err(LedgerError::Unavailable(format!(
                    "{lost}; transaction {id} has not been executed so far"
                ))),
                _ => Err(LedgerError::Unavailable(format!(
                    "{lost}; it is unknown whether transaction {id} was executed"
                ))),
            }
        }
        Err(error) => Err(error),
    }
}

/// The error for a response that does not match its request.
fn confused(response: &Response) -> LedgerError {
    let mut text = format!("{response:?}");
    text.truncate(text.floor_char_boundary(200));
    LedgerError::Unavailable(format!("the response does not match the request: {text}"))
}

macro_rules! ask {
    ($channel:expr, $request:expr, $pattern:pat => $value:expr) => {
        match $channel.ask($request)? {
            $pattern => Ok($value),
            other => Err(confused(&other)),
        }
    };
}

/// Signs and submits an action. If another transaction of the same account was executed first,
/// signs the action again with the next nonce. A refusal for a wrong nonce is definite, so that
/// nothing is executed twice.
fn carry_out(
    channel: &impl Channel,
    by: &dyn WalletSigner,
    action: &Action,
) -> Result<(TxId, Outcome), LedgerError> {
    let account = by.address();
    let mut retries = 0u32;
    loop {
        let nonce = ask!(channel, Request::Nonce { account }, Response::Nonce(nonce) => nonce)?;
        let market = channel.market();
        let transaction = Transaction { market, from: account, nonce, action: action.clone() };
        let id = transaction.id();
        match channel.submit(transaction.sign(by)?) {
            Ok(outcome) => return Ok((id, outcome)),
            Err(LedgerError::Refused(Refusal::WrongNonce { .. }))
                if retries < NONCE_RETRIES_MAX =>
            {
                retries = retries.saturating_add(1);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Executes an action and returns its transaction id.
fn done(
    channel: &impl Channel,
    by: &dyn WalletSigner,
    action: &Action,
) -> Result<TxId, LedgerError> {
    carry_out(channel, by, action).map(|(id, _)| id)
}

/// Executes an action and returns the amount that it moved.
fn moved(
    channel: &impl Channel,
    by: &dyn WalletSigner,
    action: &Action,
) -> Result<Amount, LedgerError> {
    match carry_out(channel, by, action)?.1 {
        Outcome::Moved(amount) => Ok(amount),
        other => Err(confused(&Response::Outcome(other))),
    }
}

impl<C: Channel> Ledger for C {
    fn market(&self) -> MarketId {
        Channel::market(self)
    }

    fn now(&self) -> Result<Timestamp, LedgerError> {
        ask!(self, Request::Now, Response::Now(now) => now)
    }

    fn balance(&self, account: Address) -> Result<Amount, LedgerError> {
        ask!(self, Request::Balance { account }, Response::Amount(amount) => amount)
    }

    fn treasury(&self) -> Result<Amount, LedgerError> {
        ask!(self, Request::Treasury, Response::Amount(amount) => amount)
    }

    fn task(&self, task: TaskId) -> Result<Option<TaskState>, LedgerError> {
        ask!(self, Request::Task { task }, Response::Task(state) => state.map(|state| *state))
    }

    fn bond_of(&self, task: TaskId, account: Address) -> Result<BondState, LedgerError> {
        ask!(self, Request::Bond { task, account }, Response::Bond(bond) => bond)
    }

    fn stake_of(&self, account: Address) -> Result<StakeState, LedgerError> {
        ask!(self, Request::Stake { account }, Response::Stake(stake) => stake)
    }

    fn pledged(&self, task: TaskId, provider: Address) -> Result<bool, LedgerError> {
        ask!(self, Request::Pledged { task, provider }, Response::Pledged(pledged) => pledged)
    }

    fn claimed(&self, task: TaskId, account: Address) -> Result<ClaimTotals, LedgerError> {
        ask!(self, Request::Claimed { task, account }, Response::Totals(totals) => totals)
    }

    fn settlement(
        &self,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<SettlementStatus, LedgerError> {
        ask!(self, Request::Settlement { task, payout }, Response::Settlement(status) => status)
    }

    fn transfer(
        &self,
        by: &dyn WalletSigner,
        to: Address,
        amount: Amount,
    ) -> Result<TxId, LedgerError> {
        done(self, by, &Action::Transfer { to, amount })
    }

    fn open_task(&self, by: &dyn WalletSigner, terms: &Terms) -> Result<TxId, LedgerError> {
        done(self, by, &Action::OpenTask(terms.clone()))
    }

    fn bond(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        amount: Amount,
    ) -> Result<TxId, LedgerError> {
        done(self, by, &Action::Bond { task, amount })
    }

    fn unbond(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError> {
        done(self, by, &Action::Unbond { task })
    }

    fn withdraw_bond(&self, by: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError> {
        moved(self, by, &Action::WithdrawBond { task })
    }

    fn stake(&self, by: &dyn WalletSigner, amount: Amount) -> Result<TxId, LedgerError> {
        done(self, by, &Action::Stake { amount })
    }

    fn pledge(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError> {
        done(self, by, &Action::Pledge { task })
    }

    fn unstake(&self, by: &dyn WalletSigner) -> Result<TxId, LedgerError> {
        done(self, by, &Action::Unstake)
    }

    fn withdraw_stake(&self, by: &dyn WalletSigner) -> Result<Amount, LedgerError> {
        moved(self, by, &Action::WithdrawStake)
    }

    fn post(&self, by: &dyn WalletSigner, settlement: &Settlement) -> Result<Posted, LedgerError> {
        match carry_out(self, by, &Action::Post(*settlement))?.1 {
            Outcome::Posted(posted) => Ok(posted),
            other => Err(confused(&Response::Outcome(other))),
        }
    }

    fn cancel(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<TxId, LedgerError> {
        done(self, by, &Action::Cancel { task, payout })
    }

    fn finalize(&self, by: &dyn WalletSigner, task: TaskId) -> Result<u64, LedgerError> {
        // Coordinators call this often: while no settlement is due, no block needs to be written.
        if ask!(self, Request::Due { task }, Response::Due(due) => due)? == Some(0) {
            return Ok(0);
        }
        match carry_out(self, by, &Action::Finalize { task })?.1 {
            Outcome::Finalised(count) => Ok(count),
            other => Err(confused(&Response::Outcome(other))),
        }
    }

    fn claim(&self, by: &dyn WalletSigner, claim: &Claim) -> Result<Claimed, LedgerError> {
        match carry_out(self, by, &Action::Claim(claim.clone()))?.1 {
            Outcome::Claimed(claimed) => Ok(claimed),
            other => Err(confused(&Response::Outcome(other))),
        }
    }

    fn close(&self, by: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError> {
        moved(self, by, &Action::Close { task })
    }

    fn slash(&self, by: &dyn WalletSigner, slash: &Slash) -> Result<Amount, LedgerError> {
        moved(self, by, &Action::Slash(slash.clone()))
    }
}
