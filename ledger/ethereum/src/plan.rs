//! Plans of the trait's write methods: the contract calls that execute each on the current state.
//!
//! A call is simulated before it is sent: a call that the contract would refuse never becomes a
//! transaction, and an action that is already in effect needs none.

use florin_protocol::{Address, Amount, Report, RoundNumber, SettlementId, TaskId};

use alloy_sol_types::SolCall;

use super::EthereumLedger;
use super::contracts::{FlorinToken, Market};
use super::history::View;
use super::node::{Answer, At, Call, Receipt};
use super::outbox::Intent;
use super::refusals::{Reverted, amount as units, read};
use super::sender::{Planner, Step};
use crate::contracts::to_address;
use florin_ledger::Action;
use florin_ledger::Outcome;
use florin_ledger::limits::PENDING_MAX;
use florin_ledger::{Claim, LedgerError, Posted, Refusal, Settlement, Slash, Terms};

/// How often a plan is repeated because the chain changed during planning.
const PLANS_MAX: usize = 8;
/// Failed attempts after which an arbiter marks the end of the settlement list, because the
/// coordinator's posts keep invalidating its cancellation.
const PLANS_BEFORE_MARK: usize = 2;

/// The result of a simulated call; refusals are errors.
enum Tried {
    Fine(Vec<u8>),
    Stale,
    Allowance,
    /// The token reverted with an error of its own.
    Foreign(Refusal),
}

/// A step, or the information that the chain changed during planning.
enum Plan {
    Step(Step),
    Again,
}

impl From<Step> for Plan {
    fn from(step: Step) -> Self {
        Self::Step(step)
    }
}

const fn stands() -> Step {
    Step::Stands(Outcome::Done)
}

impl Planner for EthereumLedger {
    fn plan(&self, from: Address, intent: &Intent) -> Result<Step, LedgerError> {
        let action = match intent {
            Intent::Act(action) => action,
            Intent::Approve(units) => return Ok(Step::Send(self.approval(*units))),
            Intent::Mark(task) => return Ok(Step::Send(self.mark(*task))),
            Intent::Ether(to, wei) => {
                return Ok(Step::Send(Call { to: Some(*to), data: Vec::new(), wei: *wei }));
            }
            Intent::Deploy(name, _) => {
                let what = format!("contract {name} was removed from the chain: deploy it again");
                return Err(Refusal::Missing(what).into());
            }
        };
        for turn in 0..PLANS_MAX {
            if let Plan::Step(step) = self.plan_action(from, action, turn)? {
                return Ok(step);
            }
        }
        let what = format!("the chain changed during every attempt to plan: {}", action.summary());
        Err(LedgerError::Unavailable(what))
    }

