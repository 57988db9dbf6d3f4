//! The auditor's own books: the expected movements of every transaction, in plain arithmetic,
//! independent of the ledger's code.

use std::collections::BTreeMap;

use florin_ledger::{Account, Action, Claim, Pool, Settlement, Terms, TransactionOutcome};
use florin_protocol::{Address, Amount, Digest, TaskId};

use crate::ledger::{ExecutedTransaction, SimLedger};

type BaseUnits = u128;

/// A settlement in its challenge window.
#[derive(Clone, Debug)]
struct OpenWindow {
    settlement: Settlement,
    /// The settlement is final after this time, in milliseconds.
    until: u64,
}

/// Balances by location, in base units.
#[derive(Clone, Debug, Default)]
pub(super) struct MoneyBooks {
    task: TaskId,
    supply: BaseUnits,
    wallets: BTreeMap<Address, BaseUnits>,
    bonds: BTreeMap<Address, BaseUnits>,
    stakes: BTreeMap<Address, BaseUnits>,
    locked: [BaseUnits; 2],
    owed: BaseUnits,
    treasury: BaseUnits,
    deposited: BaseUnits,
    paid: [BaseUnits; 2],
    refunded: BaseUnits,
    claimed: BTreeMap<Address, [BaseUnits; 2]>,
    windows: Vec<OpenWindow>,
    /// Every settlement that the ledger accepted, in order.
    pub posted: Vec<Settlement>,
    /// The root of the last final settlement.
    pub root: Digest,
    challenge_ms: u64,
    /// When the task was closed, by the ledger's clock.
    pub closed_at: Option<u64>,
    /// For each account: bonded, returned and forfeited amounts.
    pub bond_totals: BTreeMap<Address, [BaseUnits; 3]>,
}

fn sum<'a>(all: impl Iterator<Item = &'a BaseUnits>) -> BaseUnits {
    all.sum()
}

fn debit(from: &mut BaseUnits, much: BaseUnits, what: &str) -> Result<(), String> {
    *from = from.checked_sub(much).ok_or_else(|| format!("{what}: {much} of {from} units"))?;
    Ok(())
}

impl MoneyBooks {
    /// The books of a market with these balances and one task.
    #[must_use]
    pub(super) fn new(task: TaskId, money: &[(Address, Amount)]) -> Self {
        let wallets: BTreeMap<_, _> = money.iter().map(|(who, has)| (*who, has.units())).collect();
        Self { task, supply: sum(wallets.values()), wallets, ..Self::default() }
    }

    /// Books an executed transaction.
    ///
    /// # Errors
    /// A description of the inconsistency.
    pub(super) fn book(&mut self, done: &ExecutedTransaction) -> Result<(), String> {
        let (from, at) = (done.transaction.from, done.at.0);
        let moved = match done.outcome {
            TransactionOutcome::Moved(amount) => Some(amount.units()),
            _ => None,
        };
        match &done.transaction.action {
            Action::OpenTask(terms) => self.open(from, terms),
            Action::Bond { amount, .. } => {
                let risked = self.bond_totals.entry(from).or_default();
                risked[0] += amount.units();
                *self.bonds.entry(from).or_default() += amount.units();
                debit(self.wallets.entry(from).or_default(), amount.units(), "a bond")
            }
            Action::WithdrawBond { .. } => {
                let bond = std::mem::take(self.bonds.entry(from).or_default());
                self.bond_totals.entry(from).or_default()[1] += bond;
                self.credit(from, bond, moved, "a bond")
            }
            Action::Stake { amount } => {
                *self.stakes.entry(from).or_default() += amount.units();
                debit(self.wallets.entry(from).or_default(), amount.units(), "a stake")
            }
            Action::WithdrawStake => {
                let stake = std::mem::take(self.stakes.entry(from).or_default());
                self.credit(from, stake, moved, "a stake")
            }
            Action::Post(settlement) => self.post(settlement, at),
            Action::Finalize { .. } => self.finalise(at, Some(done.outcome)),
            Action::Claim(claim) => self.claim(claim, done.outcome),
            Action::Close { .. } => self.close(at, moved),
            Action::Unbond { .. } | Action::Unstake | Action::Pledge { .. } => Ok(()),
            other => Err(format!("unexpected action {other:?}")),
        }
    }

    fn open(&mut self, from: Address, terms: &Terms) -> Result<(), String> {
        self.locked = [terms.data.units(), terms.infrastructure.units()];
        self.deposited = self.locked[0] + self.locked[1];
        self.challenge_ms = terms.challenge_ms;
        debit(self.wallets.entry(from).or_default(), self.deposited, "the escrow")
    }

    fn credit(
        &mut self,
        to: Address,
        much: BaseUnits,
        moved: Option<BaseUnits>,
        what: &str,
    ) -> Result<(), String> {
        *self.wallets.entry(to).or_default() += much;
        if moved == Some(much) {
            return Ok(());
        }
        Err(format!("the ledger returned {moved:?} for {what} of {much} units"))
    }

    fn post(&mut self, settlement: &Settlement, at: u64) -> Result<(), String> {
        let round = settlement.round;
        if self.posted.iter().any(|posted| posted.round >= round) {
            return Err(format!("round {round} is settled twice, or after a later one"));
        }
        self.posted.push(*settlement);
        self.windows.push(OpenWindow { settlement: *settlement, until: at + self.challenge_ms });
        Ok(())
    }

