//! Routes for orders of compute: open, list, view, records, actions, and the bytes of jobs and states.

use std::net::IpAddr;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use florin_compute::{
    CheckpointUpload, ComputeJob, LeaseRead, LeaseRecord, OrderChanges, OrderRequest, OrderView,
    SignedLeaseAction, StateUpload,
};
use florin_protocol::{Address, Digest, ErrorCode, Rejection, Timestamp, WalletSignature};
use serde::Deserialize;
use tokio::time::Instant;

use super::App;
use super::blobs::opened_blob;
use super::body::{IncomingBody, blocking, blocking_holding};
use super::error::{ApiError, ApiResult};
use super::extract::{JsonBody, LARGE_BYTES_MAX, PathParams, QueryParams, SMALL_BYTES_MAX};
use crate::config::{Config, WAIT_MS_MAX};
use crate::leases::{BytesPlace, ExaminedAction, LeaseHost};
use florin_store::{BlobWriter, OpenedBlob};

/// Header with the account that uploads a state.
pub(super) const ACCOUNT_HEADER: &str = "state-account";
/// Header with the salt of a checkpoint's leaf.
pub(super) const SALT_HEADER: &str = "state-salt";
/// Header with its signature.
pub(super) const SIGNATURE_HEADER: &str = "state-signature";
/// Header with the account that reads something of an order that is not public.
pub(super) const READER_HEADER: &str = "reader-account";
/// Header with the moment until which its request is valid, in milliseconds.
pub(super) const READER_EXPIRES_HEADER: &str = "reader-expires";
/// Header with its signature.
pub(super) const READER_SIGNATURE_HEADER: &str = "reader-signature";

/// Free disk spaces that an upload reserves for others if it is a checkpoint, which a lease can do without.
const CHECKPOINT_RESERVES: u64 = 4;

/// How many times the bytes of a job are in memory while it is read.
const JOB_COPIES: u64 = 2;

/// Runs work on a blocking thread: a lock of the leases is held across writes to disk.
pub(super) async fn with_leases<T: Send + 'static>(
    app: &App,
    work: impl FnOnce(&LeaseHost) -> Result<T, Rejection> + Send + 'static,
) -> ApiResult<T> {
    let leases = app.host().leases().clone();
    Ok(blocking(move || work(&leases)).await??)
}

pub(super) async fn open(
    State(app): State<App>,
    JsonBody(request): JsonBody<OrderRequest, LARGE_BYTES_MAX>,
) -> ApiResult<Json<OrderView>> {
    check_referee(app.config(), request.order.referee)?;
    // It may read a whole job, and takes no turn of an action.
    let permit = app.job_read_permit(job_memory(&request.job)).await?;
    let leases = app.host().leases().clone();
    Ok(Json(blocking_holding(permit, move || leases.accept(request)).await??))
}

/// Bytes of memory while a job is read: its blobs, and the numbers in them.
fn job_memory(job: &ComputeJob) -> u64 {
    job.bytes().saturating_mul(JOB_COPIES)
}

/// Checks that the operator accepts the referee, which can cancel the settlement and slash the coordinator's bond.
pub(super) fn check_referee(config: &Config, referee: Address) -> Result<(), Rejection> {
    if config.arbiters.contains(&referee) {
        return Ok(());
    }
    let message = format!(
        "referee = {referee}: this coordinator deposits no bond under it; name an account that its operator has listed \
         in the setting arbiters"
    );
    Err(Rejection::new(ErrorCode::ArbiterNotAccepted, message))
}

pub(super) async fn list(State(app): State<App>) -> ApiResult<Json<Vec<OrderView>>> {
    with_leases(&app, |leases| Ok(leases.views())).await.map(Json)
}

/// The query string of a reading of changes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesQuery {
    #[serde(default)]
    run: u64,
    #[serde(default)]
    after: u64,
}

pub(super) async fn changes(
    State(app): State<App>,
    QueryParams(ChangesQuery { run, after }): QueryParams<ChangesQuery>,
) -> ApiResult<Json<OrderChanges>> {
    with_leases(&app, move |leases| leases.order_changes(run, after)).await.map(Json)
}

pub(super) async fn view(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
) -> ApiResult<Json<OrderView>> {
    with_leases(&app, move |leases| leases.view(id)).await.map(Json)
}

pub(super) async fn job(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
) -> ApiResult<Json<ComputeJob>> {
    with_leases(&app, move |leases| leases.job(id)).await.map(Json)
}

