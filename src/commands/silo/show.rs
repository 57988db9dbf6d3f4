//! `florin silo show`: the members of a split, with what they have received and can claim.

use florin_participant::balance;
use florin_protocol::Amount;
use serde_json::json;

use super::{parts, split_of};
use crate::cli::SiloShow;
use crate::commands::wallet;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::show::{self, TextTable, fln, units};

pub(super) fn run(arguments: &SiloShow) -> anyhow::Result<Exit> {
    let account = wallet::account(arguments.account, arguments.wallet.as_deref())?;
    let market = MarketConnection::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let ledger = market.ledger()?;
    let members = split_of(&*ledger, task, account)?;
    let held = balance(Some(&market), &*ledger, account, Some(&[task]))?;
    let totals = held.tasks.first();
    let claimed = totals.map_or(Amount::ZERO, |totals| totals.claimed);
    let earned = totals.map_or(Amount::ZERO, |totals| totals.earned);
    let received = parts(&members, Amount::ZERO, claimed)?;
    let claimable = parts(&members, claimed, earned)?;
    if arguments.json.json {
        let rows = received.iter().zip(&claimable).map(|((each, received), (_, claimable))| {
            json!({
                "member": each.member,
                "share": each.share,
                "received": units(*received),
                "claimable": units(*claimable),
            })
        });
        let rows: Vec<_> = rows.collect();
        show::json(&json!({ "task": task, "account": account, "members": rows }))?;
        return Ok(Exit::Done);
    }
    let mut table = TextTable::new(&["member", ">share", ">received, FLN", ">claimable now, FLN"]);
    for ((each, received), (_, claimable)) in received.iter().zip(&claimable) {
        table.row([
            each.member.into(),
            each.share.into(),
            fln(*received).into(),
            fln(*claimable).into(),
        ]);
    }
    table.print();
    if earned > claimed {
        let short = task.short();
        show::hint(&format!(
            "Any wallet pays it: florin silo claim --task {short} --account {account}"
        ));
    }
    Ok(Exit::Done)
}
