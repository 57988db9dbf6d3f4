//! The settlement of leases that are over: post, finalise, prove the debits, close, and withdraw the coordinator's
//! bond. Each step reads the ledger first, so that a restart repeats nothing.

use std::time::{Duration, Instant};

use florin_compute::{Lease, OrderMoney, RecordedLease};
use florin_ledger::{LedgerError, Refusal, Settlement, SettlementStatus, lease_claims, lease_task};
use florin_protocol::{Digest, Report, RoundNumber, TaskId};

use super::LeaseHost;
use crate::host::{JobProgress, LedgerJob, advance};
use florin_engine::Event;

/// Pause between two looks at the leases that are over.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause after a step that the ledger did not accept.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Settled orders whose tasks are looked at in one turn after a start.
const LOOKS_PER_TURN: usize = 16;

/// The next step of a settlement.
#[derive(Clone, Copy, Debug)]
enum SettlementStep {
    Post,
    Finalize,
    Prove,
    Close,
    ReturnBond,
}

/// A settlement that goes on.
struct Settling {
    id: Digest,
    /// The lease; `None` for an order whose bids never began.
    lease: Option<Lease>,
    /// Its settlement; `None` if no account is paid or debited.
    settlement: Option<Settlement>,
    is_cancelled: bool,
    step: SettlementStep,
    /// No step before this moment.
    after: Instant,
}

impl Settling {
    fn new(id: Digest, lease: Option<&RecordedLease>) -> Self {
        let lease = lease.map(|recorded| recorded.lease().clone());
        let settlement = lease.as_ref().map(Settlement::from_lease).transpose();
        let settlement = settlement.map(Option::flatten).unwrap_or_else(|error| {
            // The books of a lease balance, so that their sum is below the escrow.
            tracing::error!(order = %id, %error, "a lease cannot be settled: its task is closed");
            None
        });
        let step = if settlement.is_some() { SettlementStep::Post } else { SettlementStep::Close };
        Self { id, lease, settlement, is_cancelled: false, step, after: Instant::now() }
    }
}

impl LeaseHost {
    /// Settles leases that are over until the host stops.
    pub(crate) fn run_settlements(&self) {
        let mut settling: Vec<Settling> = Vec::new();
        let wallet = self.inner.parts.wallet.as_ref();
        if let Err(error) = self.inner.parts.ledger.resume(wallet) {
            tracing::warn!(%error, "earlier ledger transactions are not confirmed yet");
        }
        let (mut doubted, mut begun) = (self.settled(), Instant::now());
        while !self.is_stopping() {
            let looked = doubted.len().saturating_sub(LOOKS_PER_TURN);
            let unanswered: Vec<Digest> =
                doubted.drain(looked..).filter(|id| !self.has_looked(*id)).collect();
            doubted.extend(unanswered);
            if begun.elapsed() >= RETRY_PAUSE {
                begun = Instant::now();
                self.begin_complete();
            }
            self.collect(&mut settling);
            settling.retain_mut(|one| {
                self.is_stopping() || one.after > Instant::now() || !self.advance(one)
            });
            std::thread::sleep(PAUSE);
        }
    }

    /// The orders that are recorded as settled.
    fn settled(&self) -> Vec<Digest> {
        let state = self.state();
        let orders = state.orders.iter();
        let settled = orders.filter(|(_, order)| order.stored.money == OrderMoney::Settled);
        settled.map(|(id, _)| *id).collect()
    }

    /// Looks at the ledger once after a start: a ledger that was restored from an older copy, or whose chain was
    /// reorganised, may not have closed a task that is recorded as settled. Such an order is settled again. Returns
    /// whether the ledger has answered.
    fn has_looked(&self, id: Digest) -> bool {
        match self.inner.parts.ledger.task(TaskId(id.0)) {
            Ok(task) => {
                if task.is_some_and(|task| !task.closed)
                    && let Some(order) = self.state().orders.get_mut(&id)
                {
                    tracing::warn!(order = %id, "the ledger has not closed a settled order: settling it again");
                    order.stored.money = OrderMoney::Settling;
                }
                true
            }
            Err(_) => false,
        }
    }

    fn collect(&self, settling: &mut Vec<Settling>) {
        let mut state = self.state();
        for (id, order) in &mut state.orders {
            if !order.is_unsettled() || settling.iter().any(|one| one.id == *id) {
                continue;
            }
            settling.push(Settling::new(*id, order.lease.as_ref()));
            order.stored.money = OrderMoney::Settling;
        }
    }

