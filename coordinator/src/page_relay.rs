//! The page for the market of another coordinator: its files from this program, and the public
//! documents of that market, which every request fetches anew.
//!
//! The relay carries queries alone: no transaction, no update, no signed message passes.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use florin_ledger::rpc::LedgerRequest;
use florin_protocol::{ErrorCode, Rejection};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::page;
use crate::server::{ApiError, serve_document};

/// Requests to the market at the same time.
const FETCHES_MAX: usize = 16;

/// The public documents of a market.
pub trait PublicDocuments: Send + Sync {
    /// The JSON document at a path below `/v1`, with its query string.
    ///
    /// # Errors
    /// The market's rejection, or one with the reason for which it does not answer.
    fn document(&self, path: &str) -> Result<Vec<u8>, Rejection>;

    /// The answer of the market's embedded chain.
    ///
    /// # Errors
    /// As [`document`](Self::document).
    fn ledger(&self, query: &LedgerRequest) -> Result<Vec<u8>, Rejection>;
}

#[derive(Clone)]
struct Relay {
    documents: Arc<dyn PublicDocuments>,
    places: Arc<Semaphore>,
}

impl Relay {
    async fn fetch(
        &self,
        ask: impl FnOnce(&dyn PublicDocuments) -> Result<Vec<u8>, Rejection> + Send + 'static,
    ) -> Response {
        let documents = Arc::clone(&self.documents);
        let Ok(_place) = self.places.acquire().await else {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        };
        match tokio::task::spawn_blocking(move || ask(documents.as_ref())).await {
            Ok(Ok(bytes)) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
            Ok(Err(rejection)) => rejected(rejection),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

fn rejected(rejection: Rejection) -> Response {
    // With `retry-after`, where the market answers with it.
    let (parts, _) = ApiError(rejection.clone()).into_response().into_parts();
    (parts.status, parts.headers, Json(rejection)).into_response()
}

async fn document(State(relay): State<Relay>, uri: Uri) -> Response {
    // As the browser wrote it: a decoded path could lead elsewhere.
    let path = uri.path().trim_start_matches("/v1/").to_owned();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/_-".contains(byte);
    if !path.as_bytes().iter().all(is_plain) {
        return rejected(Rejection::new(ErrorCode::NotFound, "no document has such a path"));
    }
    let query = uri.query();
    if path == "events" {
        // The page polls where there are no events.
        let message = "a relay has no events: poll the tasks";
        return rejected(Rejection::new(ErrorCode::NotFound, message));
    }
    let path = query.map_or(path.clone(), |query| format!("{path}?{query}"));
    relay.fetch(move |documents| documents.document(&path)).await
}

async fn ledger(State(relay): State<Relay>, Json(query): Json<LedgerRequest>) -> Response {
    if matches!(query, LedgerRequest::Submit(_)) {
        let message = "this address answers queries alone: send transactions to the market";
        return rejected(Rejection::new(ErrorCode::MethodNotAllowed, message));
    }
    relay.fetch(move |documents| documents.ledger(&query)).await
}

/// Refuses requests under another name than this machine's: a page of another host, whose name leads
/// here, reads nothing.
async fn this_machine(headers: HeaderMap, request: Request, next: Next) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let end = host.rfind(':').filter(|at| host.get(*at..).is_some_and(|port| !port.contains(']')));
    let name = end.and_then(|at| host.get(..at)).unwrap_or(host);
    let ip = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if name == "localhost" || ip.is_ok_and(|ip| ip.is_loopback()) {
        return next.run(request).await;
    }
    let message = "open the page as http://127.0.0.1 or as http://localhost";
    (StatusCode::MISDIRECTED_REQUEST, message).into_response()
}

/// The page, and the documents of a market.
pub fn router(documents: Arc<dyn PublicDocuments>) -> Router {
    let relay = Relay { documents, places: Arc::new(Semaphore::new(FETCHES_MAX)) };
    Router::new()
        .route("/openapi.json", get(serve_document))
        .route("/v1/ledger", post(ledger))
        .route("/v1/{*path}", get(document))
        .with_state(relay)
        .merge(page::router())
        .layer(middleware::from_fn(this_machine))
}

/// Serves the page for the market of `documents` until `shutdown` resolves.
///
/// # Errors
/// Those of the listener.
pub async fn serve(
    listener: TcpListener,
    documents: Arc<dyn PublicDocuments>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(documents)).with_graceful_shutdown(shutdown).await
}

#[cfg(test)]
#[path = "page_relay_tests.rs"]
mod tests;
