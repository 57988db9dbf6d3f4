//! `florin transfer`: tokens to another account.

use florin_protocol::{Address, Digest, LedgerInfo, Signer};
use serde_json::json;

use crate::cli::Transfer;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::Market;
use crate::show;

pub(super) fn run(arguments: &Transfer) -> anyhow::Result<Exit> {
    let market = Market::connect(&arguments.market)?;
    keep_out_of_contracts(market.client().ledger(), arguments.to)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = market.ledger_of(&wallet, &arguments.wallet)?;
    let transaction = ledger.transfer(&wallet, arguments.to, arguments.amount)?;
    let transaction = as_its_ledger_writes(market.client().ledger(), transaction);
    // It is sent, whatever becomes of this question: who hears of a failure would send it again.
    let left = ledger.balance(wallet.address()).ok();
    if arguments.json.json {
        show::json(&json!({ "transaction": transaction, "left": left.map(show::units) }))?;
    } else {
        let left = left
            .map_or_else(|| "unknown now".to_owned(), |left| format!("{} FLN", show::fln(left)));
        show::facts(&[
            ("sent", format!("{} FLN to {}", arguments.amount, arguments.to)),
            ("transaction", transaction),
            ("left", left),
        ]);
    }
    Ok(Exit::Done)
}

/// Refuses what nobody could have back: tokens that one of the market's contracts got by a bare transfer.
fn keep_out_of_contracts(place: &LedgerInfo, to: Address) -> anyhow::Result<()> {
    let LedgerInfo::Ethereum(info) = place else { return Ok(()) };
    if ![info.token, info.market, info.registry].contains(&to) {
        return Ok(());
    }
    let message = format!(
        "{to} is one of the market's contracts: nobody could have the tokens back; budgets, bonds and stakes are put \
         there by `florin task publish`, `participate` and `provide`"
    );
    Err(Failure::no("MEANINGLESS", message).into())
}

/// Explorers and other programs write a transaction's hash on Ethereum with its 0x.
fn as_its_ledger_writes(place: &LedgerInfo, transaction: Digest) -> String {
    match place {
        LedgerInfo::Embedded => transaction.to_string(),
        LedgerInfo::Ethereum(_) => format!("0x{transaction}"),
    }
}
