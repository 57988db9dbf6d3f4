//! The ledger's rules as pure functions: a state, a transaction and a time give movements or a
//! refusal. No storage, no clock.

mod bonds;
mod draft;
mod rules;
mod settle;
mod tables;
mod tasks;

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod tests;

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, SettlementId, TaskId, Timestamp};

use crate::api::{BondState, Refusal, SettlementStatus, StakeState, TaskState};
use crate::entry::{Account, Movement, Pool};
use crate::transaction::{Outcome, Transaction};

pub(crate) use draft::{Applied, Draft};
pub(crate) use tables::{Changes, TABLES, TableRows, tables_digest};
pub use tables::{Pledges, Stage, State, TaskRecord};

/// The reason why a transaction was not executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The rules refuse it. Nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The account balances are inconsistent: a bug in this program or a fault in its records. This
    /// state must not be used any further.
    #[error("inconsistent balances: {0}")]
    Broken(String),
}

impl From<florin_protocol::AmountError> for ApplyError {
    fn from(error: florin_protocol::AmountError) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Executes one transaction whose signature has been verified: first checks everything, then
/// changes everything.
///
/// A transaction with nothing to change also returns an outcome, but changes nothing, not even its
/// account's nonce: no block may contain it.
///
/// # Errors
/// [`ApplyError::Refused`] leaves the state unchanged. [`ApplyError::Broken`] does too, but the
/// state must not be used any further.
pub fn apply(
    state: &mut State,
    transaction: &Transaction,
    now: Timestamp,
) -> Result<(Vec<Movement>, Outcome), ApplyError> {
    let mut draft = Draft::new(state);
    let done = draft.apply(transaction, now)?;
    let changes = draft.into_changes();
    state.merge(changes);
    Ok((done.movements, done.outcome))
}

impl State {
    /// The balance of a wallet.
    #[must_use]
    pub fn balance(&self, owner: Address) -> Amount {
        self.held(Account::Wallet(owner))
    }

    /// The balance of any account.
    #[must_use]
    pub fn held(&self, account: Account) -> Amount {
        self.books.get(&account).copied().unwrap_or_default()
    }

    /// The number of transactions that an account has had, which is the nonce of its next one.
    #[must_use]
    pub fn nonce(&self, account: Address) -> u64 {
        self.nonces.get(&account).copied().unwrap_or_default()
    }

    /// The state of a task; `None` for a task that was never opened.
    #[must_use]
    pub fn task(&self, task: TaskId) -> Option<TaskState> {
        let record = self.tasks.get(&task)?;
        let pending = record
            .pending
            .iter()
            .filter_map(|payout| match self.settlements.get(&(task, *payout)) {
                Some(Stage::Pending(pending)) => Some(pending.clone()),
                _ => None,
            })
            .collect();
        Some(TaskState {
            terms: record.terms.clone(),
            data_locked: self.held(Account::Escrow(task, Pool::Data)),
            infrastructure_locked: self.held(Account::Escrow(task, Pool::Infrastructure)),
            data_paid: record.data_paid,
            infrastructure_paid: record.infrastructure_paid,
            refunded: record.refunded,
            owed: self.held(Account::Owed(task)),
            root: record.root,
            pending,
            closed: record.closed,
        })
    }

    /// A bond; zero if there is none.
    #[must_use]
    pub fn bond(&self, task: TaskId, owner: Address) -> BondState {
        BondState {
            amount: self.held(Account::Bond(task, owner)),
            release: self.bonds.get(&(task, owner)).copied(),
        }
    }

    /// A stake; zero if there is none.
    #[must_use]
    pub fn stake(&self, owner: Address) -> StakeState {
        StakeState {
            amount: self.held(Account::Stake(owner)),
            release: self.stakes.get(&owner).and_then(|record| record.release),
        }
    }

    /// Whether a provider's stake is pledged to a task.
    #[must_use]
    pub fn pledged(&self, task: TaskId, provider: Address) -> bool {
        self.stakes.get(&provider).is_some_and(|record| record.slashed.contains_key(&task))
    }

    /// The totals of an account's claims in a task.
    #[must_use]
    pub fn claimed(&self, task: TaskId, account: Address) -> ClaimTotals {
        self.claimed.get(&(task, account)).copied().unwrap_or_default()
    }

    /// The status of a settlement.
    #[must_use]
    pub fn settlement(&self, task: TaskId, payout: SettlementId) -> SettlementStatus {
        match self.settlements.get(&(task, payout)) {
            None => SettlementStatus::Unknown,
            Some(Stage::Pending(_)) => SettlementStatus::Pending,
            Some(Stage::Final { .. }) => SettlementStatus::Final,
        }
    }

    /// The number of a task's settlements that can be finalised now; `None` for a task that was
    /// never opened.
    #[must_use]
    pub fn due(&self, task: TaskId, now: Timestamp) -> Option<u64> {
        let record = self.tasks.get(&task)?;
        let windows = record.pending.iter().map_while(|payout| {
            match self.settlements.get(&(task, *payout)) {
                Some(Stage::Pending(pending)) => Some(pending.final_at),
                _ => None,
            }
        });
        u64::try_from(windows.take_while(|final_at| now > *final_at).count()).ok()
    }
}
