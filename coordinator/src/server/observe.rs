//! Request ids, request metrics and logs, and the liveness and readiness probes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use florin_protocol::Rejection;
use tokio::time::timeout;
use tracing::Instrument;

use super::App;
use super::counted_body::CountedBody;
use super::error::set_rejection_body;
use super::metrics::MarketSummary;
use super::operator;

/// The response header with the request's id, which a client can quote to the operator.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Timeout of the readiness probe for the engine and for the ledger.
const READINESS_TIMEOUT: Duration = Duration::from_secs(5);
/// The content type of the OpenMetrics text format.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Generates the request ids of one process.
#[derive(Debug)]
pub(super) struct RequestIds {
    start: u32,
    next: AtomicU64,
}

impl RequestIds {
    /// Creates a generator whose prefix differs at each start of the process.
    pub(super) fn new() -> Self {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanos = clock.unwrap_or_default().as_nanos();
        let digest = blake3::hash(&nanos.to_le_bytes());
        let start = digest.as_bytes().first_chunk().copied().map(u32::from_le_bytes);
        Self { start: start.unwrap_or_default(), next: AtomicU64::new(0) }
    }

    pub(super) fn next(&self) -> String {
        format!("{:08x}-{:x}", self.start, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// Middleware that gives each request an id, opens its span, and records its metrics.
pub(super) async fn observe_request(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Response {
    let id = app.ids().next();
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or_else(|| "other".to_owned(), |path| path.as_str().to_owned());
    let _in_flight = app.metrics().begin_request();
    let received = app.metrics().received();
    let request = request.map(|body| Body::new(CountedBody::new(body, received)));
    // A span at level error, so that every logged line has the id at any log level.
    let span = tracing::error_span!(
        "request",
        request_id = id,
        method = %request.method(),
        route,
        status = tracing::field::Empty
    );
    let begun = Instant::now();
    let mut response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    app.metrics().record_response(&route, status.as_u16(), begun.elapsed());
    span.record("status", status.as_u16());
    let _entered = span.entered();
    if let Some(rejection) = response.extensions_mut().remove::<Rejection>() {
        app.metrics().record_rejection(rejection.code);
        tracing::debug!(%rejection, "a request was rejected");
        set_rejection_body(&mut response, &rejection, &id);
    }
    if status.is_server_error() {
        tracing::warn!(%status, "a request failed");
    }
    let mut response = response.map(|body| Body::new(CountedBody::new(body, app.metrics().sent())));
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// The liveness probe: whether the process responds.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// The readiness probe: whether the engine responds, its journal accepts records, and the ledger
/// responds.
pub(super) async fn readyz(State(app): State<App>) -> Response {
    match readiness(&app).await {
        Ok(()) => "ready\n".into_response(),
        Err(why) => not_ready(&why),
    }
}

/// Whether the coordinator is ready, or why not.
pub(super) async fn readiness(app: &App) -> Result<(), String> {
    let engine = timeout(READINESS_TIMEOUT, app.host().read(|_, _| ())).await;
    if !matches!(engine, Ok(Ok(()))) {
        return Err("the engine does not respond".to_owned());
    }
    if let Some(why) = app.host().journal_metrics().error() {
        return Err(why);
    }
    if !app.host().leases().is_usable() {
        let why = "the records of leases cannot be written: restart the coordinator";
        return Err(why.to_owned());
    }
    match timeout(READINESS_TIMEOUT, app.ledger(|ledger| ledger.now().map(drop))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.0.message),
        Err(_) => Err("the ledger does not respond".to_owned()),
    }
}

fn not_ready(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response()
}

async fn metrics(State(app): State<App>) -> Response {
    match metrics_text(&app).await {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(why) => not_ready(&why),
    }
}

/// All metrics, or why there are none.
pub(super) async fn metrics_text(app: &App) -> Result<String, String> {
    let picture = app.host().read(|engine, _| MarketSummary::from_engine(engine)).await;
    let picture = picture.map_err(|rejection| rejection.message)?;
    app.metrics().encode(&picture, &app.load()).map_err(|error| error.to_string())
}

/// The router of the operator's listener, which is separate from the public one.
pub(crate) fn operator_router(app: App) -> Router {
    let page = if app.config().page { operator::router(app.node()) } else { Router::new() };
    page.route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(app)
}
