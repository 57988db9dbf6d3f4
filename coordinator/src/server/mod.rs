//! The HTTP interface. Domain rules live in the engine; here are routes, limits and signatures.
//!
//! [`router`] works without sockets; [`listen`] puts it on a listener with a connection loop of our own, because a
//! server without header deadlines can be held by a few thousand idle connections.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use axum::{Router, middleware};
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{Address, Amount, Code, Market, NodeSigner, TaskId, TaskView};
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

/// Uploads of one sender at once.
const UPLOADS_PER_SENDER_MAX: u32 = 4;
/// Uploads of models and holdouts at once, from anybody.
const BLOB_UPLOADS_MAX: usize = 64;
/// Requests that wait for the ledger at once.
const LEDGER_WAITS_MAX: usize = 6;
/// Requests at once that wait until a large upload, a model or a holdout is durable, in the bucket too if there is one.
const KEEPS_MAX: usize = 4;
/// Threads that neither the ledger nor the bucket can hold up.
const OTHER_WAITS_MIN: usize = 4;
/// Threads that may wait at once. Each keeps some memory of its own, and more than the processors and the disk can serve
/// bring nothing; fewer would leave everybody waiting where the ledger or the bucket does not answer.
pub const WAITING_THREADS_MAX: usize = LEDGER_WAITS_MAX + KEEPS_MAX + FETCHES_MAX + OTHER_WAITS_MIN;
/// Rounds that are read from their blobs at once.
const KEPT_READS_MAX: usize = 8;
/// What bytes that are being checked are counted in.
const ROOM_UNIT_BYTES: u64 = 1_024;

/// Everything a handler needs; cheap to copy.
#[derive(Clone)]
pub struct App {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    ledger: Arc<dyn Ledger>,
    node: NodeSigner,
    coordinator: Address,
    market: Market,
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

/// A place among those that a semaphore has; waits until there is one.
async fn turn_of(places: &Arc<Semaphore>) -> ApiResult<OwnedSemaphorePermit> {
    let place = Arc::clone(places).acquire_owned().await;
    place.map_err(|error| ApiError::fault("places were closed", &error))
}

impl App {
    /// The interface of a running host.
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

    /// Answers everybody who waits for something to happen, from now on at once: the coordinator is about to stop.
    pub(crate) fn close(&self) {
        self.inner.closing.send_replace(true);
    }

    /// Waits for something, until a moment or until the coordinator is about to stop; whether it happened.
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

    fn market(&self) -> Market {
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

    /// Asks the ledger where it holds up nobody else.
    async fn ledger<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> ApiResult<T> {
        let ledger = Arc::clone(&self.inner.ledger);
        Ok(self.ledger_turn(move || ask(ledger.as_ref())).await??)
    }

    /// Does what waits for the ledger: of such, only so many at once.
    async fn ledger_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> ApiResult<T> {
        body::blocking_with(turn_of(&self.inner.ledger_waits).await?, work).await
    }

    /// Leave to wait until something large is durable.
    async fn keep_turn(&self) -> ApiResult<OwnedSemaphorePermit> {
        turn_of(&self.inner.keeps).await
    }

    /// What a participant has at risk; nothing if it has asked for it back.
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

    /// What the front door counts.
    pub(crate) fn door(&self) -> listen::Seen {
        self.inner.metrics.door()
    }

    /// What waits and what is under way, now.
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

    /// Waits for room for so many bytes that have arrived. Nothing is held for bytes that have not: whoever announces
    /// much and sends nothing takes nothing. Models and holdouts, which anybody may send, have room of their own, so
    /// that they never stand in the way of updates.
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
                let message = "too many bytes are being checked: try again in a moment";
                Err(ApiError::new(Code::LimitReached, message))
            }
        }
    }

    /// One of the places for models and holdouts, given back when dropped.
    fn blob_place(&self) -> ApiResult<OwnedSemaphorePermit> {
        Arc::clone(&self.inner.blob_places).try_acquire_owned().map_err(|_| {
            let message =
                format!("{BLOB_UPLOADS_MAX} uploads of models and holdouts are under way");
            ApiError::new(Code::LimitReached, message)
        })
    }

    /// One of a sender's few places for uploads, given back when dropped.
    fn upload_slot(&self, sender: Address) -> ApiResult<UploadSlot> {
        let mut uploads = self.inner.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let now = uploads.entry(sender).or_insert(0);
        if *now >= UPLOADS_PER_SENDER_MAX {
            let message = format!("at most {UPLOADS_PER_SENDER_MAX} uploads of one sender at once");
            return Err(ApiError::new(Code::LimitReached, message));
        }
        *now += 1;
        Ok(UploadSlot { app: self.clone(), sender })
    }
}

/// Whose bytes are checked.
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

/// The routes, which `/openapi.json` and `docs/protocol.md` describe.
pub fn router(app: App) -> Router {
    routes::router(&app)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), admit::admit))
        .layer(middleware::from_fn_with_state(app.clone(), observe::watch))
        .with_state(app)
}

async fn unknown() -> ApiError {
    let message = "there is no such route: see /openapi.json or docs/protocol.md";
    ApiError::new(Code::NotFound, message)
}

async fn wrong_method() -> ApiError {
    let message = "this route has other methods: the header `allow` names them";
    ApiError::new(Code::MethodNotAllowed, message)
}
