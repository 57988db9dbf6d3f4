//! The listings of devices at this coordinator: their acceptance, probes, and what leases say of their cards.

use florin_compute::{
    ComputeAction, LinksUpload, Listing, ListingEvent, ListingOpening, ListingPhase, ListingRecord,
    ListingRequest, ListingTerms, ListingView, OrderMoney, Phase, ShownLinks, SignedListingAction,
    draw_commitment,
};
use florin_ledger::listing_task;
use florin_protocol::{Address, Digest, ErrorCode, Rejection, Timestamp, blob_digest};

use super::hosted::HostedOrder;
use super::store::{LeaseStore, LeaseStoreError, StoredListing};
use super::{HostState, LeaseHost, invalid, ledger_rejection, node_secret, refused};

/// Most listings that are not over.
const OPEN_MAX: usize = 256;
/// Most listings of one provider that are not settled.
const OPEN_PER_PROVIDER_MAX: usize = 4;
/// Most listings that are remembered. Then the oldest settled one is forgotten.
const REMEMBERED_MAX: usize = 1_024;
/// How long the settlement of a listing waits for leases of its provider beyond its life, in milliseconds: six hours.
/// Its task on the ledger lasts for twelve hours at least.
const LEASES_MS_MAX: u64 = 21_600_000;

/// A listing with its record.
#[derive(Clone, Debug)]
pub(super) struct HostedListing {
    pub(super) stored: StoredListing,
    pub(super) listing: Listing,
    pub(super) records: Vec<ListingRecord>,
    /// When it ended.
    ended: Option<Timestamp>,
    /// Since when a common probe is due, which its own work delays.
    due: Option<Timestamp>,
    /// Whether it needs no more of the coordinator's wallet: its settlement is posted with a bond, or has no pay. After a
    /// start that is found again on the ledger.
    pub(super) is_covered: bool,
}

impl HostedListing {
    fn new(stored: StoredListing, coordinator: Address) -> Result<Self, Rejection> {
        let listing = Listing::open(&opening(&stored, coordinator));
        let listing = listing.map_err(|error| refused(&error))?;
        let (records, ended, due) = (Vec::new(), None, None);
        Ok(Self { stored, listing, records, ended, due, is_covered: false })
    }

    /// A listing from its stored record.
    pub(super) fn load(
        stored: StoredListing,
        records: Vec<ListingRecord>,
        coordinator: Address,
    ) -> Result<Self, String> {
        let mut hosted = Self::new(stored, coordinator).map_err(|error| error.to_string())?;
        for record in records {
            let applied = hosted.apply(record);
            applied.map_err(|error| format!("a stored record of a listing: {error}"))?;
        }
        Ok(hosted)
    }

    fn apply(&mut self, record: ListingRecord) -> Result<(), Rejection> {
        let next = self.after(&record)?;
        self.replace(next, record);
        Ok(())
    }

    /// The listing after an event.
    fn after(&self, record: &ListingRecord) -> Result<Listing, Rejection> {
        let mut next = self.listing.clone();
        next.apply(record).map_err(|error| refused(&error))?;
        Ok(next)
    }

    fn replace(&mut self, next: Listing, record: ListingRecord) {
        if next.outcome().is_some() {
            self.ended.get_or_insert(record.at);
        }
        self.listing = next;
        self.records.push(record);
    }

    /// Records a start of the coordinator, which costs no provider its listing.
    pub(super) fn resume(
        &mut self,
        store: &LeaseStore,
        now: Timestamp,
    ) -> Result<(), LeaseStoreError> {
        if !self.is_open() {
            return Ok(());
        }
        let (id, number) = (self.listing.id(), self.listing.length());
        let at = now.max(self.listing.last());
        let record = ListingRecord { at, event: ListingEvent::Resumed };
        self.apply(record).map_err(|error| store.inconsistent(&error.to_string()))?;
        store.append_to_listing(id, number, &record)
    }

    fn is_open(&self) -> bool {
        self.listing.outcome().is_none()
    }

    fn provider(&self) -> Address {
        self.listing.terms().provider
    }

    fn view(&self) -> ListingView {
        let (opened, money) = (self.stored.opened, self.stored.money);
        ListingView { opened, listing: self.listing.clone(), money }
    }

    /// Whether a bid of a device counts: it is proven, and no common probe is overdue.
    fn takes_bids(&self, now: Timestamp, overdue_ms: u64) -> bool {
        self.listing.covers(1) && self.due.is_none_or(|since| now.ms_since(since) <= overdue_ms)
    }

