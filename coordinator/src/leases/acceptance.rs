//! The acceptance of orders: escrow and places, the blobs of a job, and the beginning of the bids.

use florin_compute::{LeaseOutcome, OrderMoney, OrderRequest, OrderView, RecordedLease};
use florin_ledger::lease_task;
use florin_protocol::{Address, Digest, ErrorCode, Rejection};
use florin_work::LeasedTraining;

use super::hosted::HostedOrder;
use super::store::{StoredOrder, StoredState};
use super::{
    HostState, LeaseHost, beacon_secret, blob_rejection, invalid, is_restricted, ledger_rejection,
    log_unremoved,
};

/// Most orders that have a lease that goes on.
const OPEN_MAX: usize = 512;
/// Most orders that wait for blobs. A new one takes the place of the one that has waited longest.
const WAITING_MAX: usize = 128;
/// Most orders of one renter whose money is not final.
const UNSETTLED_PER_RENTER_MAX: usize = 64;
/// Most orders that are remembered. Then one is forgotten: first a settled one without pay, then one that ended without
/// pay and is not closed, then the oldest settled one.
const ORDERS_MAX: usize = 1_024;
/// Most bytes of the blobs of a job: 1 GiB.
const JOB_BYTES_MAX: u64 = 1 << 30;

impl LeaseHost {
    /// Accepts an order whose escrow is on the ledger. The same order again changes nothing.
    pub(crate) fn accept(&self, request: OrderRequest) -> Result<OrderView, Rejection> {
        let (id, order) = (request.order.id(), &request.order);
        if let Some(known) = self.state().orders.get(&id) {
            return Ok(known.view(id));
        }
        if order.market != self.inner.market {
            let message = "the order is for another market; see /v1/market for this one";
            return Err(Rejection::new(ErrorCode::WrongMarket, message));
        }
        order.check().map_err(|error| invalid(format!("{error} [{}]", error.code())))?;
        let job = &request.job;
        job.check().map_err(|error| invalid(error.to_string()))?;
        order.check_job(job).map_err(|error| invalid(error.to_string()))?;
        let bytes = job.bytes();
        if bytes > JOB_BYTES_MAX {
            let message = format!(
                "the blobs of the job have {bytes} bytes; this coordinator takes {JOB_BYTES_MAX}"
            );
            return Err(Rejection::new(ErrorCode::TooLarge, message));
        }
        let most = order.escrow().map_err(|error| invalid(error.to_string()))?;
        let accepting = self.accepting();
        self.check_cover(most, ("the pay of this order", "order for less"))?;
        self.check_escrow(&request)?;
        let start = self.start_state(&request)?;
        let remembered = self.remember(id, request, start);
        if remembered.is_err() && start.is_some() && !self.state().orders.contains_key(&id) {
            log_unremoved(id, self.inner.restricted.remove_all(id));
        }
        remembered?;
        drop(accepting);
        self.begin_if_complete(id)?;
        self.changed();
        self.view(id)
    }

    /// Checks that the escrow of an order is open under the order's terms, with this coordinator.
    fn check_escrow(&self, request: &OrderRequest) -> Result<(), Rejection> {
        let parts = &self.inner.parts;
        let task = lease_task(&request.order);
        let unfunded = |why: &str| Rejection::new(ErrorCode::NotFunded, why);
        let state = parts.ledger.task(task).map_err(|error| ledger_rejection(&error))?;
        let Some(state) = state else {
            return Err(unfunded("no escrow is open for this order: open it on the ledger first"));
        };
        if state.closed || state.round.is_some() || !state.pending.is_empty() {
            let message = "the order's escrow is settled or closed: order again with another nonce";
            return Err(Rejection::new(ErrorCode::TaskClosed, message));
        }
        if state.terms.coordinator != parts.wallet.address() {
            let own = parts.wallet.address();
            return Err(unfunded(&format!("the escrow names another coordinator than {own}")));
        }
        let now = self.now();
        state
            .terms
            .check_order(&request.order, self.inner.market, now)
            .map_err(|error| unfunded(&format!("{error} [{}]", error.code())))
    }

