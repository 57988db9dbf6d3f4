//! Uploads, streamed to disk and hashed as they arrive, and blobs on their way out.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use florin_protocol::limits::HEADER_BYTES_MAX;
use florin_protocol::{
    Canonical, Code, Digest, Receipt, Rejection, Round, Signed, TaskId, TaskSpec, Tick,
    UpdateHeader,
};
use florin_work::Committed;
use tokio::sync::oneshot;

use super::body::{Incoming, blocking, send_file};
use super::error::{ApiError, ApiResult};
use super::extract::{At, check_task, verify_and};
use super::{App, Room};
use crate::engine::{Engine, Event, Verdict, Visibility};
use crate::store::{BlobWriter, Opened};

/// What a blob says it is.
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// Bytes of a holdout before its rows.
const HOLDOUT_HEADER_BYTES: u64 = 32;

/// An update: length of the signed header, the header, then the delta's bytes.
pub(super) async fn take_update(
    State(app): State<App>,
    At(task): At<TaskId>,
    request: Request,
) -> ApiResult<Json<Signed<Receipt>>> {
    let header_bytes = HEADER_BYTES_MAX as u64;
    let mut incoming = Incoming::new(request.into_body(), app.config(), header_bytes);
    let taken = receive_update(&app, task, &mut incoming).await;
    // Whatever is left is read, so that the sender hears the answer instead of a reset connection.
    incoming.drain().await;
    taken.map(Json)
}

async fn receive_update(
    app: &App,
    task: TaskId,
    incoming: &mut Incoming,
) -> ApiResult<Signed<Receipt>> {
    let signed = read_header(incoming).await?;
    let (event, path) = (Event::Revealed(signed.clone()), task);
    let asked = event.clone();
    let (verified, known) = verify_and(app, signed, move |engine, now| {
        let spec = engine.state().tasks.get(&path).map(|task| task.spec.clone());
        engine.check(&asked, now).map(|verdict| (verdict, spec))
    })
    .await?;
    check_task(verified.body().scope.task, task)?;
    let (verdict, spec) = known?;
    let signed = verified.into_signed();
    if verdict == Verdict::New
        && let Some(spec) = spec
    {
        let header = &signed.body;
        if let Err(error) = store_update(app, &spec, header, incoming).await {
            note_refusal(app, header, &error.0).await;
            return Err(error);
        }
        let told = app.host().write_then(event, receipt_of(header)).await?;
        return sign_receipt(app, told);
    }
    let told = app.host().read(receipt_of(&signed.body)).await?;
    sign_receipt(app, told)
}

async fn read_header(incoming: &mut Incoming) -> ApiResult<Signed<UpdateHeader>> {
    let length = incoming.exact(4).await?;
    let length = <[u8; 4]>::try_from(length.as_slice()).map(u32::from_le_bytes);
    let length = usize::try_from(length.unwrap_or(u32::MAX)).unwrap_or(usize::MAX);
    if length > HEADER_BYTES_MAX {
        let message = format!("a header of {length} bytes: at most {HEADER_BYTES_MAX}");
        return Err(ApiError::new(Code::TooLarge, message));
    }
    let bytes = incoming.exact(length).await?;
    Signed::from_bytes(&bytes).map_err(|error| ApiError::new(Code::Malformed, error.to_string()))
}

/// Takes the bytes, checks all that can be known about them, and keeps them.
async fn store_update(
    app: &App,
    spec: &TaskSpec,
    header: &UpdateHeader,
    incoming: &mut Incoming,
) -> ApiResult<()> {
    let _slot = app.upload_slot(header.sender)?;
    incoming.allow(app.config().body_time(header.bytes));
    let mut writer = incoming.write_to(app.host().blobs(), header.bytes).await?;
    if writer.bytes() < header.bytes {
        let message = format!("{} of {} bytes came", writer.bytes(), header.bytes);
        return Err(ApiError::new(Code::Truncated, message));
    }
    if writer.digest() != header.update {
        let message = format!("the bytes hash to {}, not to the header's digest", writer.digest());
        return Err(ApiError::new(Code::CommitMismatch, message));
    }
    let _room = app.room_for(Room::Updates, header.bytes).await?;
    let small = writer.is_small();
    let (spec, blobs) = (spec.clone(), app.host().blobs().clone());
    let (kept, answer) = oneshot::channel();
    let check_and_keep = move || -> ApiResult<()> {
        florin_work::check_update(&spec, &writer.read_back()?)?;
        blobs.keep_then(
            writer,
            Box::new(move |result| {
                // Nobody listens any more if the connection is gone.
                let _ = kept.send(result);
            }),
        );
        Ok(())
    };
    // A small update is checked faster than another thread wakes up, and waits for the disk without one.
    if small {
        check_and_keep()?
    } else {
        blocking(check_and_keep).await??
    }
    answer.await.map_err(|error| ApiError::fault("a blob's answer was lost", &error))??;
    Ok(())
}

