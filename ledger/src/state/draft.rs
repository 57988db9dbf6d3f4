//! A state with changes on top of it that are not durable yet.

use std::collections::BTreeMap;

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, SettlementId, TaskId, Timestamp};

use crate::api::{MemberShare, Refusal};
use crate::entry::{Account, Movement, Pool};
use crate::state::tables::{Changes, LedgerState, SettlementStage, StakeRecord, TaskRecord};
use crate::state::{ApplyError, rules};
use crate::transaction::{Transaction, TransactionOutcome};

/// A row that an action replaces, or deletes (`None`).
#[derive(Clone, Debug)]
pub(super) enum RowChange {
    Task(TaskId, TaskRecord),
    Settlement((TaskId, SettlementId), Option<SettlementStage>),
    Bond((TaskId, Address), Option<Timestamp>),
    Stake(Address, Option<StakeRecord>),
    Claimed((TaskId, Address), ClaimTotals),
    Slashed((TaskId, Address), Amount),
    Split((TaskId, Address), Vec<MemberShare>),
}

/// All effects of one action, computed before any of them is applied.
#[derive(Clone, Debug)]
pub(super) struct Effects {
    pub(super) movements: Vec<Movement>,
    pub(super) writes: Vec<RowChange>,
    pub(super) outcome: TransactionOutcome,
    /// The task whose conservation equation must hold afterwards.
    pub(super) task: Option<TaskId>,
}

impl Effects {
    /// No movements and no rows; only an outcome.
    pub(super) fn from_outcome(outcome: TransactionOutcome) -> Self {
        Self { movements: Vec::new(), writes: Vec::new(), outcome, task: None }
    }
}

/// The result of one executed transaction.
#[derive(Clone, Debug)]
pub(crate) struct AppliedTransaction {
    pub(crate) movements: Vec<Movement>,
    pub(crate) outcome: TransactionOutcome,
    /// False for a transaction with nothing to change: it uses no nonce and must not be in a block.
    /// There are neither fees nor deposits, so that any account could otherwise fill the chain with
    /// such transactions.
    pub(crate) changed: bool,
}

/// Reads fall through to the state. Changes stay in this overlay until the block that contains them
/// is durable.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    state: &'a LedgerState,
    changes: Changes,
}

/// Reads a row from the changes, or else from the state.
fn lookup<'m, K: Ord, V>(
    changes: &'m BTreeMap<K, Option<V>>,
    state: &'m BTreeMap<K, V>,
    key: &K,
) -> Option<&'m V> {
    match changes.get(key) {
        Some(value) => value.as_ref(),
        None => state.get(key),
    }
}

impl<'a> Draft<'a> {
    pub(crate) fn new(state: &'a LedgerState) -> Self {
        Self { state, changes: Changes::default() }
    }

    pub(crate) fn into_changes(self) -> Changes {
        self.changes
    }

    /// The balance of an account.
    pub(super) fn account_balance(&self, account: Account) -> Amount {
        lookup(&self.changes.books, &self.state.books, &account).copied().unwrap_or_default()
    }

    fn nonce(&self, account: Address) -> u64 {
        lookup(&self.changes.nonces, &self.state.nonces, &account).copied().unwrap_or_default()
    }

    pub(super) fn task(&self, task: TaskId) -> Result<&TaskRecord, Refusal> {
        lookup(&self.changes.tasks, &self.state.tasks, &task).ok_or(Refusal::UnknownTask(task))
    }

    /// The stage of a settlement; `None` if it was never posted or was cancelled.
    pub(super) fn stage(&self, task: TaskId, payout: SettlementId) -> Option<&SettlementStage> {
        lookup(&self.changes.settlements, &self.state.settlements, &(task, payout))
    }

    /// The moment from which a bond can be withdrawn, if its return was requested.
    pub(super) fn bond_release(&self, task: TaskId, owner: Address) -> Option<Timestamp> {
        lookup(&self.changes.bonds, &self.state.bonds, &(task, owner)).copied()
    }