    /// Takes the next step; returns whether the order is settled.
    fn advance(&self, one: &mut Settling) -> bool {
        match self.step(one) {
            Ok(Some(wait)) => one.after = Instant::now() + wait,
            Ok(None) => return self.mark_final(one),
            Err(error) => {
                tracing::warn!(order = %one.id, %error, "the settlement of a lease waits: will retry");
                one.after = Instant::now() + RETRY_PAUSE;
                let parts = &self.inner.parts;
                if let Err(error) = parts.ledger.resume(parts.wallet.as_ref()) {
                    tracing::warn!(%error, "earlier ledger transactions are not confirmed yet");
                }
            }
        }
        false
    }

    /// One step: the pause before the next, or `None` at the end.
    fn step(&self, one: &mut Settling) -> Result<Option<Duration>, LedgerError> {
        let (ledger, wallet) = (self.inner.parts.ledger.as_ref(), self.inner.parts.wallet.as_ref());
        let task = TaskId(one.id.0);
        let round = RoundNumber::FIRST;
        let payout = Report::settlement_id(task, round);
        let next = match (one.step, one.settlement) {
            // A settlement that was posted before is not posted again.
            (SettlementStep::Post, _)
                if ledger.settlement_status(task, payout)? != SettlementStatus::Unknown =>
            {
                SettlementStep::Finalize
            }
            (SettlementStep::Post, None) => SettlementStep::Close,
            (SettlementStep::Post, Some(settlement)) => {
                let mut job = LedgerJob::Post { settlement, predecessor: None };
                match advance(&mut job, ledger, wallet)? {
                    JobProgress::Wait(wait) => return Ok(Some(wait)),
                    JobProgress::Done(_) => SettlementStep::Finalize,
                }
            }
            (SettlementStep::Finalize, _) => {
                let mut job = LedgerJob::Finalize { task, round, payout };
                match advance(&mut job, ledger, wallet)? {
                    JobProgress::Wait(wait) => return Ok(Some(wait)),
                    JobProgress::Done(event) => {
                        one.is_cancelled = matches!(*event, Event::SettlementCancelled { .. });
                        SettlementStep::Prove
                    }
                }
            }
            (SettlementStep::Prove, _) => {
                if let Some(lease) = &one.lease
                    && !one.is_cancelled
                    && self.prove_debit(lease)?
                {
                    return Ok(Some(Duration::ZERO));
                }
                SettlementStep::Close
            }
            (SettlementStep::Close, _) => {
                match advance(&mut LedgerJob::Close { task }, ledger, wallet)? {
                    JobProgress::Wait(wait) => return Ok(Some(wait)),
                    JobProgress::Done(_) => SettlementStep::ReturnBond,
                }
            }
            (SettlementStep::ReturnBond, _) => {
                return match advance(&mut LedgerJob::ReturnBond { task }, ledger, wallet)? {
                    JobProgress::Wait(wait) => Ok(Some(wait)),
                    JobProgress::Done(_) => Ok(None),
                };
            }
        };
        one.step = next;
        Ok(Some(Duration::ZERO))
    }

    /// Takes the next debit of a final settlement from its bond; returns whether there was one.
    fn prove_debit(&self, lease: &Lease) -> Result<bool, LedgerError> {
        let (ledger, wallet) = (self.inner.parts.ledger.as_ref(), self.inner.parts.wallet.as_ref());
        let task = lease_task(lease.order());
        let debits =
            lease_claims(lease).into_iter().filter(|claim| !claim.totals.debited.is_zero());
        for claim in debits {
            let account = claim.account;
            if ledger.claimed_totals(task, account)?.debited >= claim.totals.debited {
                continue;
            }
            match ledger.claim(wallet, &claim) {
                Ok(outcome) => {
                    tracing::info!(%task, %account, taken = %outcome.taken, "debit of a lease proven");
                    return Ok(true);
                }
                Err(LedgerError::Refused(Refusal::NothingToClaim)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn mark_final(&self, one: &Settling) -> bool {
        let id = one.id;
        let mut state = self.state();
        let Some(order) = state.orders.get_mut(&id) else { return true };
        let mut stored = order.stored.clone();
        stored.money = if one.is_cancelled { OrderMoney::Cancelled } else { OrderMoney::Settled };
        if let Err(error) = self.inner.store.put_order(id, &stored) {
            tracing::error!(order = %id, %error, "the end of a lease cannot be stored: will retry");
            return false;
        }
        order.stored = stored;
        tracing::info!(order = %id, "a lease is settled");
        drop(state);
        self.changed();
        true
    }
}
