//! Plans of the trait's write methods: the contract calls that execute each on the current state.
//!
//! A call is simulated before it is sent: a call that the contract would refuse never becomes a
//! transaction, and an action that is already in effect needs none.

use florin_protocol::{Address, Amount, LedgerReceipt, Report, RoundNumber, SettlementId, TaskId};

use alloy_sol_types::SolCall;

use super::EthereumLedger;
use super::anchor::anchor_call;
use super::contracts::{FlorinToken, Market};
use super::history::View;
use super::node::{BlockTag, Call, CallResult, TransactionReceipt};
use super::outbox::Intent;
use super::revert::{RevertReason, decode_revert, saturating_amount as units};
use super::sender::{PlanStep, Planner};
use crate::contracts::to_address;
use florin_ledger::Action;
use florin_ledger::TransactionOutcome;
use florin_ledger::limits::PENDING_MAX;
use florin_ledger::{
    Claim, LedgerError, MemberShare, Objection, PostOutcome, Refusal, Settlement, Slash, Terms,
};

/// How often a plan is repeated because the chain changed during planning.
const PLANS_MAX: usize = 8;
/// Failed attempts after which an arbiter checkpoints the head of the settlement list, because the
/// coordinator's posts keep invalidating its cancellation.
const PLANS_BEFORE_CHECKPOINT: usize = 2;

/// The result of a simulated call; refusals are errors.
enum SimulatedCall {
    Returned(Vec<u8>),
    Stale,
    InsufficientAllowance,
    /// The token reverted with an error of its own.
    TokenRevert(Refusal),
}

/// A step, or the information that the chain changed during planning.
enum PlanResult {
    Step(PlanStep),
    Retry,
}

impl From<PlanStep> for PlanResult {
    fn from(step: PlanStep) -> Self {
        Self::Step(step)
    }
}

const fn already_applied() -> PlanStep {
    PlanStep::AlreadyApplied(TransactionOutcome::Done)
}

impl Planner for EthereumLedger {
    fn plan(&self, from: Address, intent: &Intent) -> Result<PlanStep, LedgerError> {
        let action = match intent {
            Intent::Act(action) => action,
            Intent::Approve(units) => return Ok(PlanStep::Send(self.approve_call(*units))),
            Intent::CheckpointHead(task) => return Ok(PlanStep::Send(self.checkpoint_call(*task))),
            Intent::Ether(to, wei) => {
                return Ok(PlanStep::Send(Call { to: Some(*to), data: Vec::new(), wei: *wei }));
            }
            Intent::Anchor(data) => return Ok(PlanStep::Send(anchor_call(from, data))),
            Intent::Deploy(name, _) => {
                let what = format!("contract {name} was removed from the chain: deploy it again");
                return Err(Refusal::NotFound(what).into());
            }
        };
        for turn in 0..PLANS_MAX {
            if let PlanResult::Step(step) = self.plan_action(from, action, turn)? {
                return Ok(step);
            }
        }
        let what = format!("the chain changed during every attempt to plan: {}", action.summary());
        Err(LedgerError::Unavailable(what))
    }

    fn is_effective(&self, intent: &Intent, receipt: &TransactionReceipt) -> bool {
        match intent {
            Intent::Act(action @ Action::Finalize { .. }) => {
                self.outcome(action, receipt) != TransactionOutcome::Finalised(0)
            }
            Intent::Act(Action::Post(_)) => !receipt.logs.is_empty(),
            _ => true,
        }
    }
}