    /// The amount slashed from an account's bonds in a task; not counted for its coordinator.
    pub(super) fn slashed_bond(&self, task: TaskId, owner: Address) -> Amount {
        lookup(&self.changes.slashed, &self.state.slashed, &(task, owner))
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn pledges(&self, owner: Address) -> Option<&StakeRecord> {
        lookup(&self.changes.stakes, &self.state.stakes, &owner)
    }

    pub(super) fn claimed(&self, task: TaskId, account: Address) -> ClaimTotals {
        lookup(&self.changes.claimed, &self.state.claimed, &(task, account))
            .copied()
            .unwrap_or_default()
    }

    /// The split of an account's pay in a task; empty if the account has none.
    pub(super) fn split(&self, task: TaskId, account: Address) -> &[MemberShare] {
        lookup(&self.changes.splits, &self.state.splits, &(task, account))
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// Executes one transaction on top of the changes so far.
    pub(crate) fn apply(
        &mut self,
        transaction: &Transaction,
        now: Timestamp,
    ) -> Result<AppliedTransaction, ApplyError> {
        let (from, expected) = (transaction.from, self.nonce(transaction.from));
        if transaction.nonce != expected {
            return Err(Refusal::WrongNonce { got: transaction.nonce, expected }.into());
        }
        let next = expected.checked_add(1).ok_or_else(|| {
            Refusal::LimitExceeded(format!("the account {from} has used all of its nonces"))
        })?;
        let chain = transaction.market.chain;
        let effects = rules::decide(self, from, &transaction.action, (chain, now))?;
        let changed = !(effects.movements.is_empty() && effects.writes.is_empty());
        if !changed {
            return Ok(AppliedTransaction {
                movements: Vec::new(),
                outcome: effects.outcome,
                changed,
            });
        }
        // Nothing below may refuse: an error from here on is an inconsistency of the balances, not
        // of the transaction.
        for movement in &effects.movements {
            self.apply_movement(movement)?;
        }
        for write in effects.writes {
            self.apply_row(write);
        }
        self.changes.nonces.insert(from, Some(next));
        if let Some(task) = effects.task {
            self.check_conservation(task)?;
        }
        Ok(AppliedTransaction { movements: effects.movements, outcome: effects.outcome, changed })
    }

    fn apply_movement(&mut self, movement: &Movement) -> Result<(), ApplyError> {
        let Movement { from, to, amount, .. } = *movement;
        let left = self.account_balance(from).minus(amount).map_err(|error| {
            ApplyError::Inconsistent(format!("{amount} FLN from {from} to {to}: {error}"))
        })?;
        self.set_balance(from, left);
        let sum = self.account_balance(to).plus(amount)?;
        self.set_balance(to, sum);
        Ok(())
    }

    fn set_balance(&mut self, account: Account, amount: Amount) {
        self.changes.books.insert(account, (!amount.is_zero()).then_some(amount));
    }

    fn apply_row(&mut self, write: RowChange) {
        let changes = &mut self.changes;
        match write {
            RowChange::Task(key, row) => _ = changes.tasks.insert(key, Some(row)),
            RowChange::Settlement(key, row) => _ = changes.settlements.insert(key, row),
            RowChange::Bond(key, row) => _ = changes.bonds.insert(key, row),
            RowChange::Stake(key, row) => _ = changes.stakes.insert(key, row),
            RowChange::Claimed(key, row) => _ = changes.claimed.insert(key, Some(row)),
            RowChange::Slashed(key, row) => _ = changes.slashed.insert(key, Some(row)),
            RowChange::Split(key, row) => _ = changes.splits.insert(key, Some(row)),
        }
    }

    /// Checks `deposited = data paid + infrastructure paid + refunded + still locked`, and that the
    /// amount owed is the amount paid minus the amount claimed.
    fn check_conservation(&self, task: TaskId) -> Result<(), ApplyError> {
        let record = self.task(task)?;
        let locked = [
            self.account_balance(Account::Escrow(task, Pool::Data)),
            self.account_balance(Account::Escrow(task, Pool::Infrastructure)),
        ];
        let deposited = record.terms.data.plus(record.terms.infrastructure)?;
        let [data_locked, infrastructure_locked] = locked;
        let paid = record.data_paid.plus(record.infrastructure_paid)?;
        let accounted = Amount::total([paid, record.refunded, data_locked, infrastructure_locked])?;
        let owed = self.account_balance(Account::Owed(task));
        if accounted != deposited || owed.plus(record.claimed)? != paid {
            return Err(ApplyError::Inconsistent(format!(
                "task {task}: deposited {deposited}, data paid {}, infrastructure paid {}, refunded {}, locked \
                 {data_locked} and {infrastructure_locked}, owed {owed}, claimed {}",
                record.data_paid, record.infrastructure_paid, record.refunded, record.claimed
            )));
        }
        Ok(())
    }
}
