//! The market's state, rebuilt from its events alone: a pure fold, one event after another. It is
//! the same fold that `contracts/test/invariant/EventFold.sol` compares with the contract after
//! every history.

use std::collections::BTreeMap;

use alloy_primitives::{B256, U256, keccak256};
use alloy_sol_types::SolValue;
use florin_protocol::{Address, TaskId};

use super::super::contracts::Market::{
    Collateral, MarketEvents, MemberShare, PostedSettlement, SplitSet, TaskState,
};
use crate::contracts::to_address;

/// The state that results from a market's events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoldedMarket {
    /// Every task ever opened.
    pub tasks: BTreeMap<TaskId, FoldedTask>,
    /// Every account that ever had a bond, a payout, a debit or a split in a task.
    pub accounts: BTreeMap<(TaskId, Address), FoldedAccount>,
    /// Every account that ever staked or pledged.
    pub providers: BTreeMap<Address, FoldedProvider>,
    /// Total of debits and slashed amounts.
    pub treasury: u128,
    /// The number of events applied.
    pub events: u64,
}

/// The state of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedTask {
    /// The contract's state.
    pub state: TaskState,
    /// Settlements that are not final yet, oldest first.
    pub pending: Vec<PostedSettlement>,
}

/// The state of one account in one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedAccount {
    /// Its bond.
    pub bond: Collateral,
    /// Total paid to it.
    pub paid: u128,
    /// Total debited, including the part that its bond did not cover.
    pub debited: u128,
    /// Slashed from its bonds, which the task limits; not counted for a bond that covers pay.
    pub slashed: u128,
    /// The split of its pay; empty for none.
    pub split: Vec<MemberShare>,
}

/// The state of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedProvider {
    /// Its stake.
    pub stake: Collateral,
    /// The tasks to which it is pledged, and the amount that each has slashed.
    pub pledges: BTreeMap<TaskId, u128>,
}

const NOTHING: Collateral = Collateral { amount: 0, release: 0 };

impl Default for FoldedAccount {
    fn default() -> Self {
        Self { bond: NOTHING, paid: 0, debited: 0, slashed: 0, split: Vec::new() }
    }
}

impl Default for FoldedProvider {
    fn default() -> Self {
        Self { stake: NOTHING, pledges: BTreeMap::new() }
    }
}

/// A description of an inconsistency between events.
pub type EventError = String;

fn task_id(task: B256) -> TaskId {
    TaskId(task.0)
}

/// Adds without overflow.
fn add(to: &mut u128, more: u128, what: &str) -> Result<(), EventError> {
    let sum = to.checked_add(more);
    *to = sum.ok_or_else(|| format!("{what} of {to} overflows by adding {more}"))?;
    Ok(())
}

/// Subtracts without underflow.
fn subtract(from: &mut u128, less: u128, what: &str) -> Result<(), EventError> {
    let rest = from.checked_sub(less);
    *from = rest.ok_or_else(|| format!("{less} is taken from {what}, which has {from}"))?;
    Ok(())
}

/// The increase of a running total, which must not decrease.
fn increase(now: u128, before: u128, what: &str) -> Result<u128, EventError> {
    now.checked_sub(before).ok_or_else(|| format!("{what} decreases from {before} to {now}"))
}

/// As [`increase`], for an event that requires an increase.
fn strict_increase(now: u128, before: u128, what: &str) -> Result<u128, EventError> {
    match increase(now, before, what)? {
        0 => Err(format!("{what} should increase, but stays at {now}")),
        by => Ok(by),
    }
}

/// The initial hash of a task's history.
fn initial_hash() -> B256 {
    keccak256((B256::ZERO, 0u32, B256::ZERO, 0u128, 0u128).abi_encode())
}

/// The hash of a history after one more settlement:
/// `contracts/src/market/SettlementChain.sol`.
fn next_hash(before: B256, posted: &PostedSettlement) -> B256 {
    let (report, score_pay, improvement) =
        (posted.report, posted.scorePayTotal, posted.improvementTotalNano);
    let inner = keccak256((before, report, score_pay, improvement, posted.finalAt).abi_encode());
    let PostedSettlement { round, root, dataTotal, infrastructureTotal, .. } = posted;
    keccak256((inner, *round, *root, *dataTotal, *infrastructureTotal).abi_encode())
}