impl EthereumLedger {
    fn plan_action(
        &self,
        from: Address,
        action: &Action,
        turn: usize,
    ) -> Result<PlanResult, LedgerError> {
        match action {
            Action::Transfer { to, amount } => self.transfer_plan(from, *to, *amount),
            Action::OpenTask(terms) => self.opening_plan(from, terms),
            Action::Bond { task, amount } => {
                let call = Market::bondCall { id: task.0.into(), amount: amount.units() };
                self.token_spending_plan(from, &call, *amount)
            }
            Action::Unbond { task } => {
                let call = Market::unbondCall { id: task.0.into() };
                let getter = Market::bondOfCall { id: task.0.into(), account: from.0.into() };
                self.idempotent_plan(from, &call, || {
                    Ok(self.get(&getter, BlockTag::Latest)?.release != 0)
                })
            }
            Action::WithdrawBond { task } => {
                self.simple_plan(from, &Market::withdrawBondCall { id: task.0.into() })
            }
            Action::Stake { amount } => self.token_spending_plan(
                from,
                &Market::stakeCall { amount: amount.units() },
                *amount,
            ),
            Action::Pledge { task } => {
                let call = Market::pledgeCall { id: task.0.into() };
                let getter = Market::pledgedCall { id: task.0.into(), provider: from.0.into() };
                self.idempotent_plan(from, &call, || self.get(&getter, BlockTag::Latest))
            }
            Action::Unstake => {
                let getter = Market::stakeOfCall { provider: from.0.into() };
                self.idempotent_plan(from, &Market::unstakeCall {}, || {
                    Ok(self.get(&getter, BlockTag::Latest)?.release != 0)
                })
            }
            Action::WithdrawStake => self.simple_plan(from, &Market::withdrawStakeCall {}),
            Action::Post(settlement) => self.post_plan(from, settlement),
            Action::Cancel { task, payout } => self.cancel_plan(from, *task, *payout, turn),
            Action::Finalize { task } => self.finalize_plan(from, *task),
            Action::Claim(claim) => self.simple_plan(from, &claim_call(claim)),
            Action::Close { task } => {
                let view = self.latest_view(*task)?.ok_or(Refusal::UnknownTask(*task))?;
                let pending = view.pending_list();
                self.simple_plan(from, &Market::closeCall { id: task.0.into(), pending })
            }
            Action::Slash(slash) => self.simple_plan(from, &slash_call(slash)),
            Action::AnnounceClose { task } => {
                let call = Market::announceCloseCall { id: task.0.into() };
                let getter = Market::taskCall { id: task.0.into() };
                self.idempotent_plan(from, &call, || {
                    Ok(self.get(&getter, BlockTag::Latest)?.closesAt != 0)
                })
            }
            Action::Object(objection) => self.simple_plan(from, &objection_call(objection)),
            Action::SetSplit { task, members } => {
                let list = members.iter().map(share_call).collect();
                let call = Market::setSplitCall { id: task.0.into(), members: list };
                self.idempotent_plan(from, &call, || {
                    Ok(self.split_at(*task, from, BlockTag::Latest)? == *members)
                })
            }
        }
    }

    fn market_call(&self, call: &impl SolCall) -> Call {
        Call::for_contract(self.deployment.market, call)
    }

    fn approve_call(&self, units: u128) -> Call {
        let spender = alloy_primitives::Address::from(self.deployment.market.0);
        let value = alloy_primitives::U256::from(units);
        Call::for_contract(self.deployment.token, &FlorinToken::approveCall { spender, value })
    }

    fn checkpoint_call(&self, task: TaskId) -> Call {
        self.market_call(&Market::checkpointHeadCall { id: task.0.into() })
    }

    /// Simulates a call on the latest state.
    fn simulate_call(&self, from: Address, call: &Call) -> Result<SimulatedCall, LedgerError> {
        match self.sender.simulate(from, call)? {
            CallResult::Returned(bytes) => Ok(SimulatedCall::Returned(bytes)),
            CallResult::Reverted(data) => match decode_revert(&data) {
                RevertReason::Refused(refusal) => Err(refusal.into()),
                RevertReason::Stale => Ok(SimulatedCall::Stale),
                RevertReason::InsufficientAllowance => Ok(SimulatedCall::InsufficientAllowance),
                RevertReason::TokenRevert(refusal) => Ok(SimulatedCall::TokenRevert(refusal)),
            },
        }
    }

