//! `florin rent statement`: explains deposits, pay and losses of the accounts of an order.

use anyhow::Context;
use florin_compute::OrderMoney;
use serde_json::{Value, json};

use super::earnings;
use crate::cli::RentStatement;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::rent::records;
use crate::rent::{AccountStatement, account_statements};
use crate::show::{self, TextTable};

pub(super) fn run(arguments: &RentStatement) -> anyhow::Result<Exit> {
    if let Some(of) = &arguments.of {
        return earnings::run(arguments, of);
    }
    let order = arguments.order.as_deref().context("clap requires an order or --of")?;
    let market = MarketConnection::connect(&arguments.market)?;
    let view = market.order(market.find_order(order)?)?;
    let id = view.id.short();
    let Some(history) = records::history(&market, &view)? else {
        let message = format!("the bids of order {id} have not begun: only its escrow is locked");
        return Err(Failure::negative("ORDER_NOT_OPEN", message).into());
    };
    let mut statements = account_statements(&history)?;
    if let Some(account) = arguments.account {
        statements.retain(|statement| statement.account == account);
        if statements.is_empty() {
            let message = format!("no record of order {id} mentions {account}");
            return Err(Failure::negative("NOT_FOUND", message).into());
        }
    }
    if arguments.json.json {
        let row = |statement: &AccountStatement| {
            let mut row = statement.to_json();
            row["order"] = json!(view.id);
            row["outcome"] = json!(history.lease().outcome());
            row
        };
        let rows: Vec<Value> = statements.iter().map(row).collect();
        show::json(&rows)?;
        return Ok(Exit::Done);
    }
    let lease = history.lease();
    let state = history
        .ended()
        .unwrap_or_else(|| format!("{}: amounts are still locked", lease.phase().0.name()));
    show::sentence(&format!("Order {id}: {state}."));
    anstream::println!();
    table(&statements).print();
    anstream::println!();
    let sentences = statements.iter().flat_map(AccountStatement::sentences);
    sentences.for_each(|sentence| show::sentence(&sentence));
    match view.money {
        OrderMoney::Cancelled => show::hint(
            "The referee cancelled the settlement: nothing was paid or lost, and escrow and deposits returned.",
        ),
        money if lease.outcome().is_some() && !money.is_final() => show::hint(
            "The ledger releases what returned once the settlement is final; florin balance shows the bonds until then.",
        ),
        _ => {}
    }
    Ok(Exit::Done)
}

fn table(statements: &[AccountStatement]) -> TextTable {
    let mut table = TextTable::new(&[
        "account",
        "part",
        ">deposited, FLN",
        ">paid, FLN",
        ">lost, FLN",
        ">spent, FLN",
        ">returned, FLN",
        ">locked, FLN",
    ]);
    for statement in statements {
        table.row([
            statement.account.short().into(),
            statement.roles.join(", ").into(),
            show::fln(statement.deposited).into(),
            show::fln(statement.paid).into(),
            show::fln(statement.lost).into(),
            show::fln(statement.spent).into(),
            show::fln(statement.returned).into(),
            show::fln(statement.locked).into(),
        ]);
    }
    table
}