    /// Whether its stake still answers for leases.
    fn is_tested(&self) -> bool {
        let listing = &self.listing;
        let is_locked = self.stored.money == OrderMoney::Locked;
        is_locked && listing.probes().1 > 0 && !listing.is_contradicted() && listing.measures_more()
    }

    /// Whether a lease counts for it: the provider sealed its bid while the listing was open.
    fn counts(&self, order: &HostedOrder) -> bool {
        let sealed = order.sealed_at(self.provider());
        sealed.is_some_and(|at| {
            at >= self.stored.opened && self.ended.is_none_or(|ended| at <= ended)
        })
    }
}

fn opening(stored: &StoredListing, coordinator: Address) -> ListingOpening {
    ListingOpening { terms: stored.terms.clone(), coordinator, opened: stored.opened }
}

fn unknown(id: Digest) -> Rejection {
    Rejection::new(ErrorCode::NotFound, format!("this coordinator has no listing {id}"))
}

impl LeaseHost {
    /// Accepts a listing whose fees and stake are on the ledger. The same listing again changes nothing.
    pub(crate) fn accept_listing(&self, request: ListingRequest) -> Result<ListingView, Rejection> {
        let ListingRequest { terms } = request;
        let id = terms.id();
        if let Some(known) = self.state().listings.get(&id) {
            return Ok(known.view());
        }
        if terms.market != self.inner.market {
            let message = "the listing is for another market; see /v1/market for this one";
            return Err(Rejection::new(ErrorCode::WrongMarket, message));
        }
        terms.check().map_err(|error| invalid(format!("{error} [{}]", error.code())))?;
        let accepting = self.accepting();
        self.check_listing_money(&terms)?;
        let opened = self.now();
        let stored = StoredListing { terms, opened, money: OrderMoney::Locked };
        let hosted = HostedListing::new(stored, self.inner.parts.wallet.address())?;
        let mut state = self.state();
        if !state.listings.contains_key(&id) {
            self.make_listing_place(&mut state, hosted.provider())?;
            self.inner.store.put_listing(id, &hosted.stored)?;
            tracing::info!(listing = %id, provider = %hosted.provider(), "accepted a listing of devices");
            state.listings.insert(id, hosted);
            self.begin_probe(&mut state, id, self.now())?;
        }
        drop(state);
        drop(accepting);
        self.changed();
        self.listing(id)
    }

    /// Checks fees and stake on the ledger, and that the coordinator's wallet covers its own pay until it is final.
    fn check_listing_money(&self, terms: &ListingTerms) -> Result<(), Rejection> {
        let parts = &self.inner.parts;
        // Before the deposits, so that a provider learns of a refusal before it locks any.
        let most = terms.pool().map_err(|error| invalid(error.to_string()))?;
        self.check_cover(most, ("the fees of this listing", "list with fewer probes"))?;
        let unfunded = |why: String| Err(Rejection::new(ErrorCode::NotFunded, why));
        let task = listing_task(terms.id());
        let state = parts.ledger.task(task).map_err(|error| ledger_rejection(&error))?;
        let Some(state) = state else {
            return unfunded(
                "no task is open for this listing: open it on the ledger first".to_owned(),
            );
        };
        if state.closed || state.round.is_some() || !state.pending.is_empty() {
            let message =
                "the task of the listing is settled or closed: list again with another nonce";
            return Err(Rejection::new(ErrorCode::TaskClosed, message));
        }
        let own = parts.wallet.address();
        if state.terms.coordinator != own {
            return unfunded(format!(
                "the task of the listing names another coordinator than {own}"
            ));
        }
        let checked = state.terms.check_listing(terms, self.inner.market, self.now());
        if let Err(error) = checked {
            return unfunded(format!("{error} [{}]", error.code()));
        }
        let stake = (terms.stake, "the listing", "its task");
        self.require_bond(task, terms.provider, stake)
    }

    fn make_listing_place(
        &self,
        state: &mut HostState,
        provider: Address,
    ) -> Result<(), Rejection> {
        let full = |max: usize, what: &str| {
            let message = format!("this coordinator has at most {max} {what} at a time");
            Err(Rejection::new(ErrorCode::LimitReached, message))
        };
        let count = |wanted: &dyn Fn(&HostedListing) -> bool| {
            state.listings.values().filter(|listing| wanted(listing)).count()
        };
        let all = count(&|listing| listing.is_open());
        let own = count(&|one| one.provider() == provider && !one.stored.money.is_final());
        if own >= OPEN_PER_PROVIDER_MAX {
            return full(OPEN_PER_PROVIDER_MAX, "listings of one provider");
        }
        if all >= OPEN_MAX {
            return full(OPEN_MAX, "listings");
        }
        if state.listings.len() >= REMEMBERED_MAX {
            let settled = state.listings.iter().filter(|(_, one)| one.stored.money.is_final());
            let oldest = settled.min_by_key(|(_, one)| one.stored.opened).map(|(id, _)| *id);
            let Some(oldest) = oldest else {
                return full(REMEMBERED_MAX, "listings that are not settled");
            };
            self.inner.store.forget_listing(oldest)?;
            state.listings.remove(&oldest);
        }
        Ok(())
    }

