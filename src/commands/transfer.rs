//! `florin transfer`: sends tokens to another account.

use florin_protocol::{Address, Digest, LedgerInfo, WalletSigner};
use serde_json::json;

use crate::cli::Transfer;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show;

pub(super) fn run(arguments: &Transfer) -> anyhow::Result<Exit> {
    if arguments.amount.is_zero() {
        let message = "the amount is 0 FLN: send at least 0.000000000000000001 FLN";
        return Err(Failure::input("INVALID_ARGUMENT", message).into());
    }
    let market = MarketConnection::connect(&arguments.market)?;
    refuse_contracts(market.client().ledger(), arguments.to)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = market.signing_ledger(&wallet, &arguments.wallet)?;
    let transaction = ledger.transfer(&wallet, arguments.to, arguments.amount)?;
    let transaction = format_transaction(market.client().ledger(), transaction);
    // The transfer is sent already: a failure of this query must not look like a failed transfer,
    // or the user sends it twice.
    let balance = ledger.balance(wallet.address()).ok();
    if arguments.json.json {
        show::json(&json!({ "transaction": transaction, "balance": balance.map(show::units) }))?;
    } else {
        let balance = balance
            .map_or_else(|| "unknown".to_owned(), |balance| format!("{} FLN", show::fln(balance)));
        show::facts(&[
            ("sent", format!("{} FLN to {}", arguments.amount, arguments.to)),
            ("transaction", transaction),
            ("balance", balance),
        ]);
    }
    Ok(Exit::Done)
}

/// Refuses a transfer to one of the market's contracts, because such tokens cannot be recovered.
fn refuse_contracts(place: &LedgerInfo, to: Address) -> anyhow::Result<()> {
    let LedgerInfo::Ethereum(info) = place else { return Ok(()) };
    if ![info.token, info.market, info.registry].contains(&to) {
        return Ok(());
    }
    let message = format!(
        "{to} is one of the market's contracts, and tokens sent to it are lost: budgets, bonds and \
         stakes are deposited by `florin task publish`, `participate` and `provide`"
    );
    Err(Failure::negative("INVALID_ARGUMENT", message).into())
}

/// Formats a transaction id as its ledger does: hashes on Ethereum start with 0x.
fn format_transaction(place: &LedgerInfo, transaction: Digest) -> String {
    match place {
        LedgerInfo::Embedded => transaction.to_string(),
        LedgerInfo::Ethereum(_) => format!("0x{transaction}"),
    }
}
