//! Access to finished rounds, in the engine's memory or archived in blobs.

use florin_protocol::Canonical;
use florin_protocol::{Digest, Rejection, RoundNumber, TaskId, UpdateHeader, UpdateReceipt};

use super::body::blocking_with;
use super::error::{ApiError, ApiResult};
use super::{App, turn_of};
use crate::host::archive;
use florin_engine::Found;
use florin_engine::state::Past;

/// The verdict on a work record: the units paid, or the reason for none.
type Verdict = Result<u64, Rejection>;

/// Reads a part of a round that has its report.
pub(super) async fn past<T: Send + 'static>(
    app: &App,
    (id, round): (TaskId, RoundNumber),
    take: impl FnOnce(&Past) -> T + Send + 'static,
) -> ApiResult<T> {
    let found = app.host().read(move |engine, _| {
        engine.past(id, round).map(|found| match found {
            Found::Here(past) => Ok(take(past)),
            Found::Kept(digest) => Err((digest, take)),
        })
    });
    match found.await?? {
        Ok(taken) => Ok(taken),
        Err((digest, take)) => kept(app, digest, take).await,
    }
}

/// Reads a part of an archived round from its blob.
async fn kept<T: Send + 'static>(
    app: &App,
    digest: Digest,
    take: impl FnOnce(&Past) -> T + Send + 'static,
) -> ApiResult<T> {
    let blobs = app.host().blobs().clone();
    let place = turn_of(&app.inner.kept_reads).await?;
    let read = move || archive::read(&blobs, digest).map(|past| take(&past));
    let read = blocking_with(place, read).await?;
    // The client asked for a round, not for a blob: a missing blob is an internal error.
    read.map_err(|error| match error {
        florin_store::BlobError::Missing(_) => {
            ApiError::fault("an archived round cannot be read", &error)
        }
        other => other.into(),
    })
}

/// The verdict on a work record of an order; `None` while it is pending.
pub(super) async fn verdict(
    app: &App,
    order: Digest,
    record: Digest,
) -> ApiResult<Option<Verdict>> {
    let asked = app.host().read(move |engine, _| {
        let kept = engine.find_order(order).and_then(|(task, round)| engine.kept(task, round));
        kept.ok_or_else(|| engine.work_verdict(order, record))
    });
    match asked.await? {
        Ok(digest) => kept(app, digest, move |past| past.verdict(record)).await,
        Err(verdict) => Ok(verdict),
    }
}

/// The receipt of an update that was accepted in the round archived as this blob.
pub(super) async fn receipt(
    app: &App,
    round: Digest,
    header: &UpdateHeader,
) -> ApiResult<Option<UpdateReceipt>> {
    let (scope, sender, id) = (header.scope, header.sender, header.digest());
    kept(app, round, move |past| past.receipt(scope, sender, id)).await
}
