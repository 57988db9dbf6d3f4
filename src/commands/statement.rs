//! `florin statement`: why an account was paid what it was paid.

use florin_protocol::{Address, Amount, Statement, nats};
use serde_json::json;

use crate::cli;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::Market;
use crate::show::{self, Table};

pub(super) fn run(arguments: &cli::Statement) -> anyhow::Result<Exit> {
    let account = wallet::account(arguments.account, arguments.wallet.as_deref())?;
    let market = Market::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let reports = market.reports(task)?;
    let statements: Vec<Statement> =
        reports.iter().filter_map(|report| Statement::of(report, account)).collect();
    if statements.is_empty() {
        let message = format!(
            "none of the {} reports of task {} mentions {account}",
            reports.len(),
            task.short()
        );
        return Err(Failure::no("NOT_FOUND", message).into());
    }
    if arguments.json.json {
        let rows: Vec<_> = statements.iter().map(as_json).collect();
        show::json(&rows)?;
    } else {
        print(account, &statements)?;
    }
    Ok(Exit::Done)
}

fn as_json(statement: &Statement) -> serde_json::Value {
    json!({
        "round": statement.round,
        "account": statement.account,
        "score_nano": statement.score_nano,
        "error_nano": statement.error_nano,
        "weight": statement.weight.to_string(),
        "payout": show::units(statement.payout),
        "infrastructure": show::units(statement.infrastructure),
        "debit": show::units(statement.debit),
        "why": statement.why,
    })
}

fn print(account: Address, statements: &[Statement]) -> anyhow::Result<()> {
    let mut table =
        Table::new(&[">round", ">score", ">± error", ">weight", ">paid, FLN", ">debited, FLN"]);
    for statement in statements {
        let score = |nano: Option<i128>| nano.map_or("–".to_owned(), nats);
        table.row([
            statement.round.into(),
            score(statement.score_nano.map(i128::from)).into(),
            score(statement.error_nano.map(i128::from)).into(),
            nats(statement.weight.try_into().unwrap_or(i128::MAX)).into(),
            show::fln(statement.payout.plus(statement.infrastructure)?).into(),
            show::fln(statement.debit).into(),
        ]);
    }
    anstream::println!("{account}\n");
    table.print();
    println!();
    for statement in statements {
        anstream::println!("Round {}. {}", statement.round, statement.why);
    }
    let paid = |part: fn(&Statement) -> Amount| Amount::total(statements.iter().map(part));
    anstream::println!(
        "\nTogether {} FLN for data, {} FLN for infrastructure, {} FLN debited.",
        show::fln(paid(|s| s.payout)?),
        show::fln(paid(|s| s.infrastructure)?),
        show::fln(paid(|s| s.debit)?)
    );
    Ok(())
}