    fn is_effective(&self, intent: &Intent, receipt: &Receipt) -> bool {
        match intent {
            Intent::Act(action @ Action::Finalize { .. }) => {
                self.outcome(action, receipt) != Outcome::Finalised(0)
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
    ) -> Result<Plan, LedgerError> {
        match action {
            Action::Transfer { to, amount } => self.transfer_plan(from, *to, *amount),
            Action::OpenTask(terms) => self.opening_plan(from, terms),
            Action::Bond { task, amount } => {
                let call = Market::bondCall { id: task.0.into(), amount: amount.units() };
                self.paid_plan(from, &call, *amount)
            }
            Action::Unbond { task } => {
                let call = Market::unbondCall { id: task.0.into() };
                let getter = Market::bondOfCall { id: task.0.into(), account: from.0.into() };
                self.once_plan(from, &call, || Ok(self.get(&getter, At::Latest)?.release != 0))
            }
            Action::WithdrawBond { task } => {
                self.simple_plan(from, &Market::withdrawBondCall { id: task.0.into() })
            }
            Action::Stake { amount } => {
                self.paid_plan(from, &Market::stakeCall { amount: amount.units() }, *amount)
            }
            Action::Pledge { task } => {
                let call = Market::pledgeCall { id: task.0.into() };
                let getter = Market::pledgedCall { id: task.0.into(), provider: from.0.into() };
                self.once_plan(from, &call, || self.get(&getter, At::Latest))
            }
            Action::Unstake => {
                let getter = Market::stakeOfCall { provider: from.0.into() };
                self.once_plan(from, &Market::unstakeCall {}, || {
                    Ok(self.get(&getter, At::Latest)?.release != 0)
                })
            }
            Action::WithdrawStake => self.simple_plan(from, &Market::withdrawStakeCall {}),
            Action::Post(settlement) => self.post_plan(from, settlement),
            Action::Cancel { task, payout } => self.cancel_plan(from, *task, *payout, turn),
            Action::Finalize { task } => self.finalize_plan(from, *task),
            Action::Claim(claim) => self.simple_plan(from, &claim_call(claim)),
            Action::Close { task } => {
                let view = self.tip_view(*task)?.ok_or(Refusal::UnknownTask(*task))?;
                let pending = view.pending_list();
                self.simple_plan(from, &Market::closeCall { id: task.0.into(), pending })
            }
            Action::Slash(slash) => self.simple_plan(from, &slash_call(slash)),
        }
    }

    fn market_call(&self, call: &impl SolCall) -> Call {
        Call::of(self.deployment.market, call)
    }

    fn approval(&self, units: u128) -> Call {
        let spender = alloy_primitives::Address::from(self.deployment.market.0);
        let value = alloy_primitives::U256::from(units);
        Call::of(self.deployment.token, &FlorinToken::approveCall { spender, value })
    }

    fn mark(&self, task: TaskId) -> Call {
        self.market_call(&Market::markCall { id: task.0.into() })
    }

    /// Simulates a call on the latest state.
    fn tried(&self, from: Address, call: &Call) -> Result<Tried, LedgerError> {
        match self.sender.attempt(from, call)? {
            Answer::Returned(bytes) => Ok(Tried::Fine(bytes)),
            Answer::Reverted(data) => match read(&data) {
                Reverted::Refused(refusal) => Err(refusal.into()),
                Reverted::Stale => Ok(Tried::Stale),
                Reverted::Allowance => Ok(Tried::Allowance),
                Reverted::Foreign(refusal) => Ok(Tried::Foreign(refusal)),
            },
        }
    }

    /// A call that either succeeds or is refused.
    fn simple_plan(&self, from: Address, call: &impl SolCall) -> Result<Plan, LedgerError> {
        let call = self.market_call(call);
        Ok(match self.tried(from, &call)? {
            Tried::Fine(_) => Step::Send(call).into(),
            Tried::Stale | Tried::Allowance => Plan::Again,
            Tried::Foreign(refusal) => return Err(refusal.into()),
        })
    }

    /// A call whose repetition is unnecessary.
    fn once_plan(
        &self,
        from: Address,
        call: &impl SolCall,
        is_done: impl FnOnce() -> Result<bool, LedgerError>,
    ) -> Result<Plan, LedgerError> {
        let plan = self.simple_plan(from, call)?;
        Ok(if is_done()? { stands().into() } else { plan })
    }

    /// A call that transfers `amount` from the sender to the market, and so needs an allowance of
    /// that amount.
    fn paid_plan(
        &self,
        from: Address,
        call: &impl SolCall,
        amount: Amount,
    ) -> Result<Plan, LedgerError> {
        let call = self.market_call(call);
        Ok(match self.tried(from, &call)? {
            Tried::Fine(_) => Step::Send(call).into(),
            Tried::Stale => Plan::Again,
            Tried::Allowance => self.approval_step(from, amount.units())?.into(),
            // Not every token reverts with a known error if the allowance is too small: query the
            // allowance.
            Tried::Foreign(refusal) => {
                let available = self.owned(from)?;
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
    fn owned(&self, account: Address) -> Result<Amount, LedgerError> {
        let getter = FlorinToken::balanceOfCall { account: account.0.into() };
        self.sender.node.get(self.deployment.token, &getter, At::Latest).map(units)
    }

    /// The market's allowance for a wallet.
    fn allowance(&self, owner: Address) -> Result<alloy_primitives::U256, LedgerError> {
        let spender = alloy_primitives::Address::from(self.deployment.market.0);
        let getter = FlorinToken::allowanceCall { owner: owner.0.into(), spender };
        self.sender.node.get(self.deployment.token, &getter, At::Latest)
    }

    /// Some tokens allow an approval to change only from or to zero.
    fn approval_step(&self, from: Address, units: u128) -> Result<Step, LedgerError> {
        let units = if self.allowance(from)?.is_zero() { units } else { 0 };
        Ok(Step::First(Box::new((Intent::Approve(units), self.approval(units)))))
    }

    fn transfer_plan(
        &self,
        from: Address,
        to: Address,
        value: Amount,
    ) -> Result<Plan, LedgerError> {
        if from == to {
            let what = format!("{from} cannot transfer to itself: name another account");
            return Err(Refusal::Meaningless(what).into());
        }
        if value.is_zero() {
            let what = "a transfer of 0 FLN: name an amount above zero".to_owned();
            return Err(Refusal::Meaningless(what).into());
        }
        let available = self.owned(from)?;
        if available < value {
            return Err(Refusal::Insufficient { account: from, available, needed: value }.into());
        }
        if to == Address::default() {
            let what = "tokens sent to the zero address are lost: name another account";
            return Err(Refusal::Meaningless(what.to_owned()).into());
        }
        let value = alloy_primitives::U256::from(value.units());
        let call = FlorinToken::transferCall { to: to.0.into(), value };
        let call = Call::of(self.deployment.token, &call);
        Ok(match self.tried(from, &call)? {
            Tried::Fine(_) => Step::Send(call).into(),
            Tried::Stale | Tried::Allowance => Plan::Again,
            Tried::Foreign(refusal) => return Err(refusal.into()),
        })
    }

    fn opening_plan(&self, from: Address, terms: &Terms) -> Result<Plan, LedgerError> {
        let deposit = terms.data.plus(terms.infrastructure).map_err(|_| {
            Refusal::Limit("the sum of the two pools exceeds the largest amount".to_owned())
        })?;
        let terms = Market::Terms {
            task: terms.task.0.into(),
            buyer: terms.buyer.0.into(),
            coordinator: terms.coordinator.0.into(),
            arbiter: terms.arbiter.0.into(),
            data: terms.data.units(),
            infrastructure: terms.infrastructure.units(),
            bondMin: terms.bond_min.units(),
            debitMax: terms.debit_max.units(),
            stakeMin: terms.stake_min.units(),
            challengeMs: terms.challenge_ms,
            unbondMs: terms.unbond_ms,
            expires: terms.expires.0,
        };
        self.paid_plan(from, &Market::openTaskCall { terms }, deposit)
    }

    /// The contract stores only the latest settlement and cannot compute payout ids: the checks on
    /// those are made here, in the order of the embedded chain's rules.
    fn post_plan(&self, from: Address, s: &Settlement) -> Result<Plan, LedgerError> {
        let view = self.tip_view(s.task)?.ok_or(Refusal::UnknownTask(s.task))?;
        let coordinator: Address = to_address(view.state.terms.coordinator);
        if from != coordinator {
            return Err(not_allowed(from, coordinator));
        }
        if let Some((_, posted)) = view.find(s.payout) {
            return if posted.settlement == *s {
                Ok(Step::Stands(Outcome::Posted(Posted::Already)).into())
            } else {
                Err(Refusal::ConflictingSettlement(s.payout).into())
            };
        }
        if view.state.closed {
            return Err(Refusal::TaskClosed(s.task).into());
        }
        if view.pending().len() >= PENDING_MAX {
            let what = format!("{PENDING_MAX} settlements of the task are pending already");
            return Err(Refusal::Limit(what).into());
        }
        check_names(s, &view)?;
        let settlement = Market::Settlement {
            task: s.task.0.into(),
            round: s.round.0,
            report: s.report.0.into(),
            root: s.root.0.into(),
            dataTotal: s.data_total.units(),
            infrastructureTotal: s.infrastructure_total.units(),
        };
        self.simple_plan(from, &Market::postCall { settlement, last: view.last() })
    }

    fn cancel_plan(
        &self,
        from: Address,
        task: TaskId,
        payout: SettlementId,
        turn: usize,
    ) -> Result<Plan, LedgerError> {
        let view = self.tip_view(task)?.ok_or(Refusal::UnknownTask(task))?;
        let arbiter: Address = to_address(view.state.terms.arbiter);
        if from != arbiter {
            return Err(not_allowed(from, arbiter));
        }
        let Some((place, posted)) = view.find(payout) else {
            let what = format!("there is no settlement with payout id {payout}");
            return Err(Refusal::Missing(what).into());
        };
        if place < view.finalised {
            return Err(Refusal::WindowClosed(posted.final_at).into());
        }
        // A list up to the mark stays valid during later posts.
        let marked = view.marked();
        let end = if marked > place { marked } else { view.standing.len() };
        let gone = view.standing.get(place..end).unwrap_or_default();
        let list = gone.iter().map(super::history::Posted::to_contract).collect();
        let call = Market::cancelCall { id: task.0.into(), before: posted.before, from: list };
        match self.simple_plan(from, &call)? {
            Plan::Again if turn >= PLANS_BEFORE_MARK => {
                Ok(Step::First(Box::new((Intent::Mark(task), self.mark(task)))).into())
            }
            plan => Ok(plan),
        }
    }

    fn finalize_plan(&self, from: Address, task: TaskId) -> Result<Plan, LedgerError> {
        let view = self.tip_view(task)?.ok_or(Refusal::UnknownTask(task))?;
        let pending = view.pending_list();
        let call = self.market_call(&Market::finalizeCall { id: task.0.into(), pending });
        Ok(match self.tried(from, &call)? {
            Tried::Fine(bytes) => {
                let count = Market::finalizeCall::abi_decode_returns(&bytes).unwrap_or_default();
                if count.is_zero() {
                    Step::Stands(Outcome::Finalised(0)).into()
                } else {
                    Step::Send(call).into()
                }
            }
            Tried::Stale | Tried::Allowance => Plan::Again,
            Tried::Foreign(refusal) => return Err(refusal.into()),
        })
    }
}

fn not_allowed(sender: Address, allowed: Address) -> LedgerError {
    Refusal::NotAllowed { sender, allowed: allowed.to_string() }.into()
}

/// The checks that the contract cannot make: the payout id, and the root that the settlement
/// continues.
fn check_names(s: &Settlement, view: &View) -> Result<(), Refusal> {
    let wrong = |what: String| Err(Refusal::BadSettlement { round: s.round, what });
    if s.round < RoundNumber::FIRST {
        return wrong(format!("the first round is {}", RoundNumber::FIRST));
    }
    if s.payout != Report::settlement_id(s.task, s.round) {
        return wrong(format!("payout id {} does not belong to this round", s.payout));
    }
    let last = view.standing.last();
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

fn slash_call(slash: &Slash) -> Market::slashCall {
    Market::slashCall {
        order: Market::Slash {
            task: slash.task.0.into(),
            account: slash.account.0.into(),
            stake: slash.stake,
            amount: slash.amount.units(),
            evidence: slash.evidence.0.into(),
        },
    }
}
