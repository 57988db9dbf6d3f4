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
use crate::show::{self, NOTE, TextTable};

pub(super) fn run(arguments: &Balance) -> anyhow::Result<Exit> {
    let account = wallet::account(arguments.account, arguments.wallet.as_deref())?;
    let market = MarketConnection::connect(&arguments.market)?;
    let ledger = market.ledger()?;
    let owns = balance(Some(&market), &*ledger, account, None)?;
    let others = lease_bonds(&market, &*ledger, account);
    if let Err(error) = &others {
        anstream::eprintln!(
            "{NOTE}the bonds of orders and listings cannot be shown: {error:#}{NOTE:#}"
        );
    }
    let is_known = others.is_ok();
    let LeaseBonds { bonds, left_out } = others.unwrap_or_default();
    if arguments.json.json {
        let tasks: Vec<_> = owns.tasks.iter().map(as_json).collect();
        show::json(&json!({
            "account": account,
            "balance": show::units(owns.wallet),
            "stake": show::units(owns.stake.amount),
            "tasks": tasks,
            "leases": is_known.then(|| bonds.iter().map(LeaseBond::to_json).collect::<Vec<_>>()),
            "leases_left_out": left_out,
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
    if !bonds.is_empty() {
        let mut table = TextTable::new(&["order or listing", ">bond, FLN", "returns"]);
        for LeaseBond { kind, id, bond } in &bonds {
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
    if left_out > 0 {
        show::hint(&format!("{left_out} older orders and listings were not asked for."));
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

/// Most orders and listings whose bonds are asked for: each takes a request to the ledger.
const LEASES_ASKED_MAX: usize = 256;

/// The bonds of an account in the newest orders and listings of a market.
#[derive(Default)]
struct LeaseBonds {
    bonds: Vec<LeaseBond>,
    /// Orders and listings beyond the limit.
    left_out: usize,
}

fn lease_bonds(
    market: &MarketConnection,
    ledger: &dyn Ledger,
    account: Address,
) -> anyhow::Result<LeaseBonds> {
    let orders = market.orders()?.into_iter();
    let orders = orders.map(|view| (view.opened, "order", view.id, lease_task(&view.order)));
    let listings = market.listings()?.into_iter().map(|view| {
        let (id, at) = (view.listing.id(), view.listing.last());
        (Some(at), "listing", id, listing_task(id))
    });
    let mut all: Vec<_> = orders.chain(listings).collect();
    all.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
    let left_out = all.len().saturating_sub(LEASES_ASKED_MAX);
    let mut bonds = Vec::new();
    for (_, kind, id, task) in all.into_iter().take(LEASES_ASKED_MAX) {
        let bond = ledger.bond_of(task, account)?;
        if !bond.amount.is_zero() {
            bonds.push(LeaseBond { kind, id, bond });
        }
    }
    Ok(LeaseBonds { bonds, left_out })
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
