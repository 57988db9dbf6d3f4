//! Access to finished rounds, in the engine's memory or archived in blobs.

use florin_protocol::Canonical;
use florin_protocol::{Digest, Rejection, RoundNumber, TaskId, UpdateHeader, UpdateReceipt};

use super::body::blocking_holding;
use super::error::{ApiError, ApiResult};
use super::{App, acquire_permit};
use crate::host::archive;
use florin_engine::RoundLocation;
use florin_engine::state::ReportedRound;

/// The verdict on a work record: the units paid, or the reason for none.
type RecordOutcome = Result<u64, Rejection>;

/// Reads a part of a round that has its report.
pub(super) async fn finished_round<T: Send + 'static>(
    app: &App,
    id: TaskId,
    round: RoundNumber,
    take: impl FnOnce(&ReportedRound) -> T + Send + 'static,
) -> ApiResult<T> {
    let found = app.host().read(move |engine, _| {
        engine.reported_round(id, round).map(|found| match found {
            RoundLocation::InMemory(past) => Ok(take(past)),
            RoundLocation::Archived(digest) => Err((digest, take)),
        })
    });
    match found.await?? {
        Ok(taken) => Ok(taken),
        Err((digest, take)) => archived_round(app, digest, take).await,
    }
}

/// Reads a part of an archived round from its blob.
async fn archived_round<T: Send + 'static>(
    app: &App,
    digest: Digest,
    take: impl FnOnce(&ReportedRound) -> T + Send + 'static,
) -> ApiResult<T> {
    let blobs = app.host().blobs().clone();
    let place = acquire_permit(&app.inner.archive_read_permits).await?;
    let read = move || archive::read(&blobs, digest).map(|past| take(&past));
    let read = blocking_holding(place, read).await?;
    // The client asked for a round, not for a blob: a missing blob is an internal error.
    read.map_err(|error| match error {
        florin_store::BlobError::Missing(_) => {
            ApiError::internal("an archived round cannot be read", &error)
        }
        other => other.into(),
    })
}

/// The verdict on a work record of an order; `None` while it is pending.
pub(super) async fn record_outcome(
    app: &App,
    order: Digest,
    record: Digest,
) -> ApiResult<Option<RecordOutcome>> {
    let asked = app.host().read(move |engine, _| {
        let archive =
            engine.find_order(order).and_then(|(task, round)| engine.archive_blob(task, round));
        archive.ok_or_else(|| engine.record_outcome(order, record))
    });
    match asked.await? {
        Ok(digest) => archived_round(app, digest, move |past| past.record_outcome(record)).await,
        Err(verdict) => Ok(verdict),
    }
}

/// The receipt of an update that was accepted in the round archived as this blob.
pub(super) async fn archived_receipt(
    app: &App,
    round: Digest,
    header: &UpdateHeader,
) -> ApiResult<Option<UpdateReceipt>> {
    let (scope, sender, id) = (header.scope, header.sender, header.digest());
    archived_round(app, round, move |past| past.receipt(scope, sender, id)).await
}
