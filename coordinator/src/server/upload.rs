//! Uploads of updates: validated while they arrive, streamed to disk, and resumable after a broken
//! connection.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use florin_protocol::limits::HEADER_BYTES_MAX;
use florin_protocol::{
    Canonical, Digest, ErrorCode, Rejection, Signed, TaskId, TaskSpec, Timestamp, UpdateHeader,
    UpdateReceipt, UploadProgress,
};
use florin_store::MappedBytes;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::body::{Incoming, blocking, blocking_with};
use super::error::{ApiError, ApiResult};
use super::extract::{At, Verified, check_task, verify_and};
use super::resume::{Head, begin, offset_of, with_offset};
use super::{App, Room, past};
use florin_engine::{Engine, Event, Verdict};
use florin_store::BlobError;
use florin_store::pack::PACKED_BYTES_MAX;
use florin_store::partial::{Key, Upload, Wanted, Whose};

/// Receives an update: the length of the signed header, the header, then the delta's bytes from the
/// request's offset on.
pub(super) async fn take_update(
    State(app): State<App>,
    At(task): At<TaskId>,
    request: Request,
) -> Response {
    let header_bytes = HEADER_BYTES_MAX as u64;
    let offset = offset_of(request.headers());
    let incoming = Incoming::new(request.into_body(), app.config(), header_bytes);
    let mut taking = Taking { app: &app, task, incoming, key: None };
    let taken = match offset {
        Ok(offset) => taking.receive(offset).await,
        Err(error) => Err(error),
    };
    // Drain the rest of the body, so that the client receives the response and not a connection
    // reset.
    taking.incoming.drain().await;
    match (taken, taking.key) {
        (Ok(receipt), _) => Json(receipt).into_response(),
        (Err(error), Some(key)) => with_offset(error, app.host().partials().bytes_of(&key)),
        (Err(error), None) => error.into_response(),
    }
}

/// The offset of an update's upload: where its sender resumes.
pub(super) async fn ask_offset(
    State(app): State<App>,
    At(task): At<TaskId>,
    header: Verified<UpdateHeader>,
) -> ApiResult<Json<UploadProgress>> {
    let signed = header.into_signed();
    check_task(signed.body.scope.task, task)?;
    let header = signed.body.clone();
    let (round, sender) = (header.scope.round, header.sender);
    let asked = app.host().read(move |engine, now| {
        let refused = engine.refused_for_good(task, round, sender);
        (engine.check(&Event::Revealed(signed), now), refused, engine.kept(task, round))
    });
    let (verdict, refused, kept) = asked.await?;
    let bytes = header.bytes;
    let taken = match kept {
        Some(kept) => past::receipt(&app, kept, &header).await?.is_some(),
        None => false,
    };
    if taken || verdict? == Verdict::Repeat {
        return Ok(Json(UploadProgress { offset: bytes, bytes }));
    }
    if let Some(code) = refused {
        let message =
            "this update was rejected for its content, and a commit is to exactly one update";
        return Err(ApiError::new(code, message));
    }
    let offset = app.host().partials().bytes_of(&key_of(&header));
    Ok(Json(UploadProgress { offset, bytes }))
}

fn key_of(header: &UpdateHeader) -> Key {
    let whose = Whose::Sender(header.scope.round, header.sender);
    Key { task: header.scope.task, whose, digest: header.update }
}

/// An upload of an update.
struct Taking<'a> {
    app: &'a App,
    task: TaskId,
    incoming: Incoming,
    /// The partial that stays for a later request if this one breaks off.
    key: Option<Key>,
}

