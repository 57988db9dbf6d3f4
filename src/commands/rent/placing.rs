//! The steps by which an order is placed: escrow, opening and upload. Each is idempotent.

use anyhow::Context;
use florin_compute::{ComputeOrder, OrderRequest, OrderView};
use florin_ledger::{Ledger, LedgerError, Refusal, Terms};
use florin_participant::{Backoff, DepositPending, Shutdown, retry_with_backoff};
use florin_protocol::{ErrorCode, WalletSigner};

use crate::failure::Failure;
use crate::market::MarketConnection;
use crate::progress::Progress;
use crate::show::NOTE;
use crate::task_file::order::OrderDraft;

/// Where an order is placed, and by whose wallet.
pub(crate) type Placement<'a> = (&'a MarketConnection, &'a dyn Ledger, &'a dyn WalletSigner);

/// The view of an order that was opened before. Asks the coordinator for its refusal before any tokens are
/// locked: it checks an order before it looks for the escrow.
///
/// # Errors
/// The coordinator's refusal, and those of any request.
pub(crate) fn opened_before(
    market: &MarketConnection,
    request: &OrderRequest,
) -> anyhow::Result<Option<OrderView>> {
    match market.open_order(request) {
        Err(error) if error.rejection().is_some_and(|r| r.code == ErrorCode::NotFunded) => Ok(None),
        asked => Ok(Some(asked?)),
    }
}

/// Opens the escrow of an order, unless it is open.
///
/// # Errors
/// `ORDER_ID_TAKEN`, and those of the rules and of the ledger.
pub(crate) fn open_escrow(
    (market, ledger, renter): Placement<'_>,
    order: &ComputeOrder,
    challenge_ms: u64,
) -> anyhow::Result<()> {
    let coordinator = market.coordinator();
    let (id, account, now) = (coordinator.market, coordinator.account, market.now());
    let terms = Terms::from_order(order, id, account, challenge_ms, now);
    let terms = terms.map_err(|error| Failure::input(error.code(), error.to_string()))?;
    match ledger.open_task(renter, &terms) {
        Ok(_) => Ok(()),
        Err(LedgerError::Refused(Refusal::TaskExists(_))) => {
            let opened = ledger.task(terms.task)?.map(|state| state.terms);
            let is_own = opened.is_some_and(|opened| {
                opened.coordinator == account && opened.check_order(order, id, now).is_ok()
            });
            if is_own {
                return Ok(());
            }
            let message = format!(
                "the ledger has an escrow with other terms under the id of the order, {}, or one that \
                 expires too soon: change `nonce` in the file, which makes another order. An escrow \
                 of yours is refunded after its expiry",
                terms.task
            );
            Err(Failure::negative("ORDER_ID_TAKEN", message).into())
        }
        Err(error) => Err(error).context("cannot lock the escrow"),
    }
}

/// Opens an order at the coordinator, with retries until the coordinator sees the escrow.
///
/// # Errors
/// Those of the coordinator that no retry mends.
pub(crate) fn open_with_retries(
    market: &MarketConnection,
    request: &OrderRequest,
    shutdown: &Shutdown,
) -> anyhow::Result<OrderView> {
    let waiting = |why: &DepositPending| anstream::eprintln!("{NOTE}retrying: {why}{NOTE:#}");
    let attempt = || market.open_order(request).map_err(DepositPending);
    let opened = retry_with_backoff(Backoff::default(), shutdown, waiting, attempt);
    Ok(opened.map_err(|DepositPending(error)| error)?)
}

/// Uploads the blobs that the coordinator waits for.
///
/// # Errors
/// `UNKNOWN_BLOB` for one that is none of the job, and those of the coordinator.
pub(crate) fn upload(
    market: &MarketConnection,
    draft: &OrderDraft,
    view: &OrderView,
) -> anyhow::Result<()> {
    for blob in &view.missing {
        let Some(bytes) = draft.blob(blob.digest) else {
            let message = format!(
                "the coordinator waits for blob {}, which is none of the job: report it to the market",
                blob.digest
            );
            return Err(Failure::negative("UNKNOWN_BLOB", message).into());
        };
        Progress::during("uploading the job", || market.put_order_blob(view.id, bytes))?;
    }
    Ok(())
}
