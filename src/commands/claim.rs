//! `florin claim`: withdraws the earnings of a task and applies its debits, for any
//! account.

use florin_participant::{ClaimSummary, claim, claim_fields};
use florin_protocol::{Address, Amount, WalletSigner};

use crate::cli::Claim;
use crate::commands::wallet;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::show;

pub(super) fn run(arguments: &Claim) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = market.signing_ledger(&wallet, &arguments.wallet)?;
    let account = arguments.account.unwrap_or(wallet.address());
    let drawn = claim(&market, &*ledger, &wallet, task, account)?;
    let balance = ledger.balance(account)?;
    if arguments.json.json {
        let mut fields = claim_fields(&drawn);
        fields["account"] = account.to_string().into();
        fields["balance"] = show::units(balance).into();
        show::json(&fields)?;
    } else {
        show::sentence(&summary(account, drawn, balance));
        if drawn.paid.is_zero() && drawn.taken.is_zero() {
            show::hint("A settlement can be claimed after its challenge window.");
        }
    }
    Ok(Exit::Done)
}

/// The result of a claim, in one sentence.
fn summary(account: Address, drawn: ClaimSummary, holds: Amount) -> String {
    let (paid, debited, holds) = (drawn.paid.short(), drawn.taken.short(), holds.short());
    match (drawn.paid.is_zero(), drawn.taken.is_zero()) {
        (true, true) => format!("{account} has nothing to claim now; its balance is {holds} FLN."),
        (false, true) => {
            format!("{paid} FLN were paid to {account}; its balance is {holds} FLN.")
        }
        (true, false) => format!(
            "{account} had no earnings to claim; {debited} FLN were debited from its bond. \
             Its balance is {holds} FLN."
        ),
        (false, false) => format!(
            "{paid} FLN were paid to {account}, and {debited} FLN were debited from its bond; \
             its balance is {holds} FLN."
        ),
    }
}