/// The query string of the long poll for records.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordsQuery {
    #[serde(default)]
    pub(super) after: u32,
    #[serde(default)]
    pub(super) wait_ms: u64,
}

pub(super) async fn records(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
    QueryParams(RecordsQuery { after, wait_ms }): QueryParams<RecordsQuery>,
) -> ApiResult<Json<Vec<LeaseRecord>>> {
    poll(&app, wait_ms, move |leases| leases.records(id, after), |found| !found.is_empty())
        .await
        .map(Json)
}

/// A long poll of the leases: looks again after each change, until the result is ready or the wait is over.
pub(super) async fn poll<T: Send + 'static>(
    app: &App,
    wait_ms: u64,
    look: impl Fn(&LeaseHost) -> Result<T, Rejection> + Copy + Send + 'static,
    is_ready: impl Fn(&T) -> bool,
) -> ApiResult<T> {
    let until = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    let mut changes = app.host().leases().changes();
    loop {
        changes.mark_unchanged();
        let found = with_leases(app, look).await?;
        let is_late = Instant::now() >= until;
        if is_ready(&found) || is_late {
            return Ok(found);
        }
        let changed = async { changes.changed().await.is_ok() };
        if !app.wait_for(until, changed).await {
            return with_leases(app, look).await;
        }
    }
}

pub(super) async fn act(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
    JsonBody(signed): JsonBody<SignedLeaseAction, SMALL_BYTES_MAX>,
) -> ApiResult<StatusCode> {
    if signed.body.order != id {
        let order = signed.body.order;
        let message = format!("the action is for order {order}, but was sent to order {id}");
        return Err(ApiError::new(ErrorCode::Malformed, message));
    }
    let arriving = app.host().leases().arriving(id);
    let arrived = arriving.at();
    signed.verify(app.market())?;
    app.rates().count_message(signed.body.by)?;
    let asked = signed.clone();
    let examined = with_leases(&app, move |leases| leases.examine(&asked, arrived)).await?;
    match examined {
        ExaminedAction::Recorded => return Ok(StatusCode::NO_CONTENT),
        ExaminedAction::NeedsBond(needed) => {
            let (leases, asked) = (app.host().leases().clone(), signed.clone());
            let _turn = match asked.body.action.joins() {
                true => Some(app.join_check_permit().await?),
                false => None,
            };
            let checked = move || leases.check_bond(&asked, needed);
            app.with_ledger_permit(checked).await??;
        }
        ExaminedAction::Free => {}
    }
    with_leases(&app, move |leases| leases.act(signed, arrived)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Receives a blob of a job. Any account may send it: its digest is the job's.
pub(super) async fn put_blob(
    State(app): State<App>,
    PathParams((id, digest)): PathParams<(Digest, Digest)>,
    request: Request,
) -> Response {
    let from = app.rates().limited_sender(&request);
    let mut incoming = IncomingBody::new(request.into_body(), app.config(), 0);
    let taken = receive_blob(&app, &mut incoming, (id, digest), from).await;
    answer_upload(incoming, taken).await
}

/// The response to an upload, behind the rest of its body.
async fn answer_upload(mut incoming: IncomingBody, taken: ApiResult<()>) -> Response {
    incoming.drain().await;
    taken.map_or_else(IntoResponse::into_response, |()| StatusCode::NO_CONTENT.into_response())
}

async fn receive_blob(
    app: &App,
    incoming: &mut IncomingBody,
    (id, digest): (Digest, Digest),
    from: Option<IpAddr>,
) -> ApiResult<()> {
    let place = app.blob_upload_place(from)?;
    let wanted = with_leases(app, move |leases| leases.wanted_blob(id, digest)).await?;
    let Some(bytes) = wanted else {
        let job = with_leases(app, move |leases| leases.job(id)).await?;
        let stored = job.blobs().find(|blob| blob.digest == digest);
        return discard(app, incoming, stored.map_or(0, |blob| blob.bytes)).await;
    };
    let writer = receive(app, incoming, bytes).await?;
    if writer.bytes() != bytes || writer.digest() != digest {
        let (length, found) = (writer.bytes(), writer.digest());
        let message = format!(
            "the body has {length} bytes with digest {found}, and the job names {bytes} bytes with {digest}"
        );
        return Err(ApiError::new(ErrorCode::Malformed, message));
    }
    let leases = app.host().leases().clone();
    // The last blob of a job lets the whole job be read.
    let job = with_leases(app, move |leases| leases.job(id)).await?;
    let permit = app.job_read_permit(job_memory(&job)).await?;
    let turn = app.large_store_permit().await?;
    Ok(blocking_holding((place, permit, turn), move || leases.take_blob(id, writer)).await??)
}

async fn receive(app: &App, incoming: &mut IncomingBody, limit: u64) -> ApiResult<BlobWriter> {
    receive_beside(app, incoming, limit, app.config().uploads.limits().free).await
}

/// Receives at most `limit` bytes beside free disk space that is reserved.
async fn receive_beside(
    app: &App,
    incoming: &mut IncomingBody,
    limit: u64,
    reserved: u64,
) -> ApiResult<BlobWriter> {
    incoming.check_content_length(limit)?;
    let blobs = app.host().blobs();
    let free = blobs.free_bytes().map_err(|error| ApiError::internal("the disk", &error))?;
    if free < limit.saturating_add(reserved) {
        let message = format!(
            "the coordinator's disk has no space for {limit} more bytes: {free} bytes are free, and {reserved} must \
             stay free: try again later"
        );
        return Err(ApiError::new(ErrorCode::StorageFull, message));
    }
    incoming.set_time_limit(app.config().body_timeout(limit));
    incoming.write_to(app.host().blobs(), limit).await
}

/// Receives a state from the provider of a lease.
pub(super) async fn put_state(
    State(app): State<App>,
    PathParams((order, state)): PathParams<(Digest, Digest)>,
    request: Request,
) -> Response {
    let signed = signed_upload(&app, request.headers(), (order, state));
    let mut incoming = IncomingBody::new(request.into_body(), app.config(), 0);
    let taken = async { receive_state(&app, &mut incoming, signed?).await }.await;
    answer_upload(incoming, taken).await
}

fn signed_upload(
    app: &App,
    headers: &HeaderMap,
    (order, state): (Digest, Digest),
) -> ApiResult<StateUpload> {
    let by: Address = header(headers, ACCOUNT_HEADER)?;
    let signature: WalletSignature = header(headers, SIGNATURE_HEADER)?;
    let upload = StateUpload { order, by, state };
    upload.verify(app.market(), &signature)?;
    app.rates().count_message(by)?;
    Ok(upload)
}

pub(super) fn header<T: std::str::FromStr>(
    headers: &HeaderMap,
    name: &'static str,
) -> ApiResult<T> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.parse().ok()).ok_or_else(|| {
        let message = format!("the header {name} is missing or malformed: see /openapi.json");
        ApiError::new(ErrorCode::Malformed, message)
    })
}

