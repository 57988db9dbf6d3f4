//! Uploads of models and holdouts, and downloads of public blobs.

use std::io;
use std::net::IpAddr;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use florin_protocol::{Digest, ErrorCode, RoundNumber, TaskId, TaskSpec, Timestamp};
use florin_store::MappedBytes;
use florin_work::CommittedHoldout;
use tokio::sync::OwnedSemaphorePermit;

use super::body::{IncomingBody, blocking, blocking_holding, send_file};
use super::error::{ApiError, ApiResult};
use super::extract::PathParams;
use super::finished_rounds::finished_round;
use super::header_check::HeaderCheck;
use super::resumable_upload::{parse_offset, parse_token, start_or_resume, with_offset};
use super::{App, BlobUploadPlace, MemoryPool};
use florin_engine::state::ReportedRound;
use florin_engine::{Engine, Event, Visibility, holdout_bytes};
use florin_store::pack::PACKED_BYTES_MAX;
use florin_store::uploads::{Upload, UploadKey, UploadOwner, UploadRequest};
use florin_store::{BlobError, BlobStore, BlobWriter, OpenedBlob};

/// The content type of blobs.
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Receives a model, or another blob of a graph, that a task waits for.
pub(super) async fn put_model(
    State(app): State<App>,
    PathParams(digest): PathParams<Digest>,
    request: Request,
) -> Response {
    let headers = UploadHeaders::from_request(&request);
    let mut taking = BlobUpload::new(&app, request);
    let taken = match headers {
        Ok(headers) => taking.receive_model(digest, headers).await,
        Err(error) => Err(error),
    };
    taking.respond(taken).await
}

/// Receives all rows of a task's holdout. Any client may upload them: the rows must match the
/// task's commitment.
pub(super) async fn put_holdout(
    State(app): State<App>,
    PathParams(task): PathParams<TaskId>,
    request: Request,
) -> Response {
    let headers = UploadHeaders::from_request(&request);
    let mut taking = BlobUpload::new(&app, request);
    let taken = match headers {
        Ok(headers) => taking.receive_holdout(task, headers).await,
        Err(error) => Err(error),
    };
    taking.respond(taken).await
}

/// The offset of a model's upload under the request's token.
pub(super) async fn head_model(
    State(app): State<App>,
    PathParams(digest): PathParams<Digest>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let wanting =
        app.host().read(move |engine, _| engine.tasks_missing_blob(digest).next().map(|t| t.id));
    let Some(task) = wanting.await? else {
        return Err(blob_not_needed(digest));
    };
    upload_offset(&app, &headers, task, digest)
}

/// The offset of a holdout's upload under the request's token.
pub(super) async fn head_holdout(
    State(app): State<App>,
    PathParams(task): PathParams<TaskId>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let root = app
        .host()
        .read(move |engine, _| engine.spec_and_has_holdout(task).map(|t| t.0.holdout.root));
    upload_offset(&app, &headers, task, root.await??)
}

fn upload_offset(
    app: &App,
    headers: &HeaderMap,
    task: TaskId,
    digest: Digest,
) -> ApiResult<Response> {
    let Some(token) = parse_token(headers)? else {
        let message = "an upload without an upload-token header always starts at offset 0";
        return Err(ApiError::new(ErrorCode::Malformed, message));
    };
    let key = UploadKey { task, owner: UploadOwner::Token(token), digest };
    Ok(with_offset(StatusCode::NO_CONTENT, app.host().partials().bytes_of(&key)))
}

fn blob_not_needed(digest: Digest) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("no task waits for blob {digest}"))
}

/// The upload headers of a request.
struct UploadHeaders {
    offset: u64,
    /// Derived from a secret of the sender; without it the upload cannot be resumed.
    token: Option<Digest>,
}

impl UploadHeaders {
    fn from_request(request: &Request) -> ApiResult<Self> {
        let headers = request.headers();
        Ok(Self { offset: parse_offset(headers)?, token: parse_token(headers)? })
    }
}

/// The bytes that an upload must have.
struct WantedBytes<'a> {
    /// The possible lengths.
    lengths: &'a [u64],
    task: TaskId,
    digest: Digest,
}

