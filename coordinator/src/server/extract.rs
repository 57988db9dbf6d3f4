//! Extractors: from request bodies, paths and query strings to typed messages. The only file that
//! constructs a [`Verified`].

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use florin_protocol::{
    Address, BlobRequest, Canonical, Commit, EnrolRequest, ErrorCode, MarketId, Role, Signed,
    TaskId, Timestamp, UpdateHeader, WorkRecord, WorkRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::App;
use super::admission::RequestRateLimits;
use super::body::IncomingBody;
use super::error::{ApiError, ApiResult};
use crate::json_form::parse_json;
use florin_engine::Engine;

/// Largest JSON body of a small message, in bytes.
pub(super) const SMALL_BYTES_MAX: usize = 64 * 1024;
/// Largest JSON body of a work record or ledger request, in bytes.
pub(super) const LARGE_BYTES_MAX: usize = 1024 * 1024;

/// A JSON body of at most `MAX` bytes.
pub(super) struct JsonBody<T, const MAX: usize>(pub(super) T);

impl<T: Serialize + DeserializeOwned, const MAX: usize> FromRequest<App> for JsonBody<T, MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        read_json(app, request, MAX).await.map(Self)
    }
}

async fn read_json<T: Serialize + DeserializeOwned>(
    app: &App,
    request: Request,
    max: usize,
) -> ApiResult<T> {
    let bytes = read_whole(app, request, max).await?;
    parse_json(&bytes).map_err(|error| {
        ApiError::new(ErrorCode::Malformed, format!("the body does not fit this route: {error}"))
    })
}

/// Reads a small body completely. A rejected body is drained, so that the client receives the
/// response.
pub(super) async fn read_whole(app: &App, request: Request, max: usize) -> ApiResult<Vec<u8>> {
    let mut incoming = IncomingBody::new(request.into_body(), app.config(), max as u64);
    match incoming.read_to_end(max).await {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            incoming.drain().await;
            Err(error)
        }
    }
}

/// Middleware that rejects a body of another content type than the route's. A request without a
/// content type is accepted.
pub(super) async fn require_content_type(
    State((app, expected)): State<(App, &'static str)>,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let Some(content_type) = request.headers().get(CONTENT_TYPE) else {
        return Ok(next.run(request).await);
    };
    let content_type = String::from_utf8_lossy(content_type.as_bytes());
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(expected) {
        return Ok(next.run(request).await);
    }
    let declared: String = essence.chars().take(80).collect();
    let message = format!("the content type is {declared:?}; this route takes {expected}");
    // Drain the body, so that the client receives the response.
    IncomingBody::new(request.into_body(), app.config(), 0).drain().await;
    Err(ApiError::new(ErrorCode::WrongContentType, message))
}

/// A message that is signed by the registered node key of its sender.
pub(super) trait NodeSigned: Canonical + Send + Sync + 'static {
    const ROLE: Role;
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
    fn sender(&self) -> Address;
    fn market(&self) -> MarketId;
    /// Counts the message against its sender's rate limit.
    fn count_against(&self, rates: &RequestRateLimits) -> ApiResult<()> {
        rates.count_message(self.sender())
    }
}

macro_rules! impl_node_signed {
    ($name:ty, $role:ident, $message:ident => $sender:expr, $market:expr $(, $max:expr)?) => {
        impl NodeSigned for $name {
            const ROLE: Role = Role::$role;
            $(const BYTES_MAX: usize = $max;)?
            fn sender(&self) -> Address {
                let $message = self;
                $sender
            }
            fn market(&self) -> MarketId {
                let $message = self;
                $market
            }
        }
    };
}
impl_node_signed!(EnrolRequest, Participant, message => message.sender, message.market);
impl_node_signed!(Commit, Participant, message => message.sender, message.scope.market);
impl_node_signed!(UpdateHeader, Participant, message => message.sender, message.scope.market);
impl_node_signed!(WorkRequest, Provider, message => message.provider, message.market);
impl_node_signed!(WorkRecord, Provider, message => message.provider, message.market, LARGE_BYTES_MAX);

