//! Routes for providers: work orders, the blobs of work orders, and work records.

use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use florin_protocol::{
    Address, BlobRequest, Canonical, ErrorCode, RoundNumber, Signed, TaskId, Timestamp,
    WorkAcceptance, WorkRecord, WorkRequest,
};
use florin_work::TRANSCRIPT_BYTES_MAX;
use serde::Deserialize;
use tokio::time::Instant;

use super::blobs::send_blob;
use super::body::IncomingBody;
use super::error::{ApiError, ApiResult};
use super::extract::{LARGE_BYTES_MAX, QueryParams, Verified, read_signed, verify_and_query};
use super::{App, finished_rounds};
use crate::config::WAIT_MS_MAX;
use crate::host::HeldTranscript;
use florin_engine::{Engine, Event, EventStatus};

/// Time before the deadline of an order in which no transcript is waited for.
const RECORD_MARGIN_MS: u64 = 2_000;

/// The query string of the long poll for an order.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderPollQuery {
    #[serde(default)]
    wait_ms: u64,
}

pub(super) async fn next_order(
    State(app): State<App>,
    QueryParams(OrderPollQuery { wait_ms }): QueryParams<OrderPollQuery>,
    query: Verified<WorkRequest>,
) -> ApiResult<Response> {
    let until = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    let WorkRequest { task, provider, expires, .. } = *query.body();
    check_expiry(&app, expires).await?;
    check_stake(&app, task, provider).await?;
    app.host().write(Event::ProviderReady { task, provider }).await?;
    let mut changes = app.host().changes();
    loop {
        changes.mark_unchanged();
        let order =
            app.host().read(move |engine, now| engine.open_order(task, provider, now).cloned());
        if let Some(order) = order.await? {
            // The provider now has the order: the engine waits for its record.
            app.host().write(Event::ProviderReady { task, provider }).await?;
            return Ok(Json(app.node().sign(order)).into_response());
        }
        if !app.wait_for(until, async { changes.changed().await.is_ok() }).await {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
}

pub(super) async fn blob(
    State(app): State<App>,
    request: Verified<BlobRequest>,
) -> ApiResult<Response> {
    let BlobRequest { task, digest, sender, expires, .. } = *request.body();
    check_expiry(&app, expires).await?;
    // A provider with the order has proven its stake, so a remote ledger is not queried again for
    // each blob.
    if !app.host().read(move |engine, _| engine.has_order(task, sender)).await? {
        check_stake(&app, task, sender).await?;
    }
    app.host().read(move |engine, _| engine.check_order_names(task, digest)).await??;
    send_blob(&app, digest).await
}

/// Receives a record and waits for the verdict of the recomputation.
pub(super) async fn record(
    State(app): State<App>,
    record: Verified<WorkRecord>,
) -> ApiResult<Json<WorkAcceptance>> {
    match find_round(&app, record.body()).await? {
        RecordPlace::Open(..) => take_record(&app, record).await,
        RecordPlace::Decided(units) => Ok(Json(WorkAcceptance { units })),
    }
}

/// Receives a record with the transcript of its valuation: the length of the signed record, the record, then the
/// transcript to the end of the body. The record counts as without a transcript, also if
/// the transcript is incomplete. With one the coordinator needs less time, and pays it before records without.
pub(super) async fn record_with_transcript(State(app): State<App>, request: Request) -> Response {
    let mut incoming = IncomingBody::new(request.into_body(), app.config(), LARGE_BYTES_MAX as u64);
    let taken = receive_transcript(&app, &mut incoming).await;
    incoming.drain().await;
    let taken = match taken {
        Ok(Received::New(record)) => take_record(&app, *record).await,
        Ok(Received::Decided(units)) => Ok(Json(WorkAcceptance { units })),
        Err(error) => Err(error),
    };
    taken.into_response()
}

/// A record that was received with a transcript.
enum Received {
    New(Box<Verified<WorkRecord>>),
    /// It was verified before; its transcript was not read.
    Decided(u64),
}

async fn receive_transcript(app: &App, incoming: &mut IncomingBody) -> ApiResult<Received> {
    incoming.check_content_length((TRANSCRIPT_BYTES_MAX + LARGE_BYTES_MAX) as u64)?;
    let signed: Signed<WorkRecord> = read_signed(incoming, LARGE_BYTES_MAX).await?;
    let event = Event::WorkRecordReceived { record: signed.clone(), agrees: None };
    let asked = move |engine: &Engine, now| engine.check(&event, now);
    let (record, known) = verify_and_query(app, signed, asked).await?;
    let (task, round) = match find_round(app, record.body()).await? {
        RecordPlace::Open(task, round) => (task, round),
        RecordPlace::Decided(units) => return Ok(Received::Decided(units)),
    };
    if known.is_ok_and(|known| known == EventStatus::New)
        && let Err(error) = store_transcript(app, incoming, record.body(), (task, round)).await
    {
        let (provider, why) = (record.body().provider, error.0);
        tracing::info!(%task, %round, %provider, %why, "a record is taken without its transcript");
    }
    Ok(Received::New(Box::new(record)))
}

async fn store_transcript(
    app: &App,
    incoming: &mut IncomingBody,
    record: &WorkRecord,
    (task, round): (TaskId, RoundNumber),
) -> ApiResult<()> {
    let limit = TRANSCRIPT_BYTES_MAX as u64;
    let _places = (app.upload_slot(record.provider)?, app.transcript_upload_permit()?);
    let provider = record.provider;
    let left_ms = app.host().read(move |engine, now| {
        let order = engine.open_order(task, provider, now)?;
        Some(order.due.0.saturating_sub(now.0))
    });
    let Some(left_ms) = left_ms.await? else { return Ok(()) };
    // The record has to arrive in time, with its transcript or without.
    let left = Duration::from_millis(left_ms.saturating_sub(RECORD_MARGIN_MS));
    let bytes = incoming.content_length().unwrap_or(limit).min(limit);
    incoming.set_time_limit(app.config().body_timeout(bytes).min(left));
    let writer = incoming.write_to(app.host().blobs(), limit).await?;
    if writer.bytes() > 0 {
        let held = HeldTranscript::new(record.provider, record.digest(), writer);
        app.host().transcripts().insert(task, round, held);
    }
    Ok(())
}

/// Where a record belongs.
enum RecordPlace {
    /// To this round, which has no verdict on it.
    Open(TaskId, RoundNumber),
    /// To a round that paid for these units of it.
    Decided(u64),
}

async fn find_round(app: &App, record: &WorkRecord) -> ApiResult<RecordPlace> {
    let (order, provider, digest) = (record.order, record.provider, record.digest());
    let found = app.host().read(move |engine, _| engine.find_order(order)).await?;
    let Some((task, round)) = found else {
        return Err(ApiError::new(
            ErrorCode::WorkOrderClosed,
            "no such work order was ever issued",
        ));
    };
    crate::trace::record_received(task, round, provider);
    check_stake(app, task, provider).await?;
    // The round may be archived: then the engine does not have the verdict any more.
    match finished_rounds::record_outcome(app, order, digest).await? {
        Some(verdict) => Ok(RecordPlace::Decided(verdict?)),
        None => Ok(RecordPlace::Open(task, round)),
    }
}

/// Hands a record to the engine and waits for the verdict.
async fn take_record(app: &App, record: Verified<WorkRecord>) -> ApiResult<Json<WorkAcceptance>> {
    let (order, digest) = (record.body().order, record.body().digest());
    let event = Event::WorkRecordReceived { record: record.into_signed(), agrees: None };
    app.host().write(event).await?;
    let until = Instant::now() + Duration::from_millis(WAIT_MS_MAX);
    let mut changes = app.host().changes();
    loop {
        changes.mark_unchanged();
        if let Some(verdict) = finished_rounds::record_outcome(app, order, digest).await? {
            return Ok(Json(WorkAcceptance { units: verdict? }));
        }
        if !app.wait_for(until, async { changes.changed().await.is_ok() }).await {
            let message = "the record is stored but not verified yet: send it again";
            return Err(ApiError::new(ErrorCode::TooEarly, message));
        }
    }
}

async fn check_expiry(app: &App, expires: Timestamp) -> ApiResult<()> {
    let now = app.host().read(|_, now| now).await?;
    if now <= expires {
        return Ok(());
    }
    let message = format!("the request expired at {expires}; the time is {now}");
    Err(ApiError::new(ErrorCode::DeadlinePassed, message))
}

/// Checks the provider's stake: only a provider with a sufficient stake under the task's arbiter
/// may read updates before they are public.
async fn check_stake(app: &App, task: TaskId, provider: Address) -> ApiResult<()> {
    let smallest = app.host().read(move |engine, _| engine.stake_min(task)).await??;
    let (pledged, stake) = app
        .ledger(move |ledger| Ok((ledger.is_pledged(task, provider)?, ledger.stake_of(provider)?)))
        .await?;
    if pledged && stake.release.is_none() && stake.amount >= smallest {
        return Ok(());
    }
    let message = format!(
        "{provider} must have a stake of at least {smallest} FLN pledged to task {}, with no \
         release requested",
        task.short()
    );
    Err(ApiError::new(ErrorCode::StakeTooSmall, message))
}
