//! Error responses. The only file with HTTP status codes.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use florin_ledger::LedgerError;
use florin_protocol::{ErrorCode, Rejection, VerifyError};
use serde::Serialize;

use florin_store::BlobError;
use florin_store::uploads::UploadError;

/// The `Retry-After` of 429 and 503 responses, in seconds. Every rate in the settings is at least
/// one per second, so a client that waits this long may retry.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// A rejection as an HTTP response: status, code and message.
#[derive(Debug)]
pub struct ApiError(pub Rejection);

/// A handler's result.
pub(super) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Rejection::new(code, message))
    }

    /// An internal error: the cause is logged, but not sent.
    pub(super) fn internal(what: &'static str, cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "{what}");
        Self::new(
            ErrorCode::Internal,
            format!("{what}: an error of the coordinator; try again later"),
        )
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
            VerifyError::WeakKey => ErrorCode::WeakKey,
            VerifyError::Expired(_) => ErrorCode::DeadlinePassed,
            VerifyError::WrongMarket => ErrorCode::WrongMarket,
            VerifyError::InvalidKey
            | VerifyError::InvalidSignature
            | VerifyError::WrongSigner { .. } => ErrorCode::InvalidSignature,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LedgerError> for ApiError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Refused(refusal) => {
                Self::new(ErrorCode::LedgerRejected, format!("{refusal} [{}]", refusal.code()))
            }
            LedgerError::Unavailable(_) => Self::internal("the ledger does not respond", &error),
            other => Self::internal("the ledger failed", &other),
        }
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::Missing(digest) => {
                Self::new(ErrorCode::NotFound, format!("blob {digest} is not stored here"))
            }
            BlobError::Full => Self::new(ErrorCode::StorageFull, error.to_string()),
            BlobError::Bucket(_) => {
                tracing::warn!(cause = %error, "a blob cannot be stored or fetched");
                let message = "the blob storage does not respond: try again in a moment";
                Self::new(ErrorCode::StorageUnavailable, message)
            }
            BlobError::WrongDigest { .. } | BlobError::Failed(_) => {
                Self::internal("a blob cannot be read or stored", &error)
            }
        }
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        let code = match error {
            UploadError::WrongOffset { .. } => ErrorCode::WrongOffset,
            UploadError::QuotaExceeded { .. } => ErrorCode::QuotaExceeded,
            UploadError::InsufficientSpace { .. } => ErrorCode::StorageFull,
            UploadError::TooMany => ErrorCode::LimitReached,
            UploadError::Blob(error) => return error.into(),
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
        // For the middleware that counts responses and has the request's id: see [`set_rejection_body`].
        response.extensions_mut().insert(self.0);
        response
    }
}

/// The JSON body of a rejection.
#[derive(Serialize)]
struct RejectionBody<'a> {
    code: ErrorCode,
    message: &'a str,
    /// The request's id, which the client can quote to the operator.
    request_id: &'a str,
}

/// The JSON body of an error response.
pub(super) fn rejection_json(rejection: &Rejection, request_id: &str) -> Vec<u8> {
    let explained = RejectionBody { code: rejection.code, message: &rejection.message, request_id };
    // Serialising three strings cannot fail.
    serde_json::to_vec(&explained).unwrap_or_default()
}

/// Sets the JSON body of an error response.
pub(super) fn set_rejection_body(response: &mut Response, rejection: &Rejection, request_id: &str) {
    let body = rejection_json(rejection, request_id);
    response.headers_mut().remove(CONTENT_LENGTH);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.body_mut() = Body::from(body);
}

/// The HTTP status of a rejection code.
pub(super) const fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::Malformed | ErrorCode::Truncated => StatusCode::BAD_REQUEST,
        ErrorCode::InvalidSignature | ErrorCode::WeakKey => StatusCode::UNAUTHORIZED,
        ErrorCode::NotFunded => StatusCode::PAYMENT_REQUIRED,
        ErrorCode::NotRegistered
        | ErrorCode::NotEnrolled
        | ErrorCode::NotSelected
        | ErrorCode::BondTooSmall
        | ErrorCode::StakeTooSmall
        | ErrorCode::NotAdmitted
        | ErrorCode::InvalidInvitation
        | ErrorCode::InvitationUsed
        | ErrorCode::WrongRole
        | ErrorCode::DataRestricted
        | ErrorCode::NotYetPublic => StatusCode::FORBIDDEN,
        ErrorCode::UnknownTask | ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::WrongMarket
        | ErrorCode::WrongTask
        | ErrorCode::WrongRound
        | ErrorCode::WrongBaseModel
        | ErrorCode::ConflictingMessage
        | ErrorCode::CommitMismatch
        | ErrorCode::NotCommitted
        | ErrorCode::DeadlinePassed
        | ErrorCode::WrongOffset
        | ErrorCode::TaskFull
        | ErrorCode::LeaseRefused
        | ErrorCode::NotListed
        | ErrorCode::LedgerRejected => StatusCode::CONFLICT,
        ErrorCode::TaskClosed | ErrorCode::WorkOrderClosed => StatusCode::GONE,
        ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::WrongContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorCode::InvalidTask
        | ErrorCode::InvalidOrder
        | ErrorCode::ArbiterNotAccepted
        | ErrorCode::TrainerNotAccepted
        | ErrorCode::InvalidExpiry
        | ErrorCode::InvalidRowCount
        | ErrorCode::UpdateNotFinite
        | ErrorCode::UpdateWrongSchema
        | ErrorCode::UpdateNormTooLarge
        | ErrorCode::WorkResultMismatch => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::TooEarly => StatusCode::TOO_EARLY,
        ErrorCode::LimitReached | ErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::StorageFull | ErrorCode::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::StorageUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
