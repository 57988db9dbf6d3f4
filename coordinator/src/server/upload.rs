//! Uploads of updates: validated while they arrive, streamed to disk, and resumable after a broken
//! connection.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use florin_protocol::limits::HEADER_BYTES_MAX;
use florin_protocol::{
    Canonical, Digest, ErrorCode, Rejection, TaskId, TaskSpec, Timestamp, UpdateHeader,
    UpdateReceipt, UploadProgress, UploadReceipt,
};
use florin_store::MappedBytes;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::body::{IncomingBody, blocking, blocking_holding};
use super::error::{ApiError, ApiResult};
use super::extract::{PathParams, Verified, check_task, read_signed, verify_and_query};
use super::header_check::HeaderCheck;
use super::resumable_upload::{parse_offset, start_or_resume, with_offset};
use super::{App, MemoryPool, finished_rounds};
use crate::trace;
use florin_engine::{Engine, Event, EventStatus};
use florin_store::BlobError;
use florin_store::pack::PACKED_BYTES_MAX;
use florin_store::uploads::{Upload, UploadKey, UploadOwner, UploadRequest};

/// Receives an update: the length of the signed header, the header, then the delta's bytes from the
/// request's offset on.
pub(super) async fn post_update(
    State(app): State<App>,
    PathParams(task): PathParams<TaskId>,
    request: Request,
) -> Response {
    let header_bytes = HEADER_BYTES_MAX as u64;
    let offset = parse_offset(request.headers());
    let incoming = IncomingBody::new(request.into_body(), app.config(), header_bytes);
    let mut taking = UpdateUpload { app: &app, task, incoming, resumable_key: None };
    let taken = match offset {
        Ok(offset) => taking.receive(offset).await,
        Err(error) => Err(error),
    };
    // Drain the rest of the body, so that the client receives the response and not a connection
    // reset.
    taking.incoming.drain().await;
    match (taken, taking.resumable_key) {
        (Ok(receipt), _) => Json(receipt).into_response(),
        (Err(error), Some(key)) => with_offset(error, app.host().partials().bytes_of(&key)),
        (Err(error), None) => error.into_response(),
    }
}

/// The offset of an update's upload: where its sender resumes.
pub(super) async fn get_offset(
    State(app): State<App>,
    PathParams(task): PathParams<TaskId>,
    header: Verified<UpdateHeader>,
) -> ApiResult<Json<UploadProgress>> {
    let signed = header.into_signed();
    check_task(signed.body.scope.task, task)?;
    let header = signed.body.clone();
    let (round, sender) = (header.scope.round, header.sender);
    let asked = app.host().read(move |engine, now| {
        let refused = engine.permanent_rejection(task, round, sender);
        (engine.check(&Event::Revealed(signed), now), refused, engine.archive_blob(task, round))
    });
    let (verdict, refused, archive) = asked.await?;
    let bytes = header.bytes;
    let taken = match archive {
        Some(blob) => finished_rounds::archived_receipt(&app, blob, &header).await?.is_some(),
        None => false,
    };
    if taken || verdict? == EventStatus::Duplicate {
        return Ok(Json(UploadProgress { offset: bytes, bytes }));
    }
    if let Some(code) = refused {
        let message =
            "this update was rejected for its content, and a commit is to exactly one update";
        return Err(ApiError::new(code, message));
    }
    let offset = app.host().partials().bytes_of(&upload_key(&header));
    Ok(Json(UploadProgress { offset, bytes }))
}

fn upload_key(header: &UpdateHeader) -> UploadKey {
    let whose = UploadOwner::Sender(header.scope.round, header.sender);
    UploadKey { task: header.scope.task, owner: whose, digest: header.update }
}

/// How the upload of an update ended.
enum UploadOutcome {
    /// This connection completed it.
    Accepted(UpdateReceipt),
    /// Another connection completed it.
    CompletedElsewhere,
}

/// An upload of an update.
struct UpdateUpload<'a> {
    app: &'a App,
    task: TaskId,
    incoming: IncomingBody,
    /// The partial that stays for a later request if this one breaks off.
    resumable_key: Option<UploadKey>,
}

