//! The settlement of leases that are over: post, finalise, prove the debits, close, and withdraw the coordinator's
//! bond. Each step reads the ledger first, so that a restart repeats nothing.

use std::time::{Duration, Instant};

use florin_compute::{LeaseError, Listing, OrderMoney, RecordedLease};
use florin_ledger::{
    Claim, LedgerError, Refusal, Settlement, SettlementStatus, lease_claims, listing_claims,
};
use florin_protocol::{Address, Digest, Report, RoundNumber, TaskId};

use super::LeaseHost;
use super::store::{StoredListing, StoredOrder};
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

/// The order or the listing that is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Order(Digest),
    Listing(Digest),
}

impl Subject {
    const fn id(self) -> Digest {
        match self {
            Self::Order(id) | Self::Listing(id) => id,
        }
    }
}

/// A settlement that goes on.
struct Settling {
    subject: Subject,
    /// `None` if no account is paid or debited.
    settlement: Option<Settlement>,
    /// The claims that debit a bond, and the coordinator's own one.
    claims: Vec<Claim>,
    is_cancelled: bool,
    step: SettlementStep,
    /// No step before this moment.
    after: Instant,
}

impl Settling {
    fn new(
        subject: Subject,
        own: Address,
        settled: Result<(Option<Settlement>, Vec<Claim>), LeaseError>,
    ) -> Self {
        let (settlement, mut claims) = settled.unwrap_or_else(|error| {
            // The books balance, so that their sum is below the escrow.
            let id = subject.id();
            tracing::error!(%id, %error, "an order or a listing cannot be settled: its task is closed");
            (None, Vec::new())
        });
        claims.retain(|claim| !claim.totals.debited.is_zero() || claim.account == own);
        let step = if settlement.is_some() { SettlementStep::Post } else { SettlementStep::Close };
        Self { subject, settlement, claims, is_cancelled: false, step, after: Instant::now() }
    }

    /// The settlement of an order; one whose bids never began has none.
    fn order(id: Digest, own: Address, lease: Option<&RecordedLease>) -> Self {
        let lease = lease.map(RecordedLease::lease);
        let settled = lease.map_or(Ok((None, Vec::new())), |lease| {
            Ok((Settlement::from_lease(lease)?, lease_claims(lease)))
        });
        Self::new(Subject::Order(id), own, settled)
    }

    fn listing(listing: &Listing, own: Address) -> Self {
        let settled = || Ok((Settlement::from_listing(listing)?, listing_claims(listing)?));
        Self::new(Subject::Listing(listing.id()), own, settled())
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
            let unanswered: Vec<Subject> =
                doubted.drain(looked..).filter(|subject| !self.has_looked(*subject)).collect();
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

    /// The orders and listings that are recorded as settled.
    fn settled(&self) -> Vec<Subject> {
        let state = self.state();
        let orders = state.orders.iter();
        let orders = orders.filter(|(_, order)| order.stored.money == OrderMoney::Settled);
        let listings = state.listings.iter();
        let listings = listings.filter(|(_, one)| one.stored.money == OrderMoney::Settled);
        let orders = orders.map(|(id, _)| Subject::Order(*id));
        orders.chain(listings.map(|(id, _)| Subject::Listing(*id))).collect()
    }

    /// Looks at the ledger once after a start: a ledger that was restored from an older copy, or whose chain was
    /// reorganised, may not have closed a task that is recorded as settled. Such an order is settled again. Returns
    /// whether the ledger has answered.
    fn has_looked(&self, subject: Subject) -> bool {
        let Ok(task) = self.inner.parts.ledger.task(TaskId(subject.id().0)) else { return false };
        if task.is_some_and(|task| !task.closed) {
            let mut state = self.state();
            let money = match subject {
                Subject::Order(id) => state.orders.get_mut(&id).map(|one| &mut one.stored.money),
                Subject::Listing(id) => {
                    state.listings.get_mut(&id).map(|one| &mut one.stored.money)
                }
            };
            if let Some(money) = money {
                let id = subject.id();
                tracing::warn!(%id, "the ledger has not closed a settled task: settling it again");
                *money = OrderMoney::Settling;
            }
        }
        true
    }

    fn collect(&self, settling: &mut Vec<Settling>) {
        let (now, own) = (self.now(), self.inner.parts.wallet.address());
        let mut state = self.state();
        let is_new =
            |settling: &[Settling], subject| settling.iter().all(|one| one.subject != subject);
        for (id, order) in &mut state.orders {
            if order.is_unsettled() && is_new(settling, Subject::Order(*id)) {
                settling.push(Settling::order(*id, own, order.lease.as_ref()));
                order.stored.money = OrderMoney::Settling;
            }
        }
        let over = state.listings.iter().filter(|(id, listing)| {
            is_new(settling, Subject::Listing(**id)) && state.is_listing_unsettled(listing, now)
        });
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(listing) = state.listings.get_mut(&id) else { continue };
            // Durable before the first step: no lease is measured for a listing whose settlement may be posted.
            let stored = StoredListing { money: OrderMoney::Settling, ..listing.stored.clone() };
            match self.inner.store.put_listing(id, &stored) {
                Ok(()) => {
                    listing.stored = stored;
                    settling.push(Settling::listing(&listing.listing, own));
                }
                Err(error) => {
                    tracing::error!(listing = %id, %error, "the end of a listing cannot be stored: will retry");
                }
            }
        }
    }