    /// All listings, the newest first.
    pub(crate) fn listings(&self) -> Vec<ListingView> {
        let state = self.state();
        let mut all: Vec<_> = state.listings.iter().collect();
        all.sort_by_key(|(id, listing)| (std::cmp::Reverse(listing.stored.opened), **id));
        all.into_iter().map(|(_, listing)| listing.view()).collect()
    }

    /// A listing.
    pub(crate) fn listing(&self, id: Digest) -> Result<ListingView, Rejection> {
        let state = self.state();
        state.listings.get(&id).map(HostedListing::view).ok_or_else(|| unknown(id))
    }

    /// The records of a listing behind the first `after`, at most [`super::RECORDS_PER_REPLY_MAX`].
    pub(crate) fn listing_records(
        &self,
        id: Digest,
        after: u32,
    ) -> Result<Vec<ListingRecord>, Rejection> {
        let state = self.state();
        let listing = state.listings.get(&id).ok_or_else(|| unknown(id))?;
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        let records = listing.records.iter().skip(after);
        Ok(records.take(super::RECORDS_PER_REPLY_MAX).copied().collect())
    }

    /// Records a message of a provider that arrived at a moment. The same message again changes nothing. A computed
    /// probe has its links drawn at once.
    pub(crate) fn act_on_listing(
        &self,
        signed: &SignedListingAction,
        arrived: Timestamp,
    ) -> Result<ListingView, Rejection> {
        let id = signed.body.listing;
        let mut state = self.state();
        let listing = state.listings.get_mut(&id).ok_or_else(|| unknown(id))?;
        let is_known = listing.records.iter().any(|record| match record.event {
            ListingEvent::Signed(known) => known.body == signed.body,
            _ => false,
        });
        if !is_known {
            let at = arrived.max(listing.listing.last());
            self.append_to_listing(listing, at, ListingEvent::Signed(*signed))?;
            self.draw_links(listing)?;
        }
        Ok(listing.view())
    }

    fn append_to_listing(
        &self,
        hosted: &mut HostedListing,
        at: Timestamp,
        event: ListingEvent,
    ) -> Result<(), Rejection> {
        let number = hosted.listing.length();
        let record = ListingRecord { at: at.max(hosted.listing.last()), event };
        let next = hosted.after(&record)?;
        self.inner.store.append_to_listing(next.id(), number, &record)?;
        if let (Some(outcome), true) = (next.outcome(), hosted.is_open()) {
            let (listing, provider) = (next.id(), hosted.provider());
            tracing::info!(%listing, %provider, ?outcome, "a listing is over");
        }
        hosted.replace(next, record);
        self.changed();
        Ok(())
    }

    fn begin_probe(
        &self,
        state: &mut HostState,
        id: Digest,
        at: Timestamp,
    ) -> Result<(), Rejection> {
        let listing = state.listings.get_mut(&id).ok_or_else(|| unknown(id))?;
        // The length of the record differs for each probe.
        let of = [&id.0[..], &listing.listing.length().to_le_bytes()[..]].concat();
        let node = &self.inner.parts.node;
        let seed = node_secret(node, "florin v1 probe seed", &of);
        listing.due = None;
        let draw = draw_commitment(id, self.draw_secret(id, listing.listing.length()));
        self.append_to_listing(listing, at, ListingEvent::Probed { seed, draw })
    }

    /// The secret that draws the links of the probe which begins with a number of the record.
    fn draw_secret(&self, id: Digest, number: u32) -> Digest {
        let of = [&id.0[..], &number.to_le_bytes()[..]].concat();
        node_secret(&self.inner.parts.node, "florin v1 probe draw", &of)
    }

    /// Draws the links of a computed probe.
    fn draw_links(&self, hosted: &mut HostedListing) -> Result<(), Rejection> {
        let is_undrawn = hosted.listing.probe().is_some_and(|probe| probe.secret.is_none());
        if hosted.listing.phase().0 != ListingPhase::Showing || !is_undrawn {
            return Ok(());
        }
        let probed = |record: &ListingRecord| matches!(record.event, ListingEvent::Probed { .. });
        let number = hosted.records.iter().rposition(probed).unwrap_or_default();
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let secret = self.draw_secret(hosted.listing.id(), number);
        self.append_to_listing(hosted, self.now(), ListingEvent::Drawn(secret))
    }

