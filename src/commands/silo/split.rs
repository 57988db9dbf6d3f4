//! `florin silo split`: sets the split of an account's pay in a task.

use florin_ledger::Ledger;
use florin_protocol::{Amount, WalletSigner};
use serde_json::json;

use super::{counted_members, file, members_table};
use crate::cli::SiloSplit;
use crate::commands::wallet;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::show;

pub(super) fn run(arguments: &SiloSplit) -> anyhow::Result<Exit> {
    let members = match &arguments.file {
        Some(path) => file::read(path)?,
        None => file::in_order(arguments.member.clone()).map_err(|wrong| wrong.at("--member"))?,
    };
    let market = MarketConnection::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = market.signing_ledger(&wallet, &arguments.wallet)?;
    let ledger: &dyn Ledger = &*ledger;
    ledger.set_split(&wallet, task, &members)?;
    let account = wallet.address();
    if arguments.json.json {
        show::json(&json!({ "task": task, "account": account, "members": members }))?;
        return Ok(Exit::Done);
    }
    show::sentence(&format!(
        "All pay of {account} in task {} goes to {}, and this cannot be changed:",
        task.short(),
        counted_members(members.len())
    ));
    let of_one: Vec<_> = super::parts(&members, Amount::ZERO, one_florin())?;
    members_table(&of_one, ">of 1 FLN").print();
    show::hint(&format!(
        "Members verify it with: florin silo show --task {} --account {account} --market {}",
        task.short(),
        arguments.market.market
    ));
    Ok(Exit::Done)
}

const fn one_florin() -> Amount {
    Amount::from_units(1_000_000_000_000_000_000)
}
