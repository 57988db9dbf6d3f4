//! The leases of compute that this coordinator hosts: it accepts orders, records signed actions, has the bytes of
//! jobs and states, applies defaults after deadlines, opens the beacon of the audits, and settles on the ledger.
//!
//! The rules are in [`florin_compute`]; a lease follows from its record, which any account can fold. An action is
//! durable before its reply. The bytes of a state are checked before the lease names it, so that each audit has a
//! start and the renter has its result.

mod arrival;
mod deadlines;
mod hosted;
mod money;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_compute::{
    ComputeJob, LeaseError, LeaseOutcome, LeaseRecord, OrderMoney, OrderRequest, OrderView,
    RecordedAction, RecordedLease, SignedLeaseAction,
};
use florin_ledger::{Ledger, LedgerError, lease_task};
use florin_protocol::{
    Address, Amount, Blob, Digest, ErrorCode, MarketId, NodeSigner, Rejection, TaskId, Timestamp,
    WalletSigner,
};
use florin_store::{BlobError, BlobStore};
use florin_work::LeasedTraining;
use tokio::sync::watch;

use crate::host::Clock;
use hosted::HostedOrder;
use store::{LeaseStore, StoredOrder, StoredState};

pub use store::{LEASES_FILE, LeaseCopy, LeaseStoreError};

/// Most orders that have a lease that goes on.
const OPEN_MAX: usize = 512;
/// Most orders that wait for blobs. A new one takes the place of the one that has waited longest.
const WAITING_MAX: usize = 128;
/// Most orders of one renter that are open.
const OPEN_PER_RENTER_MAX: usize = 64;
/// Most orders that are remembered. Then settled ones are forgotten: first those without pay, then the oldest.
const ORDERS_MAX: usize = 1_024;
/// Most bytes of the blobs of a job: 1 GiB.
const JOB_BYTES_MAX: u64 = 1 << 30;
/// How long an order waits for the blobs of its job, in milliseconds: ten minutes.
const BLOBS_MS_MAX: u64 = 600_000;
/// Most records in one reply.
const RECORDS_PER_REPLY_MAX: usize = 512;
/// The leases of a data folder, read without a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredLeases {
    /// Number of orders.
    pub orders: u64,
    /// Number of recorded actions.
    pub records: u64,
    /// The blobs of their jobs and states.
    pub blobs: BTreeSet<Digest>,
}

/// Reads the leases of a data folder that no process uses, and folds each record; `None` if it never had any.
///
/// # Errors
/// [`LeaseStoreError`] for a damaged file, or a record that contradicts the rules.
pub fn read_leases(folder: &Path) -> Result<Option<StoredLeases>, LeaseStoreError> {
    let Some(store) = LeaseStore::read_only(folder)? else { return Ok(None) };
    let loaded = store.load()?;
    let mut found = StoredLeases { blobs: loaded.blobs, ..StoredLeases::default() };
    for order in loaded.orders.into_values() {
        found.orders = found.orders.saturating_add(1);
        let records = u64::try_from(order.records.len()).unwrap_or(u64::MAX);
        found.records = found.records.saturating_add(records);
        found.blobs.extend(order.states.values().map(|state| state.blob));
        let folded = HostedOrder::load(order, Vec::new());
        folded.map_err(|why| store.inconsistent(&why))?;
    }
    Ok(Some(found))
}

/// The resources of the leases.
pub(crate) struct LeaseParts {
    pub(crate) blobs: Arc<BlobStore>,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) wallet: Arc<dyn WalletSigner>,
    pub(crate) node: NodeSigner,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The hosted leases; cheap to clone.
#[derive(Clone)]
pub struct LeaseHost {
    inner: Arc<Inner>,
}

struct Inner {
    parts: LeaseParts,
    market: MarketId,
    store: LeaseStore,
    state: Mutex<HostState>,
    changes: watch::Sender<u64>,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct HostState {
    orders: BTreeMap<Digest, HostedOrder>,
    /// Blobs that were uploaded for jobs. A blob of a task is not among them before that: it may be secret.
    blobs: BTreeSet<Digest>,
}

/// An action that the lease accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExaminedAction {
    /// It is recorded already.
    Recorded,
    /// It raises what the account can lose to this amount.
    NeedsBond(Amount),
    /// It needs no deposit.
    Free,
}

/// The rejection of an action that the rules of a lease refuse.
fn refused(error: &LeaseError) -> Rejection {
    Rejection::new(ErrorCode::LeaseRefused, format!("{error} [{}]", error.code()))
}

fn invalid(why: impl Into<String>) -> Rejection {
    Rejection::new(ErrorCode::InvalidOrder, why)
}

fn unknown(id: Digest) -> Rejection {
    Rejection::new(ErrorCode::NotFound, format!("this coordinator has no order {id}"))
}

