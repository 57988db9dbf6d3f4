//! Routes for the market document, registrations and the embedded ledger's RPC.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, body::Body};
use florin_protocol::{Address, ErrorCode, MarketInfo, Registration, Rejection, Role};
use serde::Deserialize;

use super::App;
use super::body::blocking;
use super::error::{ApiError, ApiResult};
use super::extract::{
    JsonBody, LARGE_BYTES_MAX, PathParams, QueryParams, SMALL_BYTES_MAX, read_whole,
};
use crate::host::LedgerEndpoint;
use florin_engine::{Event, EventStatus};

pub(super) async fn health() -> &'static str {
    "ok"
}

pub(super) async fn info(State(app): State<App>) -> ApiResult<Json<MarketInfo>> {
    let now = app.host().read(|_, now| now).await?;
    Ok(Json(MarketInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        market: app.market(),
        coordinator: app.coordinator(),
        node_key: app.node().key(),
        ledger: app.ledger_endpoint().info(),
        now,
    }))
}

/// Registers a node key. Both signatures are checked here; the engine decides between conflicting
/// registrations, and which one gives way in a full market. A wallet without a balance or stake on
/// the ledger is rejected: it cannot deposit anything yet.
pub(super) async fn register(
    State(app): State<App>,
    JsonBody(registration): JsonBody<Registration, SMALL_BYTES_MAX>,
) -> ApiResult<StatusCode> {
    if registration.role == Role::Coordinator && registration.wallet != app.coordinator() {
        let message = format!(
            "only the market's coordinator, {}, registers as a coordinator: register as a \
             participant or as a provider",
            app.coordinator()
        );
        return Err(ApiError::new(ErrorCode::WrongRole, message));
    }
    let now = app.host().read(|_, now| now).await?;
    let (market, wallet) = (app.market(), registration.wallet);
    let registration = blocking(move || registration.verify(market, now).map(|()| registration));
    let event = Event::Registered(registration.await??);
    let asked = event.clone();
    let known = app.host().read(move |engine, now| {
        let verdict = engine.check(&asked, now)?;
        let known = verdict == EventStatus::Duplicate
            || engine.registration(wallet, None).is_ok()
            // Its registration gave way to others, and its whole balance may be its bond.
            || engine.takes_part(wallet);
        Ok::<_, Rejection>(known)
    });
    if !known.await?? {
        check_funded(&app, wallet).await?;
    }
    app.host().write(event).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn check_funded(app: &App, wallet: Address) -> ApiResult<()> {
    let (balance, stake) = app
        .ledger(move |ledger| Ok((ledger.balance(wallet)?, ledger.stake_of(wallet)?.amount)))
        .await?;
    if !balance.is_zero() || !stake.is_zero() {
        return Ok(());
    }
    let message = format!(
        "{wallet} has no balance and no stake on the ledger: transfer FLN to it, then register it \
         (before its whole balance is bonded)"
    );
    Err(ApiError::new(ErrorCode::NotFunded, message))
}

/// The query string that selects one of an account's registrations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoleQuery {
    role: Option<Role>,
}

pub(super) async fn registration(
    State(app): State<App>,
    PathParams(wallet): PathParams<Address>,
    QueryParams(RoleQuery { role }): QueryParams<RoleQuery>,
) -> ApiResult<Json<Registration>> {
    let found = app.host().read(move |engine, _| engine.registration(wallet, role).cloned());
    Ok(Json(found.await??))
}

pub(super) async fn ledger(State(app): State<App>, request: Request) -> ApiResult<Response> {
    let door = match app.ledger_endpoint() {
        LedgerEndpoint::Embedded(door) => Arc::clone(door),
        LedgerEndpoint::Ethereum(info) => {
            let (chain, market) = (app.market().chain, info.market);
            let message = format!(
                "this market's ledger is the contract {market} on the Ethereum chain {chain}, not \
                 an embedded chain: query a node of that chain"
            );
            return Err(ApiError::new(ErrorCode::NotFound, message));
        }
    };
    let request = read_whole(&app, request, LARGE_BYTES_MAX).await?;
    let answer = app.with_ledger_permit(move || door(&request)).await??;
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from(answer)).into_response())
}
