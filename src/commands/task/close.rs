//! `florin task close`: closes a buyer's task.

use std::time::Duration;

use florin_protocol::{CloseRequest, TaskPhase, WalletSigner};
use serde_json::json;

use crate::cli::TaskClose;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show;

/// Timeout of one long poll to the coordinator.
const WAIT: Duration = Duration::from_secs(10);

pub(super) fn run(arguments: &TaskClose) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let id = market.find(&arguments.task)?;
    let mut view = market.task(id)?;
    let wallet = wallet::open(&arguments.wallet)?;
    if view.spec.buyer != wallet.address() {
        let message = format!("only the task's buyer, {}, may close it", view.spec.buyer);
        return Err(Failure::negative("UNAUTHORIZED", message).into());
    }
    if view.phase != TaskPhase::Done {
        market.close(&CloseRequest::sign(market.coordinator().market, &wallet, id)?)?;
        if !arguments.json.json {
            show::hint("Close requested. The current round is completed and settled first.");
        }
    }
    let ledger = market.ledger()?;
    let mut is_announced = arguments.json.json;
    while view.phase != TaskPhase::Done {
        view = market.task_after(id, view.sequence, u64::try_from(WAIT.as_millis())?)?;
        let closes_at = ledger.task(id)?.and_then(|books| books.closes_at);
        if let Some(at) = closes_at.filter(|_| !is_announced) {
            is_announced = true;
            show::hint(&format!("The refund follows after {}.", show::date(at)));
        }
    }
    let refunded = ledger.task(id)?.map(|books| books.refunded).unwrap_or_default();
    if arguments.json.json {
        let refunded = show::units(refunded);
        show::json(&json!({ "task": id, "rounds": view.reported, "refunded": refunded }))?;
    } else {
        show::sentence(&format!(
            "Closed after {} rounds; {} FLN were refunded in total.",
            view.reported,
            refunded.short()
        ));
    }
    Ok(Exit::Done)
}