impl UpdateUpload<'_> {
    async fn receive(&mut self, offset: u64) -> ApiResult<UploadReceipt> {
        let app = self.app;
        let signed = read_signed(&mut self.incoming, HEADER_BYTES_MAX).await?;
        let (event, path) = (Event::Revealed(signed.clone()), self.task);
        let asked_round = signed.body.scope.round;
        let asked = event.clone();
        let (verified, known) = verify_and_query(app, signed, move |engine, now| {
            let spec = engine.state().tasks.get(&path).map(|task| task.spec.clone());
            let archive = engine.archive_blob(path, asked_round);
            (engine.check(&asked, now).map(|verdict| (verdict, spec)), archive)
        })
        .await?;
        check_task(verified.body().scope.task, path)?;
        let header = verified.into_signed().body;
        let (known, archive) = known;
        if let Some(archive) = archive
            && let Some(receipt) = finished_rounds::archived_receipt(app, archive, &header).await?
        {
            return app.sign_receipt(receipt);
        }
        let (verdict, spec) = known?;
        if verdict == EventStatus::New
            && let Some(spec) = spec
        {
            let store = self.store(&spec, &header, event, offset);
            match store.instrument(trace::receive_update(&header)).await {
                Ok(UploadOutcome::Accepted(receipt)) => return app.sign_receipt(receipt),
                Ok(UploadOutcome::CompletedElsewhere) => {}
                Err(error) => {
                    record_rejection(app, &header, &error.0).await;
                    return Err(error);
                }
            }
        }
        let receipt = require_receipt(app.host().read(receipt_query(&header)).await?)?;
        app.sign_receipt(receipt)
    }

    /// Receives the bytes, validates and stores them and sends the event to the engine.
    async fn store(
        &mut self,
        spec: &TaskSpec,
        header: &UpdateHeader,
        event: Event,
        offset: u64,
    ) -> ApiResult<UploadOutcome> {
        let _slot = self.app.upload_slot(header.sender)?;
        if header.bytes <= PACKED_BYTES_MAX as u64 {
            if offset != 0 {
                let message = "an update this small cannot be resumed: start at offset 0";
                return Err(ApiError::new(ErrorCode::WrongOffset, message));
            }
            let receipt = self.store_small(spec, header, event).await?;
            return require_receipt(receipt).map(UploadOutcome::Accepted);
        }
        let key = upload_key(header);
        self.resumable_key = Some(key);
        let wanted = UploadRequest { key, bytes: header.bytes, offset, resumable: true };
        let signed = header.clone();
        let begun = start_or_resume(self.app, wanted, move |engine, _| {
            engine.receipt(signed.scope, signed.sender, signed.digest()).is_none()
        });
        let Some(upload) = begun.await? else {
            return Ok(UploadOutcome::CompletedElsewhere);
        };
        // Hold the lease until the receipt exists: another connection with the same bytes waits for
        // it and does not send them again.
        let _turn = self.store_large(spec, header, upload).await?;
        let receipt = self.app.host().write_then(event, receipt_query(header)).await?;
        require_receipt(receipt).map(UploadOutcome::Accepted)
    }

    async fn store_small(
        &mut self,
        spec: &TaskSpec,
        header: &UpdateHeader,
        event: Event,
    ) -> ApiResult<Option<UpdateReceipt>> {
        let app = self.app;
        self.incoming.set_time_limit(app.config().body_timeout(header.bytes));
        let mut writer = self.incoming.write_to(app.host().blobs(), header.bytes).await?;
        check_complete(writer.bytes(), || writer.digest(), header)?;
        trace::update_received(header);
        let _room = app.reserve_memory(MemoryPool::Updates, header.bytes).await?;
        // Validation takes less time than waking another thread.
        florin_work::inspect_update(spec, &writer.read_back()?)?;
        let (later, outcome) = app.host().defer(event, receipt_query(header));
        let (failed, mut failure) = oneshot::channel();
        let runtime = Handle::current();
        // The thread that makes the blob durable sends the event, which saves a wake-up of this
        // task.
        let done = move |stored: Result<Digest, BlobError>| match stored {
            Ok(_) => {
                if let Err(later) = later.try_send() {
                    runtime.spawn(later.send());
                }
            }
            Err(error) => {
                // The receiver is gone if the client has disconnected.
                let _ = failed.send(error);
            }
        };
        app.host().blobs().store_then(writer, Box::new(done));
        let reply = outcome.recv().instrument(trace::store_update(header)).await;
        match (reply, failure.try_recv()) {
            (_, Ok(error)) => Err(error.into()),
            (reply, Err(_)) => Ok(reply?),
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
        self.incoming.set_time_limit(app.config().body_timeout(left));
        let mut head = HeaderCheck::for_update(spec, bytes);
        let (upload, head) = blocking(move || -> ApiResult<_> {
            head.inspect_stored(&mut upload)?;
            Ok((upload, head))
        })
        .await??;
        let mut upload = self.incoming.append_to(upload, bytes, head).await?;
        if let Err(error) = check_complete(upload.bytes(), || upload.digest(), header) {
            if error.0.code == ErrorCode::CommitMismatch {
                upload.discard();
            }
            return Err(error);
        }
        trace::update_received(header);
        let held = (
            app.reserve_memory(MemoryPool::Updates, bytes).await?,
            app.large_store_permit().await?,
        );
        let (spec, blobs) = (spec.clone(), app.host().blobs().clone());
        let stored = blocking_holding(held, move || -> ApiResult<Box<Upload>> {
            let all = MappedBytes::file(upload.file()?).map_err(BlobError::from)?;
            if let Err(rejection) = florin_work::inspect_update(&spec, &all) {
                upload.discard();
                return Err(rejection.into());
            }
            drop(all);
            blobs.store(upload.take_blob(&blobs)?)?;
            Ok(upload)
        });
        stored.instrument(trace::store_update(header)).await?
    }
}

/// Checks that all bytes have arrived and match the committed digest.
fn check_complete(
    received: u64,
    digest: impl FnOnce() -> Digest,
    header: &UpdateHeader,
) -> ApiResult<()> {
    if received < header.bytes {
        let message =
            format!("only {received} of {} bytes arrived: resume the upload", header.bytes);
        return Err(ApiError::new(ErrorCode::Truncated, message));
    }
    let digest = digest();
    if digest == header.update {
        return Ok(());
    }
    let message = format!("the bytes hash to {digest}, not to the header's digest");
    Err(ApiError::new(ErrorCode::CommitMismatch, message))
}

/// Records a rejection that is the sender's fault, for the round's report.
async fn record_rejection(app: &App, header: &UpdateHeader, why: &Rejection) {
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
    let event = Event::UploadRejected {
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
fn receipt_query(
    header: &UpdateHeader,
) -> impl FnOnce(&Engine, Timestamp) -> Option<UpdateReceipt> + use<> {
    let (scope, sender, id) = (header.scope, header.sender, header.digest());
    move |engine, _| engine.receipt(scope, sender, id)
}

/// The receipt of an update that the engine has just accepted.
fn require_receipt(receipt: Option<UpdateReceipt>) -> ApiResult<UpdateReceipt> {
    receipt
        .ok_or_else(|| ApiError::internal("a receipt is missing", &"the update was just accepted"))
}
