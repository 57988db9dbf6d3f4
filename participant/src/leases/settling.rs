//! The end of a lease for an account: its loss is recorded, its pay is claimed, and its bond
//! returns.

use std::time::{Duration, Instant};

use florin_compute::{ComputeAccount, LeaseOutcome, OrderMoney, Phase, RecordedLease};
use florin_ledger::{Settlement, lease_claims, lease_task};
use florin_protocol::{Amount, ClaimProof, Digest, RoundNumber, Timestamp, WalletSigner};

use super::error::LeaseServeError;
use super::event::LeaseEvent;
use super::followed::{FollowedOrder, OrderVisit};
use super::policy::LeaseRole;
use super::{IDLE_POLLS, LeaseDaemon};
use crate::agent::{BondStatus, ClaimError, claim_with_proof, withdraw_bond};

/// Longest time between two looks at a locked bond, in milliseconds.
const LOCKED_POLL_MS: u64 = 10_000;

impl LeaseDaemon<'_, '_> {
    /// Claims the pay of a lease that is over for this account, and withdraws its bond, as far as
    /// the ledger permits.
    pub(super) fn settle(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderVisit, LeaseServeError> {
        if order.settle_at.is_some_and(|at| Instant::now() < at) {
            return Ok(OrderVisit::Idle);
        }
        let idle_ms = self.config.poll_ms.max(1).saturating_mul(IDLE_POLLS);
        order.settle_at = Instant::now().checked_add(Duration::from_millis(idle_ms));
        let is_over = order.lease()?.lease().phase().0 == Phase::Over;
        if is_over {
            self.announce_end(order)?;
        }
        let is_paid = !is_over || self.claim(order)?;
        let locked = self.withdraw(order)?;
        match locked {
            None if is_paid => {
                order.folder.remove()?;
                return Ok(OrderVisit::Finished);
            }
            Some(until) if is_paid => {
                let left = until.ms_since(self.context.ledger.now()?);
                let ms = left.clamp(idle_ms, LOCKED_POLL_MS.max(idle_ms));
                order.settle_at = Instant::now().checked_add(Duration::from_millis(ms));
            }
            _ => {}
        }
        Ok(OrderVisit::Idle)
    }

    /// Records a loss, announces the end of a lease once, and frees its memory and its disk.
    fn announce_end(&mut self, order: &mut FollowedOrder) -> Result<(), LeaseServeError> {
        if order.is_end_announced {
            return Ok(());
        }
        let (id, lease) = (order.view.id, order.lease()?.lease());
        let lost = lease.books().balance(ComputeAccount::Forfeited(self.me));
        let role = match lease.sealed_bid(self.me) {
            Some(_) => LeaseRole::Provider,
            None => LeaseRole::Auditor,
        };
        let outcome = lease.outcome().map_or_else(String::new, describe);
        if !lost.is_zero() && self.store.record_loss(role, id, lost)? {
            self.summary.lost = self.summary.lost.plus(lost).unwrap_or(self.summary.lost);
            self.emit(&LeaseEvent::Slashed { order: id, role: role.name(), amount: lost });
        }
        order.is_end_announced = true;
        (order.training, order.current, order.states) = (None, None, None);
        if order.folder.exists() {
            let claim = own_claim(order.lease()?, self.context.wallet)?;
            order.folder.keep_only_claim(claim.as_ref())?;
        }
        self.emit(&LeaseEvent::LeaseOver { order: id, outcome });
        Ok(())
    }

    /// Claims the pay, once the settlement is final. Returns whether nothing more is to be claimed.
    fn claim(&mut self, order: &FollowedOrder) -> Result<bool, LeaseServeError> {
        let (ledger, wallet, me) = (self.context.ledger, self.context.wallet, self.me);
        let task = lease_task(&order.view.order);
        let Some(proof) = own_claim(order.lease()?, wallet)? else { return Ok(true) };
        let total = proof.totals.paid;
        // The coordinator may have sent the claim, because of a debit.
        if ledger.claimed_totals(task, me)?.paid < total {
            let Some(state) = ledger.task(task)? else { return Ok(true) };
            if state.root != proof.root {
                // A closed task pays no later settlement.
                if state.closed {
                    let reason = format!(
                        "its task was closed without this settlement: {total} FLN are not paid"
                    );
                    self.emit(&LeaseEvent::OrderSkipped { order: order.view.id, reason });
                }
                return Ok(state.closed);
            }
            match claim_with_proof(ledger, wallet, task, proof) {
                Ok(_) => {}
                Err(ClaimError::NotCurrent { .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        self.count_pay(&order.folder, order.view.id, total)?;
        Ok(true)
    }

    /// Withdraws the bond, or requests its return. Returns the moment until which it is locked;
    /// `None` if there is no bond.
    fn withdraw(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<Option<Timestamp>, LeaseServeError> {
        let (ledger, wallet, id) = (self.context.ledger, self.context.wallet, order.view.id);
        let task = lease_task(&order.view.order);
        match withdraw_bond(ledger, wallet, task)? {
            BondStatus::Returned(amount) => {
                order.deposit = Some(Amount::ZERO);
                self.count_return(id, amount);
                Ok(None)
            }
            BondStatus::Locked(until) => {
                order.deposit = Some(ledger.bond_of(task, self.me)?.amount);
                // Before its close the task states a later moment.
                if order.view.money == OrderMoney::Settled && !order.is_lock_announced {
                    order.is_lock_announced = true;
                    self.emit(&LeaseEvent::BondLocked { order: id, until });
                }
                Ok(Some(until))
            }
            BondStatus::None | BondStatus::NotRequested => {
                order.deposit = Some(Amount::ZERO);
                Ok(None)
            }
        }
    }
}

/// The proof of an account's pay in a lease that is over; `None` without pay.
fn own_claim(
    recorded: &RecordedLease,
    account: &dyn WalletSigner,
) -> Result<Option<ClaimProof>, LeaseServeError> {
    let lease = recorded.lease();
    let Some(settlement) = Settlement::from_lease(lease)? else { return Ok(None) };
    let own = |claim: &florin_ledger::Claim| {
        claim.account == account.address() && !claim.totals.paid.is_zero()
    };
    let claim = lease_claims(lease).into_iter().find(own);
    let root: Digest = settlement.root;
    Ok(claim.map(|claim| {
        let (totals, proof) = (claim.totals, claim.proof);
        ClaimProof { round: RoundNumber::FIRST, totals, root, proof }
    }))
}

fn describe(outcome: LeaseOutcome) -> String {
    match outcome {
        LeaseOutcome::Unawarded => "not awarded".to_owned(),
        LeaseOutcome::Settled => "all segments are paid".to_owned(),
        LeaseOutcome::Defaulted { delivered } => format!("{delivered} segments are paid"),
        LeaseOutcome::Slashed { segment } => {
            format!("the provider lost its stake over segment {segment}")
        }
    }
}