impl FoldedMarket {
    /// Applies one event.
    ///
    /// # Errors
    /// The inconsistency with the earlier events. The state must not be used afterwards.
    pub fn apply(&mut self, event: &MarketEvents) -> Result<(), EventError> {
        self.events = self.events.saturating_add(1);
        match event {
            MarketEvents::TaskOpened(_)
            | MarketEvents::TaskSettled(_)
            | MarketEvents::SettlementPosted(_)
            | MarketEvents::HeadCheckpointed(_)
            | MarketEvents::SettlementsCancelled(_)
            | MarketEvents::SettlementFinalised(_)
            | MarketEvents::CloseAnnounced(_) => self.apply_task_event(event),
            MarketEvents::CloseObjected(objected) => {
                let task = self.task(objected.task)?;
                task.state.closesAt = 0;
                let coordinator = to_address(task.state.terms.coordinator);
                let key = (task_id(objected.task), coordinator);
                let bond = &mut self.accounts.entry(key).or_default().bond;
                subtract(&mut bond.amount, objected.taken, "a bond")?;
                add(&mut self.treasury, objected.taken, "the treasury")
            }
            MarketEvents::Claimed(_) | MarketEvents::Debited(_) => self.apply_claim_event(event),
            MarketEvents::SplitSet(set) => self.split(set),
            MarketEvents::Bonded(_)
            | MarketEvents::Unbonding(_)
            | MarketEvents::BondWithdrawn(_) => self.apply_bond_event(event),
            MarketEvents::Slashed(slashed) => {
                let (task, account) = (task_id(slashed.task), to_address(slashed.account));
                if slashed.stake {
                    let provider = self.providers.entry(account).or_default();
                    subtract(&mut provider.stake.amount, slashed.amount, "a stake")?;
                    // A pledge that is used up has ended with the previous event.
                    if let Some(slashes) = provider.pledges.get_mut(&task) {
                        add(slashes, slashed.amount, "a pledge's slashes")?;
                    }
                } else {
                    let covers = self.tasks.get(&task).is_some_and(|task| {
                        let terms = &task.state.terms;
                        terms.coordinator == slashed.account && terms.coordinator != terms.arbiter
                    });
                    let person = self.accounts.entry((task, account)).or_default();
                    subtract(&mut person.bond.amount, slashed.amount, "a bond")?;
                    if !covers {
                        add(&mut person.slashed, slashed.amount, "the slashes of a bond")?;
                    }
                }
                add(&mut self.treasury, slashed.amount, "the treasury")
            }
            _ => self.apply_stake_event(event),
        }
    }

    /// A split is set once, before the account has a bond or a claim.
    fn split(&mut self, set: &SplitSet) -> Result<(), EventError> {
        self.task(set.task)?;
        let account = to_address(set.account);
        let person = self.accounts.entry((task_id(set.task), account)).or_default();
        if !person.split.is_empty() {
            return Err(format!("the split of {account} was set twice"));
        }
        if (person.bond.amount, person.paid, person.debited) != (0, 0, 0) {
            return Err(format!("the split of {account} was set after it took part"));
        }
        person.split.clone_from(&set.members);
        Ok(())
    }

    fn task(&mut self, task: B256) -> Result<&mut FoldedTask, EventError> {
        let id = task_id(task);
        self.tasks.get_mut(&id).ok_or_else(|| format!("task {id} was never opened"))
    }

