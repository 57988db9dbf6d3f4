//! Uploads of models and holdouts, and downloads of public blobs.

use std::io;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use florin_protocol::{Digest, ErrorCode, RoundNumber, TaskId, TaskSpec, Timestamp};
use florin_store::MappedBytes;
use florin_work::CommittedHoldout;
use tokio::sync::OwnedSemaphorePermit;

use super::body::{Incoming, blocking, blocking_with, send_file};
use super::error::{ApiError, ApiResult};
use super::extract::At;
use super::past::past;
use super::resume::{Head, begin, offset_of, token_of, with_offset};
use super::{App, Room};
use florin_engine::state::Past;
use florin_engine::{Engine, Event, Visibility};
use florin_store::pack::PACKED_BYTES_MAX;
use florin_store::partial::{Key, Upload, Wanted, Whose};
use florin_store::{BlobError, BlobWriter, Blobs, Opened};

/// The content type of blobs.
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// Length of a holdout's header, before its rows.
const HOLDOUT_HEADER_BYTES: u64 = 32;

/// Receives a model that a task waits for.
pub(super) async fn take_blob(
    State(app): State<App>,
    At(digest): At<Digest>,
    request: Request,
) -> Response {
    let (said, incoming) = open(&app, request);
    let mut taking = Taking { app: &app, incoming, key: None };
    let taken = match said {
        Ok(said) => taking.model(digest, said).await,
        Err(error) => Err(error),
    };
    taking.answer(taken).await
}

/// Receives all rows of a task's holdout. Any client may upload them: the rows must match the
/// task's commitment.
pub(super) async fn take_holdout(
    State(app): State<App>,
    At(task): At<TaskId>,
    request: Request,
) -> Response {
    let (said, incoming) = open(&app, request);
    let mut taking = Taking { app: &app, incoming, key: None };
    let taken = match said {
        Ok(said) => taking.holdout(task, said).await,
        Err(error) => Err(error),
    };
    taking.answer(taken).await
}

/// The offset of a model's upload under the request's token.
pub(super) async fn ask_blob(
    State(app): State<App>,
    At(digest): At<Digest>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let wanting = app.host().read(move |engine, _| engine.wanting(digest).next().map(|t| t.id));
    let Some(task) = wanting.await? else {
        return Err(not_wanted(digest));
    };
    ask(&app, &headers, task, digest)
}

/// The offset of a holdout's upload under the request's token.
pub(super) async fn ask_holdout(
    State(app): State<App>,
    At(task): At<TaskId>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let root = app.host().read(move |engine, _| engine.holdout(task).map(|t| t.0.holdout.root));
    ask(&app, &headers, task, root.await??)
}

fn ask(app: &App, headers: &HeaderMap, task: TaskId, digest: Digest) -> ApiResult<Response> {
    let Some(token) = token_of(headers)? else {
        let message = "an upload without an upload-token header always starts at offset 0";
        return Err(ApiError::new(ErrorCode::Malformed, message));
    };
    let key = Key { task, whose: Whose::Token(token), digest };
    Ok(with_offset(StatusCode::NO_CONTENT, app.host().partials().bytes_of(&key)))
}

fn not_wanted(digest: Digest) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("no task waits for blob {digest}"))
}

/// The upload headers of a request.
struct Said {
    offset: u64,
    /// Derived from a secret of the sender; without it the upload cannot be resumed.
    token: Option<Digest>,
}

fn open(app: &App, request: Request) -> (ApiResult<Said>, Incoming) {
    let headers = request.headers();
    let said =
        offset_of(headers).and_then(|offset| token_of(headers).map(|token| Said { offset, token }));
    (said, Incoming::new(request.into_body(), app.config(), 0))
}

/// An upload of a model or a holdout.
struct Taking<'a> {
    app: &'a App,
    incoming: Incoming,
    /// The partial that stays for a later request if this one breaks off.
    key: Option<Key>,
}

