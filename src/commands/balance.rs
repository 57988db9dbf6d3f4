//! `florin balance`: prints an account's balance, bonds, stake and unclaimed earnings.

use florin_ledger::{BondState, Ledger, lease_task, listing_task};
use florin_participant::{TaskBalance, balance};
use florin_protocol::{Address, Digest};
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
    let others = lease_bonds(&market, &*ledger, account)?;
    if arguments.json.json {
        let tasks: Vec<_> = owns.tasks.iter().map(as_json).collect();
        show::json(&json!({
            "account": account,
            "balance": show::units(owns.wallet),
            "stake": show::units(owns.stake.amount),
            "tasks": tasks,
            "leases": others.iter().map(LeaseBond::to_json).collect::<Vec<_>>(),
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
    if !others.is_empty() {
        let mut table = TextTable::new(&["order or listing", ">bond, FLN", "returns"]);
        for LeaseBond { kind, id, bond } in &others {
            let returns = match bond.release {
                Some(at) => show::date(at),
                None => "behind its end".to_owned(),
            };
            let name = format!("{kind} {}", id.short());
            table.row([name.into(), show::fln(bond.amount).into(), returns.into()]);
        }
        anstream::println!();
        table.print();
    }
    for task in &owns.tasks {
        print_split(ledger.split_of(task.task, account)?.len(), task.task, account);
    }
    Ok(Exit::Done)
}

/// The bond of an account in an order, or the stake of its listing.
struct LeaseBond {
    kind: &'static str,
    id: Digest,
    bond: BondState,
}

impl LeaseBond {
    fn to_json(&self) -> serde_json::Value {
        json!({
            "kind": self.kind,
            "id": self.id,
            "bond": show::units(self.bond.amount),
            "release": self.bond.release,
        })
    }
}

/// The bonds of an account in the orders and listings of a market.
fn lease_bonds(
    market: &MarketConnection,
    ledger: &dyn Ledger,
    account: Address,
) -> anyhow::Result<Vec<LeaseBond>> {
    let orders = market.orders()?.into_iter().map(|view| {
        let task = lease_task(&view.order);
        ("order", view.id, task)
    });
    let listings = market.listings()?.into_iter().map(|view| {
        let id = view.listing.id();
        ("listing", id, listing_task(id))
    });
    let mut found = Vec::new();
    for (kind, id, task) in orders.chain(listings) {
        let bond = ledger.bond_of(task, account)?;
        if !bond.amount.is_zero() {
            found.push(LeaseBond { kind, id, bond });
        }
    }
    Ok(found)
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
