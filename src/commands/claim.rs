//! `florin claim`: drawing what a task owes, and proving what it debited, for oneself or for anybody.

use florin_participant::{Drawn, claim};
use florin_protocol::{Address, Amount, Signer};
use serde_json::json;

use crate::cli::Claim;
use crate::commands::wallet;
use crate::failure::Exit;
use crate::market::Market;
use crate::show;

pub(super) fn run(arguments: &Claim) -> anyhow::Result<Exit> {
    let market = Market::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = market.ledger_of(&wallet, &arguments.wallet)?;
    let account = arguments.account.unwrap_or(wallet.address());
    let drawn = claim(&market, &*ledger, &wallet, task, account)?;
    let holds = ledger.balance(account)?;
    if arguments.json.json {
        show::json(&json!({
            "account": account,
            "paid": show::units(drawn.paid),
            "taken": show::units(drawn.taken),
            "total": show::units(drawn.totals.paid),
            "debited": show::units(drawn.totals.debited),
            "wallet": show::units(holds),
        }))?;
    } else {
        anstream::println!("{}", told(account, drawn, holds));
        if drawn.paid.is_zero() && drawn.taken.is_zero() {
            show::hint("Settlements can be claimed once their challenge window is over.");
        }
    }
    Ok(Exit::Done)
}

/// What became of the account, in a sentence. A claim that only takes a debit says so.
fn told(account: Address, drawn: Drawn, holds: Amount) -> String {
    let Drawn { paid, taken, .. } = drawn;
    let holds = show::fln(holds);
    match (paid.is_zero(), taken.is_zero()) {
        (true, true) => format!("Nothing is owed to {account} now; it holds {holds} FLN."),
        (false, true) => format!("{paid} FLN were paid to {account}; it holds {holds} FLN."),
        (true, false) => format!(
            "No pay was due to {account}; {taken} FLN that the task debited were taken from its bond. \
             It holds {holds} FLN."
        ),
        (false, false) => format!(
            "{paid} FLN were paid to {account}, and {taken} FLN that the task debited were taken from \
             its bond; it holds {holds} FLN."
        ),
    }
}
