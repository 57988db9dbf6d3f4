//! The HTTP server. Domain rules are in the engine; this module has routes, limits and signature
//! checks.
//!
//! [`router`] works without sockets. [`listen`] serves it on a listener with an accept loop of its
//! own, because a few thousand idle connections can exhaust a server without header deadlines.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use axum::{Router, middleware};
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{Address, Amount, ErrorCode, MarketId, NodeSigner, TaskId, TaskView};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

mod admit;
mod blobs;
mod body;
mod counted;
mod document;
mod error;
mod extract;
mod keys;
pub mod listen;
mod market;
mod metrics;
mod observe;
mod past;
mod places;
mod proofs;
mod pulse;
mod rate;
mod resume;
mod routes;
mod self_signed;
mod sweep;
mod tasks;
pub mod tls;
mod upload;
mod work;

use admit::Rates;
pub use document::openapi;
pub use error::ApiError;
use error::ApiResult;
use keys::Keys;
use metrics::{Load, Metrics};
use observe::Ids;
pub(crate) use observe::operator_router;
use proofs::Proofs;
pub(crate) use sweep::sweep;

use crate::config::Config;
use crate::host::{Host, LedgerPlace};
use florin_store::FETCHES_MAX;

/// Concurrent uploads of one sender.
const UPLOADS_PER_SENDER_MAX: u32 = 4;
/// Concurrent uploads of models and holdouts, from all senders.
const BLOB_UPLOADS_MAX: usize = 64;
/// Requests that wait for the ledger concurrently.
const LEDGER_WAITS_MAX: usize = 6;
/// Requests that wait concurrently until a large upload, a model or a holdout is durable, also in
/// the bucket if there is one.
const KEEPS_MAX: usize = 4;
/// Blocking threads that neither the ledger nor the bucket can occupy.
const OTHER_WAITS_MIN: usize = 4;
/// Maximum number of blocking threads. Each thread holds some memory of its own, and more threads
/// than processors and disk can serve gain nothing. With fewer, a ledger or a bucket that does not
/// respond would block all requests.
pub const WAITING_THREADS_MAX: usize = LEDGER_WAITS_MAX + KEEPS_MAX + FETCHES_MAX + OTHER_WAITS_MIN;
/// Concurrent reads of archived rounds from their blobs.
const KEPT_READS_MAX: usize = 8;
/// Bytes per permit of the semaphores that bound the memory of uploads under validation.
const ROOM_UNIT_BYTES: u64 = 1_024;

/// The state shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct App {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    ledger: Arc<dyn Ledger>,
    node: NodeSigner,
    coordinator: Address,
    market: MarketId,
    config: Config,
    place: LedgerPlace,
    update_room: Arc<Semaphore>,
    blob_room: Arc<Semaphore>,
    room_units: u32,
    blob_places: Arc<Semaphore>,
    kept_reads: Arc<Semaphore>,
    ledger_waits: Arc<Semaphore>,
    keeps: Arc<Semaphore>,
    proofs: Proofs,
    keys: Keys,
    metrics: Metrics,
    ids: Ids,
    rates: Rates,
    closing: watch::Sender<bool>,
    uploads: Mutex<BTreeMap<Address, u32>>,
    nameless: AtomicU64,
}

/// Acquires a permit of a semaphore; waits until one is free.
async fn turn_of(places: &Arc<Semaphore>) -> ApiResult<OwnedSemaphorePermit> {
    let place = Arc::clone(places).acquire_owned().await;
    place.map_err(|error| ApiError::fault("a semaphore is closed", &error))
}

