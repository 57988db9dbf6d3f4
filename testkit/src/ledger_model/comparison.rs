//! Compares every readable value of a ledger with the model.

use std::fmt::Debug;

use florin_ledger::model::{SplitFlaw, TaskModel};
use florin_ledger::{
    BondState, Ledger, LedgerError, PendingSettlement, SettlementStatus, StakeState, TaskState,
};
use florin_protocol::{Amount, RoundNumber};

use super::accounts::{TestAccounts, in_units, leaf, payout, task_id, units};
use super::model::{AllTotals, Flaw, INITIAL_BALANCE, LAST_ROUND, LedgerModel, PEOPLE};

/// A description of the difference between a ledger and the model.
pub type ModelMismatch = String;

#[expect(clippy::needless_pass_by_value, reason = "an assertion is shorter without references")]
fn expect_equal<T: PartialEq + Debug>(
    what: &str,
    got: T,
    expected: T,
) -> Result<(), ModelMismatch> {
    if got == expected {
        return Ok(());
    }
    let (got, expected) = (format!("{got:#?}"), format!("{expected:#?}"));
    let mut difference = format!("{what}:");
    for (got, expected) in got.lines().zip(expected.lines()).filter(|(a, b)| a != b) {
        difference += &format!("\n  the ledger has {got}, the model {expected}");
    }
    let lines = [&got, &expected].map(|text| text.lines().count());
    if lines[0] != lines[1] {
        difference +=
            &format!("\n  complete value of the ledger {got}\n  and of the model {expected}");
    }
    Err(difference)
}

fn expect_read<T>(answer: Result<T, LedgerError>) -> Result<T, ModelMismatch> {
    answer.map_err(|error| format!("a read failed: {error}"))
}

/// Compares a ledger with the model.
pub struct Comparison<'a> {
    pub ledger: &'a dyn Ledger,
    pub model: &'a LedgerModel,
    pub cast: &'a TestAccounts,
}

impl Comparison<'_> {
    /// Compares every readable value.
    pub fn all(&self) -> Result<(), ModelMismatch> {
        expect_equal("the clock", expect_read(self.ledger.now())?, self.cast.tick(self.model.now))?;
        self.treasury()?;
        for n in 0..PEOPLE {
            self.wallet(n)?;
            (0..self.model.tasks.len()).try_for_each(|t| self.account_in_task(n, t))?;
        }
        for t in 0..self.model.tasks.len() {
            self.task(t)?;
            self.settlements(t)?;
        }
        expect_equal("the model's supply", self.model.supply(), INITIAL_BALANCE * PEOPLE as i128)
    }

    pub fn treasury(&self) -> Result<(), ModelMismatch> {
        expect_equal(
            "treasury",
            in_units(expect_read(self.ledger.treasury())?),
            self.model.treasury,
        )
    }

    /// Compares the wallet and the stake of an account.
    pub fn wallet(&self, n: usize) -> Result<(), ModelMismatch> {
        let (owner, model) = (self.cast.address(n), self.model);
        let crumbs = Amount::from_units(model.crumbs[n].unsigned_abs());
        expect_equal(
            &format!("wallet of {n}"),
            expect_read(self.ledger.balance(owner))?,
            units(model.wallets[n]).plus(crumbs).unwrap(),
        )?;
        let release = model.stake_releases[n].map(|at| self.cast.tick(at));
        let expected = StakeState { amount: units(model.stakes[n]), release };
        expect_equal(&format!("stake of {n}"), expect_read(self.ledger.stake_of(owner))?, expected)
    }

    /// Compares the bond, the claims, the split and the pledge of an account in a task.
    pub fn account_in_task(&self, n: usize, t: usize) -> Result<(), ModelMismatch> {
        let (owner, task, id) = (self.cast.address(n), &self.model.tasks[t], task_id(t));
        let release = task.releases[n].map(|at| self.cast.tick(at));
        let expected = BondState { amount: units(task.bonds[n]), release };
        expect_equal(
            &format!("bond of {n} in {t}"),
            expect_read(self.ledger.bond_of(id, owner))?,
            expected,
        )?;
        let claimed = expect_read(self.ledger.claimed_totals(id, owner))?;
        expect_equal(&format!("claimed by {n} in {t}"), claimed, leaf(task.claimed[n]))?;
        let split = expect_read(self.ledger.split_of(id, owner))?;
        let expected = self.cast.split(&task.splits[n], SplitFlaw::Nothing);
        expect_equal(&format!("split of {n} in {t}"), split, expected)?;
        let pledged = expect_read(self.ledger.is_pledged(id, owner))?;
        expect_equal(&format!("pledge of {n} to {t}"), pledged, task.pledges[n].is_some())
    }

    /// Compares a task's state, including its root and its pending settlements.
    pub fn task(&self, t: usize) -> Result<(), ModelMismatch> {
        let task = &self.model.tasks[t];
        let expected = task.open.then(|| self.expected(t, task));
        expect_equal(&format!("task {t}"), expect_read(self.ledger.task(task_id(t)))?, expected)
    }

    fn expected(&self, t: usize, task: &TaskModel<AllTotals>) -> TaskState {
        let cast = self.cast;
        let pending = task.pending.iter().map(|p| PendingSettlement {
            settlement: cast.settlement(t, p),
            final_at: cast.tick(p.window),
        });
        TaskState {
            terms: cast.terms(t, task.rules, Flaw::Nothing),
            data_locked: units(task.locked[0]),
            infrastructure_locked: units(task.locked[1]),
            data_paid: units(task.paid[0]),
            infrastructure_paid: units(task.paid[1]),
            refunded: units(task.refunded),
            owed: units(task.owed),
            root: cast.root(&task.totals),
            round: (task.round > 0).then(|| RoundNumber(u32::try_from(task.round).unwrap())),
            pending: pending.collect(),
            closes_at: task.announced_close().map(|at| cast.tick(at)),
            closed: task.closed,
        }
    }

    /// Compares the status of each round's settlement, and of the round after the last.
    fn settlements(&self, t: usize) -> Result<(), ModelMismatch> {
        let task = &self.model.tasks[t];
        let finals = task.finals.keys().map(|round| (*round, SettlementStatus::Final));
        let pending = task.pending.iter().map(|p| (p.round, SettlementStatus::Pending));
        let next = (task.latest_settlement().0 + 1).min(LAST_ROUND);
        let is_known = next == task.latest_settlement().0;
        let unknown = (!is_known).then_some((next, SettlementStatus::Unknown));
        for (round, expected) in finals.chain(pending).chain(unknown) {
            let got = expect_read(self.ledger.settlement_status(task_id(t), payout(t, round)))?;
            expect_equal(&format!("settlement of round {round} of {t}"), got, expected)?;
        }
        Ok(())
    }
}