    /// A call that either succeeds or is refused.
    fn simple_plan(&self, from: Address, call: &impl SolCall) -> Result<PlanResult, LedgerError> {
        let call = self.market_call(call);
        Ok(match self.simulate_call(from, &call)? {
            SimulatedCall::Returned(_) => PlanStep::Send(call).into(),
            SimulatedCall::Stale | SimulatedCall::InsufficientAllowance => PlanResult::Retry,
            SimulatedCall::TokenRevert(refusal) => return Err(refusal.into()),
        })
    }

    /// A call whose repetition is unnecessary.
    fn idempotent_plan(
        &self,
        from: Address,
        call: &impl SolCall,
        is_done: impl FnOnce() -> Result<bool, LedgerError>,
    ) -> Result<PlanResult, LedgerError> {
        let plan = self.simple_plan(from, call)?;
        Ok(if is_done()? { already_applied().into() } else { plan })
    }

    /// A call that transfers `amount` from the sender to the market, and so needs an allowance of
    /// that amount.
    fn token_spending_plan(
        &self,
        from: Address,
        call: &impl SolCall,
        amount: Amount,
    ) -> Result<PlanResult, LedgerError> {
        let call = self.market_call(call);
        Ok(match self.simulate_call(from, &call)? {
            SimulatedCall::Returned(_) => PlanStep::Send(call).into(),
            SimulatedCall::Stale => PlanResult::Retry,
            SimulatedCall::InsufficientAllowance => {
                self.approval_step(from, amount.units())?.into()
            }
            // Not every token reverts with a known error if the allowance is too small: query the
            // allowance.
            SimulatedCall::TokenRevert(refusal) => {
                let available = self.token_balance(from)?;
                if available < amount {
                    let (account, needed) = (from, amount);
                    return Err(Refusal::Insufficient { account, available, needed }.into());
                }
                if self.allowance(from)? >= alloy_primitives::U256::from(amount.units()) {
                    return Err(refusal.into());
                }
                self.approval_step(from, amount.units())?.into()
            }
        })
    }

    /// The current token balance of an account.
    fn token_balance(&self, account: Address) -> Result<Amount, LedgerError> {
        let getter = FlorinToken::balanceOfCall { account: account.0.into() };
        self.sender.node.call_getter(self.deployment.token, &getter, BlockTag::Latest).map(units)
    }

    /// The market's allowance for a wallet.
    fn allowance(&self, owner: Address) -> Result<alloy_primitives::U256, LedgerError> {
        let spender = alloy_primitives::Address::from(self.deployment.market.0);
        let getter = FlorinToken::allowanceCall { owner: owner.0.into(), spender };
        self.sender.node.call_getter(self.deployment.token, &getter, BlockTag::Latest)
    }

    /// Some tokens allow an approval to change only from or to zero.
    fn approval_step(&self, from: Address, units: u128) -> Result<PlanStep, LedgerError> {
        let units = if self.allowance(from)?.is_zero() { units } else { 0 };
        Ok(PlanStep::Prerequisite(Box::new((Intent::Approve(units), self.approve_call(units)))))
    }

    fn transfer_plan(
        &self,
        from: Address,
        to: Address,
        value: Amount,
    ) -> Result<PlanResult, LedgerError> {
        if from == to {
            let what = format!("{from} cannot transfer to itself: name another account");
            return Err(Refusal::InvalidArgument(what).into());
        }
        if value.is_zero() {
            let what = "a transfer of 0 FLN: name an amount above zero".to_owned();
            return Err(Refusal::InvalidArgument(what).into());
        }
        let available = self.token_balance(from)?;
        if available < value {
            return Err(Refusal::Insufficient { account: from, available, needed: value }.into());
        }
        if to == Address::default() {
            let what = "tokens sent to the zero address are lost: name another account";
            return Err(Refusal::InvalidArgument(what.to_owned()).into());
        }
        let value = alloy_primitives::U256::from(value.units());
        let call = FlorinToken::transferCall { to: to.0.into(), value };
        let call = Call::for_contract(self.deployment.token, &call);
        Ok(match self.simulate_call(from, &call)? {
            SimulatedCall::Returned(_) => PlanStep::Send(call).into(),
            SimulatedCall::Stale | SimulatedCall::InsufficientAllowance => PlanResult::Retry,
            SimulatedCall::TokenRevert(refusal) => return Err(refusal.into()),
        })
    }