    /// The stored state that a continued order starts from: the result of an earlier lease of the same job.
    ///
    /// A result that is not public is that of an order of the same renter and class, and its bytes are copied.
    fn start_state(&self, request: &OrderRequest) -> Result<Option<StoredState>, Rejection> {
        let order = &request.order;
        if order.first_segment == 0 {
            return Ok(None);
        }
        let step = order.steps_before(0);
        let state = self.state();
        let mut earlier = state.orders.iter().filter(|(_, hosted)| {
            let before = &hosted.stored.request.order;
            let is_readable = match is_restricted(order) || is_restricted(before) {
                true => (before.renter, before.data_class) == (order.renter, order.data_class),
                false => true,
            };
            let lease = hosted.lease.as_ref().map(RecordedLease::lease);
            let delivered = lease.filter(|lease| {
                let outcome = lease.outcome();
                matches!(outcome, Some(LeaseOutcome::Settled | LeaseOutcome::Defaulted { .. }))
            });
            let result = delivered.and_then(|lease| lease.result());
            is_readable && before.job == order.job && result == Some(order.start)
        });
        let found = earlier.find_map(|(id, hosted)| Some((*id, *hosted.states.get(&order.start)?)));
        let found = found.filter(|(_, found)| found.step == step);
        drop(state);
        let (before, found) = found.ok_or_else(|| {
            invalid(format!(
                "start: this coordinator has no result of an earlier order of the same job after {step} \
                 steps with this digest, or that order is of another renter or data class; order from \
                 segment 0, or at the coordinator of that order"
            ))
        })?;
        let files = &self.inner.restricted;
        // A result that was a checkpoint is in the folder of the earlier order, also of a public one.
        if is_restricted(order) || files.contains(before, found.blob) {
            let copied = files.read(before, found.blob);
            let copied = copied.and_then(|bytes| files.put(order.id(), found.blob, &bytes));
            copied.map_err(|error| blob_rejection(&error))?;
        }
        Ok(Some(found))
    }

    fn remember(
        &self,
        id: Digest,
        request: OrderRequest,
        start: Option<StoredState>,
    ) -> Result<(), Rejection> {
        let digest = request.order.start;
        let mut state = self.state();
        if state.orders.contains_key(&id) {
            return Ok(());
        }
        self.make_place(&mut state, request.order.renter)?;
        let (received, missing) = (self.now(), state.missing(&request, &self.inner.restricted));
        let money = OrderMoney::Locked;
        let beacon = beacon_secret(&self.inner.parts.node, id);
        let (opened, refused) = (None, None);
        let stored = StoredOrder { request, beacon, received, opened, refused, money };
        let start = start.map(|start| (digest, start));
        self.inner.store.put_new_order(id, &stored, start)?;
        let mut hosted = HostedOrder::new(stored, missing);
        hosted.states.extend(start);
        tracing::info!(order = %id, "accepted an order for compute");
        state.orders.insert(id, hosted);
        Ok(())
    }

    /// Makes a place for an order of a renter.
    fn make_place(&self, state: &mut HostState, renter: Address) -> Result<(), Rejection> {
        let full = |max: usize, what: &str| {
            let message = format!("this coordinator hosts at most {max} {what} at a time");
            Err(Rejection::new(ErrorCode::LimitReached, message))
        };
        let count = |wanted: &dyn Fn(&HostedOrder) -> bool| {
            state.orders.values().filter(|order| wanted(order)).count()
        };
        let begun = count(&|order| order.is_open() && order.lease.is_some());
        let own = count(&|order| {
            order.stored.request.order.renter == renter && !order.stored.money.is_final()
        });
        if own >= UNSETTLED_PER_RENTER_MAX {
            return full(UNSETTLED_PER_RENTER_MAX, "orders of one renter that are not settled");
        }
        if begun >= OPEN_MAX {
            return full(OPEN_MAX, "leases");
        }
        let waiting = state.orders.iter().filter(|(_, order)| order.is_waiting());
        let longest = waiting.clone().min_by_key(|(_, order)| order.stored.received);
        if waiting.count() >= WAITING_MAX
            && let Some((longest, _)) = longest
        {
            let longest = *longest;
            self.refuse(state, longest, "others took its place before its blobs arrived")?;
        }
        match state.orders.len() < ORDERS_MAX || self.forget_one(state)? {
            true => Ok(()),
            false => full(ORDERS_MAX, "orders that are not settled"),
        }
    }

    /// Forgets an order: a settled one without pay, or one that ended without pay and is not closed, whose escrow any
    /// account can return at its expiry, or the oldest settled one. Returns whether there was one.
    fn forget_one(&self, state: &mut HostState) -> Result<bool, Rejection> {
        let least = state.orders.iter().filter_map(|(id, order)| {
            let books = order.lease.as_ref().map(|lease| lease.lease().books());
            let is_paid = books.is_some_and(|books| !books.totals().is_empty());
            let rank = match (order.stored.money.is_final(), is_paid) {
                (true, false) => 0,
                (false, false) if !order.is_open() => 1,
                (true, true) => 2,
                (false, _) => return None,
            };
            Some(((rank, order.stored.received), id))
        });
        let least = least.min_by_key(|(rank, _)| *rank);
        let least = least.map(|(_, id)| id);
        let Some(least) = least.copied() else { return Ok(false) };
        self.inner.store.forget(least)?;
        state.orders.remove(&least);
        self.unneeded().retain(|(order, _)| *order != least);
        log_unremoved(least, self.inner.restricted.remove_all(least));
        Ok(true)
    }

