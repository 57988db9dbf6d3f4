//! The HTTP server. Domain rules are in the engine; this module has routes, limits and signature
//! checks.
//!
//! [`router`] works without sockets. [`listen`] serves it on a listener with an accept loop of its
//! own, because a few thousand idle connections can exhaust a server without header deadlines.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, middleware};
use florin_engine::UnsignedTaskView;
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{
    Address, Amount, Digest, ErrorCode, MarketId, NodeSigner, TaskId, TaskView, UpdateReceipt,
    UploadReceipt,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

mod admission;
mod blobs;
mod body;
mod connection_activity;
mod connection_limiter;
pub mod connection_metrics;
mod counted_body;
mod error;
mod events;
mod extract;
mod finished_rounds;
mod header_check;
mod key_cache;
pub mod listen;
mod listings;
mod market;
mod metrics;
mod observe;
mod openapi_document;
mod openapi_schemas;
mod openapi_text;
pub(crate) mod operator;
mod orders;
mod parser_refusal;
mod proof_cache;
mod rate_limiter;
mod report_list;
mod request_head;
mod resumable_upload;
mod route;
mod routes;
mod self_signed;
mod slots;
mod tasks;
pub mod tls;
mod upload;
mod upload_cleanup;
mod work;

use admission::RequestRateLimits;
pub use error::ApiError;
use error::ApiResult;
use events::EventStreams;
use key_cache::KeyCache;
use metrics::{Metrics, ServerLoad};
use observe::RequestIds;
pub(crate) use observe::operator_router;
use proof_cache::ProofCache;
use report_list::ReportLists;
pub use routes::openapi;
pub(crate) use routes::serve_document;
use slots::{BytesInFlight, Flight, Slot, Slots};
pub(crate) use upload_cleanup::sweep;

use crate::config::Config;
use crate::host::{Host, LedgerEndpoint};
use crate::page;
use connection_metrics::ConnectionMetrics;
use florin_store::FETCHES_MAX;

/// Concurrent uploads of one sender.
const UPLOADS_PER_SENDER_MAX: u32 = 4;
/// Concurrent uploads of models, holdouts and blobs of orders, from all senders.
const BLOB_UPLOADS_MAX: usize = 64;
/// The same from one address with a rate limit: slow uploads of a few addresses leave places for others.
const BLOB_UPLOADS_PER_ADDRESS_MAX: u32 = 16;
/// Concurrent uploads of the states of one order. They take no place of other uploads: a provider that cannot upload
/// in time loses its stake.
const STATE_UPLOADS_PER_ORDER_MAX: u32 = 4;
/// Concurrent uploads of transcripts, from all providers.
const TRANSCRIPT_UPLOADS_MAX: usize = 16;
/// Requests that wait for the ledger concurrently.
const LEDGER_CALLS_MAX: usize = 6;
/// Requests of accounts without a part in an order that wait for the ledger concurrently: they leave places for the
/// deposits of those with a part.
const JOIN_CHECKS_MAX: usize = 3;
/// Requests that read a whole job of an order concurrently: they leave turns for the states of providers.
const JOB_READS_MAX: usize = 2;
/// Blobs that are compared with their digests concurrently before they are sent.
const BLOB_READS_MAX: usize = 4;
/// Requests that wait concurrently until a large upload, a model or a holdout is durable, also in
/// the bucket if there is one.
const LARGE_STORES_MAX: usize = 4;
/// Blocking threads that neither the ledger, the bucket nor reads of blobs can occupy.
const OTHER_WAITS_MIN: usize = 4;
/// Maximum number of blocking threads. Each thread holds some memory of its own, and more threads
/// than processors and disk can serve gain nothing. With fewer, a ledger or a bucket that does not
/// respond would block all requests.
pub const BLOCKING_THREADS_MAX: usize = LEDGER_CALLS_MAX
    + LARGE_STORES_MAX
    + JOB_READS_MAX
    + BLOB_READS_MAX
    + FETCHES_MAX
    + OTHER_WAITS_MIN;
/// Concurrent reads of archived rounds from their blobs.
const ARCHIVE_READS_MAX: usize = 8;
/// Bytes per permit of the semaphores that bound the memory of uploads under validation.
const MEMORY_UNIT_BYTES: u64 = 1_024;

/// The state shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct App {
    inner: Arc<AppInner>,
}