    fn opening_plan(&self, from: Address, terms: &Terms) -> Result<PlanResult, LedgerError> {
        let deposit = terms.data.plus(terms.infrastructure).map_err(|_| {
            Refusal::LimitExceeded("the sum of the two pools exceeds the largest amount".to_owned())
        })?;
        let floor_share = u32::try_from(terms.floor_share.0).map_err(|_| {
            let what = format!("floor_share = {}: the maximum is 1", terms.floor_share);
            Refusal::InvalidArgument(what)
        })?;
        let terms = Market::Terms {
            task: terms.task.0.into(),
            buyer: terms.buyer.0.into(),
            coordinator: terms.coordinator.0.into(),
            arbiter: terms.arbiter.0.into(),
            data: terms.data.units(),
            infrastructure: terms.infrastructure.units(),
            rounds: terms.rounds,
            perNatMax: terms.per_nat_max.units(),
            floorShare: floor_share,
            bondMin: terms.bond_min.units(),
            debitMax: terms.debit_max.units(),
            stakeMin: terms.stake_min.units(),
            challengeMs: terms.challenge_ms,
            unbondMs: terms.unbond_ms,
            expires: terms.expires.0,
        };
        self.token_spending_plan(from, &Market::openTaskCall { terms }, deposit)
    }

    /// The contract stores only the latest settlement and cannot compute payout ids: the checks on
    /// those are made here, in the order of the embedded chain's rules.
    fn post_plan(&self, from: Address, s: &Settlement) -> Result<PlanResult, LedgerError> {
        let view = self.latest_view(s.task)?.ok_or(Refusal::UnknownTask(s.task))?;
        let coordinator: Address = to_address(view.state.terms.coordinator);
        if from != coordinator {
            return Err(unauthorized(from, coordinator));
        }
        if let Some((_, posted)) = view.find(s.payout) {
            return if posted.settlement == *s {
                Ok(PlanStep::AlreadyApplied(TransactionOutcome::Posted(PostOutcome::AlreadyPosted))
                    .into())
            } else {
                Err(Refusal::ConflictingSettlement(s.payout).into())
            };
        }
        if view.state.closed {
            return Err(Refusal::TaskClosed(s.task).into());
        }
        if view.pending().len() >= PENDING_MAX {
            let what = format!("{PENDING_MAX} settlements of the task are pending already");
            return Err(Refusal::LimitExceeded(what).into());
        }
        check_settlement_ids(s, &view)?;
        let settlement = Market::Settlement {
            task: s.task.0.into(),
            round: s.round.0,
            report: s.report.0.into(),
            root: s.root.0.into(),
            dataTotal: s.data_total.units(),
            scorePayTotal: s.score_pay_total.units(),
            infrastructureTotal: s.infrastructure_total.units(),
            improvementTotalNano: s.improvement_total_nano,
        };
        self.simple_plan(from, &Market::postCall { settlement, last: view.last() })
    }

    fn cancel_plan(
        &self,
        from: Address,
        task: TaskId,
        payout: SettlementId,
        turn: usize,
    ) -> Result<PlanResult, LedgerError> {
        let view = self.latest_view(task)?.ok_or(Refusal::UnknownTask(task))?;
        let arbiter: Address = to_address(view.state.terms.arbiter);
        if from != arbiter {
            return Err(unauthorized(from, arbiter));
        }
        let Some((place, posted)) = view.find(payout) else {
            let what = format!("there is no settlement with payout id {payout}");
            return Err(Refusal::NotFound(what).into());
        };
        if place < view.finalised {
            return Err(Refusal::WindowClosed(posted.final_at).into());
        }
        // A list up to the checkpoint stays valid during later posts.
        let checkpointed = view.checkpointed_count();
        let end = if checkpointed > place { checkpointed } else { view.settlements.len() };
        let gone = view.settlements.get(place..end).unwrap_or_default();
        let list = gone.iter().map(super::history::PostedEntry::to_contract).collect();
        let call =
            Market::cancelCall { id: task.0.into(), before: posted.previous_hash, from: list };
        match self.simple_plan(from, &call)? {
            PlanResult::Retry if turn >= PLANS_BEFORE_CHECKPOINT => Ok(PlanStep::Prerequisite(
                Box::new((Intent::CheckpointHead(task), self.checkpoint_call(task))),
            )
            .into()),
            plan => Ok(plan),
        }
    }

