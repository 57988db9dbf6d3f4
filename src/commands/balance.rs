//! `florin balance`: what an account holds, wherever it lies.

use florin_ledger::Ledger;
use florin_participant::ClientError;
use florin_protocol::{Address, Amount, Code, TaskId};
use serde_json::json;

use crate::cli::Balance;
use crate::commands::wallet;
use crate::compose;
use crate::failure::Exit;
use crate::market::Market;
use crate::show::{self, Table};

/// An account's part in one task.
struct InTask {
    id: TaskId,
    name: String,
    bond: Amount,
    claimed: Amount,
    /// Final, but not claimed yet.
    owed: Amount,
}

pub(super) fn run(arguments: &Balance) -> anyhow::Result<Exit> {
    let account = wallet::account(arguments.account, arguments.wallet.as_deref())?;
    let market = Market::connect(&arguments.market)?;
    let ledger = compose::ledger(&arguments.market.market)?;
    let free = ledger.balance(account)?;
    let stake = ledger.stake_of(account)?.amount;
    let tasks = in_tasks(&market, &*ledger, account)?;
    if arguments.json.json {
        let rows: Vec<_> = tasks
            .iter()
            .map(|task| {
                json!({
                    "task": task.id,
                    "bond": show::units(task.bond),
                    "claimed": show::units(task.claimed),
                    "owed": show::units(task.owed),
                })
            })
            .collect();
        show::json(&json!({
            "account": account,
            "wallet": show::units(free),
            "stake": show::units(stake),
            "tasks": rows,
        }))?;
        return Ok(Exit::Done);
    }
    show::facts(&[
        ("account", account.to_string()),
        ("wallet", format!("{} FLN", show::fln(free))),
        ("stake", format!("{} FLN", show::fln(stake))),
    ]);
    let mut table = Table::new(&["task", "name", ">bond, FLN", ">claimed, FLN", ">owed, FLN"]);
    for task in &tasks {
        table.row([
            task.id.short().into(),
            task.name.as_str().into(),
            show::fln(task.bond).into(),
            show::fln(task.claimed).into(),
            show::fln(task.owed).into(),
        ]);
    }
    if !table.is_empty() {
        println!();
        table.print();
    }
    Ok(Exit::Done)
}

fn in_tasks(market: &Market, ledger: &dyn Ledger, account: Address) -> anyhow::Result<Vec<InTask>> {
    let mut found = Vec::new();
    for task in market.tasks()? {
        let bond = ledger.bond_of(task.id, account)?.amount;
        let claimed = ledger.claimed(task.id, account)?;
        let total = proven(market, task.id, account)?;
        if bond.is_zero() && claimed.is_zero() && total.is_zero() {
            continue;
        }
        // A claim between the two questions leaves less owed than claimed: nothing is owed then.
        let owed = total.minus(claimed).unwrap_or_default();
        found.push(InTask { id: task.id, name: task.name, bond, claimed, owed });
    }
    Ok(found)
}

/// What final settlements owe an account in all; nothing while none is final.
fn proven(market: &Market, task: TaskId, account: Address) -> anyhow::Result<Amount> {
    match market.proof(task, account) {
        Err(ClientError::Rejected(no)) if no.code == Code::NotYetPublic => Ok(Amount::ZERO),
        other => Ok(other?.total),
    }
}