impl Taking<'_> {
    async fn answer(mut self, taken: ApiResult<()>) -> Response {
        self.incoming.drain().await;
        match (taken, self.key) {
            (Ok(()), _) => StatusCode::NO_CONTENT.into_response(),
            (Err(error), Some(key)) => {
                with_offset(error, self.app.host().partials().bytes_of(&key))
            }
            (Err(error), None) => error.into_response(),
        }
    }

    async fn model(&mut self, digest: Digest, said: Said) -> ApiResult<()> {
        let app = self.app;
        let wanting = app.host().read(move |engine, _| {
            let wanting = engine.wanting(digest).map(|task| (task.spec.clone(), task.model_bytes));
            (wanting.collect::<Vec<_>>(), engine.visibility(digest))
        });
        let (wanting, visibility) = wanting.await?;
        let Some((first, _)) = wanting.first() else {
            let blobs = app.host().blobs().clone();
            let came = visibility != Visibility::Unknown;
            if came && blocking(move || blobs.has(digest)).await?? {
                return Ok(()); // It was uploaded before.
            }
            return Err(not_wanted(digest));
        };
        let lengths: Vec<u64> = wanting.iter().map(|(_, model_bytes)| *model_bytes).collect();
        let taken = self.receive(&lengths, said, first.id(), digest, move |engine, _| {
            engine.wanting(digest).next().is_some()
        });
        let Some((mut bytes, place)) = taken.await? else {
            return Ok(());
        };
        let found = bytes.digest();
        if found != digest {
            bytes.discard();
            let message = format!("the bytes hash to {found}, not to {digest}");
            return Err(ApiError::new(ErrorCode::Malformed, message));
        }
        let room = app.room_for(Room::Blobs, bytes.len()).await?;
        let specs = wanting.into_iter().map(|(spec, _)| spec).collect();
        let (fitting, _turn) =
            keep_model(app, specs, bytes, [room, place, app.keep_turn().await?]).await?;
        for task in fitting {
            app.host().write(Event::BlobArrived { task, digest }).await?;
        }
        Ok(())
    }

    async fn holdout(&mut self, task: TaskId, said: Said) -> ApiResult<()> {
        let app = self.app;
        let known = app.host().read(move |engine, _| {
            engine.holdout(task).map(|(spec, is_there)| (spec.clone(), is_there))
        });
        let (spec, is_there) = known.await??;
        if is_there {
            return Ok(());
        }
        let (lengths, root) = ([holdout_bytes(&spec)], spec.holdout.root);
        let taken = self.receive(&lengths, said, task, root, move |engine, _| {
            engine.holdout(task).is_ok_and(|(_, is_there)| !is_there)
        });
        let Some((mut bytes, place)) = taken.await? else {
            return Ok(());
        };
        let room = app.room_for(Room::Blobs, bytes.len()).await?;
        let (blobs, turn) = (app.host().blobs().clone(), app.keep_turn().await?);
        let kept = blocking_with([room, place, turn], move || -> ApiResult<(Digest, Bytes)> {
            let read = bytes.look(|all| CommittedHoldout::decode(&spec, all).map(drop))?;
            if let Err(error) = read {
                bytes.discard();
                return Err(error.into());
            }
            Ok((bytes.keep(&blobs)?, bytes))
        });
        let (digest, _turn) = kept.await??;
        app.host().write(Event::HoldoutArrived { task, digest }).await?;
        Ok(())
    }

    /// Receives bytes that must have one of these lengths. `None` if another connection with the
    /// same token has completed the upload.
    async fn receive(
        &mut self,
        lengths: &[u64],
        said: Said,
        task: TaskId,
        digest: Digest,
        still_wanted: impl FnOnce(&Engine, Timestamp) -> bool + Clone + Send + 'static,
    ) -> ApiResult<Option<(Bytes, OwnedSemaphorePermit)>> {
        let app = self.app;
        let place = app.blob_place()?;
        let limit = lengths.iter().copied().max().unwrap_or_default();
        let fits = |bytes: u64| {
            if lengths.contains(&bytes) {
                return Ok(());
            }
            let message = format!("the body must have {limit} bytes, not {bytes}");
            Err(ApiError::new(ErrorCode::Truncated, message))
        };
        let left = limit.saturating_sub(said.offset);
        self.incoming.check_announced(left)?;
        let announced = self.incoming.announced();
        announced.map_or(Ok(()), |bytes| fits(bytes.saturating_add(said.offset)))?;
        self.incoming.allow(app.config().body_time(left));
        if limit <= PACKED_BYTES_MAX as u64 {
            let writer = self.incoming.write_to(app.host().blobs(), limit).await?;
            fits(writer.bytes())?;
            return Ok(Some((Bytes::Small(Some(Box::new(writer))), place)));
        }
        let token = said.token.unwrap_or_else(|| app.nameless());
        let key = Key { task, whose: Whose::Token(token), digest };
        self.key = said.token.map(|_| key);
        let kept = said.token.is_some();
        let wanted = Wanted { key, bytes: limit, offset: said.offset, kept };
        let Some(upload) = begin(app, wanted, still_wanted).await? else {
            return Ok(None);
        };
        let upload = self.incoming.append_to(upload, limit, Head::unseen()).await?;
        fits(upload.bytes())?;
        Ok(Some((Bytes::Large(upload), place)))
    }
}