/// The response to an upload of a model or a holdout that is stored already. It does not state that
/// the request's body is that content.
const STORED_BEFORE: &str = "stored before: the body of this request was not checked\n";

/// The outcome of an upload.
enum UploadOutcome {
    /// The body was checked and stored.
    Stored,
    /// The content was stored before, and the body was not checked.
    StoredBefore,
}

/// An upload of a model or a holdout.
struct BlobUpload<'a> {
    app: &'a App,
    incoming: IncomingBody,
    /// The sender's address, if it has a rate limit.
    from: Option<IpAddr>,
    /// The partial that stays for a later request if this one breaks off.
    resumable_key: Option<UploadKey>,
}

impl<'a> BlobUpload<'a> {
    fn new(app: &'a App, request: Request) -> Self {
        let from = app.rates().limited_sender(&request);
        let incoming = IncomingBody::new(request.into_body(), app.config(), 0);
        Self { app, incoming, from, resumable_key: None }
    }

    async fn respond(mut self, taken: ApiResult<UploadOutcome>) -> Response {
        self.incoming.drain().await;
        match (taken, self.resumable_key) {
            (Ok(UploadOutcome::Stored), _) => StatusCode::NO_CONTENT.into_response(),
            (Ok(UploadOutcome::StoredBefore), _) => STORED_BEFORE.into_response(),
            (Err(error), Some(key)) => {
                with_offset(error, self.app.host().partials().bytes_of(&key))
            }
            (Err(error), None) => error.into_response(),
        }
    }

    async fn receive_model(
        &mut self,
        digest: Digest,
        headers: UploadHeaders,
    ) -> ApiResult<UploadOutcome> {
        let app = self.app;
        let wanting = app.host().read(move |engine, _| {
            let wanting =
                engine.tasks_missing_blob(digest).map(|task| (task.spec.clone(), task.model_bytes));
            (wanting.collect::<Vec<_>>(), engine.visibility(digest))
        });
        let (wanting, visibility) = wanting.await?;
        let Some((first, _)) = wanting.first() else {
            let blobs = app.host().blobs().clone();
            let is_known = visibility != Visibility::Unknown;
            if is_known && blocking(move || blobs.has(digest)).await?? {
                return Ok(UploadOutcome::StoredBefore);
            }
            return Err(blob_not_needed(digest));
        };
        let lengths: Vec<u64> = wanting
            .iter()
            .filter_map(|(spec, model_bytes)| spec.blob_bytes(digest, *model_bytes))
            .collect();
        let wanted = WantedBytes { lengths: &lengths, task: first.id(), digest };
        let taken = self.receive(wanted, headers, move |engine, _| {
            engine.tasks_missing_blob(digest).next().is_some()
        });
        let Some((mut bytes, place)) = taken.await? else {
            return Ok(UploadOutcome::StoredBefore);
        };
        let found = bytes.digest();
        if found != digest {
            bytes.discard();
            let message = format!("the bytes hash to {found}, not to {digest}");
            return Err(ApiError::new(ErrorCode::Malformed, message));
        }
        let room = app.reserve_memory(MemoryPool::Blobs, bytes.len()).await?;
        let specs = wanting.into_iter().map(|(spec, _)| spec).collect();
        let (fitting, _turn) = store_model(
            app,
            (specs, digest),
            bytes,
            (room, place, app.large_store_permit().await?),
        )
        .await?;
        let mut ended = None;
        let mut arrived = false;
        for task in fitting {
            match app.host().write(Event::BlobArrived { task, digest }).await {
                Ok(_) => arrived = true,
                // One of several tasks with this model has ended during the upload.
                Err(rejection) if rejection.code == ErrorCode::TaskClosed => {
                    ended = Some(rejection);
                }
                Err(rejection) => return Err(rejection.into()),
            }
        }
        ended
            .filter(|_| !arrived)
            .map_or(Ok(UploadOutcome::Stored), |rejection| Err(rejection.into()))
    }

