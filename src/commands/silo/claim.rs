//! `florin silo claim`: pays the members of a silo; any wallet may send the claim.

use florin_participant::{claim, claim_fields};
use florin_protocol::WalletSigner;

use super::{counted_members, members_json, members_table, parts, split_of};
use crate::cli::SiloClaim;
use crate::commands::wallet;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::show;

pub(super) fn run(arguments: &SiloClaim) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let account = arguments.account.unwrap_or(wallet.address());
    let ledger = market.signing_ledger(&wallet, &arguments.wallet)?;
    let members = split_of(&*ledger, task, account)?;
    let drawn = claim(&market, &*ledger, &wallet, task, account)?;
    // The claim has paid the last part of the total that it proved.
    let paid = parts(&members, drawn.totals.paid.minus(drawn.paid)?, drawn.totals.paid)?;
    if arguments.json.json {
        let mut fields = claim_fields(&drawn);
        fields["account"] = account.to_string().into();
        fields["members"] = members_json(&paid, "paid");
        show::json(&fields)?;
        return Ok(Exit::Done);
    }
    if drawn.paid.is_zero() {
        show::sentence(&format!("{account} has no pay to claim now."));
    } else {
        let (amount, count) = (drawn.paid.short(), counted_members(members.len()));
        show::sentence(&format!("{amount} FLN were paid to the {count} of {account}:"));
        members_table(&paid, ">paid, FLN").print();
    }
    if !drawn.taken.is_zero() {
        let taken = drawn.taken.short();
        show::sentence(&format!("{taken} FLN were debited from the bond of {account}."));
    }
    Ok(Exit::Done)
}
