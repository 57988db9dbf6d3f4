//! The code that the embedded chain and its remote client share: the trait's methods as requests
//! and signed transactions.

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, MarketId, SettlementId, TaskId, Timestamp, WalletSigner};

use crate::action::Action;
use crate::api::{
    BondState, Claim, ClaimOutcome, Ledger, LedgerError, MemberShare, Objection, PostOutcome,
    Refusal, Settlement, SettlementStatus, Slash, StakeState, TaskState, Terms, TxId,
};
use crate::limits::NONCE_RETRIES_MAX;
use crate::rpc::{LedgerRequest, LedgerResponse};
use crate::transaction::{SignedTransaction, Transaction, TransactionOutcome, TransactionStatus};

/// A connection to a chain. Every implementation is a [`Ledger`].
pub trait LedgerTransport: Send + Sync {
    /// The chain's market.
    fn market(&self) -> MarketId;

    /// Sends a query. Refusals and failures are returned as errors, not as responses.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn request(&self, request: LedgerRequest) -> Result<LedgerResponse, LedgerError>;

    /// Submits a transaction; returns when it is durable.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn submit(&self, transaction: SignedTransaction) -> Result<TransactionOutcome, LedgerError>;
}

/// Submits a transaction to a remote ledger. If the response is lost, queries the transaction's
/// status.
///
/// # Errors
/// [`LedgerError`]; after [`LedgerError::Unavailable`] the transaction may have been executed, or
/// may still be.
pub fn submit_remote(
    ask: &dyn Fn(LedgerRequest) -> Result<LedgerResponse, LedgerError>,
    transaction: SignedTransaction,
) -> Result<TransactionOutcome, LedgerError> {
    let (from, nonce) = (transaction.transaction.from, transaction.transaction.nonce);
    let id = transaction.transaction.id();
    match ask(LedgerRequest::Submit(Box::new(transaction))) {
        Ok(LedgerResponse::Outcome(outcome)) => Ok(outcome),
        Ok(other) => Err(unexpected_response(&other)),
        Err(LedgerError::Unavailable(lost)) => {
            // The response is lost, but the transaction may have been executed.
            match ask(LedgerRequest::TransactionStatus { from, nonce, id }) {
                Ok(LedgerResponse::TransactionStatus(TransactionStatus::Executed(outcome))) => {
                    Ok(outcome)
                }
                Ok(LedgerResponse::TransactionStatus(TransactionStatus::NotExecuted)) => {
                    Err(LedgerError::Unavailable(format!(
                        "{lost}; transaction {id} has not been executed so far"
                    )))
                }
                _ => Err(LedgerError::Unavailable(format!(
                    "{lost}; it is unknown whether transaction {id} was executed"
                ))),
            }
        }
        Err(error) => Err(error),
    }
}

/// The error for a response that does not match its request.
fn unexpected_response(response: &LedgerResponse) -> LedgerError {
    let mut text = format!("{response:?}");
    text.truncate(text.floor_char_boundary(200));
    LedgerError::Unavailable(format!("the response does not match the request: {text}"))
}

macro_rules! request {
    ($channel:expr, $request:expr, $pattern:pat => $value:expr) => {
        match $channel.request($request)? {
            $pattern => Ok($value),
            other => Err(unexpected_response(&other)),
        }
    };
}