    /// The upload of links that a listing waits for; `None` if its newest probe is proven.
    pub(crate) fn wanted_links(&self, id: Digest) -> Result<Option<LinksUpload>, Rejection> {
        let state = self.state();
        let hosted = state.listings.get(&id).ok_or_else(|| unknown(id))?;
        let root = hosted.listing.probe().and_then(|probe| probe.root);
        match (hosted.listing.phase().0, root) {
            (ListingPhase::Showing, Some(root)) => {
                Ok(Some(LinksUpload { listing: id, by: hosted.provider(), root }))
            }
            (ListingPhase::Listed, _) => Ok(None),
            (phase, _) => {
                let message = format!("the listing is {}: no links are shown now", phase.name());
                Err(Rejection::new(ErrorCode::LeaseRefused, message))
            }
        }
    }

    /// Checks the shown links of a probe that arrived at a moment, and lists the devices. Links that contradict the
    /// probe change nothing.
    pub(crate) fn take_links(
        &self,
        id: Digest,
        bytes: &[u8],
        arrived: Timestamp,
    ) -> Result<ListingView, Rejection> {
        let drawn = {
            let state = self.state();
            state.listings.get(&id).ok_or_else(|| unknown(id))?.listing.drawn()
        };
        if let Some(drawn) = drawn {
            let shown = ShownLinks::from_bytes(bytes).map_err(|error| refused(&error))?;
            shown.check(&drawn).map_err(|error| refused(&error))?;
            let mut state = self.state();
            let listing = state.listings.get_mut(&id).ok_or_else(|| unknown(id))?;
            // Another upload may have been first.
            if listing.listing.drawn().is_some_and(|now| now.root == drawn.root) {
                let event = ListingEvent::Shown(blob_digest(bytes));
                self.append_to_listing(listing, arrived, event)?;
            }
        }
        self.listing(id)
    }

    /// Applies all that is due to listings: defaults after deadlines, drawn links, probes, measured leases.
    pub(super) fn apply_due_to_listings(&self) {
        let ids: Vec<Digest> = {
            let now = self.now();
            let mut state = self.state();
            self.measure_leases(&mut state, now);
            if self.is_fleet_probed(now) {
                let listed = state.listings.values_mut().filter(|one| one.is_open());
                listed.for_each(|listing| {
                    listing.due.get_or_insert(now);
                });
            }
            let open = state.listings.iter().filter(|(_, listing)| listing.is_open());
            open.map(|(id, _)| *id).collect()
        };
        for id in ids {
            // Each with its own moment and lock: a probe is as old as its record.
            let mut state = self.state();
            if let Err(rejection) = self.apply_due_to(&mut state, id, self.now()) {
                tracing::error!(listing = %id, %rejection, "a listing cannot go on: will retry");
            }
        }
    }

    fn apply_due_to(
        &self,
        state: &mut HostState,
        id: Digest,
        now: Timestamp,
    ) -> Result<(), Rejection> {
        let Some(listing) = state.listings.get_mut(&id) else { return Ok(()) };
        let (phase, deadline) = listing.listing.phase();
        if now > deadline {
            return self.append_to_listing(listing, now, ListingEvent::Expired);
        }
        let provider = listing.provider();
        let ends_first = now.saturating_add_ms(listing.listing.terms().probe_ms()) > deadline;
        let is_due = listing.due.is_some() && !ends_first;
        match phase {
            ListingPhase::Opened => self.begin_probe(state, id, now),
            ListingPhase::Showing => self.draw_links(listing),
            ListingPhase::Listed if is_due && !state.is_busy(provider) => {
                self.begin_probe(state, id, now)
            }
            _ => Ok(()),
        }
    }

    /// Whether all idle listings are probed at this moment: about once in each interval, at a moment that no account
    /// can know.
    fn is_fleet_probed(&self, now: Timestamp) -> bool {
        let mut schedule =
            self.inner.fleet_probe.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let every = self.inner.probe_every_ms.load(std::sync::atomic::Ordering::Relaxed).max(1);
        let next = || {
            let drawn =
                node_secret(&self.inner.parts.node, "florin v1 fleet probe", &now.0.to_le_bytes());
            let bytes = drawn.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            // From half to three halves of the interval.
            let offset = (every / 2).saturating_add(bytes.checked_rem(every).unwrap_or_default());
            now.saturating_add_ms(offset)
        };
        match *schedule {
            Some(at) if now < at => false,
            Some(_) => {
                *schedule = Some(next());
                true
            }
            None => {
                *schedule = Some(next());
                false
            }
        }
    }

