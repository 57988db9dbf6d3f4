//! `florin claim`: drawing what a task owes.

use florin_ledger::{LedgerError, Refusal};
use florin_protocol::{Amount, Signer};
use serde_json::json;

use crate::cli::Claim;
use crate::commands::wallet;
use crate::compose;
use crate::failure::Exit;
use crate::market::Market;
use crate::show;

/// How often a claim is made again because another settlement became final in between.
const TRIES: usize = 5;

pub(super) fn run(arguments: &Claim) -> anyhow::Result<Exit> {
    let market = Market::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let ledger = compose::ledger(&arguments.market.market)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let account = arguments.account.unwrap_or(wallet.address());
    let mut paid = Amount::ZERO;
    for try_ in 1..=TRIES {
        let proof = market.proof(task, account)?;
        if proof.total <= ledger.claimed(task, account)? {
            break; // also where nothing was ever owed: an empty proof proves nothing
        }
        let claim = florin_ledger::Claim { task, account, total: proof.total, proof: proof.proof };
        match ledger.claim(&wallet, &claim) {
            Ok(amount) => {
                paid = amount;
                break;
            }
            Err(LedgerError::Refused(Refusal::BadProof)) if try_ < TRIES => {}
            Err(error) => return Err(error.into()),
        }
    }
    let holds = ledger.balance(account)?;
    if arguments.json.json {
        show::json(&json!({
            "account": account,
            "paid": show::units(paid),
            "wallet": show::units(holds),
        }))?;
    } else if paid.is_zero() {
        anstream::println!("Nothing is owed to {account} now; it holds {} FLN.", show::fln(holds));
        show::hint("Settlements can be claimed once their challenge window is over.");
    } else {
        anstream::println!(
            "{} FLN were paid to {account}; it holds {} FLN.",
            paid,
            show::fln(holds)
        );
    }
    Ok(Exit::Done)
}