/// Signs and submits an action. If another transaction of the same account was executed first,
/// signs the action again with the next nonce. A refusal for a wrong nonce is definite, so that
/// nothing is executed twice.
fn execute(
    channel: &impl LedgerTransport,
    by: &dyn WalletSigner,
    action: &Action,
) -> Result<(TxId, TransactionOutcome), LedgerError> {
    let account = by.address();
    let mut retries = 0u32;
    loop {
        let nonce = request!(channel, LedgerRequest::Nonce { account }, LedgerResponse::Nonce(nonce) => nonce)?;
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
fn execute_for_id(
    channel: &impl LedgerTransport,
    by: &dyn WalletSigner,
    action: &Action,
) -> Result<TxId, LedgerError> {
    execute(channel, by, action).map(|(id, _)| id)
}

/// Executes an action and returns the amount that it moved.
fn execute_for_amount(
    channel: &impl LedgerTransport,
    by: &dyn WalletSigner,
    action: &Action,
) -> Result<Amount, LedgerError> {
    match execute(channel, by, action)?.1 {
        TransactionOutcome::Moved(amount) => Ok(amount),
        other => Err(unexpected_response(&LedgerResponse::Outcome(other))),
    }
}

impl<C: LedgerTransport> Ledger for C {
    fn market(&self) -> MarketId {
        LedgerTransport::market(self)
    }

    fn now(&self) -> Result<Timestamp, LedgerError> {
        request!(self, LedgerRequest::Now, LedgerResponse::Now(now) => now)
    }

    fn balance(&self, account: Address) -> Result<Amount, LedgerError> {
        request!(self, LedgerRequest::Balance { account }, LedgerResponse::Amount(amount) => amount)
    }

    fn treasury(&self) -> Result<Amount, LedgerError> {
        request!(self, LedgerRequest::Treasury, LedgerResponse::Amount(amount) => amount)
    }

    fn task(&self, task: TaskId) -> Result<Option<TaskState>, LedgerError> {
        request!(self, LedgerRequest::Task { task }, LedgerResponse::Task(state) => state.map(|state| *state))
    }

    fn bond_of(&self, task: TaskId, account: Address) -> Result<BondState, LedgerError> {
        request!(self, LedgerRequest::Bond { task, account }, LedgerResponse::Bond(bond) => bond)
    }

    fn stake_of(&self, account: Address) -> Result<StakeState, LedgerError> {
        request!(self, LedgerRequest::Stake { account }, LedgerResponse::Stake(stake) => stake)
    }

    fn is_pledged(&self, task: TaskId, provider: Address) -> Result<bool, LedgerError> {
        request!(self, LedgerRequest::Pledged { task, provider }, LedgerResponse::Pledged(pledged) => pledged)
    }

    fn claimed_totals(&self, task: TaskId, account: Address) -> Result<ClaimTotals, LedgerError> {
        request!(self, LedgerRequest::Claimed { task, account }, LedgerResponse::Totals(totals) => totals)
    }

    fn split_of(&self, task: TaskId, account: Address) -> Result<Vec<MemberShare>, LedgerError> {
        request!(self, LedgerRequest::Split { task, account }, LedgerResponse::Split(members) => members)
    }

    fn settlement_status(
        &self,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<SettlementStatus, LedgerError> {
        request!(self, LedgerRequest::Settlement { task, payout }, LedgerResponse::Settlement(status) => status)
    }

    fn transfer(
        &self,
        by: &dyn WalletSigner,
        to: Address,
        amount: Amount,
    ) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::Transfer { to, amount })
    }

    fn open_task(&self, by: &dyn WalletSigner, terms: &Terms) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::OpenTask(terms.clone()))
    }

    fn set_split(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        members: &[MemberShare],
    ) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::SetSplit { task, members: members.to_vec() })
    }

    fn bond(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        amount: Amount,
    ) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::Bond { task, amount })
    }

    fn unbond(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::Unbond { task })
    }

    fn withdraw_bond(&self, by: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError> {
        execute_for_amount(self, by, &Action::WithdrawBond { task })
    }

    fn stake(&self, by: &dyn WalletSigner, amount: Amount) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::Stake { amount })
    }

    fn pledge(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::Pledge { task })
    }

    fn unstake(&self, by: &dyn WalletSigner) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::Unstake)
    }

    fn withdraw_stake(&self, by: &dyn WalletSigner) -> Result<Amount, LedgerError> {
        execute_for_amount(self, by, &Action::WithdrawStake)
    }

    fn post(
        &self,
        by: &dyn WalletSigner,
        settlement: &Settlement,
    ) -> Result<PostOutcome, LedgerError> {
        match execute(self, by, &Action::Post(*settlement))?.1 {
            TransactionOutcome::Posted(posted) => Ok(posted),
            other => Err(unexpected_response(&LedgerResponse::Outcome(other))),
        }
    }

    fn cancel(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::Cancel { task, payout })
    }

    fn finalize(&self, by: &dyn WalletSigner, task: TaskId) -> Result<u64, LedgerError> {
        // Coordinators call this often: while no settlement is due, no block needs to be written.
        if request!(self, LedgerRequest::Due { task }, LedgerResponse::Due(due) => due)? == Some(0)
        {
            return Ok(0);
        }
        match execute(self, by, &Action::Finalize { task })?.1 {
            TransactionOutcome::Finalised(count) => Ok(count),
            other => Err(unexpected_response(&LedgerResponse::Outcome(other))),
        }
    }

    fn claim(&self, by: &dyn WalletSigner, claim: &Claim) -> Result<ClaimOutcome, LedgerError> {
        match execute(self, by, &Action::Claim(claim.clone()))?.1 {
            TransactionOutcome::Claimed(claimed) => Ok(claimed),
            other => Err(unexpected_response(&LedgerResponse::Outcome(other))),
        }
    }

    fn close(&self, by: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError> {
        execute_for_amount(self, by, &Action::Close { task })
    }

    fn announce_close(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError> {
        execute_for_id(self, by, &Action::AnnounceClose { task })
    }

    fn object(&self, by: &dyn WalletSigner, objection: &Objection) -> Result<Amount, LedgerError> {
        execute_for_amount(self, by, &Action::Object(*objection))
    }

    fn slash(&self, by: &dyn WalletSigner, slash: &Slash) -> Result<Amount, LedgerError> {
        execute_for_amount(self, by, &Action::Slash(slash.clone()))
    }
}