struct AppInner {
    host: Host,
    ledger: Arc<dyn Ledger>,
    node: NodeSigner,
    coordinator: Address,
    market: MarketId,
    config: Config,
    ledger_endpoint: LedgerEndpoint,
    update_memory: Arc<Semaphore>,
    blob_memory: Arc<Semaphore>,
    job_memory: Arc<Semaphore>,
    memory_units: u32,
    blob_upload_permits: Arc<Semaphore>,
    transcript_upload_permits: Arc<Semaphore>,
    archive_read_permits: Arc<Semaphore>,
    ledger_permits: Arc<Semaphore>,
    join_check_permits: Arc<Semaphore>,
    blob_read_permits: Arc<Semaphore>,
    job_read_permits: Arc<Semaphore>,
    large_store_permits: Arc<Semaphore>,
    proofs: ProofCache,
    report_lists: ReportLists,
    keys: KeyCache,
    metrics: Metrics,
    ids: RequestIds,
    rates: RequestRateLimits,
    closing: watch::Sender<bool>,
    events: EventStreams,
    uploads: Slots<Address>,
    blob_uploads: Slots<IpAddr>,
    state_uploads: Slots<Digest>,
    checkpoints: BytesInFlight,
    anonymous_uploads: AtomicU64,
}

/// Acquires a permit of a semaphore; waits until one is free.
async fn acquire_permit(places: &Arc<Semaphore>) -> ApiResult<OwnedSemaphorePermit> {
    let place = Arc::clone(places).acquire_owned().await;
    place.map_err(|error| ApiError::internal("a semaphore is closed", &error))
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
        place: LedgerEndpoint,
    ) -> Self {
        let units = config.in_flight_mib.saturating_mul(1024 * 1024 / MEMORY_UNIT_BYTES);
        let room_units = u32::try_from(units).unwrap_or(u32::MAX >> 3);
        let all = usize::try_from(room_units).unwrap_or(usize::MAX >> 3);
        let market = ledger.market();
        let rates = RequestRateLimits::from_config(&config);
        let (journal, valuations) = (host.journal_metrics(), host.valuation_metrics());
        host.leases().probe_every(config.listings.probe_every_ms);
        let metrics = Metrics::new(journal, valuations, &host.blobs().bucket_metrics());
        Self {
            inner: Arc::new(AppInner {
                host,
                ledger,
                node,
                coordinator,
                market,
                config,
                ledger_endpoint: place,
                update_memory: Arc::new(Semaphore::new(all)),
                blob_memory: Arc::new(Semaphore::new(all)),
                job_memory: Arc::new(Semaphore::new(all)),
                memory_units: room_units,
                blob_upload_permits: Arc::new(Semaphore::new(BLOB_UPLOADS_MAX)),
                transcript_upload_permits: Arc::new(Semaphore::new(TRANSCRIPT_UPLOADS_MAX)),
                archive_read_permits: Arc::new(Semaphore::new(ARCHIVE_READS_MAX)),
                ledger_permits: Arc::new(Semaphore::new(LEDGER_CALLS_MAX)),
                join_check_permits: Arc::new(Semaphore::new(JOIN_CHECKS_MAX)),
                blob_read_permits: Arc::new(Semaphore::new(BLOB_READS_MAX)),
                job_read_permits: Arc::new(Semaphore::new(JOB_READS_MAX)),
                large_store_permits: Arc::new(Semaphore::new(LARGE_STORES_MAX)),
                proofs: ProofCache::default(),
                report_lists: ReportLists::default(),
                keys: KeyCache::default(),
                metrics,
                ids: RequestIds::new(),
                rates,
                closing: watch::Sender::new(false),
                events: EventStreams::new(),
                uploads: Slots::new(UPLOADS_PER_SENDER_MAX),
                blob_uploads: Slots::new(BLOB_UPLOADS_PER_ADDRESS_MAX),
                state_uploads: Slots::new(STATE_UPLOADS_PER_ORDER_MAX),
                checkpoints: BytesInFlight::default(),
                anonymous_uploads: AtomicU64::new(0),
            }),
        }
    }

    /// Begins the graceful shutdown: completes every long poll, now and from now on, at once.
    pub(crate) fn begin_shutdown(&self) {
        self.inner.closing.send_replace(true);
    }

    /// Waits for `what` until the deadline `until` or until the shutdown begins; returns whether it
    /// happened.
    async fn wait_for(&self, until: Instant, what: impl Future<Output = bool>) -> bool {
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

    fn rates(&self) -> &RequestRateLimits {
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

    /// Signs a receipt with the node key, and for the ledger with the wallet.
    fn sign_receipt(&self, receipt: UpdateReceipt) -> ApiResult<UploadReceipt> {
        UploadReceipt::sign(receipt, self.node(), self.host().wallet())
            .map_err(|error| ApiError::internal("the wallet signs no receipt", &error))
    }

    pub(crate) fn node(&self) -> &NodeSigner {
        &self.inner.node
    }

    fn ledger_endpoint(&self) -> &LedgerEndpoint {
        &self.inner.ledger_endpoint
    }

    /// Calls the ledger on a blocking thread.
    async fn ledger<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> ApiResult<T> {
        let ledger = Arc::clone(&self.inner.ledger);
        Ok(self.with_ledger_permit(move || ask(ledger.as_ref())).await??)
    }

    /// Runs work that waits for the ledger on a blocking thread; at most [`LEDGER_CALLS_MAX`] run
    /// concurrently.
    async fn with_ledger_permit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> ApiResult<T> {
        body::blocking_holding(acquire_permit(&self.inner.ledger_permits).await?, work).await
    }

    /// A permit to wait until a large blob is durable.
    async fn large_store_permit(&self) -> ApiResult<OwnedSemaphorePermit> {
        acquire_permit(&self.inner.large_store_permits).await
    }

    /// A participant's bond; zero if its release has been requested.
    async fn bond(&self, task: TaskId, account: Address) -> ApiResult<Amount> {
        let bond = self.ledger(move |ledger| ledger.bond_of(task, account)).await?;
        Ok(if bond.release.is_some() { Amount::ZERO } else { bond.amount })
    }

    async fn view(&self, id: TaskId) -> ApiResult<TaskView> {
        let UnsignedTaskView { view, offer } =
            self.host().read(move |engine, now| engine.view(id, now)).await??;
        Ok(TaskView { offer: offer.map(|offer| self.node().sign(offer)), ..view })
    }

    fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The connection metrics of the public listener.
    pub(crate) fn connection_metrics(&self) -> ConnectionMetrics {
        self.inner.metrics.connections()
    }

    /// The queued commands and in-flight uploads, now.
    fn load(&self) -> ServerLoad {
        let inner = &self.inner;
        let updates = inner.uploads.count();
        let blobs = BLOB_UPLOADS_MAX.saturating_sub(inner.blob_upload_permits.available_permits());
        let all = usize::try_from(inner.memory_units).unwrap_or(usize::MAX);
        let taken = |room: &Semaphore| {
            let units = all.saturating_sub(room.available_permits()) as u64;
            units.saturating_mul(MEMORY_UNIT_BYTES)
        };
        ServerLoad {
            queue: inner.host.queue_length(),
            uploads: [("updates", updates.into()), ("blobs", blobs as u64)],
            upload_memory: [
                ("updates", taken(&inner.update_memory)),
                ("blobs", taken(&inner.blob_memory)),
            ],
        }
    }

    fn ids(&self) -> &RequestIds {
        &self.inner.ids
    }

    fn keys(&self) -> &KeyCache {
        &self.inner.keys
    }

    fn proofs(&self) -> &ProofCache {
        &self.inner.proofs
    }

    /// Reserves memory to validate `bytes` that have arrived; waits until it is free. Bytes that
    /// have not arrived reserve nothing, so a client that announces much and sends nothing takes no
    /// memory. Models and holdouts, which any client may send, have a pool of their own, so that
    /// they never block updates.
    ///
    /// # Errors
    /// [`ErrorCode::LimitReached`] if no memory becomes free in time.
    async fn reserve_memory(
        &self,
        room: MemoryPool,
        bytes: u64,
    ) -> ApiResult<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(MEMORY_UNIT_BYTES)).unwrap_or(u32::MAX);
        let units = units.min(self.inner.memory_units);
        let room = match room {
            MemoryPool::Updates => &self.inner.update_memory,
            MemoryPool::Blobs => &self.inner.blob_memory,
            MemoryPool::Jobs => &self.inner.job_memory,
        };
        let room = Arc::clone(room).acquire_many_owned(units);
        match timeout(self.config().body_timeout(bytes), room).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => {
                let message = "too many uploads are being validated: try again in a moment";
                Err(ApiError::new(ErrorCode::LimitReached, message))
            }
        }
    }

    /// A place for an upload of a model, a holdout or a blob of an order, released when dropped.
    fn blob_upload_place(&self, from: Option<IpAddr>) -> ApiResult<BlobUploadPlace> {
        let full = |message: String| ApiError::new(ErrorCode::LimitReached, message);
        let of_address = match from {
            None => None,
            Some(from) => Some(self.inner.blob_uploads.take(from).ok_or_else(|| {
                full(format!(
                    "{BLOB_UPLOADS_PER_ADDRESS_MAX} uploads of models and holdouts from {from} are in flight: \
                     retry"
                ))
            })?),
        };
        let permit = Arc::clone(&self.inner.blob_upload_permits).try_acquire_owned();
        let permit = permit.map_err(|_| {
            full(format!("{BLOB_UPLOADS_MAX} uploads of models and holdouts are in flight: retry"))
        })?;
        Ok((of_address, permit))
    }

    /// Counts the bytes of a checkpoint in flight.
    fn checkpoint_flight(&self, bytes: u64) -> Flight {
        self.inner.checkpoints.count(bytes)
    }

    /// A place for an upload of a state of an order, released when dropped.
    fn state_upload_slot(&self, order: Digest) -> ApiResult<Slot<Digest>> {
        self.inner.state_uploads.take(order).ok_or_else(|| {
            let message =
                format!("{STATE_UPLOADS_PER_ORDER_MAX} uploads of states of order {order} are in flight: retry");
            ApiError::new(ErrorCode::LimitReached, message)
        })
    }

    /// A permit to compare a blob with its digest before it is sent.
    async fn blob_read_permit(&self) -> ApiResult<OwnedSemaphorePermit> {
        acquire_permit(&self.inner.blob_read_permits).await
    }

    /// Permission to read a whole job of an order, with memory for it. It comes before a turn of large stores.
    async fn job_read_permit(&self, bytes: u64) -> ApiResult<[OwnedSemaphorePermit; 2]> {
        let permit = acquire_permit(&self.inner.job_read_permits).await?;
        Ok([permit, self.reserve_memory(MemoryPool::Jobs, bytes).await?])
    }

    /// A permit for an account without a part in an order to wait for the ledger.
    async fn join_check_permit(&self) -> ApiResult<OwnedSemaphorePermit> {
        acquire_permit(&self.inner.join_check_permits).await
    }

    fn transcript_upload_permit(&self) -> ApiResult<OwnedSemaphorePermit> {
        Arc::clone(&self.inner.transcript_upload_permits).try_acquire_owned().map_err(|_| {
            let message = format!("{TRANSCRIPT_UPLOADS_MAX} uploads of transcripts are in flight");
            ApiError::new(ErrorCode::LimitReached, message)
        })
    }

    /// One of a sender's upload slots, released when dropped.
    fn upload_slot(&self, sender: Address) -> ApiResult<Slot<Address>> {
        self.inner.uploads.take(sender).ok_or_else(|| {
            let message = format!("at most {UPLOADS_PER_SENDER_MAX} concurrent uploads per sender");
            ApiError::new(ErrorCode::LimitReached, message)
        })
    }
}

/// The place of an upload among those of its address, and among all.
type BlobUploadPlace = (Option<Slot<IpAddr>>, OwnedSemaphorePermit);

/// The memory pool for the validation of uploads.
#[derive(Clone, Copy, Debug)]
enum MemoryPool {
    Updates,
    Blobs,
    Jobs,
}

/// The router of all routes, which `/openapi.json` and `docs/protocol.md` describe.
pub fn router(app: App) -> Router {
    let routes = routes::router(&app);
    let routes = if app.config().page { routes.merge(page::router()) } else { routes };
    routes
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), admission::limit_requests))
        .layer(middleware::from_fn_with_state(app.clone(), observe::observe_request))
        .with_state(app)
}

/// A reader with a browser gets the page, which names its views; a client gets the code.
async fn unknown(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Response {
    if app.config().page
        && !uri.path().starts_with("/v1/")
        && let Some(document) = page::not_found(&headers)
    {
        return document;
    }
    let message = "no such route: see /openapi.json or docs/protocol.md";
    ApiError::new(ErrorCode::NotFound, message).into_response()
}

async fn wrong_method() -> ApiError {
    let message = "this route does not allow the method: see the `allow` header";
    ApiError::new(ErrorCode::MethodNotAllowed, message)
}