impl Taking<'_> {
    async fn receive(&mut self, offset: u64) -> ApiResult<Signed<UpdateReceipt>> {
        let app = self.app;
        let signed = read_header(&mut self.incoming).await?;
        let (event, path) = (Event::Revealed(signed.clone()), self.task);
        let asked_round = signed.body.scope.round;
        let asked = event.clone();
        let (verified, known) = verify_and(app, signed, move |engine, now| {
            let spec = engine.state().tasks.get(&path).map(|task| task.spec.clone());
            let kept = engine.kept(path, asked_round);
            (engine.check(&asked, now).map(|verdict| (verdict, spec)), kept)
        })
        .await?;
        check_task(verified.body().scope.task, path)?;
        let header = verified.into_signed().body;
        let (known, kept) = known;
        if let Some(kept) = kept
            && let Some(receipt) = past::receipt(app, kept, &header).await?
        {
            return Ok(app.node().sign(receipt));
        }
        let (verdict, spec) = known?;
        if verdict == Verdict::New
            && let Some(spec) = spec
        {
            match self.store(&spec, &header, event, offset).await {
                Ok(Some(told)) => return sign_receipt(app, told),
                Ok(None) => {}
                Err(error) => {
                    note_refusal(app, &header, &error.0).await;
                    return Err(error);
                }
            }
        }
        let told = app.host().read(receipt_of(&header)).await?;
        sign_receipt(app, told)
    }

    /// Receives the bytes, validates and stores them and sends the event to the engine. Returns the
    /// engine's receipt; the outer `None` means that another connection completed the upload.
    async fn store(
        &mut self,
        spec: &TaskSpec,
        header: &UpdateHeader,
        event: Event,
        offset: u64,
    ) -> ApiResult<Option<Option<UpdateReceipt>>> {
        let _slot = self.app.upload_slot(header.sender)?;
        if header.bytes <= PACKED_BYTES_MAX as u64 {
            if offset != 0 {
                let message = "an update this small cannot be resumed: start at offset 0";
                return Err(ApiError::new(ErrorCode::WrongOffset, message));
            }
            return self.store_small(spec, header, event).await.map(Some);
        }
        let key = key_of(header);
        self.key = Some(key);
        let wanted = Wanted { key, bytes: header.bytes, offset, kept: true };
        let signed = header.clone();
        let begun = begin(self.app, wanted, move |engine, _| {
            engine.receipt(signed.scope, signed.sender, signed.digest()).is_none()
        });
        let Some(upload) = begun.await? else {
            return Ok(None);
        };
        // Hold the lease until the receipt exists: another connection with the same bytes waits for
        // it and does not send them again.
        let _turn = self.store_large(spec, header, upload).await?;
        Ok(Some(self.app.host().write_then(event, receipt_of(header)).await?))
    }

    async fn store_small(
        &mut self,
        spec: &TaskSpec,
        header: &UpdateHeader,
        event: Event,
    ) -> ApiResult<Option<UpdateReceipt>> {
        let app = self.app;
        self.incoming.allow(app.config().body_time(header.bytes));
        let mut writer = self.incoming.write_to(app.host().blobs(), header.bytes).await?;
        check_arrived(writer.bytes(), || writer.digest(), header)?;
        let _room = app.room_for(Room::Updates, header.bytes).await?;
        // Validation takes less time than waking another thread.
        florin_work::inspect_update(spec, &writer.read_back()?)?;
        let (later, outcome) = app.host().later(event, receipt_of(header));
        let (failed, mut failure) = oneshot::channel();
        let runtime = Handle::current();
        // The thread that makes the blob durable sends the event, which saves a wake-up of this
        // task.
        let done = move |kept: Result<Digest, BlobError>| match kept {
            Ok(_) => {
                if let Err(later) = later.tell() {
                    runtime.spawn(later.tell_in_turn());
                }
            }
            Err(error) => {
                // The receiver is gone if the client has disconnected.
                let _ = failed.send(error);
            }
        };
        app.host().blobs().keep_then(writer, Box::new(done));
        match (outcome.comes().await, failure.try_recv()) {
            (_, Ok(error)) => Err(error.into()),
            (told, Err(_)) => Ok(told?),
        }
    }

    async fn store_large(
        &mut self,
        spec: &TaskSpec,
        header: &UpdateHeader,
        mut upload: Box<Upload>,
    ) -> ApiResult<Box<Upload>> {
        let (app, bytes) = (self.app, header.bytes);
        let left = bytes.saturating_sub(upload.bytes());
        self.incoming.allow(app.config().body_time(left));
        let mut head = Head::of_update(spec, bytes);
        let (upload, head) = blocking(move || -> ApiResult<_> {
            head.look_back(&mut upload)?;
            Ok((upload, head))
        })
        .await??;
        let mut upload = self.incoming.append_to(upload, bytes, head).await?;
        if let Err(error) = check_arrived(upload.bytes(), || upload.digest(), header) {
            if error.0.code == ErrorCode::CommitMismatch {
                upload.discard();
            }
            return Err(error);
        }
        let held = (app.room_for(Room::Updates, bytes).await?, app.keep_turn().await?);
        let (spec, blobs) = (spec.clone(), app.host().blobs().clone());
        let kept = blocking_with(held, move || -> ApiResult<Box<Upload>> {
            let all = MappedBytes::file(upload.file()?).map_err(BlobError::from)?;
            if let Err(rejection) = florin_work::inspect_update(&spec, &all) {
                upload.discard();
                return Err(rejection.into());
            }
            drop(all);
            blobs.keep(upload.take_blob(&blobs)?)?;
            Ok(upload)
        });
        kept.await?
    }
}

