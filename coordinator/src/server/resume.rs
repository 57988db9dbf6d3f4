//! Uploads that go on where they ended: whose turn it is, where the bytes end, and whether their beginning is right.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use florin_protocol::{Code, Digest, Rejection, TaskSpec, Tick};
use tokio::time::timeout;

use super::App;
use super::body::blocking;
use super::error::{ApiError, ApiResult};
use florin_engine::Engine;
use florin_store::partial::{Begun, Upload, Wanted};

/// Where an upload goes on, or how many of its bytes are here: the name that the IETF's draft on resumable uploads uses.
pub(super) const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
/// A secret of whoever uploads a model or a holdout: who knows it goes on with the same upload.
const UPLOAD_TOKEN: HeaderName = HeaderName::from_static("upload-token");
/// Contexts under which tokens, and uploads without one, become names: nobody can name another's.
const TOKEN_CONTEXT: &str = "florin v1 upload token";
const NAMELESS_CONTEXT: &str = "florin v1 upload without a token";
/// How long a new connection waits until the one before it has let go of an upload. An update that has arrived is
/// checked and kept first.
const TURN_TIME: Duration = Duration::from_secs(30);
/// Longest beginning of an update that is held while its header arrives, in bytes: the header and its length.
const HEAD_BYTES_MAX: u64 = 8 + (1 << 20);

/// Where a request says that it goes on; at 0 it begins.
pub(super) fn offset_of(headers: &HeaderMap) -> ApiResult<u64> {
    let Some(said) = headers.get(UPLOAD_OFFSET) else {
        return Ok(0);
    };
    said.to_str().ok().and_then(|said| said.parse().ok()).ok_or_else(|| {
        let message = format!("{UPLOAD_OFFSET}: {said:?} is no number of bytes");
        ApiError::new(Code::Malformed, message)
    })
}

/// What a request's token becomes, if it has one.
pub(super) fn token_of(headers: &HeaderMap) -> ApiResult<Option<Digest>> {
    let Some(said) = headers.get(UPLOAD_TOKEN) else {
        return Ok(None);
    };
    let token: Option<Digest> = said.to_str().ok().and_then(|said| said.parse().ok());
    let token = token.ok_or_else(|| {
        let message = format!("{UPLOAD_TOKEN}: use 64 hexadecimal digits that nobody can guess");
        ApiError::new(Code::Malformed, message)
    })?;
    Ok(Some(Digest(blake3::derive_key(TOKEN_CONTEXT, &token.0))))
}

impl App {
    /// A name for an upload that has none.
    pub(super) fn nameless(&self) -> Digest {
        let number = self.inner.nameless.fetch_add(1, Ordering::Relaxed);
        Digest(blake3::derive_key(NAMELESS_CONTEXT, &number.to_le_bytes()))
    }
}

/// An answer that says how many bytes are here.
pub(super) fn with_offset(answer: impl IntoResponse, offset: u64) -> Response {
    let mut response = answer.into_response();
    response.headers_mut().insert(UPLOAD_OFFSET, offset.into());
    response
}

/// Begins an upload or goes on with it, in the place of an older connection that sends the same; `None` where that one
/// brought it to its end, so that the engine does not want it any more.
pub(super) async fn begin(
    app: &App,
    wanted: Wanted,
    still_wanted: impl FnOnce(&Engine, Tick) -> bool + Clone + Send + 'static,
) -> ApiResult<Option<Box<Upload>>> {
    let taking_turns = async {
        loop {
            let (partials, limits) = (app.host().partials().clone(), app.config().uploads.limits());
            let begun = blocking(move || partials.begin(&wanted, &limits, SystemTime::now()));
            let turn = match begun.await?? {
                Begun::Ready(upload) => return Ok(Some(upload)),
                Begun::Busy(turn) => turn,
            };
            turn.ask();
            turn.is_over().await;
            if !app.host().read(still_wanted.clone()).await? {
                return Ok(None);
            }
        }
    };
    timeout(TURN_TIME, taking_turns).await.unwrap_or_else(|_| {
        let message = "another connection sends this upload: try again in a moment";
        Err(ApiError::new(Code::LimitReached, message))
    })
}

/// The beginning of bytes that are still arriving.
pub(super) struct Head {
    spec: Option<Box<TaskSpec>>,
    total: u64,
    seen: Vec<u8>,
}

impl Head {
    /// Of an update of `total` bytes, whose header must fit this task.
    pub(super) fn of_update(spec: &TaskSpec, total: u64) -> Self {
        Self { spec: Some(Box::new(spec.clone())), total, seen: Vec::new() }
    }

    /// Of bytes that are only looked at when all are there.
    pub(super) const fn unseen() -> Self {
        Self { spec: None, total: 0, seen: Vec::new() }
    }

    /// Looks at the next bytes. What is wrong with the header is said as soon as it is known.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Result<(), Rejection> {
        let Some(spec) = &self.spec else {
            return Ok(());
        };
        self.seen.extend_from_slice(bytes);
        if florin_work::check_update_header(spec, &self.seen, self.total)? {
            (self.spec, self.seen) = (None, Vec::new());
        }
        Ok(())
    }

    /// Looks at what came before the connection broke.
    pub(super) fn look_back(&mut self, upload: &mut Upload) -> ApiResult<()> {
        if upload.bytes() == 0 {
            return Ok(());
        }
        let first = upload.first(HEAD_BYTES_MAX)?;
        self.look(&first).map_err(|rejection| {
            upload.discard();
            rejection.into()
        })
    }
}