async fn receive_state(
    app: &App,
    incoming: &mut IncomingBody,
    upload: StateUpload,
) -> ApiResult<()> {
    let wanted = with_leases(app, move |leases| leases.wanted_state(&upload)).await?;
    let Some(limit) = wanted else { return discard_state(app, incoming, upload.order).await };
    let slot = app.state_upload_slot(upload.order)?;
    let writer = receive(app, incoming, limit).await?;
    let room = app.reserve_memory(super::MemoryPool::Blobs, writer.bytes()).await?;
    let leases = app.host().leases().clone();
    let turn = app.large_store_permit().await?;
    Ok(blocking_holding((slot, room, turn), move || leases.take_state(&upload, writer)).await??)
}

/// Reads the bytes of a state that is stored.
async fn discard_state(app: &App, incoming: &mut IncomingBody, order: Digest) -> ApiResult<()> {
    let _slot = app.state_upload_slot(order)?;
    let job = with_leases(app, move |leases| leases.job(order)).await?;
    discard(app, incoming, job.state_bytes_max()).await
}

/// Reads a body of at most `limit` bytes that are stored.
async fn discard(app: &App, incoming: &mut IncomingBody, limit: u64) -> ApiResult<()> {
    incoming.set_time_limit(app.config().body_timeout(limit));
    incoming.discard(limit).await
}

/// Receives a checkpoint from the provider of a lease.
pub(super) async fn put_checkpoint(
    State(app): State<App>,
    PathParams((order, state)): PathParams<(Digest, Digest)>,
    request: Request,
) -> Response {
    let signed = signed_checkpoint(&app, request.headers(), (order, state));
    let mut incoming = IncomingBody::new(request.into_body(), app.config(), 0);
    let taken = async { receive_checkpoint(&app, &mut incoming, signed?).await }.await;
    answer_upload(incoming, taken).await
}

