//! The leases of compute that this coordinator hosts: it accepts orders, records signed actions, has the bytes of
//! jobs and states, applies defaults after deadlines, opens the beacon of the audits, and settles on the ledger.
//!
//! The rules are in [`florin_compute`]; a lease follows from its record, which any account can fold. An action is
//! durable before its reply. The bytes of a state are checked before the lease names it, so that each audit has a
//! start and the renter has its result.

mod acceptance;
mod arrival;
mod arriving;
mod checkpoints;
mod deadlines;
mod hosted;
mod listings;
mod money;
mod order_changes;
mod restricted;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_compute::{
    ComputeJob, ComputeOrder, DataClass, LeaseError, LeaseRecord, OrderMoney, OrderRequest,
    OrderView, RecordedAction, RecordedLease, SignedLeaseAction,
};
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{
    Address, Amount, AmountError, Blob, Digest, ErrorCode, MarketId, NodeSigner, Rejection, TaskId,
    Timestamp, WalletSigner,
};
use florin_store::{BlobError, BlobStore};
use tokio::sync::watch;

use crate::host::Clock;
use hosted::HostedOrder;
use listings::HostedListing;
use order_changes::ChangeLog;
use restricted::{RestrictedFiles, absent};
use store::LeaseStore;

pub(crate) use arrival::BytesPlace;
use arriving::{ArrivingAction, ArrivingActions};
pub use restricted::RESTRICTED_FOLDER;
pub(crate) use restricted::make_private;
pub use store::{LEASES_FILE, LeaseCopy, LeaseStoreError};

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
    /// Number of listings.
    pub listings: u64,
    /// The blobs of their jobs and states.
    pub blobs: BTreeSet<Digest>,
    /// The files of orders that are not public, by the order, which are missing or damaged.
    pub damaged: Vec<(Digest, Digest)>,
}