/// What was wrong with somebody's bytes goes into the round's report.
async fn note_refusal(app: &App, header: &UpdateHeader, why: &Rejection) {
    let theirs = matches!(
        why.code,
        Code::TooLarge
            | Code::Truncated
            | Code::CommitMismatch
            | Code::UpdateNotFinite
            | Code::UpdateWrongSchema
            | Code::UpdateNormTooLarge
    );
    if !theirs {
        return;
    }
    let event = Event::Refused {
        task: header.scope.task,
        round: header.scope.round,
        sender: header.sender,
        code: why.code,
    };
    if let Err(error) = app.host().write(event).await {
        tracing::debug!(%error, "a refused upload was not noted");
    }
}

/// Asks for the receipt of an update that was taken.
fn receipt_of(header: &UpdateHeader) -> impl FnOnce(&Engine, Tick) -> Option<Receipt> + use<> {
    let (scope, sender, id) = (header.scope, header.sender, header.digest());
    move |engine, _| engine.receipt(scope, sender, id)
}

fn sign_receipt(app: &App, receipt: Option<Receipt>) -> ApiResult<Signed<Receipt>> {
    let receipt = receipt
        .ok_or_else(|| ApiError::fault("a receipt is missing", &"the update was just taken"))?;
    Ok(app.node().sign(receipt))
}

/// A model that some task waits for.
pub(super) async fn take_blob(
    State(app): State<App>,
    At(digest): At<Digest>,
    request: Request,
) -> ApiResult<StatusCode> {
    let mut incoming = Incoming::new(request.into_body(), app.config(), 0);
    let taken = receive_blob(&app, digest, &mut incoming).await;
    incoming.drain().await;
    taken.map(|()| StatusCode::NO_CONTENT)
}

async fn receive_blob(app: &App, digest: Digest, incoming: &mut Incoming) -> ApiResult<()> {
    let wanting = app.host().read(move |engine, _| {
        let wanting = engine.wanting(digest).map(|task| (task.spec.clone(), task.model_bytes));
        (wanting.collect::<Vec<_>>(), engine.visibility(digest))
    });
    let (wanting, visibility) = wanting.await?;
    if wanting.is_empty() {
        if visibility != Visibility::Unknown && app.host().blobs().contains(digest) {
            return Ok(()); // It came before.
        }
        let message = format!("no task waits for blob {digest}");
        return Err(ApiError::new(Code::NotFound, message));
    }
    let _place = app.blob_place()?;
    let lengths: Vec<u64> = wanting.iter().map(|(_, model_bytes)| *model_bytes).collect();
    let writer = receive(app, incoming, &lengths).await?;
    if writer.digest() != digest {
        let message = format!("the bytes hash to {}, not to {digest}", writer.digest());
        return Err(ApiError::new(Code::Malformed, message));
    }
    let _room = app.room_for(Room::Blobs, writer.bytes()).await?;
    let specs = wanting.into_iter().map(|(spec, _)| spec).collect();
    for task in keep_blob(app, specs, writer).await? {
        app.host().write(Event::BlobArrived { task, digest }).await?;
    }
    Ok(())
}

/// Takes bytes that have one of these lengths.
async fn receive(app: &App, incoming: &mut Incoming, lengths: &[u64]) -> ApiResult<BlobWriter> {
    let limit = lengths.iter().copied().max().unwrap_or_default();
    incoming.check_announced(limit)?;
    let fits = |bytes: u64| {
        if lengths.contains(&bytes) {
            return Ok(());
        }
        let message = format!("there must be {limit} bytes, not {bytes}");
        Err(ApiError::new(Code::Truncated, message))
    };
    incoming.announced().map_or(Ok(()), fits)?;
    incoming.allow(app.config().body_time(limit));
    let writer = incoming.write_to(app.host().blobs(), limit).await?;
    fits(writer.bytes())?;
    Ok(writer)
}

