//! Routes for listings of devices: open, list, view, records, messages, and the shown links of probes.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use florin_compute::{
    ListingPolicy, ListingRecord, ListingRequest, ListingView, SHOWN_BYTES_MAX, SignedListingAction,
};
use florin_ledger::LEASE_CHALLENGE_MS_MAX;
use florin_protocol::{Digest, ErrorCode, Rejection, WalletSignature};

use super::App;
use super::body::{IncomingBody, blocking_holding};
use super::error::{ApiError, ApiResult};
use super::extract::{JsonBody, PathParams, QueryParams, SMALL_BYTES_MAX};
use super::orders::{RecordsQuery, check_referee, header, poll, with_leases};
use crate::config::Config;

/// Header with the provider's signature of its drawn links.
pub(super) const LINKS_SIGNATURE_HEADER: &str = "links-signature";
/// The least life of a listing, in intervals between common probes.
const LIFE_INTERVALS_MIN: u64 = 2;

pub(super) async fn policy(State(app): State<App>) -> Json<ListingPolicy> {
    Json(policy_of(app.config()))
}

fn policy_of(config: &Config) -> ListingPolicy {
    ListingPolicy {
        stake_min: config.listings.stake_min(1),
        fee: config.listings.fee(),
        probe_ms_min: config.listings.probe_ms_min,
        life_ms_min: life_ms_min(config),
        challenge_ms_max: LEASE_CHALLENGE_MS_MAX,
        referees: config.arbiters.clone(),
    }
}

const fn life_ms_min(config: &Config) -> u64 {
    config.listings.probe_every_ms.saturating_mul(LIFE_INTERVALS_MIN)
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
    check_referee(config, terms.referee)?;
    let invalid = |message: String| Err(Rejection::new(ErrorCode::InvalidOrder, message));
    let (least, devices) = (settings.stake_min(terms.probe.devices), terms.probe.devices);
    if terms.stake < least {
        return invalid(format!("the stake of {devices} devices is at least {least} FLN here"));
    }
    if terms.fee != settings.fee() {
        return invalid(format!("the fee of a probe is {} FLN here", settings.fee()));
    }
    let (life, least) = (terms.life_ms, life_ms_min(config));
    if life < least {
        return invalid(format!("the life is {life} ms, and at least {least} ms here"));
    }
    let (challenge, most) = (terms.challenge_ms, LEASE_CHALLENGE_MS_MAX);
    if challenge > most {
        return invalid(format!(
            "the challenge window is {challenge} ms, and at most {most} ms here"
        ));
    }
    let (probes, most) = (terms.probes_max, policy_of(config).probes_max(life));
    if probes > most {
        return invalid(format!(
            "{probes} paid probes: at most {most} are accepted in this life, because the coordinator covers their fees"
        ));
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
    let is_ready = move |found: &ListingView| found.listing.length() > after;
    poll(&app, wait_ms, move |leases| leases.listing(id), is_ready).await.map(Json)
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

/// Receives the drawn links of a probe from its provider.
pub(super) async fn show(
    State(app): State<App>,
    PathParams(id): PathParams<Digest>,
    request: Request,
) -> Response {
    let signature = header(request.headers(), LINKS_SIGNATURE_HEADER);
    let mut incoming = IncomingBody::new(request.into_body(), app.config(), 0);
    let taken = match signature {
        Ok(signature) => receive_links(&app, &mut incoming, (id, signature)).await,
        Err(error) => Err(error),
    };
    incoming.drain().await;
    taken.map_or_else(IntoResponse::into_response, |view| Json(view).into_response())
}

async fn receive_links(
    app: &App,
    incoming: &mut IncomingBody,
    (id, signature): (Digest, WalletSignature),
) -> ApiResult<ListingView> {
    let wanted = with_leases(app, move |leases| leases.wanted_links(id)).await?;
    let Some(upload) = wanted else {
        return with_leases(app, move |leases| leases.listing(id)).await;
    };
    upload.verify(app.market(), &signature)?;
    app.rates().count_message(upload.by)?;
    // One upload of each listing at a time.
    let place = app.upload_slot(upload.by)?;
    incoming.check_content_length(SHOWN_BYTES_MAX as u64)?;
    incoming.set_time_limit(app.config().body_timeout(SHOWN_BYTES_MAX as u64));
    let bytes = incoming.read_to_end(SHOWN_BYTES_MAX).await?;
    let room = app.reserve_memory(super::MemoryPool::Blobs, bytes.len() as u64).await?;
    let arrived = app.host().leases().now();
    let leases = app.host().leases().clone();
    Ok(blocking_holding((place, room), move || leases.take_links(id, &bytes, arrived)).await??)
}
