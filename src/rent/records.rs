//! The records of a lease from a coordinator, folded and checked.

use florin_compute::{LeaseError, OrderView};
use florin_participant::Client;
use florin_protocol::Digest;

use super::{LeaseHistory, LeaseNews};
use crate::failure::Failure;

fn invalid(order: Digest, at: u32, error: &LeaseError) -> Failure {
    let message = format!(
        "the coordinator's record of order {order} is invalid at action {at}: {error}: trust no \
         number of it, and report it to the market"
    );
    Failure::negative("LEASE_RECORD_INVALID", message)
}

/// The history of an order's lease before its first action; `None` before its bids begin.
///
/// # Errors
/// `LEASE_RECORD_INVALID`.
pub(crate) fn opened(view: &OrderView) -> anyhow::Result<Option<LeaseHistory>> {
    let Some(opening) = view.opening() else { return Ok(None) };
    let history = LeaseHistory::open(opening).map_err(|error| invalid(view.id, 0, &error))?;
    Ok(Some(history))
}

/// Adds the next records to a history; waits for one, at most `wait_ms`.
///
/// # Errors
/// `LEASE_RECORD_INVALID`, and those of the request.
pub(crate) fn follow(
    client: &Client,
    history: &mut LeaseHistory,
    wait_ms: u64,
) -> anyhow::Result<Vec<LeaseNews>> {
    let order = history.recorded().opening().order.id();
    let records = client.lease_records(order, history.recorded().length(), wait_ms)?;
    let mut news = Vec::with_capacity(records.len());
    for record in &records {
        let at = history.recorded().length();
        news.push(history.push(record).map_err(|error| invalid(order, at, &error))?);
    }
    Ok(news)
}

/// The whole history of an order's lease; `None` before its bids begin.
///
/// # Errors
/// As [`follow`]; `LEASE_RECORD_INVALID` also for a record that is shorter than stated.
pub(crate) fn history(client: &Client, view: &OrderView) -> anyhow::Result<Option<LeaseHistory>> {
    let Some(mut history) = opened(view)? else { return Ok(None) };
    while history.recorded().length() < view.records {
        if follow(client, &mut history, 0)?.is_empty() {
            let (got, stated) = (history.recorded().length(), view.records);
            let message = format!(
                "the coordinator's record of order {} ends after {got} of {stated} actions",
                view.id
            );
            return Err(Failure::negative("LEASE_RECORD_INVALID", message).into());
        }
    }
    Ok(Some(history))
}
