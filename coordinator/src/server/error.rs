//! Error responses. The only file with HTTP status codes.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use florin_ledger::LedgerError;
use florin_protocol::{Code, Rejection, VerifyError};
use serde::Serialize;

use florin_store::BlobError;
use florin_store::partial::PartialError;

/// The `Retry-After` of 429 and 503 responses, in seconds. Every rate in the settings is at least
/// one per second, so a client that waits this long may retry.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// A rejection as an HTTP response: status, code and message.
#[derive(Debug)]
pub struct ApiError(pub Rejection);

/// A handler's result.
pub(super) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Rejection::new(code, message))
    }

    /// An internal error: the cause is logged, but not sent.
    pub(super) fn fault(what: &'static str, cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "{what}");
        Self::new(Code::Internal, format!("{what}: an error of the coordinator; try again later"))
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        Self(rejection)
    }
}

impl From<VerifyError> for ApiError {
    fn from(error: VerifyError) -> Self {
        let code = match error {
            VerifyError::WeakKey => Code::WeakKey,
            VerifyError::Expired(_) => Code::DeadlinePassed,
            VerifyError::WrongMarket => Code::WrongMarket,
            VerifyError::BadKey | VerifyError::BadSignature | VerifyError::WrongWallet { .. } => {
                Code::BadSignature
            }
        };
        Self::new(code, error.to_string())
    }
}

impl From<LedgerError> for ApiError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Refused(refusal) => {
                Self::new(Code::LedgerRefused, format!("{refusal} [{}]", refusal.code()))
            }
            LedgerError::Unavailable(_) => Self::fault("the ledger does not respond", &error),
            other => Self::fault("the ledger failed", &other),
        }
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::Missing(digest) => {
                Self::new(Code::NotFound, format!("blob {digest} is not stored here"))
            }
            BlobError::Full => Self::new(Code::StorageFull, error.to_string()),
            BlobError::Bucket(_) => {
                tracing::warn!(cause = %error, "a blob cannot be stored or fetched");
                let message = "the blob storage does not respond: try again in a moment";
                Self::new(Code::StorageUnavailable, message)
            }
            BlobError::WrongDigest { .. } | BlobError::Failed(_) => {
                Self::fault("a blob cannot be read or stored", &error)
            }
        }
    }
}

impl From<PartialError> for ApiError {
    fn from(error: PartialError) -> Self {
        let code = match error {
            PartialError::WrongOffset { .. } => Code::WrongOffset,
            PartialError::QuotaExceeded { .. } => Code::QuotaExceeded,
            PartialError::NoRoom { .. } => Code::StorageFull,
            PartialError::TooMany => Code::LimitReached,
            PartialError::Blob(error) => return error.into(),
        };
        Self::new(code, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = status(self.0.code);
        let mut response = status.into_response();
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_S);
        }
        // For the middleware that counts responses and has the request's id: see [`explain`].
        response.extensions_mut().insert(self.0);
        response
    }
}

/// The JSON body of a rejection.
#[derive(Serialize)]
struct Explained<'a> {
    code: Code,
    message: &'a str,
    /// The request's id, which the client can quote to the operator.
    request_id: &'a str,
}

/// Sets the JSON body of an error response.
pub(super) fn explain(response: &mut Response, rejection: &Rejection, request_id: &str) {
    let explained = Explained { code: rejection.code, message: &rejection.message, request_id };
    // Serialising three strings cannot fail.
    let body = serde_json::to_vec(&explained).unwrap_or_default();
    response.headers_mut().remove(CONTENT_LENGTH);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.body_mut() = Body::from(body);
}

/// The HTTP status of a rejection code.
pub(super) const fn status(code: Code) -> StatusCode {
    match code {
        Code::Malformed | Code::Truncated => StatusCode::BAD_REQUEST,
        Code::BadSignature | Code::WeakKey => StatusCode::UNAUTHORIZED,
        Code::NotFunded => StatusCode::PAYMENT_REQUIRED,
        Code::NotRegistered
        | Code::NotEnrolled
        | Code::NotSelected
        | Code::BondTooSmall
        | Code::StakeTooSmall
        | Code::NotYetPublic => StatusCode::FORBIDDEN,
        Code::UnknownTask | Code::NotFound => StatusCode::NOT_FOUND,
        Code::WrongMarket
        | Code::WrongTask
        | Code::WrongRound
        | Code::WrongBaseModel
        | Code::Conflicting
        | Code::CommitMismatch
        | Code::NotCommitted
        | Code::DeadlinePassed
        | Code::WrongOffset
        | Code::LedgerRefused => StatusCode::CONFLICT,
        Code::TaskClosed | Code::WorkGone => StatusCode::GONE,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::WrongContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::BadTask
        | Code::BadRows
        | Code::UpdateNotFinite
        | Code::UpdateWrongSchema
        | Code::UpdateNormTooLarge
        | Code::WorkWrong => StatusCode::UNPROCESSABLE_ENTITY,
        Code::TooEarly => StatusCode::TOO_EARLY,
        Code::LimitReached | Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Code::StorageFull | Code::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
        Code::StorageUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