    fn finalize_plan(&self, from: Address, task: TaskId) -> Result<PlanResult, LedgerError> {
        let view = self.latest_view(task)?.ok_or(Refusal::UnknownTask(task))?;
        let pending = view.pending_list();
        let call = self.market_call(&Market::finalizeCall { id: task.0.into(), pending });
        Ok(match self.simulate_call(from, &call)? {
            SimulatedCall::Returned(bytes) => {
                let count = Market::finalizeCall::abi_decode_returns(&bytes).unwrap_or_default();
                if count.is_zero() {
                    PlanStep::AlreadyApplied(TransactionOutcome::Finalised(0)).into()
                } else {
                    PlanStep::Send(call).into()
                }
            }
            SimulatedCall::Stale | SimulatedCall::InsufficientAllowance => PlanResult::Retry,
            SimulatedCall::TokenRevert(refusal) => return Err(refusal.into()),
        })
    }
}

fn unauthorized(sender: Address, allowed: Address) -> LedgerError {
    Refusal::Unauthorized { sender, allowed: allowed.to_string() }.into()
}

/// The checks that the contract cannot make: the payout id, and the root that the settlement
/// continues.
fn check_settlement_ids(s: &Settlement, view: &View) -> Result<(), Refusal> {
    let wrong = |reason: String| Err(Refusal::InvalidSettlement { round: s.round, reason });
    if s.round < RoundNumber::FIRST {
        return wrong(format!("the first round is {}", RoundNumber::FIRST));
    }
    if s.payout != Report::settlement_id(s.task, s.round) {
        return wrong(format!("payout id {} does not belong to this round", s.payout));
    }
    let last = view.settlements.last();
    if let Some(last) = last.map(|posted| posted.settlement.round).filter(|last| s.round <= *last) {
        return wrong(format!("round {last} is settled already: rounds must increase"));
    }
    let standing = last.map(|posted| posted.settlement.root).unwrap_or_default();
    if s.previous_root != standing {
        return wrong(format!(
            "it continues root {}, but the latest settlement has root {standing}",
            s.previous_root
        ));
    }
    Ok(())
}

fn claim_call(claim: &Claim) -> Market::claimCall {
    Market::claimCall {
        id: claim.task.0.into(),
        account: claim.account.0.into(),
        paid: alloy_primitives::U256::from(claim.totals.paid.units()),
        debited: alloy_primitives::U256::from(claim.totals.debited.units()),
        proof: claim.proof.iter().map(|sibling| sibling.0.into()).collect(),
    }
}

/// A share beyond the contract's range is beyond a whole as well, which the contract refuses.
fn share_call(each: &MemberShare) -> Market::MemberShare {
    let share = u32::try_from(each.share.0).unwrap_or(u32::MAX);
    Market::MemberShare { member: each.member.0.into(), share }
}

fn slash_call(slash: &Slash) -> Market::slashCall {
    Market::slashCall {
        order: Market::SlashOrder {
            task: slash.task.0.into(),
            account: slash.account.0.into(),
            stake: slash.stake,
            amount: slash.amount.units(),
            evidence: slash.evidence.0.into(),
        },
    }
}

fn objection_call(objection: &Objection) -> Market::objectCall {
    let LedgerReceipt { task, round, sender, update } = objection.receipt;
    Market::objectCall {
        receipt: Market::Receipt {
            task: task.0.into(),
            round: round.0.into(),
            sender: sender.0.into(),
            update: update.0.into(),
        },
        signature: objection.signature.0.to_vec().into(),
    }
}