    async fn receive_holdout(
        &mut self,
        task: TaskId,
        headers: UploadHeaders,
    ) -> ApiResult<UploadOutcome> {
        let app = self.app;
        let known = app.host().read(move |engine, _| {
            engine.spec_and_has_holdout(task).map(|(spec, is_there)| (spec.clone(), is_there))
        });
        let (spec, is_there) = known.await??;
        if is_there {
            return Ok(UploadOutcome::StoredBefore);
        }
        let (lengths, root) = ([holdout_bytes(&spec)], spec.holdout.root);
        let wanted = WantedBytes { lengths: &lengths, task, digest: root };
        let taken = self.receive(wanted, headers, move |engine, _| {
            engine.spec_and_has_holdout(task).is_ok_and(|(_, is_there)| !is_there)
        });
        let Some((mut bytes, place)) = taken.await? else {
            return Ok(UploadOutcome::StoredBefore);
        };
        let room = app.reserve_memory(MemoryPool::Blobs, bytes.len()).await?;
        let (blobs, turn) = (app.host().blobs().clone(), app.large_store_permit().await?);
        let stored = blocking_holding(
            (room, place, turn),
            move || -> ApiResult<(Digest, CompleteUpload)> {
                let read = bytes.inspect(|all| CommittedHoldout::decode(&spec, all).map(drop))?;
                if let Err(error) = read {
                    bytes.discard();
                    return Err(error.into());
                }
                Ok((bytes.store(&blobs)?, bytes))
            },
        );
        let (digest, _turn) = stored.await??;
        app.host().write(Event::HoldoutArrived { task, digest }).await?;
        Ok(UploadOutcome::Stored)
    }

    /// Receives the bytes. `None` if another connection with the
    /// same token has completed the upload.
    async fn receive(
        &mut self,
        WantedBytes { lengths, task, digest }: WantedBytes<'_>,
        headers: UploadHeaders,
        still_wanted: impl FnOnce(&Engine, Timestamp) -> bool + Clone + Send + 'static,
    ) -> ApiResult<Option<(CompleteUpload, BlobUploadPlace)>> {
        let app = self.app;
        let place = app.blob_upload_place(self.from)?;
        let limit = lengths.iter().copied().max().unwrap_or_default();
        let fits = |bytes: u64| {
            if lengths.contains(&bytes) {
                return Ok(());
            }
            let message = format!("the body must have {limit} bytes, not {bytes}");
            Err(ApiError::new(ErrorCode::Truncated, message))
        };
        let left = limit.saturating_sub(headers.offset);
        self.incoming.check_content_length(left)?;
        let announced = self.incoming.content_length();
        announced.map_or(Ok(()), |bytes| fits(bytes.saturating_add(headers.offset)))?;
        self.incoming.set_time_limit(app.config().body_timeout(left));
        if limit <= PACKED_BYTES_MAX as u64 {
            let writer = self.incoming.write_to(app.host().blobs(), limit).await?;
            fits(writer.bytes())?;
            return Ok(Some((CompleteUpload::Small(Some(Box::new(writer))), place)));
        }
        let token = headers.token.unwrap_or_else(|| app.anonymous_upload_name());
        let key = UploadKey { task, owner: UploadOwner::Token(token), digest };
        self.resumable_key = headers.token.map(|_| key);
        let resumable = headers.token.is_some();
        let wanted = UploadRequest { key, bytes: limit, offset: headers.offset, resumable };
        let Some(upload) = start_or_resume(app, wanted, still_wanted).await? else {
            return Ok(None);
        };
        let upload = self.incoming.append_to(upload, limit, HeaderCheck::disabled()).await?;
        fits(upload.bytes())?;
        Ok(Some((CompleteUpload::Large(upload), place)))
    }
}

/// A complete upload.
enum CompleteUpload {
    Small(Option<Box<BlobWriter>>),
    Large(Box<Upload>),
}

impl CompleteUpload {
    fn len(&self) -> u64 {
        match self {
            Self::Small(writer) => writer.as_ref().map_or(0, |writer| writer.bytes()),
            Self::Large(upload) => upload.bytes(),
        }
    }

    fn digest(&self) -> Digest {
        match self {
            Self::Small(Some(writer)) => writer.digest(),
            Self::Small(None) => Digest::default(),
            Self::Large(upload) => upload.digest(),
        }
    }