    /// Refuses an order whose bids have not begun: its escrow returns.
    pub(super) fn refuse(
        &self,
        state: &mut HostState,
        id: Digest,
        why: &str,
    ) -> Result<(), Rejection> {
        let order = state.order_mut(id)?;
        if !order.is_waiting() {
            return Ok(());
        }
        let mut stored = order.stored.clone();
        stored.refused = Some(why.to_owned());
        self.inner.store.put_order(id, &stored)?;
        order.stored = stored;
        order.remove_unneeded(&self.inner.restricted, id);
        self.changed();
        Ok(())
    }

    /// Begins the bids of an order whose blobs are all there.
    pub(super) fn begin_if_complete(&self, id: Digest) -> Result<(), Rejection> {
        let request = {
            let state = self.state();
            let order = state.order(id)?;
            if !order.is_complete() {
                return Ok(());
            }
            order.stored.request.clone()
        };
        let checked = self.check_job(&request).and_then(|()| self.check_escrow(&request));
        if let Err(rejection) = &checked
            && rejection.code == ErrorCode::Internal
        {
            self.expect_damaged_rows_again(&request);
            return checked;
        }
        let mut state = self.state();
        let order = state.order_mut(id)?;
        if !order.is_waiting() {
            return Ok(());
        }
        let begun = checked.and_then(|()| {
            let now = self.now();
            order.begin(now).map(|lease| (now, lease))
        });
        match begun {
            Ok((now, lease)) => {
                let mut stored = order.stored.clone();
                stored.opened = Some(now);
                self.inner.store.put_order(id, &stored)?;
                (order.stored, order.lease) = (stored, Some(lease));
                Ok(())
            }
            Err(rejection) => {
                self.refuse(&mut state, id, &rejection.to_string())?;
                Err(rejection)
            }
        }
    }

    /// Checks that the blobs of a job fit together.
    fn check_job(&self, request: &OrderRequest) -> Result<(), Rejection> {
        self.load_training(request).map(drop)
    }

    /// Waits anew for the rows of a restricted order whose file is damaged or missing.
    fn expect_damaged_rows_again(&self, request: &OrderRequest) {
        let (id, rows) = (request.order.id(), request.job.rows);
        if !is_restricted(&request.order) || self.inner.restricted.read(id, rows.digest).is_ok() {
            return;
        }
        log_unremoved(id, self.inner.restricted.remove(id, &[rows.digest]));
        if let Some(order) = self.state().orders.get_mut(&id)
            && order.is_complete()
        {
            order.missing.push(rows);
        }
    }

    /// The training of an order, from the blobs of its job.
    pub(super) fn load_training(
        &self,
        request: &OrderRequest,
    ) -> Result<LeasedTraining, Rejection> {
        let OrderRequest { order, job } = request;
        let blobs = &self.inner.parts.blobs;
        let id = order.id();
        let read = |digest, bytes| {
            // Before it is read into memory: it may have arrived for an order with another length.
            if let Some(found) = blobs.file_bytes(digest).filter(|found| *found != bytes) {
                return Err(invalid(format!(
                    "blob {digest} has {found} bytes, and the job names {bytes}"
                )));
            }
            let bytes = match is_restricted(order) && digest == job.rows.digest {
                true => self.inner.restricted.read(id, digest),
                false => blobs.read(digest),
            };
            bytes.map_err(|error| blob_rejection(&error))
        };
        LeasedTraining::load(order, job, read).map_err(|rejection| match rejection.code {
            ErrorCode::Internal | ErrorCode::StorageFull => rejection,
            _ => invalid(rejection.message),
        })
    }

    /// Begins the bids of orders that are complete: an earlier attempt may have failed.
    pub(crate) fn begin_complete(&self) {
        let complete: Vec<Digest> = {
            let state = self.state();
            let orders = state.orders.iter().filter(|(_, order)| order.is_complete());
            orders.map(|(id, _)| *id).collect()
        };
        for id in complete {
            if let Err(rejection) = self.begin_if_complete(id) {
                tracing::warn!(order = %id, %rejection, "the bids of an order do not begin");
            }
        }
    }
}