    /// Takes the next step; returns whether the order is settled.
    fn advance(&self, one: &mut Settling) -> bool {
        match self.step(one) {
            Ok(Some(wait)) => one.after = Instant::now() + wait,
            Ok(None) => return self.mark_final(one),
            Err(error) => {
                let id = one.subject.id();
                tracing::warn!(%id, %error, "a settlement waits: will retry");
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
        let task = TaskId(one.subject.id().0);
        let round = RoundNumber::FIRST;
        let payout = Report::settlement_id(task, round);
        if one.settlement.is_none() || !matches!(one.step, SettlementStep::Post) {
            self.mark_covered(one.subject);
        }
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
                if !one.is_cancelled && self.send_claim(&one.claims)? {
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

    /// The order or listing needs no more of the coordinator's wallet.
    fn mark_covered(&self, subject: Subject) {
        let mut state = self.state();
        let is_covered = match subject {
            Subject::Order(id) => state.orders.get_mut(&id).map(|one| &mut one.is_covered),
            Subject::Listing(id) => state.listings.get_mut(&id).map(|one| &mut one.is_covered),
        };
        if let Some(is_covered) = is_covered {
            *is_covered = true;
        }
    }

    /// Sends the next claim of a final settlement that is not on the ledger; returns whether there was one.
    fn send_claim(&self, claims: &[Claim]) -> Result<bool, LedgerError> {
        let (ledger, wallet) = (self.inner.parts.ledger.as_ref(), self.inner.parts.wallet.as_ref());
        for claim in claims {
            let (task, account) = (claim.task, claim.account);
            let claimed = ledger.claimed_totals(task, account)?;
            // Other accounts claim their own pay.
            let is_paid = claimed.paid >= claim.totals.paid || account != wallet.address();
            if is_paid && claimed.debited >= claim.totals.debited {
                continue;
            }
            match ledger.claim(wallet, claim) {
                Ok(outcome) => {
                    tracing::info!(%task, %account, taken = %outcome.taken, "a claim is sent");
                    return Ok(true);
                }
                Err(LedgerError::Refused(Refusal::NothingToClaim)) => {}
                // Records of a restored backup, whose ledger has settled others.
                Err(LedgerError::Refused(Refusal::InvalidProof)) => {
                    tracing::error!(%task, %account, "the ledger has another settlement of this task: no claim is sent");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn mark_final(&self, one: &Settling) -> bool {
        let money = if one.is_cancelled { OrderMoney::Cancelled } else { OrderMoney::Settled };
        let mut state = self.state();
        let stored = match one.subject {
            Subject::Order(id) => {
                let Some(order) = state.orders.get_mut(&id) else { return true };
                let stored = StoredOrder { money, ..order.stored.clone() };
                self.inner.store.put_order(id, &stored).map(|()| order.stored = stored)
            }
            Subject::Listing(id) => {
                let Some(listing) = state.listings.get_mut(&id) else { return true };
                let stored = StoredListing { money, ..listing.stored.clone() };
                self.inner.store.put_listing(id, &stored).map(|()| listing.stored = stored)
            }
        };
        drop(state);
        let id = one.subject.id();
        if let Err(error) = stored {
            tracing::error!(%id, %error, "the end of a settlement cannot be stored: will retry");
            return false;
        }
        tracing::info!(%id, "an order or a listing is settled");
        self.changed();
        true
    }
}
