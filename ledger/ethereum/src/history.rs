//! A task's settlements, read from the contract's events and verified against the contract's hash
//! chain.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use alloy_primitives::{B256, keccak256};
use alloy_sol_types::{SolEvent, SolEventInterface, SolValue};
use florin_protocol::{
    Amount, Digest, Micro, Report, RoundNumber, SettlementId, TaskId, Timestamp,
};

use super::contracts::Market;
use super::contracts::Market::{LastSettlement, MarketEvents, PostedSettlement};
use super::deployment::Deployment;
use super::node::{BlockTag, Filter, NodeClient};
use crate::contracts::to_address;
use crate::limits::{HISTORIES_MAX, LAG_PAUSE, LAG_RETRIES_MAX, OUTBOX_PRUNE_DEPTH};
use florin_ledger::{
    LedgerError, PendingSettlement, Settlement, SettlementStatus, TaskState, Terms,
};

/// A task's state and settlements at one block.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) state: Market::TaskState,
    /// Every settlement that was not cancelled, oldest first.
    pub(super) settlements: Vec<PostedEntry>,
    /// The number of final settlements.
    pub(super) finalised: usize,
}

/// A settlement that was not cancelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PostedEntry {
    pub(super) settlement: Settlement,
    pub(super) final_at: Timestamp,
    /// The contract's hash before this settlement.
    pub(super) previous_hash: B256,
}

impl PostedEntry {
    fn new(task: TaskId, last: Option<&Self>, event: &Market::SettlementPosted) -> Self {
        let settlement = Settlement {
            task,
            payout: Report::settlement_id(task, RoundNumber(event.round)),
            round: RoundNumber(event.round),
            report: Digest(event.report.0),
            previous_root: last.map_or_else(Digest::default, |last| last.settlement.root),
            root: Digest(event.root.0),
            data_total: Amount::from_units(event.dataTotal),
            score_pay_total: Amount::from_units(event.scorePayTotal),
            infrastructure_total: Amount::from_units(event.infrastructureTotal),
            improvement_total_nano: event.improvementTotalNano,
        };
        let previous_hash = last.map_or_else(initial_hash, Self::chain_hash);
        Self { settlement, final_at: Timestamp(event.finalAt), previous_hash }
    }

    /// The settlement as an argument of contract calls.
    pub(super) fn to_contract(&self) -> PostedSettlement {
        let s = &self.settlement;
        PostedSettlement {
            round: s.round.0,
            report: s.report.0.into(),
            root: s.root.0.into(),
            dataTotal: s.data_total.units(),
            scorePayTotal: s.score_pay_total.units(),
            infrastructureTotal: s.infrastructure_total.units(),
            improvementTotalNano: s.improvement_total_nano,
            finalAt: self.final_at.0,
        }
    }

    fn inner(&self) -> B256 {
        let s = &self.settlement;
        let (report, score_pay) = (B256::from(s.report.0), s.score_pay_total.units());
        let parts =
            (self.previous_hash, report, score_pay, s.improvement_total_nano, self.final_at.0);
        keccak256(parts.abi_encode())
    }

    fn to_last_settlement(&self) -> LastSettlement {
        let s = &self.settlement;
        LastSettlement {
            inner: self.inner(),
            round: s.round.0,
            root: s.root.0.into(),
            dataTotal: s.data_total.units(),
            infrastructureTotal: s.infrastructure_total.units(),
        }
    }

    /// The contract's hash including this settlement.
    fn chain_hash(&self) -> B256 {
        chain_hash(&self.to_last_settlement())
    }
}

fn chain_hash(last: &LastSettlement) -> B256 {
    let LastSettlement { inner, round, root, dataTotal: data, infrastructureTotal: infrastructure } =
        *last;
    keccak256((inner, round, root, data, infrastructure).abi_encode())
}

const EMPTY_HISTORY: LastSettlement = LastSettlement {
    inner: B256::ZERO,
    round: 0,
    root: B256::ZERO,
    dataTotal: 0,
    infrastructureTotal: 0,
};

