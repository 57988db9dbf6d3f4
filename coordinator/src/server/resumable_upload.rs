//! Resumable uploads: offset and token headers, and take-over of an upload by a newer connection.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use florin_protocol::{Digest, ErrorCode, Timestamp};
use tokio::time::timeout;

use super::App;
use super::body::blocking;
use super::error::{ApiError, ApiResult};
use florin_engine::Engine;
use florin_store::uploads::{BeginResult, Upload, UploadRequest};

/// The offset of an upload, as in the IETF draft on resumable uploads
/// (draft-ietf-httpbis-resumable-upload).
pub(super) const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
/// A secret of the client that uploads a model or a holdout; a request with the same token resumes
/// the upload.
const UPLOAD_TOKEN: HeaderName = HeaderName::from_static("upload-token");
/// Key derivation contexts for the names of uploads with and without a token; separate contexts
/// keep the names distinct.
const TOKEN_CONTEXT: &str = "florin v1 upload token";
const ANONYMOUS_CONTEXT: &str = "florin v1 upload without a token";
/// How long a new connection waits until the previous one releases an upload. If the update is
/// complete, it is first validated and stored.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(30);
/// The offset header of a request; 0 if absent.
pub(super) fn parse_offset(headers: &HeaderMap) -> ApiResult<u64> {
    let Some(value) = headers.get(UPLOAD_OFFSET) else {
        return Ok(0);
    };
    value.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let message = format!("{UPLOAD_OFFSET}: {value:?} is not a number of bytes");
        ApiError::new(ErrorCode::Malformed, message)
    })
}

/// The name derived from a request's token; `None` without a token.
pub(super) fn parse_token(headers: &HeaderMap) -> ApiResult<Option<Digest>> {
    let Some(value) = headers.get(UPLOAD_TOKEN) else {
        return Ok(None);
    };
    let token: Option<Digest> = value.to_str().ok().and_then(|text| text.parse().ok());
    let token = token.ok_or_else(|| {
        let message = format!("{UPLOAD_TOKEN}: use 64 random hexadecimal digits");
        ApiError::new(ErrorCode::Malformed, message)
    })?;
    Ok(Some(Digest(blake3::derive_key(TOKEN_CONTEXT, &token.0))))
}

impl App {
    /// A fresh name for an upload without a token.
    pub(super) fn anonymous_upload_name(&self) -> Digest {
        let number = self.inner.anonymous_uploads.fetch_add(1, Ordering::Relaxed);
        Digest(blake3::derive_key(ANONYMOUS_CONTEXT, &number.to_le_bytes()))
    }
}

/// Adds the upload's offset to a response.
pub(super) fn with_offset(answer: impl IntoResponse, offset: u64) -> Response {
    let mut response = answer.into_response();
    response.headers_mut().insert(UPLOAD_OFFSET, offset.into());
    response
}

/// Starts or resumes an upload; takes it over from an older connection that sends the same one.
/// `None` if that connection has completed it, so that the engine does not need it any more.
pub(super) async fn start_or_resume(
    app: &App,
    wanted: UploadRequest,
    still_wanted: impl FnOnce(&Engine, Timestamp) -> bool + Clone + Send + 'static,
) -> ApiResult<Option<Box<Upload>>> {
    let taking_turns = async {
        loop {
            let (partials, limits) = (app.host().partials().clone(), app.config().uploads.limits());
            let begun = blocking(move || partials.begin(&wanted, &limits, SystemTime::now()));
            let turn = match begun.await?? {
                BeginResult::Ready(upload) => return Ok(Some(upload)),
                BeginResult::Busy(turn) => turn,
            };
            turn.request_release();
            turn.released().await;
            if !app.host().read(still_wanted.clone()).await? {
                return Ok(None);
            }
        }
    };
    timeout(TAKEOVER_TIMEOUT, taking_turns).await.unwrap_or_else(|_| {
        let message = "another connection is sending this upload: try again in a moment";
        Err(ApiError::new(ErrorCode::LimitReached, message))
    })
}