impl App {
    /// Creates the state for a running host.
    #[must_use]
    pub fn new(
        host: Host,
        config: Config,
        ledger: Arc<dyn Ledger>,
        node: NodeSigner,
        coordinator: Address,
        place: LedgerPlace,
    ) -> Self {
        let units = config.in_flight_mib.saturating_mul(1024 * 1024 / ROOM_UNIT_BYTES);
        let room_units = u32::try_from(units).unwrap_or(u32::MAX >> 3);
        let all = usize::try_from(room_units).unwrap_or(usize::MAX >> 3);
        let market = ledger.market();
        let uploads = Mutex::new(BTreeMap::new());
        let rates = Rates::of(&config);
        let metrics = Metrics::new(host.vitals(), &host.blobs().seen());
        Self {
            inner: Arc::new(Inner {
                host,
                ledger,
                node,
                coordinator,
                market,
                config,
                place,
                update_room: Arc::new(Semaphore::new(all)),
                blob_room: Arc::new(Semaphore::new(all)),
                room_units,
                blob_places: Arc::new(Semaphore::new(BLOB_UPLOADS_MAX)),
                kept_reads: Arc::new(Semaphore::new(KEPT_READS_MAX)),
                ledger_waits: Arc::new(Semaphore::new(LEDGER_WAITS_MAX)),
                keeps: Arc::new(Semaphore::new(KEEPS_MAX)),
                proofs: Proofs::default(),
                keys: Keys::default(),
                metrics,
                ids: Ids::new(),
                rates,
                closing: watch::Sender::new(false),
                uploads,
                nameless: AtomicU64::new(0),
            }),
        }
    }

    /// Begins the graceful shutdown: completes every long poll, now and from now on, at once.
    pub(crate) fn close(&self) {
        self.inner.closing.send_replace(true);
    }

    /// Waits for `what` until the deadline `until` or until the shutdown begins; returns whether it
    /// happened.
    async fn happens(&self, until: Instant, what: impl Future<Output = bool>) -> bool {
        let mut closing = self.inner.closing.subscribe();
        let closes = closing.wait_for(|closing| *closing);
        tokio::select! {
            happened = timeout_at(until, what) => happened.unwrap_or(false),
            _ = closes => false,
        }
    }

    fn host(&self) -> &Host {
        &self.inner.host
    }

    fn rates(&self) -> &Rates {
        &self.inner.rates
    }

    fn config(&self) -> &Config {
        &self.inner.config
    }

    fn market(&self) -> MarketId {
        self.inner.market
    }

    fn coordinator(&self) -> Address {
        self.inner.coordinator
    }

    fn node(&self) -> &NodeSigner {
        &self.inner.node
    }

    fn place(&self) -> &LedgerPlace {
        &self.inner.place
    }

    /// Calls the ledger on a blocking thread.
    async fn ledger<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> ApiResult<T> {
        let ledger = Arc::clone(&self.inner.ledger);
        Ok(self.ledger_turn(move || ask(ledger.as_ref())).await??)
    }

    /// Runs work that waits for the ledger on a blocking thread; at most [`LEDGER_WAITS_MAX`] run
    /// concurrently.
    async fn ledger_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> ApiResult<T> {
        body::blocking_with(turn_of(&self.inner.ledger_waits).await?, work).await
    }

    /// A permit to wait until a large blob is durable.
    async fn keep_turn(&self) -> ApiResult<OwnedSemaphorePermit> {
        turn_of(&self.inner.keeps).await
    }

    /// A participant's bond; zero if its release has been requested.
    async fn bond(&self, task: TaskId, account: Address) -> ApiResult<Amount> {
        let bond = self.ledger(move |ledger| ledger.bond_of(task, account)).await?;
        Ok(if bond.release.is_some() { Amount::ZERO } else { bond.amount })
    }

    async fn view(&self, id: TaskId) -> ApiResult<TaskView> {
        let (view, offer) = self.host().read(move |engine, now| engine.view(id, now)).await??;
        Ok(TaskView { offer: offer.map(|offer| self.node().sign(offer)), ..view })
    }

    fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The connection metrics of the public listener.
    pub(crate) fn door(&self) -> listen::Seen {
        self.inner.metrics.door()
    }