/// The initial hash of a task.
fn initial_hash() -> B256 {
    chain_hash(&EMPTY_HISTORY)
}

impl View {
    /// The latest settlement, which a new one continues.
    pub(super) fn last(&self) -> LastSettlement {
        self.settlements.last().map_or(EMPTY_HISTORY, PostedEntry::to_last_settlement)
    }

    pub(super) fn pending(&self) -> &[PostedEntry] {
        self.settlements.get(self.finalised..).unwrap_or_default()
    }

    /// The pending settlements as an argument of contract calls.
    pub(super) fn pending_list(&self) -> Vec<PostedSettlement> {
        self.pending().iter().map(PostedEntry::to_contract).collect()
    }

    /// A settlement with its position.
    pub(super) fn find(&self, payout: SettlementId) -> Option<(usize, &PostedEntry)> {
        self.settlements.iter().enumerate().find(|(_, posted)| posted.settlement.payout == payout)
    }

    pub(super) fn status(&self, payout: SettlementId) -> SettlementStatus {
        match self.find(payout) {
            None => SettlementStatus::Unknown,
            Some((place, _)) if place < self.finalised => SettlementStatus::Final,
            Some(_) => SettlementStatus::Pending,
        }
    }

    /// The number of settlements that the contract's `checkpoint` covers, if it is part of this
    /// history.
    pub(super) fn checkpointed_count(&self) -> usize {
        let covers = |posted: &PostedEntry| posted.chain_hash() == self.state.checkpoint;
        self.settlements.iter().rposition(covers).map_or(0, |place| place.saturating_add(1))
    }

    /// Whether the settlements give the contract's hashes.
    fn matches_contract(&self) -> bool {
        let up_to = |count: usize| {
            let last = count.checked_sub(1).and_then(|place| self.settlements.get(place));
            last.map_or_else(initial_hash, PostedEntry::chain_hash)
        };
        up_to(self.settlements.len()) == self.state.head
            && up_to(self.finalised) == self.state.finalHead
    }

    /// The state in the trait's types.
    pub(super) fn to_state(&self) -> TaskState {
        let s = &self.state;
        let amount = Amount::from_units;
        TaskState {
            terms: Terms::from(&s.terms),
            data_locked: amount(s.dataLocked),
            infrastructure_locked: amount(s.infrastructureLocked),
            data_paid: amount(s.dataPaid),
            infrastructure_paid: amount(s.infrastructurePaid),
            refunded: amount(s.refunded),
            owed: amount(s.owed),
            root: Digest(s.root.0),
            round: (s.round > 0).then_some(RoundNumber(s.round)),
            pending: self.pending().iter().map(PostedEntry::to_pending).collect(),
            closes_at: (s.closesAt > 0).then_some(Timestamp(s.closesAt)),
            closed: s.closed,
        }
    }
}

impl PostedEntry {
    fn to_pending(&self) -> PendingSettlement {
        PendingSettlement { settlement: self.settlement, final_at: self.final_at }
    }
}

impl From<&Market::Terms> for Terms {
    fn from(t: &Market::Terms) -> Self {
        let amount = Amount::from_units;
        Self {
            task: TaskId(t.task.0),
            buyer: to_address(t.buyer),
            coordinator: to_address(t.coordinator),
            arbiter: to_address(t.arbiter),
            data: amount(t.data),
            infrastructure: amount(t.infrastructure),
            rounds: t.rounds,
            per_nat_max: amount(t.perNatMax),
            floor_share: Micro(t.floorShare.into()),
            bond_min: amount(t.bondMin),
            debit_max: amount(t.debitMax),
            stake_min: amount(t.stakeMin),
            challenge_ms: t.challengeMs,
            unbond_ms: t.unbondMs,
            expires: Timestamp(t.expires),
        }
    }
}

/// One settlement event of a task.
#[derive(Clone, Debug)]
struct SettlementEvent {
    block: u64,
    what: MarketEvents,
}

/// The cached events of a task, up to a block.
#[derive(Clone, Debug, Default)]
struct CachedEvents {
    events: Vec<SettlementEvent>,
    up_to: u64,
}