/// Checks that all bytes have arrived and match the committed digest.
fn check_arrived(
    came: u64,
    digest: impl FnOnce() -> Digest,
    header: &UpdateHeader,
) -> ApiResult<()> {
    if came < header.bytes {
        let message = format!("only {came} of {} bytes arrived: resume the upload", header.bytes);
        return Err(ApiError::new(ErrorCode::Truncated, message));
    }
    let digest = digest();
    if digest == header.update {
        return Ok(());
    }
    let message = format!("the bytes hash to {digest}, not to the header's digest");
    Err(ApiError::new(ErrorCode::CommitMismatch, message))
}

async fn read_header(incoming: &mut Incoming) -> ApiResult<Signed<UpdateHeader>> {
    let length = incoming.exact(4).await?;
    let length = <[u8; 4]>::try_from(length.as_slice()).map(u32::from_le_bytes);
    let length = usize::try_from(length.unwrap_or(u32::MAX)).unwrap_or(usize::MAX);
    if length > HEADER_BYTES_MAX {
        let message = format!("the header has {length} bytes; at most {HEADER_BYTES_MAX}");
        return Err(ApiError::new(ErrorCode::TooLarge, message));
    }
    let bytes = incoming.exact(length).await?;
    Signed::from_bytes(&bytes)
        .map_err(|error| ApiError::new(ErrorCode::Malformed, error.to_string()))
}

/// Records a rejection that is the sender's fault, for the round's report.
async fn note_refusal(app: &App, header: &UpdateHeader, why: &Rejection) {
    let theirs = matches!(
        why.code,
        ErrorCode::TooLarge
            | ErrorCode::Truncated
            | ErrorCode::CommitMismatch
            | ErrorCode::UpdateNotFinite
            | ErrorCode::UpdateWrongSchema
            | ErrorCode::UpdateNormTooLarge
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
        tracing::debug!(%error, "the rejected upload is not recorded");
    }
}

/// A query for the receipt of an accepted update.
fn receipt_of(
    header: &UpdateHeader,
) -> impl FnOnce(&Engine, Timestamp) -> Option<UpdateReceipt> + use<> {
    let (scope, sender, id) = (header.scope, header.sender, header.digest());
    move |engine, _| engine.receipt(scope, sender, id)
}

fn sign_receipt(app: &App, receipt: Option<UpdateReceipt>) -> ApiResult<Signed<UpdateReceipt>> {
    let receipt = receipt
        .ok_or_else(|| ApiError::fault("a receipt is missing", &"the update was just accepted"))?;
    Ok(app.node().sign(receipt))
}