impl NodeSigned for BlobRequest {
    const ROLE: Role = Role::Provider;
    fn sender(&self) -> Address {
        self.sender
    }
    fn market(&self) -> MarketId {
        self.market
    }
    fn count_against(&self, rates: &RequestRateLimits) -> ApiResult<()> {
        rates.count_fetch(self.sender)
    }
}

/// Reads the length of a signed message and its canonical bytes, before other bytes of a body.
pub(super) async fn read_signed<T: Canonical>(
    incoming: &mut IncomingBody,
    max: usize,
) -> ApiResult<Signed<T>> {
    let length = incoming.read_exact(4).await?;
    let length = <[u8; 4]>::try_from(length.as_slice()).map(u32::from_le_bytes);
    let length = usize::try_from(length.unwrap_or(u32::MAX)).unwrap_or(usize::MAX);
    if length > max {
        let message = format!("the signed message has {length} bytes; at most {max}");
        return Err(ApiError::new(ErrorCode::TooLarge, message));
    }
    let bytes = incoming.read_exact(length).await?;
    Signed::from_bytes(&bytes)
        .map_err(|error| ApiError::new(ErrorCode::Malformed, error.to_string()))
}

/// A message for this market with a valid signature of its sender.
pub(super) struct Verified<T>(Signed<T>);

impl<T> Verified<T> {
    pub(super) fn body(&self) -> &T {
        &self.0.body
    }
    pub(super) fn into_signed(self) -> Signed<T> {
        self.0
    }
}

/// Checks market, registration and signature.
pub(super) async fn verify<T: NodeSigned>(app: &App, signed: Signed<T>) -> ApiResult<Verified<T>> {
    verify_and_query(app, signed, |_, _| ()).await.map(|(verified, ())| verified)
}

/// Like [`verify`], with a query to the engine in the same round trip.
pub(super) async fn verify_and_query<T: NodeSigned, A: Send + 'static>(
    app: &App,
    signed: Signed<T>,
    question: impl FnOnce(&Engine, Timestamp) -> A + Send + 'static,
) -> ApiResult<(Verified<T>, A)> {
    if signed.body.market() != app.market() {
        let message = "the message is for another market or chain; see /v1/market for this one";
        return Err(ApiError::new(ErrorCode::WrongMarket, message));
    }
    let (sender, role) = (signed.body.sender(), T::ROLE);
    let known = app.host().read(move |engine, now| {
        let key = engine.registration(sender, Some(role)).map(|known| known.node_key);
        (key, question(engine, now))
    });
    let (key, answer) = known.await?;
    signed.verify_with(&app.keys().of(key?)?)?;
    signed.body.count_against(app.rates())?;
    Ok((Verified(signed), answer))
}

impl<T: NodeSigned + Serialize + DeserializeOwned> FromRequest<App> for Verified<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        verify(app, read_json(app, request, T::BYTES_MAX).await?).await
    }
}

/// Extractor of typed path parameters.
pub(super) struct PathParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for PathParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        match Path::<T>::from_request_parts(parts, app).await {
            Ok(Path(at)) => Ok(Self(at)),
            Err(error) => Err(ApiError::new(ErrorCode::Malformed, error.body_text())),
        }
    }
}

/// Extractor of the query string.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        match Query::<T>::from_request_parts(parts, app).await {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(error) => Err(ApiError::new(ErrorCode::Malformed, error.body_text())),
        }
    }
}

/// Checks that a message belongs to the task in its path.
pub(super) fn check_task(task: TaskId, path: TaskId) -> ApiResult<()> {
    if task == path {
        return Ok(());
    }
    let message = format!("the message is for task {task}, but was sent to task {path}");
    Err(ApiError::new(ErrorCode::WrongTask, message))
}
