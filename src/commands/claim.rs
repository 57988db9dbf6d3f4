//! `florin claim`: drawing what a task owes.

use florin_participant::claim;
use florin_protocol::Signer;
use serde_json::json;

use crate::cli::Claim;
use crate::commands::wallet;
use crate::compose;
use crate::failure::Exit;
use crate::market::Market;
use crate::show;

pub(super) fn run(arguments: &Claim) -> anyhow::Result<Exit> {
    let market = Market::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let ledger = compose::ledger(&arguments.market.market)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let account = arguments.account.unwrap_or(wallet.address());
    let drawn = claim(&market, &*ledger, &wallet, task, account)?;
    let holds = ledger.balance(account)?;
    if arguments.json.json {
        show::json(&json!({
            "account": account,
            "paid": show::units(drawn.amount),
            "total": show::units(drawn.total),
            "wallet": show::units(holds),
        }))?;
    } else if drawn.amount.is_zero() {
        anstream::println!("Nothing is owed to {account} now; it holds {} FLN.", show::fln(holds));
        show::hint("Settlements can be claimed once their challenge window is over.");
    } else {
        let paid = drawn.amount;
        anstream::println!("{paid} FLN were paid to {account}; it holds {} FLN.", show::fln(holds));
    }
    Ok(Exit::Done)
}
