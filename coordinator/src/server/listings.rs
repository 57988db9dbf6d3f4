//! Routes for listings of devices: open, list, view, records, messages, and the shown links of probes.

use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use florin_compute::{
    ListingPolicy, ListingRecord, ListingRequest, ListingView, SHOWN_BYTES_MAX, SignedListingAction,
};
use florin_protocol::{Digest, ErrorCode, Rejection};
use tokio::time::Instant;

use super::App;
use super::body::{IncomingBody, blocking_holding};
use super::error::{ApiError, ApiResult};
use super::extract::{JsonBody, PathParams, QueryParams, SMALL_BYTES_MAX};
use super::orders::{RecordsQuery, with_leases};
use crate::config::{Config, WAIT_MS_MAX};

pub(super) async fn policy(State(app): State<App>) -> Json<ListingPolicy> {
    Json(policy_of(app.config()))
}

fn policy_of(config: &Config) -> ListingPolicy {
    ListingPolicy {
        stake_min: config.listings.stake_min(1),
        fee: config.listings.fee(),
        probe_ms_min: config.listings.probe_ms_min,
        referees: config.arbiters.clone(),
    }
}

pub(super) async fn open(
    State(app): State<App>,
    JsonBody(request): JsonBody<ListingRequest, SMALL_BYTES_MAX>,
) -> ApiResult<Json<ListingView>> {
    check_policy(app.config(), &request)?;
    let leases = app.host().leases().clone();
    let opened = app.with_ledger_permit(move || leases.accept_listing(request)).await??;
    Ok(Json(opened))
}

/// Checks what the operator requires of a listing.
fn check_policy(config: &Config, request: &ListingRequest) -> Result<(), Rejection> {
    let (terms, settings) = (&request.terms, &config.listings);
    if !config.arbiters.contains(&terms.referee) {
        let message = format!(
            "referee = {}: this coordinator deposits no bond under it; name an account that its operator has listed \
             in the setting arbiters",
            terms.referee
        );
        return Err(Rejection::new(ErrorCode::ArbiterNotAccepted, message));
    }
    let invalid = |message: String| Err(Rejection::new(ErrorCode::InvalidOrder, message));
    let (least, devices) = (settings.stake_min(terms.probe.devices), terms.probe.devices);
    if terms.stake < least {
        return invalid(format!("the stake of {devices} devices is at least {least} FLN here"));
    }
    if terms.fee != settings.fee() {
        return invalid(format!("the fee of a probe is {} FLN here", settings.fee()));
    }
    let (found, needed) = (terms.predicted_ms(), settings.probe_ms_min);
    if found < needed {
        return invalid(format!(
            "the probe takes {found} ms by its card, and this coordinator needs {needed} ms: list more memory, or \
             more reads"
        ));
    }
    Ok(())
}

pub(super) async fn list(State(app): State<App>) -> ApiResult<Json<Vec<ListingView>>> {
    with_leases(&app, |leases| Ok(leases.listings())).await.map(Json)
}

/// The listing, once it has more records than the client knows, or at the end of the wait.
pub(super) async fn view(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
    QueryParams(RecordsQuery { after, wait_ms }): QueryParams<RecordsQuery>,
) -> ApiResult<Json<ListingView>> {
    let until = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    let mut changes = app.host().leases().changes();
    loop {
        changes.mark_unchanged();
        let found = with_leases(&app, move |leases| leases.listing(id)).await?;
        if found.listing.length() > after || Instant::now() >= until {
            return Ok(Json(found));
        }
        let changed = async { changes.changed().await.is_ok() };
        if !app.wait_for(until, changed).await {
            return with_leases(&app, move |leases| leases.listing(id)).await.map(Json);
        }
    }
}

pub(super) async fn records(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
    QueryParams(RecordsQuery { after, .. }): QueryParams<RecordsQuery>,
) -> ApiResult<Json<Vec<ListingRecord>>> {
    with_leases(&app, move |leases| leases.listing_records(id, after)).await.map(Json)
}

pub(super) async fn act(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
    JsonBody(signed): JsonBody<SignedListingAction, SMALL_BYTES_MAX>,
) -> ApiResult<Json<ListingView>> {
    if signed.body.listing != id {
        let listing = signed.body.listing;
        let message = format!("the message is for listing {listing}, but was sent to listing {id}");
        return Err(ApiError::new(ErrorCode::Malformed, message));
    }
    let arrived = app.host().leases().now();
    signed.verify(app.market())?;
    app.rates().count_message(signed.body.by)?;
    with_leases(&app, move |leases| leases.act_on_listing(&signed, arrived)).await.map(Json)
}

/// Receives the drawn links of a probe. Any account may send them: the root commits to their states.
pub(super) async fn show(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
    request: Request,
) -> Response {
    let mut incoming = IncomingBody::new(request.into_body(), app.config(), 0);
    let taken = receive_links(&app, &mut incoming, id).await;
    incoming.drain().await;
    taken.map_or_else(IntoResponse::into_response, |view| Json(view).into_response())
}

async fn receive_links(
    app: &App,
    incoming: &mut IncomingBody,
    id: Digest,
) -> ApiResult<ListingView> {
    let place = app.blob_upload_permit()?;
    if !with_leases(app, move |leases| leases.wants_links(id)).await? {
        return with_leases(app, move |leases| leases.listing(id)).await;
    }
    let limit = SHOWN_BYTES_MAX as u64;
    incoming.check_content_length(limit)?;
    incoming.set_time_limit(app.config().body_timeout(limit));
    let room = app.reserve_memory(super::MemoryPool::Blobs, limit).await?;
    let bytes = incoming.read_to_end(SHOWN_BYTES_MAX).await?;
    let arrived = app.host().leases().now();
    let leases = app.host().leases().clone();
    let held = [place, room];
    Ok(blocking_holding(held, move || leases.take_links(id, &bytes, arrived)).await??)
}
