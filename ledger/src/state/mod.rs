//! The ledger's rules as pure functions: a state, a transaction and a time give movements or a
//! refusal. No storage, no clock.

mod bonds;
mod draft;
mod rules;
mod settlements;
mod splits;
mod tables;
mod tasks;

#[cfg(test)]
mod boundary_tests;
#[cfg(test)]
mod conservation_tests;
#[cfg(test)]
mod coverage_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod split_tests;
#[cfg(test)]
mod tests;

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, SettlementId, TaskId, Timestamp};

use crate::api::{BondState, MemberShare, Refusal, SettlementStatus, StakeState, TaskState};
use crate::entry::{Account, Movement, Pool};
use crate::transaction::{Transaction, TransactionOutcome};

pub(crate) use draft::{AppliedTransaction, Draft};
pub(crate) use tables::{Changes, TABLES, TableRows, changes_digest};
pub use tables::{LedgerState, SettlementStage, StakeRecord, TaskRecord};

/// The reason why a transaction was not executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The rules refuse it. Nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The account balances are inconsistent: a bug in this program or a fault in its records. This
    /// state must not be used any further.
    #[error("inconsistent balances: {0}")]
    Inconsistent(String),
}

impl From<florin_protocol::AmountError> for ApplyError {
    fn from(error: florin_protocol::AmountError) -> Self {
        Self::Inconsistent(error.to_string())
    }
}

/// Executes one transaction whose signature has been verified: first checks everything, then
/// changes everything.
///
/// A transaction with nothing to change also returns an outcome, but changes nothing, not even its
/// account's nonce: no block may contain it.
///
/// # Errors
/// [`ApplyError::Refused`] leaves the state unchanged. [`ApplyError::Inconsistent`] does too, but the
/// state must not be used any further.
pub fn apply(
    state: &mut LedgerState,
    transaction: &Transaction,
    now: Timestamp,
) -> Result<(Vec<Movement>, TransactionOutcome), ApplyError> {
    let mut draft = Draft::new(state);
    let done = draft.apply(transaction, now)?;
    let changes = draft.into_changes();
    state.merge(changes);
    Ok((done.movements, done.outcome))
}

impl LedgerState {
    /// The balance of a wallet.
    #[must_use]
    pub fn balance(&self, owner: Address) -> Amount {
        self.account_balance(Account::Wallet(owner))
    }

    /// The balance of any account.
    #[must_use]
    pub fn account_balance(&self, account: Account) -> Amount {
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
                Some(SettlementStage::Pending(pending)) => Some(pending.clone()),
                _ => None,
            })
            .collect();
        Some(TaskState {
            terms: record.terms.clone(),
            data_locked: self.account_balance(Account::Escrow(task, Pool::Data)),
            infrastructure_locked: self
                .account_balance(Account::Escrow(task, Pool::Infrastructure)),
            data_paid: record.data_paid,
            infrastructure_paid: record.infrastructure_paid,
            refunded: record.refunded,
            owed: self.account_balance(Account::Owed(task)),
            root: record.root,
            round: record.round,
            pending,
            closes_at: record.announced_close(),
            closed: record.closed,
        })
    }

    /// A bond; zero if there is none.
    #[must_use]
    pub fn bond(&self, task: TaskId, owner: Address) -> BondState {
        BondState {
            amount: self.account_balance(Account::Bond(task, owner)),
            release: self.bonds.get(&(task, owner)).copied(),
        }
    }

    /// A stake; zero if there is none.
    #[must_use]
    pub fn stake(&self, owner: Address) -> StakeState {
        StakeState {
            amount: self.account_balance(Account::Stake(owner)),
            release: self.stakes.get(&owner).and_then(|record| record.release),
        }
    }

    /// Whether a provider's stake is pledged to a task.
    #[must_use]
    pub fn is_pledged(&self, task: TaskId, provider: Address) -> bool {
        self.stakes.get(&provider).is_some_and(|record| record.slashed.contains_key(&task))
    }

    /// The totals of an account's claims in a task.
    #[must_use]
    pub fn claimed_totals(&self, task: TaskId, account: Address) -> ClaimTotals {
        self.claimed.get(&(task, account)).copied().unwrap_or_default()
    }

    /// The split of an account's pay in a task; empty if the account has none.
    #[must_use]
    pub fn split(&self, task: TaskId, account: Address) -> Vec<MemberShare> {
        self.splits.get(&(task, account)).cloned().unwrap_or_default()
    }

    /// The status of a settlement.
    #[must_use]
    pub fn settlement_status(&self, task: TaskId, payout: SettlementId) -> SettlementStatus {
        match self.settlements.get(&(task, payout)) {
            None => SettlementStatus::Unknown,
            Some(SettlementStage::Pending(_)) => SettlementStatus::Pending,
            Some(SettlementStage::Final { .. }) => SettlementStatus::Final,
        }
    }

    /// The number of a task's settlements that can be finalised now; `None` for a task that was
    /// never opened.
    #[must_use]
    pub fn finalizable_count(&self, task: TaskId, now: Timestamp) -> Option<u64> {
        let record = self.tasks.get(&task)?;
        let windows = record.pending.iter().map_while(|payout| {
            match self.settlements.get(&(task, *payout)) {
                Some(SettlementStage::Pending(pending)) => Some(pending.final_at),
                _ => None,
            }
        });
        u64::try_from(windows.take_while(|final_at| now > *final_at).count()).ok()
    }
}
