//! Compares the folded state with the contract's getters.

use std::fmt::Debug;

use alloy_primitives::{Address as Account, B256, U256};
use florin_protocol::{Address, Amount, TaskId};

use super::super::contracts::Market::{
    TaskState, bondOfCall, claimedCall, pledgesOfCall, slashedOfCall, stakeOfCall, taskCall,
    treasuryCall,
};
use super::super::node::{At, Node};
use super::{Books, Deployment, Survey, Verification};
use crate::limits::DIFFERENCES_MAX;
use florin_ledger::LedgerError;

/// One number in which events and contract differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The name of the number.
    pub line: String,
    /// The value that results from the events.
    pub events: String,
    /// The contract's value.
    pub contract: String,
}

/// Counts comparisons and collects mismatches.
#[derive(Default)]
struct Scale {
    compared: u64,
    differing: u64,
    differences: Vec<Difference>,
}

impl Scale {
    fn weigh<T: PartialEq + Debug + ?Sized>(
        &mut self,
        line: impl FnOnce() -> String,
        events: &T,
        contract: &T,
    ) {
        self.compared = self.compared.saturating_add(1);
        if events == contract {
            return;
        }
        self.differing = self.differing.saturating_add(1);
        if self.differences.len() < DIFFERENCES_MAX {
            let (events, contract) = (format!("{events:?}"), format!("{contract:?}"));
            self.differences.push(Difference { line: line(), events, contract });
        }
    }
}

fn b256(task: TaskId) -> B256 {
    B256::from(task.0)
}

fn account(address: Address) -> Account {
    Account::from(address.0)
}

/// Compares every number of the folded state with the contract.
pub(super) fn compare(
    node: &Node,
    deployment: &Deployment,
    survey: Survey,
) -> Result<Verification, LedgerError> {
    let (market, at) = (deployment.market, At::Block(survey.block));
    let mut scale = Scale::default();
    let books = &survey.books;
    for (id, task) in &books.tasks {
        let said = node.get(market, &taskCall { id: b256(*id) }, at)?;
        task_lines(&mut scale, *id, &task.state, &said);
    }
    people(&mut scale, node, market, books, at)?;
    providers(&mut scale, node, market, books, at)?;
    let treasury = node.get(market, &treasuryCall {}, at)?;
    scale.weigh(|| "treasury".to_owned(), &books.treasury, &treasury);
    let (due, held) = (books.held(), U256::from(survey.held.units()));
    // The balance may be larger, because any account can send tokens to the contract, but not
    // smaller.
    scale.weigh(|| "tokens of the market".to_owned(), &due, &held.min(due));
    let surplus = Amount::from_units(held.saturating_sub(due).saturating_to());
    let Scale { compared, differing, differences } = scale;
    Ok(Verification { survey, compared, differing, differences, surplus })
}

fn task_lines(scale: &mut Scale, id: TaskId, events: &TaskState, contract: &TaskState) {
    let numbers = |state: &TaskState| {
        [
            ("locked for data", state.dataLocked),
            ("locked for infrastructure", state.infrastructureLocked),
            ("paid for data", state.dataPaid),
            ("paid for infrastructure", state.infrastructurePaid),
            ("refunded", state.refunded),
            ("owed", state.owed),
            ("last final round", u128::from(state.round)),
            ("pending settlements", u128::from(state.pending)),
            ("moment of the last post", u128::from(state.lastPost)),
            ("closed", u128::from(state.closed)),
        ]
    };
    let hashes = |state: &TaskState| {
        [("root", state.root), ("head", state.head), ("base", state.base), ("mark", state.mark)]
    };
    let line = |name: &str| format!("task {}…: {name}", id.short());
    scale.weigh(|| line("terms"), &events.terms, &contract.terms);
    for ((name, ours), (_, theirs)) in numbers(events).into_iter().zip(numbers(contract)) {
        scale.weigh(|| line(name), &ours, &theirs);
    }
    for ((name, ours), (_, theirs)) in hashes(events).into_iter().zip(hashes(contract)) {
        scale.weigh(|| line(name), &ours, &theirs);
    }
}

fn people(
    scale: &mut Scale,
    node: &Node,
    market: Address,
    books: &Books,
    at: At,
) -> Result<(), LedgerError> {
    for ((task, person), ours) in &books.people {
        let (id, account) = (b256(*task), account(*person));
        let line = |name: &str| format!("task {}…, {person}: {name}", task.short());
        let bond = node.get(market, &bondOfCall { id, account }, at)?;
        scale.weigh(|| line("bond"), &ours.bond.amount, &bond.amount);
        scale.weigh(|| line("bond's release"), &ours.bond.release, &bond.release);
        let claimed = node.get(market, &claimedCall { id, account }, at)?;
        scale.weigh(|| line("paid"), &ours.paid, &claimed.paid);
        scale.weigh(|| line("debited"), &ours.debited, &claimed.debited);
    }
    Ok(())
}

fn providers(
    scale: &mut Scale,
    node: &Node,
    market: Address,
    books: &Books,
    at: At,
) -> Result<(), LedgerError> {
    for (who, ours) in &books.providers {
        let provider = account(*who);
        let line = |name: &str| format!("{who}: {name}");
        let stake = node.get(market, &stakeOfCall { provider }, at)?;
        scale.weigh(|| line("stake"), &ours.stake.amount, &stake.amount);
        scale.weigh(|| line("stake's release"), &ours.stake.release, &stake.release);
        let mut pledges = node.get(market, &pledgesOfCall { provider }, at)?;
        pledges.sort_unstable();
        let folded: Vec<B256> = ours.pledges.keys().map(|task| b256(*task)).collect();
        scale.weigh(|| line("pledges"), &folded, &pledges);
        for (task, slashed) in &ours.pledges {
            let said = node.get(market, &slashedOfCall { id: b256(*task), provider }, at)?;
            scale.weigh(|| line("slashed of a pledge"), slashed, &said);
        }
    }
    Ok(())
}
