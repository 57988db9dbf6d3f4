//! The market itself: who runs it, who is registered, and the ledger's own interface.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, body::Body};
use florin_protocol::{Address, Code, MarketInfo, Registration, Role};
use serde::Deserialize;

use super::App;
use super::body::blocking;
use super::error::{ApiError, ApiResult};
use super::extract::{Asked, At, LARGE_BYTES_MAX, SMALL_BYTES_MAX, Said, read_whole};
use crate::engine::Event;

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
        now,
    }))
}

/// Both signatures are checked here; which of two registrations counts is the engine's to say.
pub(super) async fn register(
    State(app): State<App>,
    Said(registration): Said<Registration, SMALL_BYTES_MAX>,
) -> ApiResult<StatusCode> {
    let now = app.host().read(|_, now| now).await?;
    let market = app.market();
    let registration = blocking(move || registration.verify(market, now).map(|()| registration));
    app.host().write(Event::Registered(registration.await??)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which of an account's registrations is meant.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichRole {
    role: Option<Role>,
}

pub(super) async fn registration(
    State(app): State<App>,
    At(wallet): At<Address>,
    Asked(WhichRole { role }): Asked<WhichRole>,
) -> ApiResult<Json<Registration>> {
    let found = app.host().read(move |engine, _| engine.registration(wallet, role).cloned());
    Ok(Json(found.await??))
}

pub(super) async fn ledger(State(app): State<App>, request: Request) -> ApiResult<Response> {
    let Some(door) = app.door() else {
        let message = "this coordinator does not keep the ledger: ask the chain itself";
        return Err(ApiError::new(Code::NotFound, message));
    };
    let request = read_whole(&app, request, LARGE_BYTES_MAX).await?;
    let answer = blocking(move || door(&request)).await??;
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from(answer)).into_response())
}