/// Reads the leases of a data folder that no process uses, and folds each record; `None` if it never had any.
///
/// # Errors
/// [`LeaseStoreError`] for a damaged file, or a record that contradicts the rules.
pub fn read_leases(folder: &Path) -> Result<Option<StoredLeases>, LeaseStoreError> {
    let Some(store) = LeaseStore::read_only(folder)? else { return Ok(None) };
    let (loaded, files) = (store.load()?, RestrictedFiles::new(folder));
    let mut found = StoredLeases { blobs: loaded.blobs, ..StoredLeases::default() };
    for order in loaded.orders.into_values() {
        found.orders = found.orders.saturating_add(1);
        let records = u64::try_from(order.records.len()).unwrap_or(u64::MAX);
        found.records = found.records.saturating_add(records);
        let id = order.stored.request.order.id();
        let folded = HostedOrder::load(order, Vec::new());
        let folded = folded.map_err(|why| store.inconsistent(&why))?;
        for file in folded.own_files() {
            let is_own = folded.has_own_file(&files, id, file);
            match is_own {
                false => drop(found.blobs.insert(file)),
                true if files.read(id, file).is_err() => found.damaged.push((id, file)),
                true => {}
            }
        }
    }
    for listing in loaded.listings.into_values() {
        found.listings = found.listings.saturating_add(1);
        // The account of the coordinator is in no record: it receives the pay, and no rule depends on it.
        let folded = HostedListing::load(listing.stored, listing.records, Address([0; 20]));
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
    restricted: RestrictedFiles,
    state: Mutex<HostState>,
    /// Held while an order or a listing is accepted, from the look at the coordinator's balance on: two at a time
    /// would count on the same tokens.
    acceptance: Mutex<()>,
    /// Actions that have arrived and are not recorded yet.
    arriving: ArrivingActions,
    changes: watch::Sender<u64>,
    /// Another number for each start, of 48 bits.
    run: u64,
    /// Files of leases that are over, by the order.
    unneeded: Mutex<Vec<(Digest, Vec<Digest>)>>,
    is_stopping: AtomicBool,
    /// The mean milliseconds between two probes of all listings.
    probe_every_ms: AtomicU64,
    /// The next moment at which all idle listings are probed.
    fleet_probe: Mutex<Option<Timestamp>>,
}

/// Intervals for which its own work may delay a listing's common probe before its bids count no more.
const OVERDUE_INTERVALS: u64 = 4;
/// Default of the mean milliseconds between two probes of all listings: an hour.
const PROBE_EVERY_MS: u64 = 3_600_000;

#[derive(Default)]
struct HostState {
    orders: BTreeMap<Digest, HostedOrder>,
    listings: BTreeMap<Digest, HostedListing>,
    /// Blobs that were uploaded for jobs. A blob of a task is not among them before that: it may be secret.
    blobs: BTreeSet<Digest>,
    log: ChangeLog,
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

impl LeaseHost {
    /// Loads the leases of a data folder.
    ///
    /// # Errors
    /// [`LeaseStoreError`].
    pub(crate) fn open(folder: &Path, parts: LeaseParts) -> Result<Self, LeaseStoreError> {
        let store = LeaseStore::open(folder)?;
        let loaded = store.load()?;
        let mut state = HostState { blobs: loaded.blobs, ..HostState::default() };
        let restricted = RestrictedFiles::new(folder);
        for (id, order) in loaded.orders {
            let missing = state.missing(&order.stored.request, &restricted);
            let has_checkpoints = !order.checkpoints.is_empty();
            let hosted = HostedOrder::load(order, missing);
            let mut hosted = hosted.map_err(|why| store.inconsistent(&why))?;
            if has_checkpoints && !hosted.is_open() {
                // A process may have ended before it forgot them.
                store.forget_checkpoints(id)?;
            }
            resume(&store, id, &mut hosted, parts.clock.now())?;
            state.orders.insert(id, hosted);
        }
        state.remove_leftovers(&restricted);
        let own = parts.wallet.address();
        for (id, loaded) in loaded.listings {
            let hosted = HostedListing::load(loaded.stored, loaded.records, own);
            let mut hosted = hosted.map_err(|why| store.inconsistent(&why))?;
            hosted.resume(&store, parts.clock.now())?;
            state.listings.insert(id, hosted);
        }
        let run = run_number(&parts.node, parts.clock.now());
        let inner = Inner {
            run,
            unneeded: Mutex::default(),
            market: parts.ledger.market(),
            parts,
            store,
            restricted,
            state: Mutex::new(state),
            acceptance: Mutex::new(()),
            arriving: ArrivingActions::default(),
            changes: watch::Sender::new(0),
            is_stopping: AtomicBool::new(false),
            probe_every_ms: AtomicU64::new(PROBE_EVERY_MS),
            fleet_probe: Mutex::new(None),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn state(&self) -> MutexGuard<'_, HostState> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accepting(&self) -> MutexGuard<'_, ()> {
        self.inner.acceptance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the mean milliseconds between two probes of all listings.
    pub(crate) fn probe_every(&self, ms: u64) {
        self.inner.probe_every_ms.store(ms, Ordering::Relaxed);
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

    /// All orders, the newest first.
    pub(crate) fn views(&self) -> Vec<OrderView> {
        let state = self.state();
        let mut all: Vec<_> = state.orders.iter().collect();
        all.sort_by_key(|(id, order)| (std::cmp::Reverse(order.stored.received), **id));
        all.into_iter().map(|(id, order)| order.view(*id)).collect()
    }

    /// An order.
    pub(crate) fn view(&self, id: Digest) -> Result<OrderView, Rejection> {
        self.state().order(id).map(|order| order.view(id))
    }

    /// The job of an order.
    pub(crate) fn job(&self, id: Digest) -> Result<ComputeJob, Rejection> {
        let state = self.state();
        let order = state.order(id)?;
        Ok(order.stored.request.job.clone())
    }

    /// The records behind the first `after`, at most [`RECORDS_PER_REPLY_MAX`].
    pub(crate) fn records(&self, id: Digest, after: u32) -> Result<Vec<LeaseRecord>, Rejection> {
        let state = self.state();
        let order = state.order(id)?;
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        Ok(order.records.iter().skip(after).take(RECORDS_PER_REPLY_MAX).cloned().collect())
    }

    /// An action for an order that arrives now. No default of a deadline that it has met is applied before it is
    /// dropped, for a while.
    pub(crate) fn arriving(&self, order: Digest) -> ArrivingAction {
        self.inner.arriving.begin(order, self.now())
    }

    /// Examines a signed action that arrived at a moment, without a change.
    pub(crate) fn examine(
        &self,
        signed: &SignedLeaseAction,
        arrived: Timestamp,
    ) -> Result<ExaminedAction, Rejection> {
        let (id, by) = (signed.body.order, signed.body.by);
        let (lease, at) = {
            let state = self.state();
            let order = state.order(id)?;
            let lease = order.begun()?;
            if order.has_recorded(signed) {
                return Ok(ExaminedAction::Recorded);
            }
            order.check_sender(signed)?;
            order.check_states(&signed.body.action)?;
            self.check_listed(&state, order, signed)?;
            (lease.lease().clone(), arrived.max(lease.last()))
        };
        // Without the lock: the lease is a copy.
        let before = lease.books().bond_needed(by).map_err(|error| refused(&error.into()))?;
        let needed = lease.bond_needed_after(by, &signed.body.action, at);
        let needed = needed.map_err(|error| refused(&error))?;
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
        let order = state.order(id)?;
        if order.has_recorded(&signed) {
            return Ok(());
        }
        // The listing may have ended while the ledger was asked.
        self.check_listed(&state, order, &signed)?;
        let order = state.order_mut(id)?;
        let record = record(order.begun()?, signed, arrived);
        self.append(id, order, record)
    }

    /// Checks that the devices of a bid are listed, if the order asks for it.
    fn check_listed(
        &self,
        state: &HostState,
        order: &HostedOrder,
        signed: &SignedLeaseAction,
    ) -> Result<(), Rejection> {
        let every = self.inner.probe_every_ms.load(Ordering::Relaxed);
        let overdue = every.saturating_mul(OVERDUE_INTERVALS);
        state.check_listed(order, (signed.body.by, &signed.body.action), (self.now(), overdue))
    }

    /// Checks that an account has deposited what the lease needs from it.
    pub(crate) fn check_bond(
        &self,
        signed: &SignedLeaseAction,
        needed: Amount,
    ) -> Result<(), Rejection> {
        let (id, by) = (signed.body.order, signed.body.by);
        self.require_bond(TaskId(id.0), by, (needed, "this action", "the order's task"))
    }

    /// Checks that an account has a bond in a task on the ledger.
    fn require_bond(
        &self,
        task: TaskId,
        by: Address,
        (needed, what, place): (Amount, &str, &str),
    ) -> Result<(), Rejection> {
        let bond = self.inner.parts.ledger.bond_of(task, by);
        let bond = bond.map_err(|error| ledger_rejection(&error))?;
        // The ledger holds a bond whose return was requested until the task is settled.
        if bond.amount >= needed && bond.release.is_none() {
            return Ok(());
        }
        let message = format!(
            "{what} needs a bond of {needed} FLN of {by} in {place} on the ledger, without a request for its \
             return; there are {} FLN: deposit first",
            bond.amount
        );
        Err(Rejection::new(ErrorCode::BondTooSmall, message))
    }

    /// Checks that the coordinator's wallet can cover pay by a bond, until its settlement is final, beside the pay of
    /// all orders and listings that it has accepted.
    fn check_cover(&self, most: Amount, (what, less): (&str, &str)) -> Result<(), Rejection> {
        let parts = &self.inner.parts;
        let own = parts.wallet.address();
        // Before the balance: a bond that is deposited between the two looks counts twice, and none is left out.
        let promised = self.state().promised_cover().unwrap_or(Amount::from_units(u128::MAX));
        let balance = parts.ledger.balance(own).map_err(|error| ledger_rejection(&error))?;
        let free = balance.minus(promised).unwrap_or_default();
        if free >= most {
            return Ok(());
        }
        let message = format!(
            "the coordinator {own} has {balance} FLN, of which {promised} FLN cover orders and listings that are not settled, \
             and must cover {what} by a bond, at most {most} FLN: ask its operator to transfer the lacking FLN to it, \
             try again when others are settled, or {less}"
        );
        Err(Rejection::new(ErrorCode::LimitReached, message))
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
        self.end_checkpoints(id, order);
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
    fn order(&self, id: Digest) -> Result<&HostedOrder, Rejection> {
        self.orders.get(&id).ok_or_else(|| unknown(id))
    }

    fn order_mut(&mut self, id: Digest) -> Result<&mut HostedOrder, Rejection> {
        self.orders.get_mut(&id).ok_or_else(|| unknown(id))
    }

    /// The most that the coordinator's wallet still has to deposit for what it has accepted.
    fn promised_cover(&self) -> Result<Amount, AmountError> {
        let waits = |money: OrderMoney, is_covered: bool| !money.is_final() && !is_covered;
        let orders = self.orders.values().filter(|one| waits(one.stored.money, one.is_covered));
        let orders = orders.map(|one| one.stored.request.order.escrow());
        let listings = self.listings.values().filter(|one| waits(one.stored.money, one.is_covered));
        let listings = listings.map(|one| one.stored.terms.pool());
        // Both were computed at the acceptance, so that neither overflows.
        Amount::total(orders.chain(listings).filter_map(Result::ok))
    }

    fn missing(&self, request: &OrderRequest, restricted: &RestrictedFiles) -> Vec<Blob> {
        let mut seen = BTreeSet::new();
        let (id, is_restricted) = (request.order.id(), is_restricted(&request.order));
        let rows = request.job.rows.digest;
        let is_missing = |blob: &Blob| match is_restricted && blob.digest == rows {
            true => !restricted.contains(id, rows),
            false => !self.blobs.contains(&blob.digest),
        };
        let blobs = request.job.blobs().filter(is_missing);
        blobs.filter(|blob| seen.insert(blob.digest)).collect()
    }

    /// Removes files of restricted orders that a process did not remove before it ended.
    fn remove_leftovers(&self, files: &RestrictedFiles) {
        let found = files.orders().unwrap_or_else(|error| {
            tracing::error!(%error, "the folder of restricted orders cannot be read");
            Vec::new()
        });
        for id in found {
            match self.orders.get(&id) {
                Some(order) => {
                    order.remove_unneeded(files, id);
                    log_unremoved(id, absent(files.keep(id, &order.own_or_arrived_files())));
                }
                None => log_unremoved(id, files.remove_all(id)),
            }
        }
    }
}

/// Whether only some accounts may read the rows of an order.
fn is_restricted(order: &ComputeOrder) -> bool {
    order.data_class != DataClass::Public
}

/// The next start tries again.
fn log_unremoved(order: Digest, removed: std::io::Result<()>) {
    if let Err(error) = removed {
        tracing::error!(%order, %error, "files of a restricted order cannot be removed");
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

/// A number of this start, of 48 bits: JSON has it exactly.
fn run_number(node: &NodeSigner, now: Timestamp) -> u64 {
    let secret = node_secret(node, "florin v1 run of a coordinator", &now.0.to_le_bytes());
    let bytes = secret.0.first_chunk::<8>().copied().unwrap_or_default();
    u64::from_le_bytes(bytes) >> 16
}

/// The secret of an order's beacon.
fn beacon_secret(node: &NodeSigner, order: Digest) -> Digest {
    node_secret(node, "florin v1 compute beacon secret", &order.0)
}

/// A secret of the coordinator. It follows from the node key, so that no account can guess it; the signature is
/// published nowhere.
fn node_secret(node: &NodeSigner, context: &str, of: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    let preimage = [context.as_bytes(), of].concat();
    hasher.update(&node.sign_bytes(&preimage).0);
    Digest(*hasher.finalize().as_bytes())
}

/// The record of an action that arrived at a moment.
fn record(lease: &RecordedLease, signed: SignedLeaseAction, arrived: Timestamp) -> LeaseRecord {
    let action = RecordedAction::Signed(Box::new(signed));
    LeaseRecord { at: arrived.max(lease.last()), action }
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
