//! `florin balance`: prints an account's balance, bonds, stake and unclaimed earnings.

use florin_participant::{TaskBalance, balance};
use serde_json::json;

use crate::cli::Balance;
use crate::commands::silo::print_split;
use crate::commands::wallet;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::show::{self, TextTable};

pub(super) fn run(arguments: &Balance) -> anyhow::Result<Exit> {
    let account = wallet::account(arguments.account, arguments.wallet.as_deref())?;
    let market = MarketConnection::connect(&arguments.market)?;
    let ledger = market.ledger()?;
    let owns = balance(Some(&market), &*ledger, account, None)?;
    if arguments.json.json {
        let tasks: Vec<_> = owns.tasks.iter().map(as_json).collect();
        show::json(&json!({
            "account": account,
            "balance": show::units(owns.wallet),
            "stake": show::units(owns.stake.amount),
            "tasks": tasks,
        }))?;
        return Ok(Exit::Done);
    }
    show::facts(&[
        ("account", account.to_string()),
        ("balance", format!("{} FLN", show::fln(owns.wallet))),
        ("stake", format!("{} FLN", show::fln(owns.stake.amount))),
    ]);
    let mut table =
        TextTable::new(&["task", ">bond, FLN", ">earned, FLN", ">claimed, FLN", ">claimable, FLN"]);
    for task in &owns.tasks {
        table.row([
            task.task.short().into(),
            show::fln(task.bond.amount).into(),
            show::fln(task.earned).into(),
            show::fln(task.claimed).into(),
            show::fln(task.owed).into(),
        ]);
    }
    if !table.is_empty() {
        anstream::println!();
        table.print();
    }
    for task in &owns.tasks {
        print_split(ledger.split_of(task.task, account)?.len(), task.task, account);
    }
    Ok(Exit::Done)
}

fn as_json(task: &TaskBalance) -> serde_json::Value {
    json!({
        "task": task.task,
        "bond": show::units(task.bond.amount),
        "pledged": task.pledged,
        "earned": show::units(task.earned),
        "claimed": show::units(task.claimed),
        "claimable": show::units(task.owed),
    })
}