    /// Finalises settlements after their challenge windows: moves the increase of their totals from
    /// escrow to the owed amount.
    fn finalise(&mut self, at: u64, outcome: Option<TransactionOutcome>) -> Result<(), String> {
        let mut count = 0;
        while self.windows.first().is_some_and(|window| at > window.until) {
            let OpenWindow { settlement, .. } = self.windows.remove(0);
            let totals = [settlement.data_total, settlement.infrastructure_total];
            for (pool, total) in totals.into_iter().enumerate() {
                let more = total.units().checked_sub(self.paid[pool]);
                let more = more.ok_or("the total of a settlement decreases")?;
                debit(&mut self.locked[pool], more, "a settlement")?;
                self.owed += more;
                self.paid[pool] += more;
            }
            self.root = settlement.root;
            count += 1;
        }
        match outcome {
            Some(TransactionOutcome::Finalised(reported)) if reported != count => {
                Err(format!("the ledger finalised {reported} settlements, but {count} were due"))
            }
            _ => Ok(()),
        }
    }

    fn claim(&mut self, claim: &Claim, outcome: TransactionOutcome) -> Result<(), String> {
        let before = self.claimed.entry(claim.account).or_default();
        let now = [claim.totals.paid.units(), claim.totals.debited.units()];
        let [Some(paid), Some(debited)] = [0, 1].map(|n: usize| now[n].checked_sub(before[n]))
        else {
            return Err(format!("{} claims less than before", claim.account));
        };
        if paid == 0 && debited == 0 {
            return Err(format!("{} claims twice", claim.account));
        }
        *before = now;
        let bond = self.bonds.entry(claim.account).or_default();
        let taken = debited.min(*bond);
        *bond -= taken;
        self.bond_totals.entry(claim.account).or_default()[2] += taken;
        self.treasury += taken;
        debit(&mut self.owed, paid, "a claim")?;
        *self.wallets.entry(claim.account).or_default() += paid;
        match outcome {
            TransactionOutcome::Claimed(reported)
                if reported.paid.units() == paid && reported.taken.units() == taken =>
            {
                Ok(())
            }
            other => Err(format!(
                "a claim of {paid} units with {taken} units debited had the outcome {other:?}"
            )),
        }
    }

    fn close(&mut self, at: u64, moved: Option<BaseUnits>) -> Result<(), String> {
        if self.closed_at.is_some() {
            return Err("the task is closed twice".to_owned());
        }
        self.finalise(at, None)?;
        if !self.windows.is_empty() {
            return Err("the task is closed while a settlement is pending".to_owned());
        }
        self.closed_at = Some(at);
        let refund = sum(std::mem::take(&mut self.locked).iter());
        self.refunded = refund;
        let buyer = crate::setup::BUYER;
        self.credit(buyer, refund, moved, "the refund")
    }

    /// Checks that money is conserved, and that every account of the ledger has the same balance as
    /// these books.
    ///
    /// # Errors
    /// A description of the first difference.
    pub(super) fn check_against(&self, bank: &SimLedger) -> Result<(), String> {
        let all = [&self.wallets, &self.bonds, &self.stakes].map(|all| sum(all.values()));
        let total = sum(all.iter()) + sum(self.locked.iter()) + self.owed + self.treasury;
        if total != self.supply {
            return Err(format!("{total} units are booked, but the supply is {}", self.supply));
        }
        let out = sum(self.paid.iter()) + self.refunded + sum(self.locked.iter());
        if out != self.deposited {
            return Err(format!(
                "{} units were deposited, but {out} are accounted for",
                self.deposited
            ));
        }
        let state = bank.state();
        let held = |account| state.account_balance(account).units();
        let same = |what: &dyn std::fmt::Display, ours: BaseUnits, theirs: BaseUnits| {
            if ours == theirs {
                Ok(())
            } else {
                Err(format!("{what}: {ours} here, {theirs} on the ledger"))
            }
        };
        for (who, ours) in &self.wallets {
            same(&format_args!("wallet of {who}"), *ours, held(Account::Wallet(*who)))?;
        }
        for (who, ours) in &self.bonds {
            same(&format_args!("bond of {who}"), *ours, held(Account::Bond(self.task, *who)))?;
        }
        for (who, ours) in &self.stakes {
            same(&format_args!("stake of {who}"), *ours, held(Account::Stake(*who)))?;
        }
        for (ours, pool) in self.locked.iter().zip([Pool::Data, Pool::Infrastructure]) {
            same(&"escrow", *ours, held(Account::Escrow(self.task, pool)))?;
        }
        same(&"the task's debt", self.owed, held(Account::Owed(self.task)))?;
        same(&"the treasury", self.treasury, held(Account::Treasury))
    }

    /// Final checks: the task is closed, all pay is claimed, and all bonds and stakes are returned.
    ///
    /// # Errors
    /// A description of the first failed check.
    pub(super) fn check_settled(&self) -> Result<(), String> {
        if self.closed_at.is_none() {
            return Err("the escrow is not refunded: the task is open".to_owned());
        }
        if self.owed != 0 {
            return Err(format!("{} units are owed and were never claimed", self.owed));
        }
        for (who, [put, back, lost]) in &self.bond_totals {
            let left = self.bonds.get(who).copied().unwrap_or_default();
            if left != 0 || *put != back + lost {
                return Err(format!(
                    "bond of {who}: {put} bonded, {back} returned, {lost} forfeited, {left} left"
                ));
            }
        }
        match self.stakes.iter().find(|(_, left)| **left != 0) {
            Some((who, left)) => {
                Err(format!("{left} units of the stake of {who} are not returned"))
            }
            None => Ok(()),
        }
    }

    /// The claimed totals of an account: paid and debited.
    #[must_use]
    pub(super) fn claimed(&self, account: Address) -> [BaseUnits; 2] {
        self.claimed.get(&account).copied().unwrap_or_default()
    }
}