/// Reads the settlements of tasks, and caches the events.
#[derive(Debug, Default)]
pub(super) struct HistoryCache(Mutex<BTreeMap<TaskId, CachedEvents>>);

impl HistoryCache {
    /// A task in the state after `block`; `None` for one that was never opened.
    pub(super) fn view(
        &self,
        node: &NodeClient,
        deployment: &Deployment,
        log_blocks_max: u64,
        task: TaskId,
        block: u64,
    ) -> Result<Option<View>, LedgerError> {
        // The two responses may come from different blocks: a node that is mining can answer with
        // the state of the next block, and the log index of a node can lag behind its state.
        for retry in 0..=LAG_RETRIES_MAX {
            if retry > 0 {
                std::thread::sleep(LAG_PAUSE);
            }
            let getter = Market::taskCall { id: task.0.into() };
            let state = node.call_getter(deployment.market, &getter, BlockTag::Block(block))?;
            if state.head.is_zero() {
                return Ok(None);
            }
            let events = self.events(node, deployment, log_blocks_max, task, block)?;
            let view =
                replay_events(task, state, events.iter().filter(|event| event.block <= block));
            if view.matches_contract() {
                return Ok(Some(view));
            }
            self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&task);
        }
        let name = node.0.name();
        Err(LedgerError::Unavailable(format!(
            "{name}: the events of task {task} do not match the contract's hash; use a node that \
             has all events since block {}",
            deployment.block
        )))
    }

    fn events(
        &self,
        node: &NodeClient,
        deployment: &Deployment,
        log_blocks_max: u64,
        task: TaskId,
        block: u64,
    ) -> Result<Vec<SettlementEvent>, LedgerError> {
        let known = {
            let histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            histories.get(&task).cloned().unwrap_or_default()
        };
        // Younger events may have been reorganised since.
        let first = known.up_to.saturating_sub(OUTBOX_PRUNE_DEPTH).max(deployment.block).min(block);
        let mut events = known.events;
        events.retain(|event| event.block < first);
        let wanted = vec![
            Market::SettlementPosted::SIGNATURE_HASH,
            Market::SettlementsCancelled::SIGNATURE_HASH,
            Market::SettlementFinalised::SIGNATURE_HASH,
        ];
        let topics = vec![wanted, vec![B256::from(task.0)]];
        let filter = Filter { contract: deployment.market, first, last: block, topics };
        for log in node.logs(&filter, log_blocks_max)? {
            let what = MarketEvents::decode_raw_log(&log.topics, &log.data).map_err(|error| {
                LedgerError::Unavailable(format!("{}: unknown event: {error}", node.0.name()))
            })?;
            let block = log.block_number.map_or(block, |number| number.to());
            events.push(SettlementEvent { block, what });
        }
        let mut histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if histories.len() >= HISTORIES_MAX && !histories.contains_key(&task) {
            histories.clear();
        }
        histories.insert(task, CachedEvents { events: events.clone(), up_to: block });
        Ok(events)
    }
}

fn replay_events<'a>(
    task: TaskId,
    state: Market::TaskState,
    events: impl Iterator<Item = &'a SettlementEvent>,
) -> View {
    let mut view = View { state, settlements: Vec::new(), finalised: 0 };
    for event in events {
        match &event.what {
            MarketEvents::SettlementPosted(posted) => {
                let next = PostedEntry::new(task, view.settlements.last(), posted);
                view.settlements.push(next);
            }
            MarketEvents::SettlementsCancelled(cancelled) => {
                let from = RoundNumber(cancelled.fromRound);
                let precedes = |posted: &PostedEntry| posted.settlement.round < from;
                let left = view.settlements.iter().take_while(|posted| precedes(posted)).count();
                view.settlements.truncate(left.max(view.finalised));
            }
            MarketEvents::SettlementFinalised(_) => {
                view.finalised = view.finalised.saturating_add(1).min(view.settlements.len());
            }
            _ => {}
        }
    }
    view
}