    fn discard(&mut self) {
        match self {
            Self::Small(writer) => *writer = None,
            Self::Large(upload) => upload.discard(),
        }
    }

    /// Inspects all bytes; those of a large upload are memory-mapped.
    fn inspect<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> Result<T, BlobError> {
        match self {
            Self::Small(Some(writer)) => Ok(look(&writer.read_back()?)),
            Self::Small(None) => Ok(look(&[])),
            Self::Large(upload) => Ok(look(&MappedBytes::file(upload.file()?)?)),
        }
    }

    /// Stores the bytes as a blob.
    fn store(&mut self, blobs: &BlobStore) -> Result<Digest, BlobError> {
        let writer = match self {
            Self::Small(writer) => writer.take().map(|writer| *writer),
            Self::Large(upload) => Some(upload.take_blob(blobs)?),
        };
        blobs.store(writer.ok_or_else(|| io::Error::other("the upload is already a blob"))?)
    }
}

/// Stores a model if it fits at least one waiting task. Returns the tasks that it fits, and the
/// upload, which holds its lease until it is dropped.
async fn store_model(
    app: &App,
    (specs, digest): (Vec<TaskSpec>, Digest),
    mut bytes: CompleteUpload,
    held: (OwnedSemaphorePermit, BlobUploadPlace, OwnedSemaphorePermit),
) -> ApiResult<(Vec<TaskId>, CompleteUpload)> {
    let blobs = app.host().blobs().clone();
    blocking_holding(held, move || {
        let mut fitting = Vec::new();
        let mut refused = None;
        bytes.inspect(|all| {
            for spec in specs {
                match florin_work::inspect_blob(&spec, digest, all) {
                    Ok(()) => fitting.push(spec.id()),
                    Err(rejection) => refused = Some(rejection),
                }
            }
        })?;
        match refused {
            Some(rejection) if fitting.is_empty() => {
                bytes.discard();
                Err(rejection.into())
            }
            _ => {
                bytes.store(&blobs)?;
                Ok((fitting, bytes))
            }
        }
    })
    .await?
}

/// Sends the disclosed rows of a round with their proofs, once they are drawn.
pub(super) async fn get_disclosed_rows(
    State(app): State<App>,
    PathParams((task, round)): PathParams<(TaskId, RoundNumber)>,
) -> ApiResult<Response> {
    let known = app.host().read(move |engine, _| match engine.archive_blob(task, round) {
        Some(_) => Ok(None),
        None => engine.disclosed_rows(task, round).map(Some),
    });
    let digest = match known.await?? {
        Some(digest) => digest,
        None => finished_round(&app, task, round, ReportedRound::disclosed_rows).await??,
    };
    send_blob(&app, digest).await
}

/// Sends a public blob.
pub(super) async fn get_blob(
    State(app): State<App>,
    PathParams(digest): PathParams<Digest>,
) -> ApiResult<Response> {
    match app.host().read(move |engine, _| engine.visibility(digest)).await? {
        Visibility::Public => send_blob(&app, digest).await,
        Visibility::NotYetPublic => {
            let message = format!("blob {digest} is not public yet");
            Err(ApiError::new(ErrorCode::NotYetPublic, message))
        }
        Visibility::Unknown => Err(ApiError::new(
            ErrorCode::NotFound,
            format!("blob {digest} belongs to no task here"),
        )),
    }
}

/// Sends a blob after checking its bytes against their digest.
pub(super) async fn send_blob(app: &App, digest: Digest) -> ApiResult<Response> {
    let turn = app.blob_read_permit().await?;
    let blobs = app.host().blobs().clone();
    Ok(opened_blob(blocking_holding([turn], move || blobs.open_lately_checked(digest)).await??))
}

/// The response with a blob whose bytes were compared with its digest.
pub(super) fn opened_blob(blob: OpenedBlob) -> Response {
    let mut response = match blob {
        OpenedBlob::File(file, length) => send_file(file, length),
        OpenedBlob::Bytes(bytes) => Response::new(Body::from(bytes)),
    };
    response.headers_mut().insert(CONTENT_TYPE, BYTES);
    response
}
