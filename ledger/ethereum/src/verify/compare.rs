//! Compares the folded state with the contract's getters.

use std::fmt::Debug;

use alloy_primitives::{Address as Account, B256, U256};
use florin_protocol::{Address, Amount, TaskId};

use super::super::contracts::Market::{
    TaskState, bondOfCall, claimedCall, pledgesOfCall, slashedBondOfCall, slashedOfCall,
    splitOfCall, stakeOfCall, taskCall, treasuryCall,
};
use super::super::node::{BlockTag, NodeClient};
use super::{Deployment, FoldedMarket, MarketSnapshot, MarketVerification};
use crate::limits::MISMATCHES_MAX;
use florin_ledger::LedgerError;

/// One number in which events and contract differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarketMismatch {
    /// The name of the number.
    pub field: String,
    /// The value that results from the events.
    pub events: String,
    /// The contract's value.
    pub contract: String,
}

/// Counts comparisons and collects mismatches.
#[derive(Default)]
struct MismatchCollector {
    compared: u64,
    mismatch_count: u64,
    mismatches: Vec<MarketMismatch>,
}

impl MismatchCollector {
    fn compare_field<T: PartialEq + Debug + ?Sized>(
        &mut self,
        line: impl FnOnce() -> String,
        events: &T,
        contract: &T,
    ) {
        self.compared = self.compared.saturating_add(1);
        if events == contract {
            return;
        }
        self.mismatch_count = self.mismatch_count.saturating_add(1);
        if self.mismatches.len() < MISMATCHES_MAX {
            let (events, contract) = (format!("{events:?}"), format!("{contract:?}"));
            self.mismatches.push(MarketMismatch { field: line(), events, contract });
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
    node: &NodeClient,
    deployment: &Deployment,
    survey: MarketSnapshot,
) -> Result<MarketVerification, LedgerError> {
    let (market, at) = (deployment.market, BlockTag::Block(survey.block));
    let mut scale = MismatchCollector::default();
    let books = &survey.market;
    for (id, task) in &books.tasks {
        let contract_state = node.call_getter(market, &taskCall { id: b256(*id) }, at)?;
        compare_task(&mut scale, *id, &task.state, &contract_state);
    }
    compare_accounts(&mut scale, node, market, books, at)?;
    compare_providers(&mut scale, node, market, books, at)?;
    let treasury = node.call_getter(market, &treasuryCall {}, at)?;
    scale.compare_field(|| "treasury".to_owned(), &books.treasury, &treasury);
    let (due, held) = (books.required_tokens(), U256::from(survey.market_balance.units()));
    // The balance may be larger, because any account can send tokens to the contract, but not
    // smaller.
    scale.compare_field(|| "tokens of the market".to_owned(), &due, &held.min(due));
    let surplus = Amount::from_units(held.saturating_sub(due).saturating_to());
    let MismatchCollector { compared, mismatch_count: differing, mismatches: differences } = scale;
    Ok(MarketVerification {
        survey,
        compared,
        mismatch_count: differing,
        mismatches: differences,
        surplus,
    })
}

fn compare_task(
    scale: &mut MismatchCollector,
    id: TaskId,
    events: &TaskState,
    contract: &TaskState,
) {
    let numbers = |state: &TaskState| {
        [
            ("locked for data", state.dataLocked),
            ("locked for infrastructure", state.infrastructureLocked),
            ("paid for data", state.dataPaid),
            ("paid for infrastructure", state.infrastructurePaid),
            ("refunded", state.refunded),
            ("owed", state.owed),
            ("last final round", u128::from(state.round)),
            ("final settlements", u128::from(state.finalised)),
            ("pending settlements", u128::from(state.pending)),
            ("moment of the last post", u128::from(state.lastPost)),
            ("moment of the announced close", u128::from(state.closesAt)),
            ("closed", u128::from(state.closed)),
        ]
    };
    let hashes = |state: &TaskState| {
        [
            ("root", state.root),
            ("head", state.head),
            ("final head", state.finalHead),
            ("checkpoint", state.checkpoint),
        ]
    };
    let line = |name: &str| format!("task {}…: {name}", id.short());
    scale.compare_field(|| line("terms"), &events.terms, &contract.terms);
    for ((name, ours), (_, theirs)) in numbers(events).into_iter().zip(numbers(contract)) {
        scale.compare_field(|| line(name), &ours, &theirs);
    }
    for ((name, ours), (_, theirs)) in hashes(events).into_iter().zip(hashes(contract)) {
        scale.compare_field(|| line(name), &ours, &theirs);
    }
}

fn compare_accounts(
    scale: &mut MismatchCollector,
    node: &NodeClient,
    market: Address,
    books: &FoldedMarket,
    at: BlockTag,
) -> Result<(), LedgerError> {
    for ((task, person), ours) in &books.accounts {
        let (id, account) = (b256(*task), account(*person));
        let line = |name: &str| format!("task {}…, {person}: {name}", task.short());
        let bond = node.call_getter(market, &bondOfCall { id, account }, at)?;
        scale.compare_field(|| line("bond"), &ours.bond.amount, &bond.amount);
        scale.compare_field(|| line("bond's release"), &ours.bond.release, &bond.release);
        let claimed = node.call_getter(market, &claimedCall { id, account }, at)?;
        scale.compare_field(|| line("paid"), &ours.paid, &claimed.paid);
        scale.compare_field(|| line("debited"), &ours.debited, &claimed.debited);
        let split = node.call_getter(market, &splitOfCall { id, account }, at)?;
        scale.compare_field(|| line("split"), &ours.split, &split);
        // One more request for each account that was slashed, and none for all others.
        if ours.slashed > 0 {
            let slashed = node.call_getter(market, &slashedBondOfCall { id, account }, at)?;
            scale.compare_field(|| line("slashed of its bonds"), &ours.slashed, &slashed);
        }
    }
    Ok(())
}

fn compare_providers(
    scale: &mut MismatchCollector,
    node: &NodeClient,
    market: Address,
    books: &FoldedMarket,
    at: BlockTag,
) -> Result<(), LedgerError> {
    for (who, ours) in &books.providers {
        let provider = account(*who);
        let line = |name: &str| format!("{who}: {name}");
        let stake = node.call_getter(market, &stakeOfCall { provider }, at)?;
        scale.compare_field(|| line("stake"), &ours.stake.amount, &stake.amount);
        scale.compare_field(|| line("stake's release"), &ours.stake.release, &stake.release);
        let mut pledges = node.call_getter(market, &pledgesOfCall { provider }, at)?;
        pledges.sort_unstable();
        let folded: Vec<B256> = ours.pledges.keys().map(|task| b256(*task)).collect();
        scale.compare_field(|| line("pledges"), &folded, &pledges);
        for (task, slashed) in &ours.pledges {
            let on_chain =
                node.call_getter(market, &slashedOfCall { id: b256(*task), provider }, at)?;
            scale.compare_field(|| line("slashed of a pledge"), slashed, &on_chain);
        }
    }
    Ok(())
}