    /// The queued commands and in-flight uploads, now.
    fn load(&self) -> Load {
        let inner = &self.inner;
        let uploads = inner.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let updates = uploads.values().fold(0, |all: u32, n| all.saturating_add(*n));
        let blobs = BLOB_UPLOADS_MAX.saturating_sub(inner.blob_places.available_permits());
        let all = usize::try_from(inner.room_units).unwrap_or(usize::MAX);
        let taken = |room: &Semaphore| {
            let units = all.saturating_sub(room.available_permits()) as u64;
            units.saturating_mul(ROOM_UNIT_BYTES)
        };
        Load {
            queue: inner.host.waiting(),
            uploads: [("updates", updates.into()), ("blobs", blobs as u64)],
            room: [("updates", taken(&inner.update_room)), ("blobs", taken(&inner.blob_room))],
        }
    }

    fn ids(&self) -> &Ids {
        &self.inner.ids
    }

    fn keys(&self) -> &Keys {
        &self.inner.keys
    }

    fn proofs(&self) -> &Proofs {
        &self.inner.proofs
    }

    /// Reserves memory to validate `bytes` that have arrived; waits until it is free. Bytes that
    /// have not arrived reserve nothing, so a client that announces much and sends nothing takes no
    /// memory. Models and holdouts, which any client may send, have a pool of their own, so that
    /// they never block updates.
    ///
    /// # Errors
    /// [`ErrorCode::LimitReached`] if no memory becomes free in time.
    async fn room_for(&self, room: Room, bytes: u64) -> ApiResult<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT_BYTES)).unwrap_or(u32::MAX);
        let units = units.min(self.inner.room_units);
        let room = match room {
            Room::Updates => &self.inner.update_room,
            Room::Blobs => &self.inner.blob_room,
        };
        let room = Arc::clone(room).acquire_many_owned(units);
        match timeout(self.config().body_time(bytes), room).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => {
                let message = "too many uploads are being validated: try again in a moment";
                Err(ApiError::new(ErrorCode::LimitReached, message))
            }
        }
    }

    /// A permit to upload a model or a holdout, released when dropped.
    fn blob_place(&self) -> ApiResult<OwnedSemaphorePermit> {
        Arc::clone(&self.inner.blob_places).try_acquire_owned().map_err(|_| {
            let message =
                format!("{BLOB_UPLOADS_MAX} uploads of models and holdouts are in flight: retry");
            ApiError::new(ErrorCode::LimitReached, message)
        })
    }

    /// One of a sender's upload slots, released when dropped.
    fn upload_slot(&self, sender: Address) -> ApiResult<UploadSlot> {
        let mut uploads = self.inner.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let now = uploads.entry(sender).or_insert(0);
        if *now >= UPLOADS_PER_SENDER_MAX {
            let message = format!("at most {UPLOADS_PER_SENDER_MAX} concurrent uploads per sender");
            return Err(ApiError::new(ErrorCode::LimitReached, message));
        }
        *now += 1;
        Ok(UploadSlot { app: self.clone(), sender })
    }
}

/// The memory pool for the validation of uploads.
#[derive(Clone, Copy, Debug)]
enum Room {
    Updates,
    Blobs,
}

struct UploadSlot {
    app: App,
    sender: Address,
}

impl Drop for UploadSlot {
    fn drop(&mut self) {
        let mut uploads = self.app.inner.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = uploads.get_mut(&self.sender) {
            *now = now.saturating_sub(1);
            if *now == 0 {
                uploads.remove(&self.sender);
            }
        }
    }
}

/// The router of all routes, which `/openapi.json` and `docs/protocol.md` describe.
pub fn router(app: App) -> Router {
    routes::router(&app)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), admit::admit))
        .layer(middleware::from_fn_with_state(app.clone(), observe::watch))
        .with_state(app)
}

async fn unknown() -> ApiError {
    let message = "no such route: see /openapi.json or docs/protocol.md";
    ApiError::new(ErrorCode::NotFound, message)
}

async fn wrong_method() -> ApiError {
    let message = "this route does not allow the method: see the `allow` header";
    ApiError::new(ErrorCode::MethodNotAllowed, message)
}