/// A complete upload.
enum Bytes {
    Small(Option<Box<BlobWriter>>),
    Large(Box<Upload>),
}

impl Bytes {
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
    fn look<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> Result<T, BlobError> {
        match self {
            Self::Small(Some(writer)) => Ok(look(&writer.read_back()?)),
            Self::Small(None) => Ok(look(&[])),
            Self::Large(upload) => Ok(look(&MappedBytes::file(upload.file()?)?)),
        }
    }

    /// Stores the bytes as a blob.
    fn keep(&mut self, blobs: &Blobs) -> Result<Digest, BlobError> {
        let writer = match self {
            Self::Small(writer) => writer.take().map(|writer| *writer),
            Self::Large(upload) => Some(upload.take_blob(blobs)?),
        };
        blobs.keep(writer.ok_or_else(|| io::Error::other("the upload is already a blob"))?)
    }
}

/// Stores a model if it fits at least one waiting task. Returns the tasks that it fits, and the
/// upload, which holds its lease until it is dropped.
async fn keep_model(
    app: &App,
    specs: Vec<TaskSpec>,
    mut bytes: Bytes,
    held: [OwnedSemaphorePermit; 3],
) -> ApiResult<(Vec<TaskId>, Bytes)> {
    let blobs = app.host().blobs().clone();
    blocking_with(held, move || {
        let mut fitting = Vec::new();
        let mut refused = None;
        bytes.look(|all| {
            for spec in specs {
                match florin_work::inspect_model(&spec, all) {
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
                bytes.keep(&blobs)?;
                Ok((fitting, bytes))
            }
        }
    })
    .await?
}

/// The exact length of a task's holdout: a header, then four bytes for each feature and label.
pub(super) fn holdout_bytes(spec: &TaskSpec) -> u64 {
    let row = u64::from(spec.data.width).saturating_add(1).saturating_mul(4);
    u64::from(spec.holdout.rows).saturating_mul(row).saturating_add(HOLDOUT_HEADER_BYTES)
}

/// Sends the disclosed rows of a round with their proofs, once they are drawn.
pub(super) async fn give_shown(
    State(app): State<App>,
    At((task, round)): At<(TaskId, RoundNumber)>,
) -> ApiResult<Response> {
    let known = app.host().read(move |engine, _| match engine.kept(task, round) {
        Some(_) => Ok(None),
        None => engine.shown(task, round).map(Some),
    });
    let digest = match known.await?? {
        Some(digest) => digest,
        None => past(&app, (task, round), Past::rows_shown).await??,
    };
    send_blob(&app, digest).await
}

/// Sends a public blob.
pub(super) async fn give_blob(
    State(app): State<App>,
    At(digest): At<Digest>,
) -> ApiResult<Response> {
    match app.host().read(move |engine, _| engine.visibility(digest)).await? {
        Visibility::Public => send_blob(&app, digest).await,
        Visibility::NotYet => {
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
    let blobs = app.host().blobs().clone();
    let mut response = match blocking(move || blobs.open_checked(digest)).await?? {
        Opened::File(file, length) => send_file(file, length),
        Opened::Bytes(bytes) => Response::new(Body::from(bytes)),
    };
    response.headers_mut().insert(CONTENT_TYPE, BYTES);
    Ok(response)
}