fn signed_checkpoint(
    app: &App,
    headers: &HeaderMap,
    (order, state): (Digest, Digest),
) -> ApiResult<CheckpointUpload> {
    let by: Address = header(headers, ACCOUNT_HEADER)?;
    let salt: Digest = header(headers, SALT_HEADER)?;
    let signature: WalletSignature = header(headers, SIGNATURE_HEADER)?;
    let upload = CheckpointUpload { order, by, state, salt };
    upload.verify(app.market(), &signature)?;
    app.rates().count_message(by)?;
    Ok(upload)
}

async fn receive_checkpoint(
    app: &App,
    incoming: &mut IncomingBody,
    upload: CheckpointUpload,
) -> ApiResult<()> {
    let wanted = with_leases(app, move |leases| leases.wanted_checkpoint(&upload)).await?;
    let Some(limit) = wanted else { return discard_state(app, incoming, upload.order).await };
    let slot = app.state_upload_slot(upload.order)?;
    // It is in the store and in the order's folder for a moment, as others in flight, and leaves space to uploads that
    // leases need.
    let flight = app.checkpoint_flight(limit.saturating_mul(2));
    let awaited = with_leases(app, |leases| Ok(leases.awaited_state_bytes())).await?;
    let reserved = app.config().uploads.limits().free.saturating_mul(CHECKPOINT_RESERVES);
    let reserved = reserved.saturating_add(awaited).saturating_add(flight.all());
    let writer = receive_beside(app, incoming, limit, reserved).await?;
    let room = app.reserve_memory(super::MemoryPool::Blobs, writer.bytes()).await?;
    let leases = app.host().leases().clone();
    let turn = app.large_store_permit().await?;
    let take = move || leases.take_checkpoint(&upload, writer);
    Ok(blocking_holding((slot, room, turn, flight), take).await??)
}

pub(super) async fn get_blob(
    State(app): State<App>,
    PathParams((id, digest)): PathParams<(Digest, Digest)>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let reader = reader(&app, &headers, (id, digest))?;
    let place = with_leases(&app, move |leases| leases.blob_place(id, digest, reader)).await?;
    send(&app, place).await
}

pub(super) async fn get_state(
    State(app): State<App>,
    PathParams((id, state)): PathParams<(Digest, Digest)>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let reader = reader(&app, &headers, (id, state))?;
    let place = with_leases(&app, move |leases| leases.state_place(id, state, reader)).await?;
    send(&app, place).await
}

/// The rows of the disputed step of an order on private rows.
pub(super) async fn disputed_rows(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let job = with_leases(&app, move |leases| leases.job(id)).await?;
    let reader = reader(&app, &headers, (id, job.rows.digest))?;
    // It reads a whole job.
    let permit = app.job_read_permit(job_memory(&job)).await?;
    let leases = app.host().leases().clone();
    let rows = blocking_holding(permit, move || leases.disputed_rows(id, reader)).await??;
    Ok(opened_blob(OpenedBlob::Bytes(rows)))
}

async fn send(app: &App, place: BytesPlace) -> ApiResult<Response> {
    let turn = app.blob_read_permit().await?;
    let leases = app.host().leases().clone();
    Ok(opened_blob(blocking_holding([turn], move || leases.open_bytes(place)).await??))
}

/// The account that signed a request to read something of an order; `None` without the headers.
fn reader(
    app: &App,
    headers: &HeaderMap,
    (order, digest): (Digest, Digest),
) -> ApiResult<Option<Address>> {
    if !headers.contains_key(READER_HEADER) {
        return Ok(None);
    }
    let by: Address = header(headers, READER_HEADER)?;
    let expires = Timestamp(header(headers, READER_EXPIRES_HEADER)?);
    let signature: WalletSignature = header(headers, READER_SIGNATURE_HEADER)?;
    let read = LeaseRead { order, by, digest, expires };
    read.verify(app.market(), &signature)?;
    app.rates().count_message(by)?;
    let now = app.host().leases().now();
    if read.is_valid_at(now) {
        return Ok(Some(by));
    }
    let message = format!(
        "the header {READER_EXPIRES_HEADER} must be within ten minutes behind the coordinator's time, {}",
        now.0
    );
    Err(ApiError::new(ErrorCode::DeadlinePassed, message))
}