impl From<LeaseStoreError> for Rejection {
    fn from(error: LeaseStoreError) -> Self {
        tracing::error!(%error, "a lease cannot be stored");
        match error.is_full() {
            true => Self::new(ErrorCode::StorageFull, "the disk is full: try again later"),
            false => Self::new(ErrorCode::Internal, "the lease cannot be stored"),
        }
    }
}

/// The blobs of a job.
fn job_blobs(job: &ComputeJob) -> impl Iterator<Item = Blob> {
    job.graph.blobs().chain([job.start, job.rows])
}

impl LeaseHost {
    /// Loads the leases of a data folder.
    ///
    /// # Errors
    /// [`LeaseStoreError`].
    pub(crate) fn open(folder: &Path, parts: LeaseParts) -> Result<Self, LeaseStoreError> {
        let store = LeaseStore::open(folder)?;
        let loaded = store.load()?;
        let mut state = HostState { blobs: loaded.blobs, ..HostState::default() };
        for (id, order) in loaded.orders {
            let missing = state.missing(&order.stored.request.job);
            let hosted = HostedOrder::load(order, missing);
            let mut hosted = hosted.map_err(|why| store.inconsistent(&why))?;
            resume(&store, id, &mut hosted, parts.clock.now())?;
            state.orders.insert(id, hosted);
        }
        let inner = Inner {
            market: parts.ledger.market(),
            parts,
            store,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            is_stopping: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn state(&self) -> MutexGuard<'_, HostState> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The coordinator's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.parts.clock.now()
    }

    fn changed(&self) {
        self.inner.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Notifies of changes of any order.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

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
        let bytes = job_blobs(job).fold(0_u64, |all, blob| all.saturating_add(blob.bytes));
        if bytes > JOB_BYTES_MAX {
            let message = format!(
                "the blobs of the job have {bytes} bytes; this coordinator takes {JOB_BYTES_MAX}"
            );
            return Err(Rejection::new(ErrorCode::TooLarge, message));
        }
        self.check_escrow(&request)?;
        let start = self.start_state(&request)?;
        self.remember(id, request, start)?;
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
    fn start_state(&self, request: &OrderRequest) -> Result<Option<StoredState>, Rejection> {
        let order = &request.order;
        if order.first_segment == 0 {
            return Ok(None);
        }
        let step = u64::from(order.first_segment).saturating_mul(order.steps.into());
        let state = self.state();
        let mut earlier = state.orders.values().filter(|hosted| {
            let lease = hosted.lease.as_ref().map(RecordedLease::lease);
            let delivered = lease.filter(|lease| {
                let outcome = lease.outcome();
                matches!(outcome, Some(LeaseOutcome::Settled | LeaseOutcome::Defaulted { .. }))
            });
            let result = delivered.and_then(|lease| lease.result());
            hosted.stored.request.order.job == order.job && result == Some(order.start)
        });
        let found = earlier.find_map(|hosted| hosted.states.get(&order.start));
        found.filter(|found| found.step == step).map(|found| Some(*found)).ok_or_else(|| {
            invalid(format!(
                "start: this coordinator has no result of an earlier order of the same job after {step} \
                 steps with this digest; order from segment 0, or at the coordinator of that order"
            ))
        })
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
        let (received, missing) = (self.now(), state.missing(&request.job));
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
        let open = state.orders.values().filter(|order| order.is_open());
        let (own, begun) = open.fold((0_usize, 0_usize), |(own, begun), order| {
            let is_own = order.stored.request.order.renter == renter;
            let is_begun = order.lease.is_some();
            (own.saturating_add(is_own.into()), begun.saturating_add(is_begun.into()))
        });
        if own >= OPEN_PER_RENTER_MAX {
            return full(OPEN_PER_RENTER_MAX, "open orders of one renter");
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

    /// Forgets a settled order: one without pay, or the oldest. Returns whether there was one.
    fn forget_one(&self, state: &mut HostState) -> Result<bool, Rejection> {
        let settled = state.orders.iter().filter(|(_, order)| order.stored.money.is_final());
        let least = settled.min_by_key(|(_, order)| {
            let books = order.lease.as_ref().map(|lease| lease.lease().books());
            let is_paid = books.is_some_and(|books| !books.totals().is_empty());
            (is_paid, order.stored.received)
        });
        let Some(least) = least.map(|(id, _)| *id) else { return Ok(false) };
        self.inner.store.forget(least)?;
        state.orders.remove(&least);
        Ok(true)
    }

    /// Refuses an order whose bids have not begun: its escrow returns.
    fn refuse(&self, state: &mut HostState, id: Digest, why: &str) -> Result<(), Rejection> {
        let order = state.orders.get_mut(&id).ok_or_else(|| unknown(id))?;
        if order.lease.is_some() || !order.is_open() {
            return Ok(());
        }
        let mut stored = order.stored.clone();
        stored.refused = Some(why.to_owned());
        self.inner.store.put_order(id, &stored)?;
        order.stored = stored;
        self.changed();
        Ok(())
    }

    /// Begins the bids of an order whose blobs are all there.
    fn begin_if_complete(&self, id: Digest) -> Result<(), Rejection> {
        let request = {
            let state = self.state();
            let order = state.orders.get(&id).ok_or_else(|| unknown(id))?;
            if !order.missing.is_empty() || order.lease.is_some() || !order.is_open() {
                return Ok(());
            }
            order.stored.request.clone()
        };
        let checked = self.check_job(&request).and_then(|()| self.check_escrow(&request));
        if let Err(rejection) = &checked
            && rejection.code == ErrorCode::Internal
        {
            return checked;
        }
        let mut state = self.state();
        let order = state.orders.get_mut(&id).ok_or_else(|| unknown(id))?;
        if order.lease.is_some() || !order.is_open() {
            return Ok(());
        }
        let mut stored = order.stored.clone();
        let begun = checked.and_then(|()| {
            let now = self.now();
            order.begin(now).map(|lease| (now, lease))
        });
        match begun {
            Ok((now, lease)) => {
                stored.opened = Some(now);
                self.inner.store.put_order(id, &stored)?;
                (order.stored, order.lease) = (stored, Some(lease));
                Ok(())
            }
            Err(rejection) => {
                stored.refused = Some(rejection.to_string());
                self.inner.store.put_order(id, &stored)?;
                order.stored = stored;
                Err(rejection)
            }
        }
    }

    /// Checks that the blobs of a job fit together.
    fn check_job(&self, request: &OrderRequest) -> Result<(), Rejection> {
        let OrderRequest { order, job } = request;
        let blobs = &self.inner.parts.blobs;
        let read = |digest, _| blobs.read(digest).map_err(|error| blob_rejection(&error));
        LeasedTraining::load(order, job, read).map(drop).map_err(|rejection| match rejection.code {
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

    /// All orders, the newest first.
    pub(crate) fn views(&self) -> Vec<OrderView> {
        let state = self.state();
        let mut all: Vec<_> = state.orders.iter().collect();
        all.sort_by_key(|(id, order)| (std::cmp::Reverse(order.stored.received), **id));
        all.into_iter().map(|(id, order)| order.view(*id)).collect()
    }

    /// An order.
    pub(crate) fn view(&self, id: Digest) -> Result<OrderView, Rejection> {
        self.state().orders.get(&id).map(|order| order.view(id)).ok_or_else(|| unknown(id))
    }

    /// The job of an order.
    pub(crate) fn job(&self, id: Digest) -> Result<ComputeJob, Rejection> {
        let state = self.state();
        let order = state.orders.get(&id).ok_or_else(|| unknown(id))?;
        Ok(order.stored.request.job.clone())
    }

    /// The records behind the first `after`, at most [`RECORDS_PER_REPLY_MAX`].
    pub(crate) fn records(&self, id: Digest, after: u32) -> Result<Vec<LeaseRecord>, Rejection> {
        let state = self.state();
        let order = state.orders.get(&id).ok_or_else(|| unknown(id))?;
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        Ok(order.records.iter().skip(after).take(RECORDS_PER_REPLY_MAX).cloned().collect())
    }

    /// Examines a signed action that arrived at a moment, without a change.
    pub(crate) fn examine(
        &self,
        signed: &SignedLeaseAction,
        arrived: Timestamp,
    ) -> Result<ExaminedAction, Rejection> {
        let (id, by) = (signed.body.order, signed.body.by);
        let lease = {
            let state = self.state();
            let order = state.orders.get(&id).ok_or_else(|| unknown(id))?;
            let lease = order.begun()?;
            if order.has_recorded(signed) {
                return Ok(ExaminedAction::Recorded);
            }
            order.check_sender(signed)?;
            order.check_states(&signed.body.action)?;
            lease.clone()
        };
        // Without the lock: the lease is a copy.
        let mut after = lease.clone();
        let (before, record) = (needed_bond(&lease, by)?, record(&lease, signed.clone(), arrived));
        after.apply(&record).map_err(|error| refused(&error))?;
        let needed = needed_bond(&after, by)?;
        Ok(match needed > before {
            true => ExaminedAction::NeedsBond(needed),
            false => ExaminedAction::Free,
        })
    }

    /// Records an examined action. An action that is recorded already changes nothing.
    pub(crate) fn act(
        &self,
        signed: SignedLeaseAction,
        arrived: Timestamp,
    ) -> Result<(), Rejection> {
        let id = signed.body.order;
        let mut state = self.state();
        let order = state.orders.get_mut(&id).ok_or_else(|| unknown(id))?;
        if order.has_recorded(&signed) {
            return Ok(());
        }
        let record = record(order.begun()?, signed, arrived);
        self.append(id, order, record)
    }

    /// Checks that an account has deposited what the lease needs from it.
    pub(crate) fn check_bond(
        &self,
        signed: &SignedLeaseAction,
        needed: Amount,
    ) -> Result<(), Rejection> {
        let (id, by) = (signed.body.order, signed.body.by);
        let task = TaskId(id.0);
        let bond = self.inner.parts.ledger.bond_of(task, by);
        let bond = bond.map_err(|error| ledger_rejection(&error))?;
        // The ledger holds a bond whose return was requested until the lease is settled.
        if bond.amount >= needed && bond.release.is_none() {
            return Ok(());
        }
        let message = format!(
            "this action needs a bond of {needed} FLN of {by} in the order's task on the ledger, without a \
             request for its return; there are {} FLN: deposit first",
            bond.amount
        );
        Err(Rejection::new(ErrorCode::BondTooSmall, message))
    }

    /// Appends a record to an order, durably.
    fn append(
        &self,
        id: Digest,
        order: &mut HostedOrder,
        record: LeaseRecord,
    ) -> Result<(), Rejection> {
        let mut lease = order.begun()?.clone();
        let number = lease.length();
        lease.apply(&record).map_err(|error| refused(&error))?;
        self.inner.store.append(id, number, &record)?;
        if let Some(outcome) = lease.lease().outcome() {
            tracing::info!(order = %id, ?outcome, "a lease is over");
        }
        order.lease = Some(lease);
        order.records.push(record);
        self.changed();
        Ok(())
    }

    fn is_stopping(&self) -> bool {
        self.inner.is_stopping.load(Ordering::Relaxed)
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        self.inner.is_stopping.store(true, Ordering::Relaxed);
    }

    /// A consistent copy of all records; `None` before the first order.
    pub(crate) fn copy(&self) -> Result<Option<LeaseCopy>, LeaseStoreError> {
        self.inner.store.copy()
    }

    /// Whether records can be written.
    pub(crate) fn is_usable(&self) -> bool {
        self.inner.store.is_usable()
    }
}

impl HostState {
    fn missing(&self, job: &ComputeJob) -> Vec<Blob> {
        let mut seen = BTreeSet::new();
        let blobs = job_blobs(job).filter(|blob| !self.blobs.contains(&blob.digest));
        blobs.filter(|blob| seen.insert(blob.digest)).collect()
    }
}

/// Prolongs an open lease at a start: no account loses a deposit because the coordinator was down.
fn resume(
    store: &LeaseStore,
    id: Digest,
    order: &mut HostedOrder,
    now: Timestamp,
) -> Result<(), LeaseStoreError> {
    if !order.is_open() {
        return Ok(());
    }
    let Some(lease) = &mut order.lease else { return Ok(()) };
    let record = LeaseRecord { at: now.max(lease.last()), action: RecordedAction::Resumed };
    let number = lease.length();
    lease.apply(&record).map_err(|error| store.inconsistent(&error.to_string()))?;
    store.append(id, number, &record)?;
    order.records.push(record);
    Ok(())
}

/// The secret of an order's beacon. It follows from the node key, so that no account can guess it; the signature is
/// published nowhere.
fn beacon_secret(node: &NodeSigner, order: Digest) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 compute beacon secret");
    let preimage = [&b"florin v1 compute beacon secret"[..], &order.0].concat();
    hasher.update(&node.sign_bytes(&preimage).0);
    Digest(*hasher.finalize().as_bytes())
}

/// The record of an action that arrived at a moment.
fn record(lease: &RecordedLease, signed: SignedLeaseAction, arrived: Timestamp) -> LeaseRecord {
    let action = RecordedAction::Signed(Box::new(signed));
    LeaseRecord { at: arrived.max(lease.last()), action }
}

fn needed_bond(lease: &RecordedLease, by: Address) -> Result<Amount, Rejection> {
    let needed = lease.lease().books().bond_needed(by);
    needed.map_err(|error| refused(&error.into()))
}

fn ledger_rejection(error: &LedgerError) -> Rejection {
    tracing::warn!(%error, "the ledger does not answer for an order");
    Rejection::new(ErrorCode::Internal, format!("the ledger does not respond: {error}; try again"))
}

fn blob_rejection(error: &BlobError) -> Rejection {
    match error {
        BlobError::Full => Rejection::new(ErrorCode::StorageFull, error.to_string()),
        error => {
            tracing::error!(%error, "a blob of an order cannot be read or stored");
            Rejection::new(ErrorCode::Internal, "a blob cannot be read or stored: try again")
        }
    }
}