    /// Records the leases of listed providers that are over, with the times that their bids predicted.
    fn measure_leases(&self, state: &mut HostState, now: Timestamp) {
        let HostState { orders, listings, .. } = state;
        let tested = listings.values_mut().filter(|listing| listing.is_tested());
        let mut tested: Vec<&mut HostedListing> = tested.collect();
        if tested.is_empty() {
            return;
        }
        for (id, order) in orders.iter() {
            let Some(recorded) = &order.lease else { continue };
            let lease = recorded.lease();
            let (Some(award), Some(_)) = (lease.award(), lease.outcome()) else { continue };
            if lease.leaves().is_empty() {
                continue;
            }
            let own = tested.iter_mut().filter(|listing| {
                listing.provider() == award.provider
                    && listing.is_tested()
                    && !listing.listing.has_measured(*id)
                    && listing.counts(order)
            });
            for listing in own {
                let measured_us = lease.measured_us_without(order.stored.request.job.state_ms());
                let predicted_us = award.step_us;
                let event = ListingEvent::Measured { order: *id, predicted_us, measured_us };
                if let Err(rejection) = self.append_to_listing(listing, now, event) {
                    tracing::error!(order = %id, %rejection, "a lease cannot be measured: will retry");
                }
            }
        }
    }
}

impl HostState {
    /// Checks that a bidder's devices are listed, if the order asks for it.
    pub(super) fn check_listed(
        &self,
        order: &HostedOrder,
        (by, action): (Address, &ComputeAction),
        (now, overdue_ms): (Timestamp, u64),
    ) -> Result<(), Rejection> {
        let own = self.listings.values().filter(|listing| listing.provider() == by);
        let (devices, is_listed) = match action {
            ComputeAction::SealBid(_) => {
                (1, own.clone().any(|one| one.takes_bids(now, overdue_ms)))
            }
            // The listing may have ended since the bid was sealed.
            ComputeAction::OpenBid { bid, .. } => {
                let mut own = own.clone().filter(|one| one.listing.probes().1 > 0);
                let covers = |one: &HostedListing| {
                    bid.devices <= one.listing.terms().probe.devices && one.counts(order)
                };
                (bid.devices, own.any(covers))
            }
            _ => return Ok(()),
        };
        if !order.stored.request.order.listed || is_listed {
            return Ok(());
        }
        let message = format!(
            "the order takes bids of listed devices, and {by} has no listing of {devices} devices that is proven: \
             see florin provide --list"
        );
        Err(Rejection::new(ErrorCode::NotListed, message))
    }

    /// Whether a provider computes for a lease now, so that a probe would take its devices from the lease.
    fn is_busy(&self, provider: Address) -> bool {
        self.orders.values().any(|order| {
            let Some(recorded) = &order.lease else { return false };
            let lease = recorded.lease();
            let is_own = lease.award().is_some_and(|award| award.provider == provider);
            match lease.phase().0 {
                Phase::Over => false,
                Phase::Auditing => {
                    is_own
                        || lease.audits().iter().any(|audit| {
                            audit.asked.contains(&provider) && !audit.sealed.contains_key(&provider)
                        })
                }
                Phase::Bidding | Phase::Revealing => false,
                _ => is_own,
            }
        })
    }

    /// Whether a listing that is over is to be settled: no lease for which its stake answers goes on.
    pub(super) fn is_listing_unsettled(&self, listing: &HostedListing, now: Timestamp) -> bool {
        let terms = listing.listing.terms();
        let latest =
            listing.stored.opened.saturating_add_ms(terms.life_ms.saturating_add(LEASES_MS_MAX));
        if listing.is_open() || listing.stored.money.is_final() {
            return false;
        }
        if listing.stored.money == OrderMoney::Settling {
            return true;
        }
        let waits = self.orders.iter().any(|(id, order)| {
            let Some(recorded) = &order.lease else { return false };
            let lease = recorded.lease();
            let is_open = lease.outcome().is_none();
            let is_awarded = lease.award().is_some_and(|award| award.provider == terms.provider);
            let is_own = is_awarded
                || (lease.award().is_none() && lease.sealed_bid(terms.provider).is_some());
            // It is measured with the next look at the deadlines.
            let is_unmeasured = is_awarded
                && listing.is_tested()
                && !lease.leaves().is_empty()
                && !listing.listing.has_measured(*id);
            is_own && (is_open || is_unmeasured) && listing.counts(order)
        });
        listing.listing.is_contradicted() || !waits || now > latest
    }
}