/// Keeps a model if it fits a task that waits for it; returns those it fits.
async fn keep_blob(
    app: &App,
    specs: Vec<TaskSpec>,
    mut writer: BlobWriter,
) -> ApiResult<Vec<TaskId>> {
    let blobs = app.host().blobs().clone();
    blocking(move || {
        let mut fitting = Vec::new();
        let mut refused = None;
        let bytes = writer.read_back()?;
        for spec in specs {
            match florin_work::check_model(&spec, &bytes) {
                Ok(_) => fitting.push(spec.id()),
                Err(rejection) => refused = Some(rejection),
            }
        }
        match refused {
            Some(rejection) if fitting.is_empty() => Err(rejection.into()),
            _ => {
                drop(bytes);
                blobs.keep(writer)?;
                Ok(fitting)
            }
        }
    })
    .await?
}

/// All the rows of a task's holdout. Whoever has them may upload them: the task's commitment says whether they are it.
pub(super) async fn take_holdout(
    State(app): State<App>,
    At(task): At<TaskId>,
    request: Request,
) -> ApiResult<StatusCode> {
    let mut incoming = Incoming::new(request.into_body(), app.config(), 0);
    let taken = receive_holdout(&app, task, &mut incoming).await;
    incoming.drain().await;
    taken.map(|()| StatusCode::NO_CONTENT)
}

async fn receive_holdout(app: &App, task: TaskId, incoming: &mut Incoming) -> ApiResult<()> {
    let known = app.host().read(move |engine, _| {
        engine.holdout(task).map(|(spec, is_there)| (spec.clone(), is_there))
    });
    let (spec, is_there) = known.await??;
    if is_there {
        return Ok(());
    }
    let _place = app.blob_place()?;
    let mut writer = receive(app, incoming, &[holdout_bytes(&spec)]).await?;
    let _room = app.room_for(Room::Blobs, writer.bytes()).await?;
    let blobs = app.host().blobs().clone();
    let kept = blocking(move || -> ApiResult<Digest> {
        Committed::read(&spec, &writer.read_back()?)?;
        Ok(blobs.keep(writer)?)
    });
    let digest = kept.await??;
    app.host().write(Event::HoldoutArrived { task, digest }).await?;
    Ok(())
}

/// The exact length of a task's holdout: a header, then four bytes for each feature and label.
pub(super) fn holdout_bytes(spec: &TaskSpec) -> u64 {
    let row = u64::from(spec.data.width).saturating_add(1).saturating_mul(4);
    u64::from(spec.holdout.rows).saturating_mul(row).saturating_add(HOLDOUT_HEADER_BYTES)
}

/// The rows by which a round is judged, with their proofs, once they are drawn.
pub(super) async fn give_shown(
    State(app): State<App>,
    At((task, round)): At<(TaskId, Round)>,
) -> ApiResult<Response> {
    let digest = app.host().read(move |engine, _| engine.shown(task, round)).await??;
    send_blob(&app, digest).await
}

/// A blob that anybody may read.
pub(super) async fn give_blob(
    State(app): State<App>,
    At(digest): At<Digest>,
) -> ApiResult<Response> {
    match app.host().read(move |engine, _| engine.visibility(digest)).await? {
        Visibility::Public => send_blob(&app, digest).await,
        Visibility::NotYet => {
            let message = format!("blob {digest} is not public yet");
            Err(ApiError::new(Code::NotYetPublic, message))
        }
        Visibility::Unknown => {
            Err(ApiError::new(Code::NotFound, format!("blob {digest} belongs to no task here")))
        }
    }
}

/// Sends a blob whose bytes have just been checked against their digest.
pub(super) async fn send_blob(app: &App, digest: Digest) -> ApiResult<Response> {
    let blobs = app.host().blobs().clone();
    let mut response = match blocking(move || blobs.open_checked(digest)).await?? {
        Opened::File(file, length) => send_file(file, length),
        Opened::Bytes(bytes) => Response::new(Body::from(bytes)),
    };
    response.headers_mut().insert(CONTENT_TYPE, BYTES);
    Ok(response)
}
