//! `florin task close`: a buyer ends its task.

use std::time::Duration;

use florin_protocol::{CloseRequest, Phase, Signer};

use crate::cli::TaskClose;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::Market;
use crate::show;

/// How long one question to the coordinator may wait.
const WAIT: Duration = Duration::from_secs(10);

pub(super) fn run(arguments: &TaskClose) -> anyhow::Result<Exit> {
    let market = Market::connect(&arguments.market)?;
    let id = market.find(&arguments.task)?;
    let mut view = market.task(id)?;
    let wallet = wallet::open(&arguments.wallet)?;
    if view.spec.buyer != wallet.address() {
        let message = format!("only its buyer, {}, may close it", view.spec.buyer);
        return Err(Failure::no("NOT_ALLOWED", message).into());
    }
    if view.phase != Phase::Done {
        market.close(&CloseRequest::sign(market.coordinator().market, &wallet, id)?)?;
        show::hint("Asked. The running round is finished and settled first.");
    }
    while view.phase != Phase::Done {
        view = market.task_after(id, view.sequence, u64::try_from(WAIT.as_millis())?)?;
    }
    let refunded = market.ledger()?.task(id)?.map(|books| books.refunded);
    anstream::println!(
        "Closed after {} rounds; {} FLN were refunded in all.",
        view.reported,
        show::fln(refunded.unwrap_or_default())
    );
    Ok(Exit::Done)
}
