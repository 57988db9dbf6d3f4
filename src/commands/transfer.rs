//! `florin transfer`: tokens to another account.

use florin_protocol::Signer;
use serde_json::json;

use crate::cli::Transfer;
use crate::commands::wallet;
use crate::failure::Exit;
use crate::market::Market;
use crate::show;

pub(super) fn run(arguments: &Transfer) -> anyhow::Result<Exit> {
    let market = Market::connect(&arguments.market)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = market.ledger_of(&wallet, &arguments.wallet)?;
    let transaction = ledger.transfer(&wallet, arguments.to, arguments.amount)?;
    let left = ledger.balance(wallet.address())?;
    if arguments.json.json {
        show::json(&json!({ "transaction": transaction, "left": show::units(left) }))?;
    } else {
        show::facts(&[
            ("sent", format!("{} FLN to {}", arguments.amount, arguments.to)),
            ("transaction", transaction.to_string()),
            ("left", format!("{} FLN", show::fln(left))),
        ]);
    }
    Ok(Exit::Done)
}