    fn apply_task_event(&mut self, event: &MarketEvents) -> Result<(), EventError> {
        match event {
            MarketEvents::TaskOpened(opened) => {
                let books = FoldedTask::open(opened.terms.clone());
                match self.tasks.insert(task_id(opened.task), books) {
                    None => Ok(()),
                    Some(_) => Err(format!("task {} was opened twice", task_id(opened.task))),
                }
            }
            MarketEvents::TaskSettled(settled) => {
                let state = &mut self.task(settled.task)?.state;
                state.refunded = settled.refund;
                let locked = state.dataLocked.checked_add(state.infrastructureLocked);
                if locked != Some(settled.refund) {
                    return Err(format!(
                        "the refund is {}, but {locked:?} are locked",
                        settled.refund
                    ));
                }
                (state.dataLocked, state.infrastructureLocked) = (0, 0);
                state.closed = true;
                state.closesAt = 0;
                Ok(())
            }
            MarketEvents::SettlementPosted(posted) => {
                self.task(posted.task)?.post(PostedSettlement {
                    round: posted.round,
                    report: posted.report,
                    root: posted.root,
                    dataTotal: posted.dataTotal,
                    scorePayTotal: posted.scorePayTotal,
                    infrastructureTotal: posted.infrastructureTotal,
                    improvementTotalNano: posted.improvementTotalNano,
                    finalAt: posted.finalAt,
                })
            }
            MarketEvents::HeadCheckpointed(recorded) => {
                self.task(recorded.task)?.state.checkpoint = recorded.head;
                Ok(())
            }
            MarketEvents::SettlementsCancelled(gone) => {
                self.task(gone.task)?.cancel(gone.fromRound);
                Ok(())
            }
            MarketEvents::SettlementFinalised(last) => self.task(last.task)?.finalise(last.round),
            MarketEvents::CloseAnnounced(announced) => {
                let state = &mut self.task(announced.task)?.state;
                let window = state.lastPost.saturating_add(state.terms.challengeMs);
                // A settlement that was posted in the same second withdraws it.
                state.closesAt = if window < announced.closesAt { announced.closesAt } else { 0 };
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn apply_claim_event(&mut self, event: &MarketEvents) -> Result<(), EventError> {
        match event {
            MarketEvents::Claimed(claimed) => {
                let key = (task_id(claimed.task), to_address(claimed.account));
                let person = self.accounts.entry(key).or_default();
                let paid = strict_increase(claimed.paid, person.paid, "an account's pay")?;
                person.paid = claimed.paid;
                subtract(
                    &mut self.task(claimed.task)?.state.owed,
                    paid,
                    "the amount owed by a task",
                )
            }
            MarketEvents::Debited(debited) => {
                let key = (task_id(debited.task), to_address(debited.account));
                let person = self.accounts.entry(key).or_default();
                strict_increase(debited.debited, person.debited, "an account's debit")?;
                person.debited = debited.debited;
                subtract(&mut person.bond.amount, debited.taken, "a bond")?;
                add(&mut self.treasury, debited.taken, "the treasury")
            }
            _ => Ok(()),
        }
    }

    fn apply_bond_event(&mut self, event: &MarketEvents) -> Result<(), EventError> {
        match event {
            MarketEvents::Bonded(bonded) => {
                let key = (task_id(bonded.task), to_address(bonded.account));
                let bond = &mut self.accounts.entry(key).or_default().bond;
                bond.release = 0;
                add(&mut bond.amount, bonded.amount, "a bond")
            }
            MarketEvents::Unbonding(asked) => {
                let key = (task_id(asked.task), to_address(asked.account));
                self.accounts.entry(key).or_default().bond.release = asked.release;
                Ok(())
            }
            MarketEvents::BondWithdrawn(back) => {
                let key = (task_id(back.task), to_address(back.account));
                let bond = &mut self.accounts.entry(key).or_default().bond;
                bond.release = 0;
                subtract(&mut bond.amount, back.amount, "a bond")
            }
            _ => Ok(()),
        }
    }

    fn apply_stake_event(&mut self, event: &MarketEvents) -> Result<(), EventError> {
        let provider = |account| to_address(account);
        match event {
            MarketEvents::Staked(staked) => {
                let stake = &mut self.providers.entry(provider(staked.provider)).or_default().stake;
                stake.release = 0;
                add(&mut stake.amount, staked.amount, "a stake")
            }
            MarketEvents::Pledged(pledged) => {
                let books = self.providers.entry(provider(pledged.provider)).or_default();
                books.stake.release = 0;
                match books.pledges.insert(task_id(pledged.task), 0) {
                    None => Ok(()),
                    Some(_) => {
                        Err(format!("a stake was pledged twice to task {}", task_id(pledged.task)))
                    }
                }
            }
            MarketEvents::PledgeEnded(ended) => {
                let books = self.providers.entry(provider(ended.provider)).or_default();
                match books.pledges.remove(&task_id(ended.task)) {
                    Some(_) => Ok(()),
                    None => Err(format!("a pledge to task {} ended twice", task_id(ended.task))),
                }
            }
            MarketEvents::Unstaking(asked) => {
                let books = self.providers.entry(provider(asked.provider)).or_default();
                books.stake.release = asked.release;
                Ok(())
            }
            MarketEvents::StakeWithdrawn(back) => {
                let books = self.providers.entry(provider(back.provider)).or_default();
                books.stake.release = 0;
                books.pledges.clear();
                subtract(&mut books.stake.amount, back.amount, "a stake")
            }
            _ => Ok(()),
        }
    }

    /// The tokens that the market's contract must hold: escrow, amounts owed, bonds, stakes and the
    /// treasury, in base units.
    #[must_use]
    pub fn required_tokens(&self) -> U256 {
        let tasks = self.tasks.values().flat_map(|task| {
            [task.state.dataLocked, task.state.infrastructureLocked, task.state.owed]
        });
        let bonds = self.accounts.values().map(|person| person.bond.amount);
        let stakes = self.providers.values().map(|provider| provider.stake.amount);
        let all = tasks.chain(bonds).chain(stakes).chain([self.treasury]);
        all.fold(U256::ZERO, |sum, part| sum.saturating_add(U256::from(part)))
    }
}

impl FoldedTask {
    fn open(terms: super::super::contracts::Market::Terms) -> Self {
        let start = initial_hash();
        let state = TaskState {
            dataLocked: terms.data,
            infrastructureLocked: terms.infrastructure,
            terms,
            dataPaid: 0,
            infrastructurePaid: 0,
            refunded: 0,
            owed: 0,
            root: B256::ZERO,
            round: 0,
            finalised: 0,
            pending: 0,
            lastPost: 0,
            closesAt: 0,
            closed: false,
            head: start,
            finalHead: start,
            checkpoint: start,
        };
        Self { state, pending: Vec::new() }
    }

    fn post(&mut self, posted: PostedSettlement) -> Result<(), EventError> {
        let state = &mut self.state;
        let window = state.terms.challengeMs;
        state.lastPost = posted.finalAt.checked_sub(window).ok_or_else(|| {
            format!("a settlement is final at {}, before its window of {window}", posted.finalAt)
        })?;
        state.closesAt = 0;
        state.head = next_hash(state.head, &posted);
        self.pending.push(posted);
        self.update_pending_count();
        Ok(())
    }

    fn update_pending_count(&mut self) {
        self.state.pending = u32::try_from(self.pending.len()).unwrap_or(u32::MAX);
    }

    fn cancel(&mut self, from: u32) {
        self.pending.retain(|posted| posted.round < from);
        self.update_pending_count();
        let state = &mut self.state;
        state.head = state.finalHead;
        let mut is_valid = state.checkpoint == state.head;
        for posted in &self.pending {
            state.head = next_hash(state.head, posted);
            is_valid = is_valid || state.checkpoint == state.head;
        }
        if !is_valid {
            state.checkpoint = state.head;
        }
    }

    fn finalise(&mut self, round: u32) -> Result<(), EventError> {
        if self.pending.first().is_none_or(|posted| posted.round != round) {
            return Err(format!("the final round {round} is not of the oldest pending settlement"));
        }
        let posted = self.pending.remove(0);
        self.update_pending_count();
        let state = &mut self.state;
        let at_final_head = state.checkpoint == state.finalHead;
        state.finalHead = next_hash(state.finalHead, &posted);
        if at_final_head {
            state.checkpoint = state.finalHead;
        }
        let data = increase(posted.dataTotal, state.dataPaid, "the data total")?;
        let paid = state.infrastructurePaid;
        let infrastructure =
            increase(posted.infrastructureTotal, paid, "the infrastructure total")?;
        subtract(&mut state.dataLocked, data, "the data escrow")?;
        subtract(&mut state.infrastructureLocked, infrastructure, "the infrastructure escrow")?;
        add(&mut state.owed, data, "the amount owed by a task")?;
        add(&mut state.owed, infrastructure, "the amount owed by a task")?;
        (state.dataPaid, state.infrastructurePaid) = (posted.dataTotal, posted.infrastructureTotal);
        (state.root, state.round) = (posted.root, posted.round);
        state.finalised = state.finalised.saturating_add(1);
        Ok(())
    }
}
